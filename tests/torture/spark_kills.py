"""Kills on a real cluster at full counts: parts of one running cluster are killed, not a cluster per kill."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from tests.faults import plan_runs, spark_kills
from tests.faults.spark_runs import cluster
from tests.torture.report import Report

from penstock.spark.localcluster import LocalCluster

CHUNK = 10
Scenario = Callable[[LocalCluster, Path, int, int], Iterator[str]]


def killed_drivers(count: int, seed: int, report: Report) -> None:
    """Test 1: `kill -9` of the driver at seeded points, restart: identical, no epoch with two records."""
    _in_chunks(spark_kills.kill_drivers, count, seed, report)


def killed_leases(count: int, seed: int, report: Report) -> None:
    """Test 2: Python workers and Spark executors killed while the query runs: identical."""
    _in_chunks(spark_kills.kill_leases, count, seed, report)


def stopped_leases(count: int, seed: int, report: Report) -> None:
    """Test 5 on Spark: a lease stopped inside its work goes on after it was replaced: committed bytes unchanged."""
    _in_chunks(spark_kills.stop_leases, count, seed, report)


def killed_drivers_of_all_shapes(count: int, seed: int, report: Report) -> None:
    """Test 1 on a topology of every shape, with windows and timers."""
    scenario = partial(spark_kills.kill_drivers, topology="shapes", rate=300.0)
    _in_chunks(scenario, count, seed, report, chunk=5)


def killed_leases_of_all_shapes(count: int, seed: int, report: Report) -> None:
    """Test 2 on a topology of every shape, with windows and timers."""
    scenario = partial(spark_kills.kill_leases, topology="shapes", rate=300.0)
    _in_chunks(scenario, count, seed, report, chunk=5)


def paused_driver(count: int, seed: int, report: Report) -> None:
    """Test 6: two drivers on one checkpoint, one paused for a minute and resumed: one line of records."""

    def once(on: LocalCluster, folder: Path, count: int, seed: int) -> Iterator[str]:
        spark_kills.two_drivers(on, folder, pause_s=60.0)
        yield "paused for a minute"

    _in_chunks(once, count, seed, report, chunk=1)


def random_plans(count: int, seed: int, report: Report) -> None:
    """Plans thrown at a topology of every shape, workers killed, in every chunk a node drained under load: identical."""

    def chunk(on: LocalCluster, folder: Path, size: int, seed: int) -> Iterator[str]:
        thrown = plan_runs.throw_plans(on, folder, size, seed)
        said = list(thrown)
        assert len(said) == size + 1, said
        yield from said[:size]

    _in_chunks(chunk, count, seed, report, chunk=5, on_cluster=plan_runs.cluster)


def _in_chunks(
    scenario: Scenario,
    count: int,
    seed: int,
    report: Report,
    chunk: int = CHUNK,
    on_cluster: Callable[[], AbstractContextManager[LocalCluster]] = cluster,
) -> None:
    """Run a scenario until it has disturbed `count` times; a run that is not identical fails all of its own."""
    parts = [(first, min(chunk, count - first)) for first in range(0, count, chunk)]
    wanted = [(f"{first} to {first + size - 1}", first, size) for first, size in parts]
    wanted = [part for part in wanted if report.wanted(part[0])]
    if not wanted:
        return
    with on_cluster() as on:
        for name, first, size in wanted:
            if not report.wanted(name):
                return
            with tempfile.TemporaryDirectory(prefix="penstock-kills-") as folder:
                try:
                    done = len(list(scenario(on, Path(folder) / "run", size, seed + first)))
                    report.note(name, size, size if done == size else 0)
                except Exception:
                    report.note(name, size, 0, [traceback.format_exc()[-3000:]])
