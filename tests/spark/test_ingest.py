"""Streaming DataFrames as sources, against plain Spark on the same rows."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.flows import running, wait_until

import penstock
from penstock.dataplane.batch_plans import read_kept
from penstock.dataplane.disk import PosixDisk, StepDisk
from penstock.dataplane.records import Batch
from penstock.dataplane.source_steps import SourceSteps
from penstock.dataplane.verifying import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "name string, price double, at timestamp, cents decimal(9,2), amount long"
KEYS = [["name"], ["price"], ["at"], ["cents"], ["name", "price"]]


def trades(start: int, count: int) -> pa.Table:
    """Rows whose keys are awkward: empty and non-ASCII strings, NaN, both zeros, times and decimals."""
    names = ["", "a", "ä", "a\x00b", "long " * 20]
    prices = [0.0, -0.0, float("nan"), 1.5, float("inf"), -1e300]
    noon = dt.datetime(2024, 3, 31, 0, 30, tzinfo=dt.UTC)
    ids = range(start, start + count)
    return pa.table(
        {
            "name": pa.array([names[i % 5] for i in ids]),
            "price": pa.array([prices[i % 6] for i in ids], pa.float64()),
            "at": pa.array([noon + dt.timedelta(hours=i % 7) for i in ids], pa.timestamp("us", "UTC")),
            "cents": pa.array([decimal.Decimal(i % 4) / 4 for i in ids], pa.decimal128(9, 2)),
            "amount": pa.array([None if i % 13 == 0 else i for i in ids], pa.int64()),
        }
    )


def put_file(folder: Path, number: int, rows: int = 200) -> None:
    """Add one input file, whole at once as the file source wants it."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number:03d}.parquet"
    pq.write_table(trades(number * rows, rows), hidden)
    hidden.rename(folder / f"{number:03d}.parquet")


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def oracle(spark: SparkSession, folder: Path, keys: list[str]) -> dict[Any, Any]:
    """What Spark itself makes of the same rows."""
    from pyspark.sql import functions as f

    rows = spark.read.schema(SCHEMA).parquet(str(folder)).groupBy(*keys)
    found = rows.agg(f.count("*"), f.sum("amount"), f.min("amount"), f.max("amount")).toArrow()
    return last_values(found, len(keys))


