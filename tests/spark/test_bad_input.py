"""Bad input: each gives one clear error that names operator, column or file and the fix; the query can be restarted."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from tests.spark.flows import (
    SALES,
    await_rows,
    lease_jobs,
    make_sales,
    model_numbered,
    number_rows,
    numbered,
    running,
    sales,
    wait_until,
)

import penstock
from penstock.dataplane import paths
from penstock.dataplane.disk import PosixDisk, Step
from penstock.dataplane.frames import FrameKind, decode_frame
from penstock.dataplane.recordlog import frame_bytes
from penstock.spark import starting
from penstock.spark.session import PenstockWarning
from penstock.testing.faults import FaultPlan, fail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.topology.stream import Stream

ROWS = 1200
BAD = 700
"""The row from which on something is wrong."""
NUMBERED = "id long, region long, seen long, balance long"
STATES = {"seen": penstock.ValueState("long"), "balance": penstock.ValueState("long")}


def apply(function: Callable[..., Any], source: Stream | None = None) -> Stream:
    """`numbered` with another function, or another source: the same topology to a checkpoint."""
    stream = source if source is not None else sales(ROWS)
    return stream.groupBy("customer").apply_rows(
        function, schema=NUMBERED, state=STATES, name="numbered", shards=16
    )


def fail_then_mend(
    spark: SparkSession, checkpoint: Path, broken: Stream, named: tuple[str, ...], kind: type[Exception]
) -> str:
    """Run a broken query to its error, then the mended one; together they must have put out every row once."""
    rows: dict[int, list[tuple[int, ...]]] = {}

    def collect(table: pa.Table, epoch: int) -> None:
        rows[epoch] = [tuple(row.values()) for row in table.to_pylist()]

    with running(broken, spark, checkpoint, collect) as query:
        wait_until(lambda: not query.isActive, seconds=60)
        error = query.exception()
        with pytest.raises(penstock.QueryError):
            query.awaitTermination(1)
    assert isinstance(error, kind), error
    for name in named:
        assert name in str(error), error
    with running(apply(number_rows), spark, checkpoint, collect) as query:
        await_rows(query, ROWS)
    assert sorted(row for epoch in rows.values() for row in epoch) == model_numbered(ROWS)
    wait_until(lambda: not lease_jobs(spark), seconds=5)
    return str(error)


# -- refused where it is declared ----------------------------------------------------------------------------


def test_an_unknown_key_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(penstock.DeclarationError, match=r"'sales' has no column 'custmer'.*'customer'"):
        sales(1).groupBy("custmer")


def test_an_unhashable_key_is_refused_with_its_column_and_type() -> None:
    stream = penstock.generate(make_sales, schema="id long, tags array<string>", rate=1, name="posts")
    with pytest.raises(penstock.DeclarationError, match=r"'tags' of 'posts' has type array.*cannot be a key"):
        stream.groupBy("tags")


@pytest.mark.parametrize("location", ["s3a://bucket/path", "hdfs://host/path", "hdfs:/path", "gs://bucket"])
def test_a_checkpoint_scheme_is_refused_by_name(spark: SparkSession, location: str) -> None:
    with pytest.raises(
        penstock.CheckpointError, match=location.partition(":")[0] + ":.*not supported; give a directory"
    ):
        numbered(sales(1)).writeStream.format("noop").option("checkpointLocation", location).start(spark)


# -- seen when rows come: the query ends with the error, nothing committed is lost, and it can be restarted ---------


def test_a_null_key_names_its_column(spark: SparkSession, tmp_path: Path) -> None:
    def make(offset: int, count: int) -> pa.RecordBatch:
        batch = make_sales(offset, count)
        customers = [
            None if i == BAD else c
            for i, c in zip(batch["id"].to_pylist(), batch["customer"].to_pylist(), strict=True)
        ]
        return batch.set_column(1, "customer", pa.array(customers, pa.int64()))

    source = penstock.generate(make, schema=SALES, rate=4000, name="sales", limit=ROWS)
    text = fail_then_mend(
        spark, tmp_path, apply(number_rows, source), ("'customer'", "1 null"), penstock.OperatorError
    )
    assert "isNotNull()" in text


def test_a_function_that_raises_is_named_with_key_and_traceback(spark: SparkSession, tmp_path: Path) -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, ...]]:
        if any(row.id == BAD for row in rows):
            raise ZeroDivisionError("of course")
        return number_rows(key, rows, state)

    customer = make_sales(BAD, 1).column("customer")[0].as_py()
    named = ("'numbered'", f"({customer},)", "ZeroDivisionError: of course", "test_bad_input")
    fail_then_mend(spark, tmp_path, apply(broken), named, penstock.OperatorError)


def test_an_output_row_that_does_not_fit_names_its_column(spark: SparkSession, tmp_path: Path) -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[Any, ...]]:
        for row in number_rows(key, rows, state):
            yield (*row[:3], "a text") if row[0] == BAD else row

    fail_then_mend(spark, tmp_path, apply(broken), ("'numbered'", "'balance'"), penstock.OperatorError)


def test_an_output_row_of_another_length_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[Any, ...]]:
        for row in number_rows(key, rows, state):
            yield row[:2] if row[0] == BAD else row

    fail_then_mend(spark, tmp_path, apply(broken), ("'numbered'", "2", "4"), penstock.OperatorError)


def test_a_value_over_the_size_limit_names_state_and_limit(spark: SparkSession, tmp_path: Path) -> None:
    def hoard(key: Any, rows: list[Any], state: Any) -> None:
        state.text.update("x" * (17 << 20 if any(row.id == BAD for row in rows) else 10))

    def keep(key: Any, rows: list[Any], state: Any) -> None:
        state.text.update("x")

    def stream(function: Callable[..., Any]) -> Stream:
        return sales(ROWS).groupBy("customer").apply_rows(
            function, schema="id long", state={"text": penstock.ValueState("string")}, name="hoard", shards=8
        )  # fmt: skip

    with running(stream(hoard), spark, tmp_path) as query:
        wait_until(lambda: not query.isActive)
        error = query.exception()
    assert isinstance(error, penstock.OperatorError)
    for name in ("'hoard'", "'text'", "16777216"):
        assert name in str(error), error
    with running(stream(keep), spark, tmp_path) as query:
        await_rows(query, ROWS)


def test_a_source_that_raises_is_named_with_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    def make(offset: int, count: int) -> pa.RecordBatch:
        if offset + count > BAD:
            raise LookupError("no such page")
        return make_sales(offset, count)

    source = penstock.generate(make, schema=SALES, rate=4000, name="sales", limit=ROWS)
    named = ("'sales'", "rows", "LookupError: no such page")
    fail_then_mend(spark, tmp_path, apply(number_rows, source), named, penstock.OperatorError)


def test_the_view_and_the_table_of_a_failed_query_name_the_failure(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> list[tuple[int]]:
        if any(row.id >= BAD for row in rows):
            raise ZeroDivisionError("of course")
        return [(row.id,) for row in rows]

    stream = sales(ROWS).groupBy("customer").apply_rows(broken, schema="id long", name="numbered", shards=16)
    writer = (
        stream.writeStream.format("memory").queryName("failed_sales").option("checkpointLocation", tmp_path)
    )
    query = writer.start(spark)
    wait_until(lambda: not query.isActive, seconds=60)
    told = capfd.readouterr().err
    assert told.count("query failed_sales has failed: operator 'numbered' failed") == 1
    assert told.count("ZeroDivisionError: of course\n") == 2, (
        "the sentence, and the last line of one traceback"
    )
    for ask in ("select * from failed_sales", "select count(*) from failed_sales"):
        with pytest.raises(
            Exception, match=r"query failed_sales has failed: operator 'numbered'.*query.table\(\)"
        ):
            spark.sql(ask).collect()
    with pytest.warns(
        PenstockWarning, match="failed_sales has failed, and these are the rows that reached its sink"
    ):
        assert query.table().num_rows <= ROWS
    with pytest.raises(penstock.QueryError, match="of course") as raised:
        query.awaitTermination()
    assert "Traceback" not in str(raised.value) + str(raised.value.__cause__)
    assert "test_bad_input" in str(query.exception()), "the handle keeps the traceback"
    spark.catalog.dropTempView("failed_sales")


def test_a_function_that_cannot_be_sent_is_refused_before_there_is_a_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> Any:
        return spark.range(3).collect()

    frame = spark.range(3)
    for function, variable in ((broken, "spark"), (lambda key, rows, state: frame.collect(), "frame")):
        with pytest.raises(
            penstock.DeclarationError,
            match=rf"operator 'numbered': .* uses '{variable}', a pyspark.*from_dataframe",
        ):
            apply(function).writeStream.format("noop").option("checkpointLocation", tmp_path / "c").start(
                spark
            )
    assert not (tmp_path / "c").exists()


# -- checkpoints ---------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_topology_is_refused_and_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(apply(number_rows), spark, tmp_path) as query:
        await_rows(query, ROWS)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    others = {
        "lacks": sales(ROWS).groupBy("customer").count(name="counted"),
        "shards": numbered(sales(ROWS), shards=32),
        "keys": sales(ROWS)
        .groupBy("region")
        .apply_rows(number_rows, schema=NUMBERED, state=STATES, name="numbered", shards=16),
    }
    for word, stream in others.items():
        with pytest.raises(penstock.CheckpointError, match=word) as caught:
            stream.writeStream.format("noop").option("checkpointLocation", tmp_path).start(spark)
        assert "'numbered'" in str(caught.value) and str(tmp_path) in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with running(apply(number_rows), spark, tmp_path) as query:
        assert query.id


def test_a_newer_format_is_refused_with_the_file(spark: SparkSession, tmp_path: Path) -> None:
    with running(numbered(sales(10)), spark, tmp_path):
        pass
    path = Path(paths.meta(str(tmp_path)))
    meta = msgspec.json.decode(bytes(decode_frame(path.read_bytes(), FrameKind.META, str(path))))
    mine = path.read_bytes()
    path.write_bytes(frame_bytes(FrameKind.META, msgspec.json.encode({**meta, "format": 99})))
    with pytest.raises(penstock.CheckpointError, match=r"meta has format 99.*newer release"):
        numbered(sales(10)).writeStream.format("noop").option("checkpointLocation", tmp_path).start(spark)
    path.write_bytes(mine)
    with running(numbered(sales(10)), spark, tmp_path) as query:
        await_rows(query, 10)


def test_a_directory_that_cannot_be_written_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    places = [tmp_path / "file", tmp_path / "file" / "below"]
    if os.path.isdir("/proc/self"):
        places.append(Path("/proc/self/checkpoint"))
    if os.geteuid() != 0:
        (tmp_path / "read-only").mkdir(mode=0o500)
        places.append(tmp_path / "read-only" / "below")
    for place in places:
        with pytest.raises(penstock.CheckpointError) as caught:
            numbered(sales(10)).writeStream.format("noop").option("checkpointLocation", place).start(spark)
        assert str(place) in str(caught.value)


def test_a_full_disk_under_the_log_ends_the_query_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = FaultPlan([fail(Step.WRITE, 6, error=errno.ENOSPC, path="*/log/*")])
    monkeypatch.setattr(starting, "PosixDisk", lambda: PosixDisk(plan))
    text = fail_then_mend(spark, tmp_path, apply(number_rows), ("/log/", "ENOSPC"), penstock.StorageError)
    assert "space" in text and len(plan.fired) == 1


def test_a_full_disk_under_the_data_ends_the_query_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()

    def make(offset: int, count: int) -> pa.RecordBatch:
        if offset + count > BAD and full.exists():
            fill_disk(str(full))
        return make_sales(offset, count)

    def fill_disk(flag: str) -> None:
        """Let this worker find the disk full as long as the flag is there."""
        import os

        from penstock.dataplane.disk import PosixCalls

        write = PosixCalls.write

        def refuse(self: Any, file: int, parts: Any) -> int:
            if os.path.exists(flag):
                raise OSError(28, "No space left on device")
            return write(self, file, parts)

        PosixCalls.write = refuse  # type: ignore[method-assign]

    rows: list[tuple[int, ...]] = []

    def collect(table: pa.Table, epoch: int) -> None:
        rows.extend(tuple(row.values()) for row in table.to_pylist())

    stream = apply(number_rows, penstock.generate(make, schema=SALES, rate=4000, name="sales", limit=ROWS))
    with running(stream, spark, tmp_path / "checkpoint", collect) as query:
        wait_until(lambda: not query.isActive, seconds=90)
        error = query.exception()
    assert isinstance(error, penstock.StorageError) and "/data/" in str(error) and "ENOSPC" in str(error)
    full.unlink()
    with running(stream, spark, tmp_path / "checkpoint", collect) as query:
        await_rows(query, ROWS)
    assert sorted(rows) == model_numbered(ROWS)


def test_a_checkpoint_in_use_is_refused_even_in_the_same_process(spark: SparkSession, tmp_path: Path) -> None:
    with running(numbered(sales(None)), spark, tmp_path, "noop") as query:
        with pytest.raises(penstock.CheckpointError, match=r"runs already on the checkpoint .*takeover"):
            numbered(sales(None)).writeStream.format("noop").option("checkpointLocation", tmp_path).start(
                spark
            )
        assert query.isActive


# -- sessions ------------------------------------------------------------------------------------------------


def test_spark_connect_is_refused_with_the_reason(tmp_path: Path) -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(penstock.SessionError, match=r"Spark Connect.*classic session"):
        numbered(sales(1)).writeStream.format("noop").option("checkpointLocation", tmp_path).start(connect)
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(penstock.SessionError, match="'clicks' is a Spark Connect DataFrame"):
        penstock.from_dataframe(frame, name="clicks")
    assert not list(tmp_path.iterdir())


SESSIONS = """
import json, os, sys, threading, time
import pyarrow as pa
from pyspark.sql import SparkSession
import penstock
from penstock.spark import leases
def make(offset, count):
    return pa.record_batch({"k": pa.array(range(offset, offset + count), pa.int64())})
