"""The whole way, fast: native source, row function, aggregates keyed differently, sink, restart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.flows import (
    await_rows,
    committed,
    last_regions,
    lease_jobs,
    model_numbered,
    model_regions,
    numbered,
    running,
    sales,
    two_steps,
    wait_until,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3000


def test_a_row_function_and_aggregates_keyed_differently_equal_a_plain_model(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(two_steps(ROWS), spark, tmp_path / "checkpoint") as query:
        await_rows(query, ROWS)
        assert last_regions([query.table()]) == model_regions(ROWS)
        progress = query.lastProgress
        assert progress is not None
        assert (
            progress["operators"]["numbered"]["rowsIn"] == progress["operators"]["regions"]["rowsIn"] == ROWS
        )


def test_a_restart_goes_on_where_it_was_with_no_row_lost_or_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    got: list[tuple[int, ...]] = []
    stream = numbered(sales(ROWS, rate=400))
    with running(stream, spark, tmp_path / "checkpoint") as query:
        wait_until(lambda: committed(query) >= ROWS // 4 and query.table().num_rows > 0, query)
        first = query.id
        query.stop()
        got += [tuple(row.values()) for row in query.table().to_pylist()]
    assert 0 < len(got) < ROWS
    with running(stream, spark, tmp_path / "checkpoint") as query:
        assert query.id == first
        await_rows(query, ROWS)
        time.sleep(0.2)
        assert committed(query) == ROWS
        got += [tuple(row.values()) for row in query.table().to_pylist()]
    assert sorted(got) == model_numbered(ROWS)


def test_a_stopped_query_returns_soon_and_leaves_no_lease(spark: SparkSession, tmp_path: Path) -> None:
    with running(two_steps(None), spark, tmp_path / "checkpoint", sink="noop") as query:
        wait_until(lambda: committed(query) > 500, query)
        assert query.isActive and lease_jobs(spark)
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 3.0
        assert not query.isActive
        assert query.exception() is None
        assert query.status["message"] == "Stopped"
        wait_until(lambda: not lease_jobs(spark), seconds=1.0)
