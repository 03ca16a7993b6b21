"""Small queries for tests on Spark, and plain Python models of what they must give."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.query import Query
    from penstock.topology.stream import Stream

# Workers on a cluster cannot import the tests, so what they define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SALES = "id long, customer long, region long, amount long"


def make_sales(offset: int, count: int) -> pa.RecordBatch:
    """Rows offset to offset + count; the same offset gives the same row."""
    ids = range(offset, offset + count)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array([(i * 7919) % 53 for i in ids], pa.int64()),
            "region": pa.array([(i * 104_729) % 11 for i in ids], pa.int64()),
            "amount": pa.array([(i * 31) % 1000 for i in ids], pa.int64()),
        }
    )


def sales(limit: int | None, rate: float = 4000.0) -> Stream:
    return penstock.generate(make_sales, schema=SALES, rate=rate, name="sales", limit=limit)


def number_rows(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, int, int, int]]:
    """Number the rows of a customer and keep a running balance."""
    seen, balance = state.seen.get() or 0, state.balance.get() or 0
    for row in rows:
        seen += 1
        balance += row.amount
        yield row.id, row.region, seen, balance
    state.seen.update(seen)
    state.balance.update(balance)


def numbered(stream: Stream, shards: int = 16) -> Stream:
    """One row per sale: its number and the balance of its customer."""
    return stream.groupBy("customer").apply_rows(
        number_rows,
        schema="id long, region long, seen long, balance long",
        state={"seen": penstock.ValueState("long"), "balance": penstock.ValueState("long")},
        name="numbered",
        shards=shards,
    )


def two_steps(limit: int | None, rate: float = 4000.0, cores: int | None = None) -> Stream:
    """A row function keyed by customer, then aggregates keyed by region."""
    regions = numbered(sales(limit, rate)).groupBy("region")
    return regions.agg(
        penstock.count(),
        penstock.sum("balance").alias("total"),
        penstock.max("seen").alias("most"),
        name="regions",
        shards=8,
        cores=cores,
    )


def model_numbered(rows: int) -> list[tuple[int, int, int, int]]:
    """What `numbered` puts out for the first rows, by id."""
    seen: dict[int, int] = defaultdict(int)
    balance: dict[int, int] = defaultdict(int)
    found = []
    for row in make_sales(0, rows).to_pylist():
        customer = row["customer"]
        seen[customer] += 1
        balance[customer] += row["amount"]
        found.append((row["id"], row["region"], seen[customer], balance[customer]))
    return found


def model_regions(rows: int) -> dict[int, tuple[int, int, int]]:
    """The last value per region that `two_steps` puts out."""
    found: dict[int, tuple[int, int, int]] = {}
    for _, region, seen, balance in model_numbered(rows):
        count, total, most = found.get(region, (0, 0, 0))
        found[region] = (count + 1, total + balance, max(most, seen))
    return found


def last_regions(tables: Iterable[pa.Table]) -> dict[int, tuple[int, int, int]]:
    """The last value per region among the rows that a sink got, in order."""
    return {
        row["region"]: (row["count"], row["total"], row["most"])
        for table in tables
        for row in table.to_pylist()
    }


@contextmanager
def running(
    stream: Stream,
    spark: SparkSession,
    checkpoint: Path | str,
    sink: Callable[[pa.Table, int], None] | str = "memory",
    **options: object,
) -> Iterator[Query]:
    """A query that is stopped when the block ends, whatever happens in it."""
    writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).options(**options)
    writer = writer.format(sink) if isinstance(sink, str) else writer.foreach_arrow(sink)
    query: Query = writer.start(spark)
    try:
        yield query
    finally:
        query.stop()


def await_rows(query: Query, rows: int, source: str = "sales", seconds: float = 60.0) -> None:
    """Wait until a native source has committed that many rows and everything committed has reached the sink."""
    wait_until(lambda: committed(query, source) >= rows, query, seconds)
    query.processAllAvailable()


def committed(query: Query, source: str = "sales") -> int:
    progress = query.lastProgress
    return int(progress["inputs"][source]["rows"]) if progress is not None else 0


def wait_until(holds: Callable[[], bool], query: Query | None = None, seconds: float = 60.0) -> None:
    """Wait for something; a query that ends with an error meanwhile is raised."""
    deadline = time.monotonic() + seconds
    while not holds():
        if query is not None and not query.isActive:
            query.awaitTermination(0)
            raise AssertionError("the query has ended")
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def lease_jobs(spark: SparkSession) -> list[int]:
    """Ids of the jobs that run now."""
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())
