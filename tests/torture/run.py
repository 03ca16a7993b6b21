"""`make torture`: the reliability tests at full counts. Resumable, an hour at most.

A suite is a function `run(count, seed, report)`. It asks `report.wanted(part)` before a part and says
`report.note(part, tried, passed, details)` after it. To add one, write it in a module beside this one and put
a line into SUITES.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent.parent / "src"), str(Path(__file__).parent.parent.parent)]

from tests.torture.report import ROOT, Report, State, code_now  # noqa: E402

MINUTES = 60.0


@dataclass(frozen=True)
class Suite:
    """One test of the list, at its full count."""

    test: str
    title: str
    count: int
    """Cases wanted; 0 where the suite knows itself how many there are."""
    where: str
    """module:function, imported when it is run."""
    seed: int = 0


SUITES: tuple[Suite, ...] = (
    Suite(
        "1", "the driver killed at seeded points, on Spark", 30, "tests.torture.spark_kills:killed_drivers", 1
    ),
    Suite("2", "Python workers and Spark executors killed", 30, "tests.torture.spark_kills:killed_leases", 2),
    Suite(
        "5-spark",
        "leases stopped inside their work, on Spark",
        6,
        "tests.torture.spark_kills:stopped_leases",
        5,
    ),
    Suite(
        "6", "two drivers, one paused for a minute, on Spark", 1, "tests.torture.spark_kills:paused_driver", 6
    ),
    Suite(
        "15",
        "hosts silent for 20 and 60 s, on Spark",
        6,
        "tests.torture.silent_hosts:silent_hosts",
        15,
    ),
    Suite("3", "crash before and after every named I/O step", 0, "tests.torture.disk:crash_at_every_step"),
    Suite("4", "power loss, un-synced writes dropped", 100, "tests.torture.disk:power_loss_suite"),
    Suite("5", "zombie leases, and leases stopped inside their work", 60, "tests.torture.disk:zombies"),
    Suite("7", "bit flips, 1,000 positions per kind", 10_000, "tests.torture.damage:bit_flips"),
    Suite(
        "7-forged",
        "bytes, values and files forged with checksums that fit",
        5_000,
        "tests.torture.damage:forgeries",
        7_000,
    ),
    Suite(
        "8",
        "files cut at every byte, deleted, swapped, stale, foreign",
        0,
        "tests.torture.damage:damaged_files",
    ),
    Suite(
        "9", "local state damaged, deleted, on a full disk", 1_200, "tests.torture.damage:damaged_local_state"
    ),
    Suite("10", "ENOSPC, EIO and stalls at 5 % of calls", 200, "tests.torture.disk:bad_disk"),
    Suite("11", "clean-up racing with recovery", 100, "tests.torture.disk:clean_up_races"),
    Suite("12", "protocol simulation", 5_000, "tests.torture.protocol:seeds"),
    Suite(
        "13",
        "every shape, windows, timers and watermarks in a row, under all faults",
        300,
        "tests.torture.disk:all_shapes",
    ),
    Suite(
        "13-drivers",
        "the driver of every shape killed, on Spark",
        10,
        "tests.torture.spark_kills:killed_drivers_of_all_shapes",
        13,
    ),
    Suite(
        "13-leases",
        "leases and executors of every shape killed, on Spark",
        10,
        "tests.torture.spark_kills:killed_leases_of_all_shapes",
        14,
    ),
    Suite(
        "14-plans",
        "random plans on three workers, one killed in every fifth, on Spark",
        50,
        "tests.torture.spark_kills:random_plans",
        20,
    ),
    Suite("14", "every step of a move killed; plans with leases dying", 300, "tests.torture.disk:plans"),
    Suite("16", "drivers that start at the same moment", 1_000, "tests.torture.starts:opened_at_once"),
    Suite(
        "16-spark",
        "drivers that start at the same moment with ingest, on Spark",
        30,
        "tests.torture.starts:started_at_once",
        16,
    ),
    Suite("12-planted", "planted bugs found by the simulation", 34, "tests.torture.protocol:planted"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the reliability tests at full counts.")
    parser.add_argument("--only", default="", help="tests to run, for example 3,7,12")
    parser.add_argument("--json", default="", help="file to write the result to")
    parser.add_argument(
        "--state", default=str(ROOT / ".torture" / "state.jsonl"), help="file that remembers what passed"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time for everything")
    parser.add_argument("--count", type=int, default=0, help="cases per test, instead of the full count")
    given = parser.parse_args(arguments)
    only = {name.strip() for name in given.only.split(",") if name.strip()}
    chosen = [suite for suite in SUITES if not only or suite.test in only or suite.test.split("-")[0] in only]
    if not chosen:
        parser.error(f"there is no test {given.only}; there are {', '.join(suite.test for suite in SUITES)}")
    started = time.monotonic()
    state = State(Path(given.state), code_now())
    results: dict[str, dict[str, Any]] = {}
    for suite in chosen:
        results[suite.test] = run_suite(suite, state, started + 60 * given.minutes, given.count)
        if given.json:  # as it goes, so that a run that is cut off leaves what it has
            whole = {"code": code_now(), "seconds": round(time.monotonic() - started, 1), "tests": results}
            Path(given.json).write_text(json.dumps(whole, indent=2) + "\n")
    return 0 if all(result["complete"] for result in results.values()) else 1


def run_suite(suite: Suite, state: State, deadline: float, count: int = 0) -> dict[str, Any]:
    """Run one suite and say what came of it; a suite that breaks counts as one case tried and not passed."""
    report = Report(suite.test, state, deadline)
    wanted = min(count, suite.count) if count and suite.count else suite.count
    began = time.monotonic()
    try:
        module, _, name = suite.where.partition(":")
        getattr(importlib.import_module(module), name)(wanted, suite.seed, report)
    except Exception:
        report.note("the suite itself", 1, 0, [traceback.format_exc()])
    parts = report.finished()
    tried, passed = sum(part.tried for part in parts), sum(part.passed for part in parts)
    complete = passed == tried >= max(1, wanted) and not report.out_of_time
    line = f"test {suite.test:<10} tried {tried:>6}  passed {passed:>6}  {time.monotonic() - began:7.1f} s  {suite.title}"
    print(line + ("" if complete else "  <- NOT COMPLETE"), flush=True)
    details = [detail for part in parts for detail in part.details]
    return {"title": suite.title, "wanted": wanted or tried, "tried": tried, "passed": passed, "complete": complete,
            "details": details[:20]}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
