"""What came of each part of a torture run: appended to a state file as it goes, so that a run can be resumed.

A part that passed is not run again for the same code. Time is shared by all suites: when it is up, no part is wanted
any more.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

Check = Callable[[int], str | None]
"""Runs one seed; returns what went wrong, None when nothing did."""
ROOT = Path(__file__).parent.parent.parent
TESTED = ("src", "tests", "pyproject.toml")
"""What a result depends on."""


@dataclass(frozen=True)
class Part:
    """One finished part of a test."""

    code: str
    test: str
    part: str
    tried: int
    passed: int
    details: list[str] = field(default_factory=list)


class State:
    """The finished parts, in a file of one line each."""

    def __init__(self, path: Path, code: str) -> None:
        self._path = path
        self._code = code
        self.parts: dict[tuple[str, str], Part] = {}
        if path.exists():
            found = (Part(**json.loads(line)) for line in path.read_text().splitlines() if line)
            self.parts = {(one.test, one.part): one for one in found if one.code == code}

    def add(self, test: str, part: str, tried: int, passed: int, details: Sequence[str]) -> Part:
        done = Part(self._code, test, part, tried, passed, list(details)[:5])
        self.parts[test, part] = done
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(done)) + "\n")
        return done


class Report:
    """What a suite is given: which parts are wanted, and where to say what came of them."""

    def __init__(self, test: str, state: State, deadline: float, say: Callable[[str], None] = print) -> None:
        self.test = test
        self._state = state
        self._deadline = deadline
        self._say = say
        self._seen: set[str] = set()

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self._deadline

    def wanted(self, part: str) -> bool:
        """Whether to run a part: it has not passed yet, for this code, and there is time left."""
        self._seen.add(part)
        known = self._state.parts.get((self.test, part))
        return not self.out_of_time and (known is None or known.passed < known.tried)

    def note(self, part: str, tried: int, passed: int, details: Sequence[str] = ()) -> None:
        """A part is finished: so many cases tried, so many passed, and what went wrong with the others."""
        self._seen.add(part)
        self._state.add(self.test, part, tried, passed, details)
        for detail in details[:5]:
            self._say(f"  test {self.test}, {part}: {detail}")

    def finished(self) -> list[Part]:
        """Parts of this run that are done, now or earlier."""
        return [
            self._state.parts[self.test, part]
            for part in sorted(self._seen)
            if (self.test, part) in self._state.parts
        ]


def over_seeds(
    report: Report, check: Check, count: int, seed: int, chunk: int = 50, workers: int | None = None
) -> None:
    """Run `check` for `count` seeds from `seed` on, in chunks that are parts, on all cores."""
    chunks = [range(first, min(first + chunk, seed + count)) for first in range(seed, seed + count, chunk)]
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        for seeds in chunks:
            part = f"seeds {seeds.start} to {seeds.stop - 1}"
            if report.wanted(part):
                found = list(pool.map(check, seeds, chunksize=max(1, len(seeds) // 16)))
                wrong = [
                    f"seed {one}: {what}" for one, what in zip(seeds, found, strict=True) if what is not None
                ]
                report.note(part, len(found), len(found) - len(wrong), wrong)


def code_now() -> str:
    """Name the code as it stands: the last commit that touched what is tested, and a hash of what was changed since.

    Pages and notes are no part of it: a result is still good after they were written.
    """

    def git(*command: str) -> str:
        ran = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
        return ran.stdout if ran.returncode == 0 else ""

    changed = git("diff", "HEAD", "--", *TESTED)
    fresh = git("ls-files", "--others", "--exclude-standard", "--", "src", "tests").splitlines()
    for name in fresh:
        changed += name + (ROOT / name).read_text(errors="replace")
    suffix = "+" + hashlib.blake2b(changed.encode(), digest_size=4).hexdigest() if changed else ""
    return (git("log", "-1", "--abbrev=12", "--format=%h", "--", *TESTED).strip() or "no-commit") + suffix


def chunks_of(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
