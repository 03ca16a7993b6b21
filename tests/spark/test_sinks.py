"""Sinks and bounded sources on Spark: what they hold against plain Spark, and what a failure at any moment leaves."""

from __future__ import annotations

import datetime as dt
import decimal
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.flows import make_sales, running, sales, wait_until

import penstock
from penstock.dataplane.disk import PosixDisk, Step
from penstock.dataplane.engine import Engine
from penstock.dataplane.parquet_folder import find_damage, read_manifest
from penstock.spark import sinks
from penstock.testing.faults import FaultPlan, FaultRule, fail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.query import Query
    from penstock.topology.writer import StreamWriter

TYPES = (
    "id long, n int, x double, f float, b boolean, s string, raw binary, d date, at timestamp, local timestamp_ntz, "
    "cents decimal(20,4), tags array<string>, scores map<string,int>, "
    "place struct<city:string,zip:int,points:array<double>>"
)
ROWS = 300


def odd_rows(start: int, count: int) -> pa.Table:
    """Rows of every type, nulls in each column but the first."""
    noon = dt.datetime(2024, 3, 31, 0, 30, 1, 123456)

    def row(i: int) -> dict[str, Any]:
        values = {
            "id": i,
            "n": i - 7,
            "x": [float("nan"), -0.0, float("inf"), i / 7][i % 4],
            "f": i / 2,
            "b": i % 2 == 0,
            "s": ["", "ä\n", "a'b"][i % 3],
            "raw": bytes([i % 256, 0]),
            "d": noon.date() + dt.timedelta(i),
            "at": (noon + dt.timedelta(hours=i)).replace(tzinfo=dt.UTC),
            "local": noon + dt.timedelta(hours=i),
            "cents": decimal.Decimal(i) / 4,
            "tags": [None, "t"][: i % 3],
            "scores": [("a", i), ("b", None)][: i % 3],
            "place": {"city": None, "zip": i, "points": [0.5, None]},
        }
        return {
            name: None if name != "id" and i % 11 == at else value
            for at, (name, value) in enumerate(values.items())
        }

    from penstock.topology.schema import parse_schema

    return pa.Table.from_pylist([row(i) for i in range(start, start + count)], parse_schema(TYPES))


def collected(frame: DataFrame) -> list[str]:
    """Rows as text, in which NaN equals NaN, in one order."""
    return sorted(repr(row) for row in frame.collect())


def finish(writer: StreamWriter, spark: SparkSession, *start: Any, **more: Any) -> Query:
    """Run a bounded query to its end."""
    query: Query = writer.start(*start, spark=spark, **more)
    try:
        assert query.awaitTermination(60), "it did not end by itself"
    finally:
        query.stop()
    return query


def odd_stream(rows: int = ROWS) -> StreamWriter:
    return penstock.from_rows(odd_rows(0, rows), name="odd").writeStream


# -- foreachBatch ------------------------------------------------------------------------------------------------------


def test_a_batch_function_gets_dataframes_of_the_callers_session_and_those_it_failed_for_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    got: list[tuple[int, str, list[str]]] = []
    context = spark.sparkContext

    def take(frame: DataFrame, epoch: int) -> None:
        assert frame.sparkSession is spark
        got.append((epoch, frame.schema.simpleString(), collected(frame)))
        frame.write.format("noop").mode("overwrite").save()
        ran = context.statusTracker().getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id"))
        assert ran, "the jobs of the function belong to no group"
        text = context.getLocalProperty("spark.job.description")
        assert text == f"penstock odd rows, sink epoch {epoch}"
        if len(got) == 1:
            raise OSError("the warehouse is closed")

    writer = odd_stream().queryName("odd rows").foreachBatch(take).option("checkpointLocation", tmp_path)
    query = writer.start(spark)
    wait_until(lambda: not query.isActive)
    assert "failed for sink epoch 1: OSError: the warehouse is closed" in str(query.exception())
    finish(writer, spark)
    assert got[0] == got[1] and len(got[0][2]) > 0
    assert [epoch for epoch, *_ in got[1:]] == list(range(1, len(got)))
    plain = spark.createDataFrame(odd_rows(0, ROWS), spark.createDataFrame([], TYPES).schema)
    assert {schema for _, schema, _ in got} == {plain.schema.simpleString()}
    assert sorted(row for _, _, rows in got[1:] for row in rows) == collected(plain)


