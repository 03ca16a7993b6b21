"""How a query lives and ends on Spark: leases lost and replaced, takeovers, sessions shared and stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.flows import (
    await_rows,
    committed,
    last_regions,
    lease_jobs,
    model_regions,
    running,
    sales,
    two_steps,
    wait_until,
)

import penstock
import penstock.spark.starting
from penstock.spark.processes import find_python_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.query import Query

ROWS = 6000


def leases(query: Query) -> list[str]:
    return list(query._ask(lambda shell: list(shell.engine.leases)) or [])


def all_ready(query: Query) -> bool:
    progress = query.lastProgress
    return progress is not None and all(
        one["shards"] == one["shardsReady"] for one in progress["operators"].values()
    )


def test_a_killed_lease_is_replaced_soon_and_no_row_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    with running(two_steps(ROWS, rate=1500), spark, tmp_path) as query:
        for rows in (500, 2500):
            wait_until(lambda rows=rows: committed(query) >= rows and all_ready(query), query)
            before = leases(query)
            workers = {worker.pid for worker in find_python_workers(jvm)}
            victim = next(pid for pid in lease_pids(query) if pid in workers)
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            wait_until(lambda before=before: len(set(leases(query)) - set(before)) >= 1, query, 10)
            assert time.monotonic() - killed < 4.0
            assert len(leases(query)) == len(before)
        await_rows(query, ROWS)
        assert last_regions([query.table()]) == model_regions(ROWS)


def lease_pids(query: Query) -> list[int]:
    return list(query._ask(lambda shell: list(shell.lease_pids.values())))


def test_a_takeover_ends_the_first_query_with_the_winners_name_and_its_leases(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock.spark.starting, "make_way", lambda *_: None)  # as if in two processes
    with running(two_steps(ROWS, rate=1500), spark, tmp_path, "noop") as first:
        wait_until(lambda: committed(first) > 500, first)
        with running(two_steps(ROWS, rate=1500), spark, tmp_path, "noop", takeover=True) as second:
            wait_until(lambda: not first.isActive)
            error = first.exception()
            assert isinstance(error, penstock.FencedError)
            assert f"driver generation 2 (process {os.getpid()}" in str(error)
            wait_until(lambda: committed(second) > 1500, second)
            assert len(lease_jobs(spark)) == len(leases(second))
        wait_until(lambda: not lease_jobs(spark), seconds=5)


def test_two_queries_share_the_slots_of_a_session(spark: SparkSession, tmp_path: Path) -> None:
    stream = two_steps(2000, rate=2000)
    with running(stream, spark, tmp_path / "a") as one, running(stream, spark, tmp_path / "b") as other:
        await_rows(one, 2000)
        await_rows(other, 2000)
        assert last_regions([one.table()]) == last_regions([other.table()]) == model_regions(2000)


@pytest.mark.usefixtures("no_session")
def test_a_session_stopped_under_a_query_ends_it_with_the_reason_and_it_goes_on_in_another(
    tmp_path: Path,
) -> None:
    spark = penstock.session("penstock-tests")
    with running(two_steps(ROWS, rate=1500), spark, tmp_path) as query:
        wait_until(lambda: committed(query) > 1000, query)
        before = query.table()
        spark.stop()
        wait_until(lambda: not query.isActive, seconds=15)
        error = query.exception()
        assert isinstance(error, penstock.SessionError) and "SparkSession was stopped" in str(error)
        before = query.table()
    with running(two_steps(ROWS, rate=3000), penstock.session("penstock-tests"), tmp_path) as query:
        await_rows(query, ROWS)
        assert last_regions([before, query.table()]) == model_regions(ROWS)


def test_processing_all_that_is_available_ends_on_a_source_that_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(two_steps(None, rate=1500), spark, tmp_path) as query:
        query.processAllAvailable()
        wait_until(lambda: committed(query) > 500, query)
        before = committed(query)
        query.processAllAvailable()
        assert sum(region[0] for region in last_regions([query.table()]).values()) >= before


@pytest.mark.long
def test_a_function_that_kills_its_process_every_time_ends_the_query_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    def die(key: Any, rows: Any, state: Any) -> Any:
        os._exit(3)

    doomed = sales(None).groupBy("customer").apply_rows(die, schema="x long", state={}, name="doomed")
    with running(doomed, spark, tmp_path) as query:
        wait_until(lambda: not query.isActive, seconds=60)
        error = query.exception()
        assert isinstance(error, penstock.OperatorError)
        assert "operator 'doomed' lost its process" in str(error)


@pytest.mark.long
def test_a_function_that_does_not_return_is_named_and_can_be_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    def hang(key: Any, rows: Any, state: Any) -> Any:
        time.sleep(600)

    stuck = sales(None).groupBy("customer").apply_rows(hang, schema="x long", state={}, name="stuck")
    with running(stuck, spark, tmp_path) as query:
        wait_until(lambda: "'stuck' has been at epoch 1 for" in query.status["message"], query)
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 25.0
        assert query.exception() is None
    wait_until(lambda: not lease_jobs(spark), seconds=10)


def test_leases_with_nothing_to_do_are_kept_however_short_their_time_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(two_steps(300), spark, tmp_path, leaseTimeoutSeconds=1) as query:
        await_rows(query, 300)
        wait_until(lambda: all_ready(query), query)
        held = leases(query)
        time.sleep(4.0)
        assert held and leases(query) == held
