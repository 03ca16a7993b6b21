"""Test 16: drivers that start on one checkpoint at the same moment, in process by the thousand and a few on Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.faults import spark_starts
from tests.faults.start_races import races
from tests.torture.report import Report

CHUNK, CHUNK_ON_SPARK = 100, 10


def opened_at_once(count: int, seed: int, report: Report) -> None:
    """Two to four processes open one checkpoint: new, given back, or left by a driver that was killed."""
    with tempfile.TemporaryDirectory(prefix="penstock-starts-") as folder, races(Path(folder)) as found:
        for first in range(seed, seed + count, CHUNK):
            seeds = range(first, min(first + CHUNK, seed + count))
            part = f"seeds {seeds.start} to {seeds.stop - 1}"
            if report.wanted(part):
                wrong = [f"seed {one}: {what}" for one in seeds if (what := found.run(one)) is not None]
                report.note(part, len(seeds), len(seeds) - len(wrong), wrong)


def started_at_once(count: int, seed: int, report: Report) -> None:
    """Two processes with sessions of their own start one query with ingest: one runs and goes on."""
    for first in range(0, count, CHUNK_ON_SPARK):
        rounds = min(CHUNK_ON_SPARK, count - first)
        part = f"rounds {first + 1} to {first + rounds}"
        if not report.wanted(part):
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-starts-") as folder:
            passed, wrong = 0, []
            try:
                for _ in spark_starts.race(Path(folder), rounds, seed + first):
                    passed += 1
            except AssertionError as error:  # the rest of the rounds was not tried, and did not pass
                wrong.append(f"round {first + passed + 1}: {error}")
            report.note(part, rounds, passed, wrong)