def counted(source=None):
    source = source or penstock.generate(make, schema="k long", rate=100, name="numbers")
    return source.groupBy("k").count(name="counted").writeStream.format("noop").option("checkpointLocation", sys.argv[1])
def session(master, **settings):
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    return builder.getOrCreate()
def attempt(name, start):
    began = time.monotonic()
    try:
        query = start()
        try:
            query.awaitTermination(30)
        finally:
            query.stop()
        found = "nothing happened"
    except penstock.PenstockError as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps([name, round(time.monotonic() - began, 1), found]), flush=True)
spark = session("local[1]")
attempt("single slot", lambda: counted().start(spark))
spark.stop()
spark = session("local[4]", spark__dynamicAllocation__enabled="true")
attempt("dynamic allocation", lambda: counted().start(spark))
attempt("stopped", lambda: (spark.stop(), counted().start(spark))[1])
spark = session("local[2]", spark__dynamicAllocation__enabled="false")
rate = spark.readStream.format("rate").load().selectExpr("value as k")
ingested = counted(penstock.from_dataframe(rate, name="rate")).option("checkpointLocation", sys.argv[1] + "-ingest")
attempt("two slots and ingest", lambda: ingested.start(spark))
spark.stop()
spark = session("local[3]")
leases.CONNECT_TIMEOUT_S = 3.0
def occupy():
    spark.sparkContext.parallelize(range(3), 3).foreach(lambda _: time.sleep(12))