def test_unsigned_numbers_become_types_that_spark_has(spark: SparkSession, tmp_path: Path) -> None:
    got: list[Any] = []
    table = pa.table({"a": pa.array([255], pa.uint8()), "b": pa.array([2**64 - 1], pa.uint64())})
    writer = penstock.from_rows(table).writeStream.option("checkpointLocation", tmp_path)
    finish(writer.foreachBatch(lambda frame, _: got.extend([frame.dtypes, *frame.collect()])), spark)
    assert got == [[("a", "smallint"), ("b", "decimal(20,0)")], (255, decimal.Decimal(2**64 - 1))]


def test_times_of_day_and_intervals_come_from_spark_and_go_back(spark: SparkSession, tmp_path: Path) -> None:
    got: list[Any] = []
    frame = spark.sql(
        "SELECT 1L AS id, INTERVAL '1 02:03:04.5' DAY TO SECOND AS wait, TIME'09:30:00.25' AS at"
    )
    longest = penstock.from_dataframe(frame).groupBy("id").max("wait", "at")
    writer = longest.writeStream.option("checkpointLocation", tmp_path)
    finish(writer.foreachBatch(lambda made, _: got.extend([made.dtypes, *made.collect()])), spark)
    assert [type_ for _, type_ in got[0]] == ["bigint", "interval day to second", "time(6)"]
    wait = dt.timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500)
    assert got[1] == (1, wait, dt.time(9, 30, 0, 250_000))


# -- parquet -----------------------------------------------------------------------------------------------------------


def test_parquet_files_read_back_as_plain_spark_has_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    writer = odd_stream().option("checkpointLocation", tmp_path / "checkpoint").format("parquet")
    finish(writer, spark, out)
    plain = spark.createDataFrame(odd_rows(0, ROWS), spark.createDataFrame([], TYPES).schema)
    mine = spark.read.parquet(out)
    assert mine.schema.simpleString() == plain.schema.simpleString()
    assert collected(mine) == collected(plain)
    files = [name for name in os.listdir(out) if not name.startswith("_")]
    listed = read_manifest(out)
    assert [file.name for file in listed] == sorted(files) and not list(find_damage(out))
    assert sum(file.rows for file in listed) == ROWS


