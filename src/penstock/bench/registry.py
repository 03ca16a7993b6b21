"""The benches by name, and what is printed when one is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from penstock.bench.result import BenchResult, UnknownPart
from penstock.bench.targets import ratio_table

Run = Callable[[BenchResult, bool, "list[str] | None"], list[str]]


def run_bench(name: str, *, quick: bool, path: Path | None, only: list[str] | None) -> int:
    """Run one bench, write its result as it goes, print it at the end.

    Returns 0 when every name is there, 1 when some are missing, 2 when there is no such bench or part.
    """
    from penstock.bench.dynamics import run as dynamics
    from penstock.bench.keyed_count import run as keyed_count
    from penstock.bench.machine import versions
    from penstock.bench.models import run as models
    from penstock.bench.papers import run as papers
    from penstock.bench.rescale import run as rescale
    from penstock.bench.scaling import run as scaling
    from penstock.bench.schedule import run as schedule
    from penstock.bench.sla import run as sla

    benches: dict[str, Run] = {
        "dynamics": dynamics,
        "keyed-count": keyed_count,
        "models": models,
        "papers": papers,
        "rescale": rescale,
        "scaling": scaling,
        "schedule": schedule,
        "sla": sla,
    }
    if name not in benches:
        print(f"there is no bench {name!r}; there is {', '.join(benches)}", file=sys.stderr)
        return 2
    result = BenchResult(name, versions(), path=path)
    try:
        missing = benches[name](result, quick, only)
    except UnknownPart as error:
        print(error, file=sys.stderr)
        return 2
    result.write()
    return report(result, missing)


def report(result: BenchResult, missing: list[str]) -> int:
    """Print figures, then ratios beside their targets, then what is missing; return the exit code."""
    for name, value in result.figures.items():
        print(f"{name:60} {value}")
    print()
    for line in ratio_table(result.ratios, result.figures):
        print(line)
    if missing or result.failed:
        failed = f"failed: {', '.join(result.failed)}; " if result.failed else ""
        names = ", ".join(missing) or "no name"
        print(f"{failed}missing: {names}; the result is not complete", file=sys.stderr)
        return 1
    return 0
