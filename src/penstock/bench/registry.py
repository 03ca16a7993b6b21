"""The benches by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from penstock.bench.result import BenchResult

Run = Callable[[BenchResult, bool, "list[str] | None"], None]


def run_bench(name: str, *, quick: bool, path: Path | None, only: list[str] | None) -> int:
    """Run one bench, write its result as it goes, print it at the end."""
    from penstock.bench.keyed_count import run as keyed_count
    from penstock.bench.machine import versions

    benches: dict[str, Run] = {"keyed-count": keyed_count}
    if name not in benches:
        print(f"there is no bench {name!r}; there is {', '.join(benches)}", file=sys.stderr)
        return 2
    result = BenchResult(name, versions(), path=path)
    benches[name](result, quick, only)
    result.write()
    for group in (result.ratios, result.figures):
        for key, value in group.items():
            print(f"{key:55} {value}")
    return 0