def test_parquet_partitions_are_columns_again(spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    rows = odd_rows(0, 60).select(["id", "s", "b", "x"])
    writer = penstock.from_rows(rows).writeStream.option("checkpointLocation", tmp_path / "checkpoint")
    finish(writer, spark, out, "parquet", partitionBy=["b", "s"])
    theirs = str(tmp_path / "theirs")
    spark.createDataFrame(rows).write.partitionBy("b", "s").parquet(theirs)
    assert collected(spark.read.parquet(out)) == collected(spark.read.parquet(theirs))
    mine = sorted(str(path.relative_to(out)) for path in Path(out).glob("b=*/*"))
    assert mine == sorted(str(path.relative_to(theirs)) for path in Path(theirs).glob("b=*/*"))


def kill(engine: Engine, stage: str, epoch: int) -> None:
    """What there is of a driver that dies when the side effect is complete."""
    engine.fail(penstock.StorageError("killed"))


def ids(spark: SparkSession, out: Path) -> list[int]:
    """What a reader finds at this moment."""
    if not any(name.endswith(".parquet") for name in os.listdir(out)):
        return []
    return sorted(row.id for row in spark.read.parquet(str(out)).select("id").collect())


POINTS: dict[str, FaultRule | None] = {
    "before the file is written": fail(Step.WRITE, path="*/part-*"),
    "before it has its name": fail(Step.LINK, path="*/part-*"),
    "before the manifest": fail(Step.CREATE, path="*/manifest-*"),
    "before the done record": None,
}


@pytest.mark.long
def test_a_parquet_sink_that_fails_at_one_point_after_the_other_neither_loses_nor_doubles_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    writer = sales(200, rate=20_000).writeStream.option("checkpointLocation", tmp_path / "checkpoint")
    writer = writer.format("parquet").trigger(availableNow=True).option("rollSeconds", 0.05)
    for point, rule in POINTS.items():
        with monkeypatch.context() as patch:
            if rule is not None:
                plan = FaultPlan([rule])
                patch.setattr(sinks, "PosixDisk", lambda temps=None, plan=plan: PosixDisk(plan, temps=temps))
            else:
                patch.setattr(Engine, "on_sink_done", kill)
            query = writer.start(str(out), spark=spark)
            wait_until(lambda query=query: not query.isActive)
            assert isinstance(query.exception(), penstock.StorageError), (point, query.exception())
        seen = ids(spark, out)
        assert len(seen) == len(set(seen)), point
    finish(writer, spark, str(out))
    assert ids(spark, out) == list(range(200))
    assert sum(file.rows for file in read_manifest(str(out))) == 200 and not list(find_damage(str(out)))


def test_files_roll_by_time_and_processing_all_waits_for_the_last_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    stream = sales(None, rate=2000)
    writer = stream.writeStream.option("checkpointLocation", tmp_path / "checkpoint").format("parquet")
    query = writer.start(str(out), rollSeconds=600, spark=spark)
    try:
        wait_until(
            lambda: (query.lastProgress or {}).get("inputs", {}).get("sales", {}).get("rows", 0) > 500, query
        )
        assert ids(spark, out) == []
        query.processAllAvailable()
        assert len(ids(spark, out)) > 500 and len(read_manifest(str(out))) == 1
        query.stop()
        assert query.exception() is None
    finally:
        query.stop()
    query = writer.start(str(out), rollSeconds=600, rollBytes=20_000, spark=spark)
    try:
        wait_until(lambda: len(read_manifest(str(out))) > 3, query)
    finally:
        query.stop()
    found = ids(spark, out)
    assert found == list(range(len(found)))


def test_a_path_that_cannot_be_had_is_refused_by_name_and_the_checkpoint_is_free_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def writer(checkpoint: str) -> StreamWriter:
        return odd_stream(5).format("parquet").option("checkpointLocation", tmp_path / checkpoint)

    with pytest.raises(
        penstock.CheckpointError, match=r"path of the Parquet sink 's3a://bucket/x' uses s3a:"
    ):
        writer("a").start("s3a://bucket/x", spark=spark)
    finish(writer("a"), spark, str(tmp_path / "out"))
    with pytest.raises(penstock.CheckpointError, match=r"out holds rows of query .*give another path"):
        writer("b").start(str(tmp_path / "out"), spark=spark)
    finish(writer("b"), spark, str(tmp_path / "other"))
    assert ids(spark, tmp_path / "other") == list(range(5))


# -- console and memory ------------------------------------------------------------------------------------------------


def test_the_console_prints_as_spark_does(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = penstock.from_rows([(1, "a" * 30), (2, None), (3, "c")], schema="id int, word string")
    writer = rows.writeStream.option("checkpointLocation", tmp_path).format("console")
    finish(writer, spark, numRows=2, truncate=6)
    rule = "-" * 43
    assert capsys.readouterr().out == (
        f"{rule}\nBatch: 1\n{rule}\n+---+------+\n| id|  word|\n+---+------+\n|  1|aaa...|\n|  2|  NULL|\n+---+------+\n"
        "only showing top 2 rows\n"
    )


def test_a_memory_sink_is_a_table_of_the_rows_so_far(spark: SparkSession, tmp_path: Path) -> None:
    stream = sales(None, rate=2000)
    writer = stream.writeStream.option("checkpointLocation", tmp_path).format("memory").queryName("so_far")
    query = writer.start(spark)
    try:
        assert spark.sql("select * from so_far").dtypes == [(name, "bigint") for name in stream.columns]
        before = 0
        for _ in range(3):
            query.processAllAvailable()
            found = sorted(row.id for row in spark.sql("select id from so_far").collect())
            assert found == list(range(len(found))) and len(found) >= before
            before = len(found)
            wait_until(lambda before=before: query.table().num_rows > before + 200, query)
    finally:
        query.stop()
    amounts = [row.amount for row in spark.table("so_far").collect()]
    assert sorted(amounts) == sorted(query.table()["amount"].to_pylist())


def test_a_memory_sink_without_a_name_has_its_table_on_the_handle(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = finish(odd_stream(20).option("checkpointLocation", tmp_path).format("memory"), spark)
    assert query.table().num_rows == 20


# -- bounded sources and triggers --------------------------------------------------------------------------------------


def test_a_batch_dataframe_is_taken_in_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    frame = spark.range(0, 1000, numPartitions=3).select("id", (f.col("id") % 7).alias("k"))
    counted = (
        penstock.from_dataframe(frame, name="numbers")
        .groupBy("k")
        .agg(penstock.count(), name="counted", shards=4)
    )
    got: Counter[int] = Counter()

    def last(table: pa.Table, epoch: int) -> None:
        if epoch == 1 and not got:
            got[-1] = 1
            raise OSError("not yet")
        for row in table.to_pylist():
            got[row["k"]] = row["count"]

    writer = counted.writeStream.option("checkpointLocation", tmp_path).foreach_arrow(last)
    query = writer.start(spark)
    wait_until(lambda: not query.isActive)
    assert "not yet" in str(query.exception())
    query = finish(writer, spark)
    del got[-1]
    assert got == Counter(number % 7 for number in range(1000))
    progress = query.lastProgress
    assert progress is not None and progress["inputs"]["numbers"]["rows"] == 1000
    query = finish(writer, spark)
    progress = query.lastProgress
    assert progress is not None and progress["inputs"]["numbers"]["rows"] == 1000


def test_an_empty_dataframe_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    stream = penstock.from_dataframe(spark.range(0), name="nothing")
    query = finish(stream.writeStream.option("checkpointLocation", tmp_path).format("memory"), spark)
    assert query.table().num_rows == 0 and query.exception() is None


def test_a_dataframe_that_cannot_be_computed_ends_the_query_with_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    broken = spark.range(5).selectExpr(
        "id", "assert_true(id < 3, 'four is too much') as ok", "cast(id as int) as n"
    )
    stream = penstock.from_dataframe(broken.select("id", broken.ok.isNull().alias("ok")), name="broken")
    query = stream.writeStream.option("checkpointLocation", tmp_path).format("noop").start(spark)
    wait_until(lambda: not query.isActive)
    assert "source 'broken': its DataFrame cannot be computed" in str(query.exception())
    assert "four is too much" in str(query.exception())


def test_what_is_no_dataframe_is_refused_with_what_to_use() -> None:
    with pytest.raises(
        penstock.DeclarationError, match=r"source 'clicks' is no DataFrame of Spark but list.*from_rows"
    ):
        penstock.from_dataframe([1, 2], name="clicks")


def test_bounded_and_unbounded_sources_work_together(spark: SparkSession, tmp_path: Path) -> None:
    batch = spark.createDataFrame(pa.Table.from_batches([make_sales(0, 50)]))
    both = penstock.from_dataframe(batch, name="old").union(sales(None, rate=500))
    with running(both, spark, tmp_path) as query:
        query.processAllAvailable()
        wait_until(lambda: query.table().num_rows > 100, query)
        assert query.isActive
    assert Counter(query.table()["id"].to_pylist())[7] == 2


def put_file(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}.parquet"
    pq.write_table(pa.table({"n": pa.array(range(10 * number, 10 * number + 10), pa.int64())}), hidden)
    hidden.rename(folder / f"{number}.parquet")


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_available_now_takes_what_is_there_and_the_next_run_only_what_is_new(
    spark: SparkSession, tmp_path: Path, trigger: str
) -> None:
    files = tmp_path / "input"
    frame = None
    for run, numbers in enumerate([(0, 1, 2), (3,), ()]):
        for number in numbers:
            put_file(files, number)
        frame = spark.readStream.schema("n long").option(
            "maxFilesPerTrigger", 2 if trigger == "availableNow" else 9
        )
        stream = penstock.from_dataframe(frame.parquet(str(files)), name="files")
        writer = stream.writeStream.option("checkpointLocation", tmp_path / "checkpoint").format("memory")
        query = finish(writer.trigger(**{trigger: True}), spark)
        expected = [n for number in numbers for n in range(10 * number, 10 * number + 10)]
        assert sorted(query.table()["n"].to_pylist()) == expected, run


def test_processing_time_spaces_epochs(spark: SparkSession, tmp_path: Path) -> None:
    epochs: list[int] = []
    writer = sales(1200, rate=400).writeStream.option("checkpointLocation", tmp_path)
    writer = writer.foreach_arrow(lambda table, epoch: epochs.append(table.num_rows))
    query = writer.trigger(processingTime="1 second").start(spark)
    try:
        wait_until(lambda: sum(epochs) == 1200, query, 30)
    finally:
        query.stop()
    assert len(epochs) <= 6, epochs