def last_values(table: pa.Table, keys: int) -> dict[Any, Any]:
    """Last row per key; NaN is written as text, since it equals nothing in Python."""
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return {row[:keys]: row[keys:] for row in zip(*columns, strict=True)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for number in range(3):
        put_file(tmp_path / "input", number)
    yield tmp_path / "input"


@pytest.mark.parametrize("keys", KEYS, ids="-".join)
def test_the_last_value_of_each_key_is_what_spark_gives(
    spark: SparkSession, folder: Path, tmp_path: Path, keys: list[str]
) -> None:
    stream = penstock.from_dataframe(stream_of(spark, folder), name="trades")
    counted = stream.groupBy(*keys).agg(
        penstock.count(),
        penstock.sum("amount"),
        penstock.min("amount"),
        penstock.max("amount"),
        name="totals",
        shards=8,
    )
    with running(counted, spark, tmp_path / "checkpoint") as query:
        query.processAllAvailable()
        assert last_values(query.table(), len(keys)) == oracle(spark, folder, keys)


def test_a_restart_in_the_middle_takes_in_each_batch_once(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    stream = penstock.from_dataframe(stream_of(spark, folder), name="trades")
    counted = stream.groupBy("name").agg(
        penstock.count(), penstock.sum("amount").alias("total"), name="totals"
    )
    checkpoint = tmp_path / "checkpoint"
    got: list[pa.Table] = []
    with running(counted, spark, checkpoint) as query:
        query.processAllAvailable()
        query.stop()
        got.append(query.table())
    # As if Spark had crashed between our record of its last batch and its own: it will run the batch again.
    commits = checkpoint / "ingest" / "trades" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    assert last == 2
    for path in commits.iterdir():
        if str(last) in path.name:
            path.unlink()
    put_file(folder, 3)
    with running(counted, spark, checkpoint) as query:
        query.processAllAvailable()
        progress = query.lastProgress
        assert progress is not None and progress["inputs"]["trades"]["rows"] == 800
        assert progress["operators"]["totals"]["rowsIn"] == 800
        got.append(query.table())
    mine = {key: values[:2] for key, values in last_values(pa.concat_tables(got), 1).items()}
    assert mine == {key: values[:2] for key, values in oracle(spark, folder, ["name"]).items()}


def test_a_source_that_fails_ends_the_query_with_its_name(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    stream = penstock.from_dataframe(stream_of(spark, folder), name="trades")
    with running(stream.groupBy("name").count(), spark, tmp_path / "checkpoint") as query:
        query.processAllAvailable()
        (folder / "999.parquet").write_bytes(b"this is no parquet file")
        wait_until(lambda: not query.isActive)
        error = query.exception()
        assert isinstance(error, penstock.OperatorError) and "'trades'" in str(error)
        with pytest.raises(penstock.QueryError, match="trades"):
            query.awaitTermination(1)
    assert json.loads((tmp_path / "checkpoint" / "ingest" / "trades" / "metadata").read_text())["id"]


def test_a_folder_of_the_spark_query_that_is_lost_is_put_back_and_every_row_counts_once(
    spark: SparkSession, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = penstock.from_dataframe(stream_of(spark, folder), name="trades").groupBy("name").count()
    checkpoint = tmp_path / "checkpoint"
    with running(counted, spark, checkpoint) as query:
        query.processAllAvailable()
    shutil.rmtree(checkpoint / "ingest" / "trades")
    with running(counted, spark, checkpoint) as query:
        assert "The ingest of 'trades' was put back to batch 2" in query.status["message"]
        put_file(folder, 3)
        query.processAllAvailable()
        assert "put back" not in query.status["message"]
        progress = query.lastProgress
        assert progress is not None and progress["inputs"]["trades"]["rows"] == 800
    assert "ingest/trades is lost; it is put back to batch 2" in caplog.text
    assert not verify(PosixDisk(), str(checkpoint)).findings


def test_a_folder_that_is_newer_than_the_log_is_refused_before_anything_runs(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    counted = penstock.from_dataframe(stream_of(spark, folder), name="trades").groupBy("name").count()
    checkpoint = tmp_path / "checkpoint"
    with running(counted, spark, checkpoint) as query:
        query.processAllAvailable()
    shutil.copytree(checkpoint, tmp_path / "copy")
    for number in (3, 4):
        put_file(folder, number)
    with running(counted, spark, checkpoint) as query:
        query.processAllAvailable()
    shutil.rmtree(tmp_path / "copy" / "ingest")
    shutil.copytree(checkpoint / "ingest", tmp_path / "copy" / "ingest")
    with (
        pytest.raises(
            penstock.CheckpointError, match=r"has committed batch 4, but batch 2 is the last one committed"
        ),
        running(counted, spark, tmp_path / "copy"),
    ):
        pass
    # What the message says is a way out.
    shutil.rmtree(tmp_path / "copy" / "ingest")
    with running(counted, spark, tmp_path / "copy") as query:
        query.processAllAvailable()
        progress = query.lastProgress
        assert progress is not None and progress["inputs"]["trades"]["rows"] == 1000


def test_a_null_in_the_stamp_column_names_source_and_column(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    stream = penstock.from_dataframe(stream_of(spark, folder), name="trades", stamp="amount")
    with running(stream.groupBy("name").count(), spark, tmp_path / "checkpoint") as query:
        wait_until(lambda: not query.isActive)
        said = str(query.exception())
        assert said.startswith("source 'trades': column 'amount' is its stamp and has"), said


def test_what_spark_planned_is_durable_before_the_batch_is_committed(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    found: list[tuple[int, dict[str, bytes]]] = []
    sync, on_batch = StepDisk._sync, SourceSteps.on_batch
    checkpoint = tmp_path / "checkpoint"

    def watched(self: StepDisk, path: str, file: int) -> None:
        sync(self, path, file)
        synced.add(path)

    def looked_at(self: SourceSteps, source: str, batch: Batch, *given: Any) -> None:
        assert batch.plan is not None and not batch.plan.stateful
        assert {str(checkpoint / "data" / file.kept.file) for file in batch.plan.files} <= synced
        kept = {file.path: read_kept(PosixDisk(), str(checkpoint), file) for file in batch.plan.files}
        found.append((batch.number, kept))
        on_batch(self, source, batch, *given)

    monkeypatch.setattr(StepDisk, "_sync", watched)
    monkeypatch.setattr(SourceSteps, "on_batch", looked_at)
    counts = penstock.from_dataframe(stream_of(spark, folder), name="trades").groupBy("name").count()
    with running(counts, spark, checkpoint) as query:
        query.processAllAvailable()
    assert [number for number, _ in found] == [0, 1, 2]
    theirs = checkpoint / "ingest" / "trades"
    last = {"metadata", "offsets/1", "offsets/2", "sources/0/0", "sources/0/1", "sources/0/2"}
    assert found[-1][1] == {name: (theirs / name).read_bytes() for name in last}


STOPPED = """
import sys, time
import penstock

spark = penstock.session()
frame = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
rows = penstock.from_dataframe(frame.selectExpr("value % 100 AS user"), name="rows")
counted = rows.groupBy("user").count(name="counted")
for pause_s in (3.0, 2.3):
    query = counted.writeStream.format("noop").option("checkpointLocation", sys.argv[1]).start()
    time.sleep(pause_s)
    query.stop()
    assert query.exception() is None
"""


@pytest.mark.long
def test_a_stop_in_the_middle_of_a_batch_leaves_no_trace_on_standard_error(tmp_path: Path) -> None:
    program = tmp_path / "stopped.py"
    program.write_text(STOPPED)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "StackOverflowError" not in done.stderr and "Exception in thread" not in done.stderr, done.stderr[
        -2000:
    ]
