"""Ways to damage a checkpoint, and the judgement: a start must refuse the file by name or give the very same results.

Used by the tests at small counts and by the torture suites at full ones. Damages copies only.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from tests.faults.runs import Outcome, Result, copy_with, fast_disk, make_run, start_on

from penstock.dataplane import paths, recordlog
from penstock.dataplane.disk import is_temp
from penstock.dataplane.frames import FrameKind, frame_size, scan_frames
from penstock.errors import CheckpointError
from penstock.sim.programs import memory_program
from penstock.testing.line import CheckFailure
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

ADVISORY = ("drivers/heartbeat",)
"""Guards against accidents only: its damage need not be noticed."""
FLIP_KINDS = (
    "base",
    "record",
    "last record",
    "segment",
    "delta",
    "snapshot",
    "claim",
    "meta",
    "newest",
    "heartbeat",
)
MUST_REFUSE = ("base", "record", "last record", "meta", "newest")


@dataclass
class Tally:
    """How many cases were tried, and what was wrong with those that failed."""

    tried: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> int:
        return self.tried - len(self.failures)

    def add(self, name: str, fault: str | None, refused: bool) -> None:
        self.tried += 1
        self.refused += refused
        if fault is not None:
            self.failures.append(f"{name}: {fault}")


class Bench:
    """One crashed run, what it leads to when nothing is damaged, and room for damaged copies."""

    def __init__(self, folder: Path, seed: int = 37) -> None:
        self.folder = folder
        self.run = make_run(folder, memory_program(), seed=seed)
        self.files = sorted(
            str(path.relative_to(self.run.checkpoint))
            for path in Path(self.run.checkpoint).rglob("*")
            if path.is_file() and not is_temp(path.name)
        )
        self._count = 0
        whole = self.start({})
        assert whole.result is not None, whole.error
        self.expected: Result = whole.result

    def read(self, name: str) -> bytes:
        return Path(self.run.checkpoint, name).read_bytes()

    def newest_log(self) -> str:
        return max(name for name in self.files if name.endswith(".log"))

    def start(self, replaced: dict[str, bytes | None]) -> Outcome:
        checkpoint = self.place(replaced)
        return start_on(checkpoint, self.run, self.folder / f"node{self._count}")

    def place(self, replaced: dict[str, bytes | None]) -> str:
        self._count += 1
        return copy_with(self.run, self.folder / f"copy{self._count}", replaced)

    def judge(self, damaged: list[str], outcome: Outcome) -> str | None:
        """Say what is wrong with an outcome, None when it was refused by name or gave the same results."""
        if outcome.overwritten:
            return f"files were overwritten: {outcome.overwritten}"
        if outcome.error is not None:
            if outcome.refused_by_name(*damaged):
                return None
            return f"ended with {type(outcome.error).__name__}, which names no damaged file: {outcome.error}"
        return None if outcome.result == self.expected else "was accepted silently and gave other results"


def bench_with_every_kind(folder: Path, seed: int) -> Bench:
    """Return the run of the first seed from `seed` on that left a frame of every kind; which seed depends on the code."""
    for tried in range(seed, seed + 20):
        home = folder / f"seed{tried}"
        home.mkdir()
        bench = Bench(home, tried)
        if all(frames_of(bench, kind) for kind in FLIP_KINDS):
            return bench
    raise AssertionError(f"no run of seeds {seed} to {seed + 19} left a frame of every kind")


def frames_of(bench: Bench, kind: str) -> list[tuple[str, int, int]]:
    """Return (file, offset, size) of every frame of a kind; logs: the newest part, which a start reads."""
    if kind in ("claim", "meta", "newest", "heartbeat"):
        names = {
            "claim": "drivers/g000002.claim",
            "meta": "meta",
            "newest": "log/newest",
            "heartbeat": "drivers/heartbeat",
        }
        return [(names[kind], 0, len(bench.read(names[kind])))]
    if kind in ("base", "record", "last record"):
        log = bench.newest_log()
        found = _scan(bench, log)
        chosen = {"base": found[:1], "record": found[1:-1], "last record": found[-1:]}[kind]
        return [(log, offset, size) for _, offset, size in chosen]
    wanted = FrameKind[kind.upper()]
    live = [f"data/{name}" for name in bench.run.live]
    return [
        (name, offset, size) for name in live for found, offset, size in _scan(bench, name) if found is wanted
    ]


def _scan(bench: Bench, name: str) -> list[tuple[FrameKind, int, int]]:
    return [(f.kind, f.offset, frame_size(f.payload.size)) for f in scan_frames(bench.read(name), name)]


def flip_bits(bench: Bench, kind: str, count: int, seed: int = 0) -> Tally:
    """Flip one bit at `count` positions in frames of one kind, one at a time."""
    rng = random.Random(f"{kind} {seed}")
    frames = frames_of(bench, kind)
    assert frames, f"the run has no {kind} frame"
    tally = Tally()
    for _ in range(count):
        name, offset, size = rng.choice(frames)
        at, bit = offset + rng.randrange(size), rng.randrange(8)
        data = bytearray(bench.read(name))
        data[at] ^= 1 << bit
        outcome = bench.start({name: bytes(data)})
        fault = bench.judge([name], outcome)
        if fault is None and kind in MUST_REFUSE and outcome.error is None:
            fault = "was not refused though a start needs every byte of it"
        tally.add(f"bit {bit} of byte {at} of {name} ({kind})", fault, outcome.error is not None)
    return tally


def cut_log(bench: Bench, positions: list[int]) -> Tally:
    """Cut the newest log part at byte positions: refused, or an earlier state that leads to the same rows of each key."""
    name = bench.newest_log()
    data = bench.read(name)
    base_size = _scan(bench, name)[0][2]
    whole = recordlog.read_tail(fast_disk(), bench.run.checkpoint)
    encoded = [raw for _, raw in whole.records]
    tally = Tally()
    judged: dict[int, str | None] = {}
    for at in positions:
        checkpoint = bench.place({name: data[:at]})
        fault: str | None = None
        try:
            tail = recordlog.read_tail(fast_disk(), checkpoint)
        except CheckpointError as error:
            fault = (
                None if os.path.basename(name) in str(error) else f"refused without naming the file: {error}"
            )
            if at >= base_size:
                fault = f"a cut-off append was taken for damage: {error}"
            tally.add(f"{name} cut at {at}", fault, True)
            continue
        got = [raw for _, raw in tail.records]
        if at < base_size or got != encoded[: len(got)]:
            fault = "read as something that was never committed"
        elif len(got) not in judged:
            judged[len(got)] = _judge_earlier(bench, checkpoint)  # a start sees nothing but the records
            fault = judged[len(got)]
        else:
            fault = judged[len(got)]
        tally.add(f"{name} cut at {at}", fault, False)
    return tally


def _judge_earlier(bench: Bench, checkpoint: str) -> str | None:
    outcome = start_on(checkpoint, bench.run, bench.folder / f"node-{os.path.basename(checkpoint)}")
    if outcome.error is not None:
        return f"an earlier state was refused: {outcome.error}"
    if outcome.overwritten:
        return f"files were overwritten: {outcome.overwritten}"
    if outcome.result is None or not outcome.result.same_rows(bench.expected):
        return "an earlier state led to other rows"
    try:
        check_schedule(checkpoint, memory_program(), complete=True, disk=fast_disk())
        replay(checkpoint, memory_program(), disk=fast_disk())
    except CheckFailure as error:
        return f"an earlier state led to a wrong schedule: {error}"
    return None


def cut_file(bench: Bench, name: str, positions: list[int]) -> Tally:
    """Cut any file at byte positions."""
    tally = Tally()
    data = bench.read(name)
    for at in positions:
        outcome = bench.start({name: data[:at]})
        tally.add(f"{name} cut at {at}", bench.judge([name], outcome), outcome.error is not None)
    return tally


def delete_files(bench: Bench) -> Tally:
    """Delete every file, one at a time."""
    tally = Tally()
    for name in bench.files:
        outcome = bench.start({name: None})
        fault = bench.judge([name], outcome)
        if fault is None and outcome.error is None and name == bench.newest_log():
            fault = "was not missed, and an older part was taken for the newest"
        tally.add(f"{name} deleted", fault, outcome.error is not None)
    return tally


def swap_files(bench: Bench, limit: int | None = None, seed: int = 0) -> Tally:
    """Exchange every two files, or `limit` pairs drawn at random."""
    pairs = list(combinations(bench.files, 2))
    if limit is not None:
        pairs = random.Random(seed).sample(pairs, min(limit, len(pairs)))
    tally = Tally()
    for left, right in pairs:
        outcome = bench.start({left: bench.read(right), right: bench.read(left)})
        tally.add(
            f"{left} swapped with {right}", bench.judge([left, right], outcome), outcome.error is not None
        )
    return tally


def stale_files(bench: Bench) -> Tally:
    """Replace every file by the version it had some time before; an older log is an earlier state."""
    tally = Tally()
    early = Path(bench.run.early)
    for path in sorted(early.rglob("*")):
        name = str(path.relative_to(early))
        if not path.is_file() or name not in bench.files or path.read_bytes() == bench.read(name):
            continue
        replaced: dict[str, bytes | None] = {name: path.read_bytes()}
        if name == bench.newest_log():
            tally.add(f"{name} stale", _judge_earlier(bench, bench.place(replaced)), False)
            continue
        outcome = bench.start(replaced)
        tally.add(f"{name} stale", bench.judge([name], outcome), outcome.error is not None)
    return tally


def foreign_files(bench: Bench, other: Bench) -> Tally:
    """Replace every file by the one of the same name, or of the same kind, of another query."""
    tally = Tally()
    for name in bench.files:
        same_kind = [one for one in other.files if _kind(one) == _kind(name)]
        if not same_kind:
            continue
        stranger = name if name in other.files else same_kind[0]
        outcome = bench.start({name: other.read(stranger)})
        tally.add(f"{name} from another query", bench.judge([name], outcome), outcome.error is not None)
    return tally


def _kind(name: str) -> str:
    return os.path.dirname(name) + os.path.splitext(name)[1]


def last_data_file(bench: Bench) -> str:
    """The live data file that was written last."""
    live = [f"data/{name}" for name in bench.run.live if paths.parse_data(name) is not None]
    return max(live, key=lambda name: os.stat(Path(bench.run.checkpoint, name)).st_mtime_ns)


def spread(size: int, count: int) -> list[int]:
    """Return `count` positions below `size`, both ends included."""
    if count >= size:
        return list(range(size))
    return sorted({round(step * (size - 1) / (count - 1)) for step in range(count)})


def failures(tallies: Iterator[Tally]) -> list[str]:
    return [line for tally in tallies for line in tally.failures]
