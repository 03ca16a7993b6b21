"""Operators on Spark against Spark's own aggregates and against plain Python; what a function sink is promised."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.spark.flows import (
    await_rows,
    committed,
    make_sales,
    model_numbered,
    numbered,
    running,
    sales,
    wait_until,
)

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 2000


def test_aggregates_are_those_of_spark_with_nulls_and_nan(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    def make(offset: int, count: int) -> pa.RecordBatch:
        ids = range(offset, offset + count)
        odd = [None, float("nan"), -0.0, 0.1, 1e16, float("-inf")]
        return pa.record_batch(
            {
                "id": pa.array(ids, pa.int64()),
                "k": pa.array([f"k{i % 17}" for i in ids]),
                "n": pa.array([None if i % 3 == 0 or i % 17 == 5 else i * 37 % 101 for i in ids], pa.int32()),
                "x": pa.array([odd[i % 6] if i % 17 == 2 else i / 7 for i in ids], pa.float64()),
                "s": pa.array([None if i % 5 == 0 else f"s{i % 23}" for i in ids]),
            }
        )

    source = penstock.generate(
        make, schema="id long, k string, n int, x double, s string", rate=8000, limit=ROWS
    )
    ours = source.groupBy("k").agg(
        penstock.count(), penstock.count("n").alias("ns"), penstock.sum("n").alias("sum"), penstock.min("n").alias("min"),
        penstock.max("n").alias("max"), penstock.mean("n").alias("mean"), penstock.min("x").alias("least"),
        penstock.max("x").alias("most"), penstock.last("s").alias("last"), penstock.max("s").alias("word"), shards=8,
    )  # fmt: skip
    with running(ours, spark, tmp_path / "checkpoint") as query:
        await_rows(query, ROWS, "source")
        mine = by_key(query.table())
    rows = spark.createDataFrame(pa.Table.from_batches([make(0, ROWS)])).groupBy("k")
    theirs = rows.agg(
        f.count("*").alias("count"), f.count("n").alias("ns"), f.sum("n").alias("sum"), f.min("n").alias("min"),
        f.max("n").alias("max"), f.avg("n").alias("mean"), f.min("x").alias("least"), f.max("x").alias("most"),
        f.max_by("s", "id").alias("last"), f.max("s").alias("word"),
    )  # fmt: skip
    assert mine == by_key(theirs.toArrow())


def by_key(table: pa.Table) -> dict[str, dict[str, Any]]:
    return {row["k"]: {name: _plain(value) for name, value in row.items()} for row in table.to_pylist()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else round(value, 9)
    return value


def test_a_row_function_keeps_list_and_map_state_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    def remember(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, int, int, int]]:
        for row in rows:
            state.regions[row.region] = state.regions.get(row.region, 0) + 1
            state.last.appendValue(row.id)
            if len(state.last) > 3:
                state.last.put(list(state.last)[1:])
            yield row.id, key.customer, len(state.regions), sum(state.last)

    def model(rows: int) -> list[tuple[int, int, int, int]]:
        regions: dict[int, set[int]] = defaultdict(set)
        last: dict[int, list[int]] = defaultdict(list)
        found = []
        for row in make_sales(0, rows).to_pylist():
            customer = row["customer"]
            regions[customer].add(row["region"])
            last[customer] = [*last[customer], row["id"]][-3:]
            found.append((row["id"], customer, len(regions[customer]), sum(last[customer])))
        return found

    stream = sales(ROWS, rate=1000).groupBy("customer").apply_rows(
        remember, schema="id long, customer long, regions long, last long", shards=8, name="remember",
        state={"regions": penstock.MapState("long", "long"), "last": penstock.ListState("long")},
    )  # fmt: skip
    got: list[tuple[int, ...]] = []
    for rows in (ROWS // 3, ROWS):
        with running(stream, spark, tmp_path / "checkpoint") as query:
            wait_until(lambda rows=rows, query=query: committed(query) >= rows, query)
            if rows == ROWS:
                query.processAllAvailable()
            query.stop()
            got += [tuple(row.values()) for row in query.table().to_pylist()]
    assert sorted(got) == model(ROWS)


def test_a_vectorised_function_gets_each_row_of_a_shard_once(spark: SparkSession, tmp_path: Path) -> None:
    def double(table: pa.Table, state: Any) -> pa.Table:
        return pa.table({"id": table["id"], "twice": pc.multiply(table["amount"], 2)})

    stream = (
        sales(ROWS)
        .groupBy("customer")
        .apply_arrow(double, schema="id long, twice long", name="double", shards=8)
    )
    with running(stream, spark, tmp_path / "checkpoint") as query:
        await_rows(query, ROWS)
        got = {row["id"]: row["twice"] for row in query.table().to_pylist()}
        assert query.table().num_rows == ROWS
    assert got == {row["id"]: 2 * row["amount"] for row in make_sales(0, ROWS).to_pylist()}


def test_a_function_sink_gets_every_sink_epoch_once_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[tuple[int, pa.Table]] = []
    stream = numbered(sales(ROWS))
    with running(
        stream, spark, tmp_path / "checkpoint", lambda table, epoch: calls.append((epoch, table))
    ) as query:
        await_rows(query, ROWS)
    assert [epoch for epoch, _ in calls] == list(range(1, len(calls) + 1))
    assert sorted(tuple(row.values()) for _, table in calls for row in table.to_pylist()) == model_numbered(
        ROWS
    )


@pytest.mark.long
def test_a_sink_epoch_that_failed_is_repeated_after_a_restart_with_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    failed: list[tuple[int, pa.Table]] = []
    calls: list[tuple[int, pa.Table]] = []

    def fail_once(table: pa.Table, epoch: int) -> None:
        if epoch == 3 and not failed:
            failed.append((epoch, table))
            raise OSError("the database went away")
        calls.append((epoch, table))

    stream = numbered(sales(ROWS, rate=250))
    with running(stream, spark, tmp_path / "checkpoint", fail_once) as query:
        wait_until(lambda: not query.isActive)
        error = query.exception()
        assert isinstance(error, penstock.OperatorError)
        assert "sink epoch 3: OSError: the database went away" in str(error)
        with pytest.raises(penstock.QueryError, match="went away"):
            query.processAllAvailable()
    with running(stream, spark, tmp_path / "checkpoint", fail_once) as query:
        await_rows(query, ROWS)
    assert [epoch for epoch, _ in calls] == list(range(1, len(calls) + 1))
    assert calls[2][0] == 3 and calls[2][1].equals(failed[0][1])
    assert sorted(tuple(row.values()) for _, table in calls for row in table.to_pylist()) == model_numbered(
        ROWS
    )
