"""The parts of a bench: those asked for, one after the other, each with what it owes; a part that fails lets the others go
on. Measures nothing."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from penstock.bench.machine import describe
from penstock.bench.result import BenchResult, UnknownPart


@dataclass(frozen=True)
class Part:
    """One part: what it does, and the names that it must have added when it is done."""

    run: Callable[[BenchResult], None]
    ratios: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    in_quick: bool = True
    """Whether a quick run that names no parts has it; what has a target does."""


def choose(parts: Collection[str], only: list[str] | None) -> list[str]:
    """Return the names of the parts asked for, all when none is named, in their own order.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    unknown = sorted(set(only or ()) - set(parts))
    if unknown:
        raise UnknownPart(f"there is no part {', '.join(unknown)}; there is {', '.join(parts)}")
    return [name for name in parts if not only or name in only]


def choose_parts(parts: Mapping[str, Part], only: list[str] | None, quick: bool) -> list[str]:
    """Return the names of the parts asked for; when none is named, all, or in a quick run those that belong to it.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    return [name for name in choose(parts, only) if only or not quick or parts[name].in_quick]


def run_parts(
    result: BenchResult, parts: Mapping[str, Part], only: list[str] | None, quick: bool
) -> list[str]:
    """Run the parts asked for and return the names that are missing at the end.

    With `only`, figures of an earlier run of other parts that stand in the same file are kept, so that a long bench can be
    run part by part.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    chosen = choose_parts(parts, only, quick)
    if not only and len(chosen) < len(parts):
        left = ", ".join(name for name in parts if name not in chosen)
        print(f"-- not part of a quick run, to be named with --only: {left}", file=sys.stderr, flush=True)
    if only:
        keep_earlier(result)
    result.add_figures(**{f"machine_{name}": value for name, value in describe().items()}, quick=quick)
    for name in chosen:
        print(f"-- {name}", file=sys.stderr, flush=True)
        problem = f"part_{name.replace('-', '_')}_problem"
        result.figures.pop(problem, None)  # of an earlier run
        began = time.monotonic()
        try:
            parts[name].run(result)
        except Exception as error:
            traceback.print_exc()
            result.failed.append(name)
            result.add_figures(**{problem: f"{type(error).__name__}: {error}"})
        took_s = time.monotonic() - began
        result.add_figures(**{f"part_{name.replace('-', '_')}_took_s": took_s})
        print(f"-- {name} took {took_s:.0f} s", file=sys.stderr, flush=True)
    lacking = [one for name in chosen for one in parts[name].ratios if result.ratios.get(one) is None]
    return lacking + [
        one for name in chosen for one in parts[name].figures if result.figures.get(one) is None
    ]


def keep_earlier(result: BenchResult) -> None:
    """Take over the ratios and figures of the file that the result will be written to, if it is of the same bench."""
    if result.path is None or not result.path.exists():
        return
    earlier = json.loads(result.path.read_text(encoding="utf-8"))
    if earlier.get("bench") == result.bench and earlier.get("versions") == dict(result.versions):
        result.ratios.update(earlier["ratios"])
        result.figures.update(earlier["figures"])
        result.emulated.extend(one for one in earlier["emulated"] if one not in result.emulated)