threading.Thread(target=occupy, daemon=True).start()
time.sleep(1.5)
attempt("busy slots", lambda: counted().start(spark))
attempt("stopped while it ran", lambda: (q := counted().start(spark), time.sleep(1), spark.stop())[0])
os._exit(0)
"""


@pytest.mark.long
def test_a_session_that_cannot_carry_leases_is_refused_by_what_is_wrong_with_it(tmp_path: Path) -> None:
    program = tmp_path / "sessions.py"
    program.write_text(SESSIONS)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(tmp_path / "checkpoint")],
        capture_output=True, text=True, timeout=180, check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    found = {name: (seconds, text) for name, seconds, text in map(json.loads, done.stdout.splitlines())}
    expected = {
        "single slot": ("SessionError", "local[1]", "single slot", "local[n]"),
        "dynamic allocation": ("SessionError", "spark.dynamicAllocation.enabled", "set it to false"),
        "stopped": ("SessionError", "stopped", "penstock.session()"),
        "two slots and ingest": ("SessionError", "2 task slots", "at least 3"),
        "busy slots": ("QueryError", "taken by other jobs", "free at least two slots"),
        "stopped while it ran": ("QueryError", "SparkSession was stopped", "start the query again"),
    }
    assert list(found) == list(expected), done.stderr[-3000:]
    for name, words in expected.items():
        seconds, text = found[name]
        assert all(word in text for word in words), (name, text)
        assert seconds < 20, (name, seconds)
