"""Windows against Spark's own: closed windows of Structured Streaming on the same files, batch by batch, with rows out
of order and late; the last values of update mode; and Spark batch for input that ends."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.topology.schema import parse_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "ts timestamp, user string, v long"
FILES, ROWS = 4, 60
ZERO = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
DELAY = "20 seconds"
KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda F: F.window("ts", "10 seconds", startTime="3 seconds"),
    "sliding": lambda F: F.window("ts", "15 seconds", "6 seconds"),
    "session": lambda F: F.session_window("ts", "4 seconds"),
}


def rows_of(file: int) -> list[tuple[dt.datetime | None, str, int]]:
    """Event time goes on by 30 seconds a file; rows are up to a minute out of order, and some have no time."""
    random_ = random.Random(file)
    found: list[tuple[dt.datetime | None, str, int]] = []
    for at in range(ROWS):
        behind = random_.choice([0, 0, 0, 5, 25, 60])
        second = file * 30 + random_.randint(0, 29) - behind
        time = None if at % 17 == 0 else ZERO + dt.timedelta(seconds=second)
        found.append((time, random_.choice("abcd"), random_.randint(0, 9)))
    return found


def table_of(rows: list[Any]) -> pa.Table:
    schema = parse_schema(SCHEMA)
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows") / "in"
    folder.mkdir()
    for file in range(FILES):
        path = folder / f"{file:03d}.parquet"
        pq.write_table(table_of(rows_of(file)), path)
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))  # Spark takes the oldest first
    return folder


def spark_windows(frame: DataFrame, kinds: list[str]) -> DataFrame:
    from pyspark.sql import functions as F

    def one(kind: str) -> DataFrame:
        window = KINDS[kind](F).alias("w")
        grouped = frame.withWatermark("ts", DELAY).groupBy(window, "user")
        made = grouped.agg(F.count("*").alias("count"), F.sum("v").alias("total"))
        return made.select(F.lit(kind).alias("kind"), "w.start", "w.end", "user", "count", "total")

    return reduce(lambda left, right: left.union(right), map(one, kinds))


def our_windows(stream: penstock.Stream, kinds: list[str]) -> penstock.Stream:
    marked = stream.withWatermark("ts", DELAY)

    def one(kind: str) -> penstock.Stream:
        grouped = marked.groupBy(KINDS[kind](penstock).alias("w"), "user")
        made = grouped.agg(penstock.count(), penstock.sum("v").alias("total"), name=kind, shards=8, cores=1)
        edges = [penstock.col("w").getField(edge).alias(edge) for edge in ("start", "end")]
        return made.select(penstock.lit(kind).alias("kind"), *edges, "user", "count", "total")

    return reduce(lambda left, right: left.union(right), map(one, kinds))


def read(spark: SparkSession, files: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))


def run_spark(
    spark: SparkSession, files: Path, kinds: list[str], mode: str, path: Path
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, number: int) -> None:
        found.extend(tuple(row.values()) for row in batch.toArrow().to_pylist())

    # File by file: only when a batch without data has run after each does Spark judge the next rows by all before them.
    fed = path / "in"
    fed.mkdir(parents=True)
    writer = spark_windows(read(spark, fed), kinds).writeStream.outputMode(mode)
    query = writer.option("checkpointLocation", str(path / "checkpoint")).foreachBatch(keep).start()
    try:
        for file in sorted(files.iterdir()):
            shutil.copy(file, fed / f".{file.name}")
            os.rename(fed / f".{file.name}", fed / file.name)
            query.processAllAvailable()
    finally:
        query.stop()
    return found


def run_ours(
    stream: penstock.Stream, spark: SparkSession, path: Path, mode: str | None, ends: bool = False
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []

    def keep(table: pa.Table, number: int) -> None:
        found.extend(tuple(row.values()) for row in table.to_pylist())

    writer = stream.writeStream.option("checkpointLocation", str(path)).foreach_arrow(keep)
    query = (writer.outputMode(mode) if mode else writer).start(spark)
    try:
        if ends:
            assert query.awaitTermination(60)
        else:
            query.processAllAvailable()
    finally:
        query.stop()
    return found


@pytest.fixture
def one_partition(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


@pytest.mark.usefixtures("one_partition")
def test_closed_windows_equal_sparks_on_rows_out_of_order_and_late(
    spark: SparkSession, files: Path, tmp_path: Path
) -> None:
    kinds = list(KINDS)
    theirs = run_spark(spark, files, kinds, "append", tmp_path / "theirs")
    source = penstock.from_dataframe(read(spark, files), name="files")
    ours = run_ours(our_windows(source, kinds), spark, tmp_path / "ours", "append")
    assert len(set(ours)) == len(ours), "a window was put out twice"
    assert {kind for kind, *_ in theirs} == set(kinds)
    assert sorted(ours) == sorted(theirs)
    everything = sum(time is not None for file in range(FILES) for time, _, _ in rows_of(file))
    assert sum(count for kind, _, _, _, count, _ in ours if kind == "tumbling") < everything


@pytest.mark.usefixtures("one_partition")
def test_the_last_values_of_update_mode_equal_sparks(
    spark: SparkSession, files: Path, tmp_path: Path
) -> None:
    def last(rows: list[tuple[Any, ...]]) -> dict[Any, Any]:
        return {row[:4]: row[4:] for row in rows}

    kinds = ["tumbling", "sliding"]
    theirs = run_spark(spark, files, kinds, "update", tmp_path / "theirs")
    source = penstock.from_dataframe(read(spark, files), name="files")
    ours = run_ours(our_windows(source, kinds), spark, tmp_path / "ours", "update")
    assert last(ours) == last(theirs)


def test_bounded_input_equals_spark_batch(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row for file in range(FILES) for row in rows_of(file)]
    rows += [(dt.datetime(1969, 12, 31, 23, 59, 57, 500_000, dt.UTC), "b", 1)]
    rows.sort(key=lambda row: row[0] or ZERO)  # so that none is late
    kinds = list(KINDS)
    theirs = spark_windows(spark.createDataFrame(table_of(rows)), kinds).toArrow().to_pylist()
    stream = our_windows(penstock.from_rows(table_of(rows)), kinds)
    ours = run_ours(stream, spark, tmp_path / "ours", None, ends=True)
    assert sorted(ours) == sorted(tuple(row.values()) for row in theirs)
