"""Plain Spark, measured: what `bench keyed-count` compares with. Nothing of Penstock's engine runs here.

Closed loop (`run_batches`): files lie ready, Spark takes a fixed number of rows a batch, as fast as it can.
Open loop (`run_steady`): files arrive at a set rate whatever Spark does; each row is charged from its stamp.
Every function is bounded in time and removes its files; one session serves them all, one at a time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from penstock.bench.machine import CpuMeter, CpuUse
from penstock.bench.result import spread
from penstock.bench.spark_feed import (
    PARTS,
    CommitWatch,
    OpenLoopFeed,
    RowSpec,
    Workspace,
    prepare_batches,
    prepare_every_key,
    workspace,
)
from penstock.bench.spark_figures import (
    BatchRun,
    HeldRate,
    SteadyRun,
    derive_batch_run,
    derive_held_rate,
    derive_latency,
    estimate_held_rate,
    propose_batch_rows,
    propose_rate,
)
from penstock.bench.spark_rows import OUTPUT, STATE, CountRows, count_in_pandas

ROW_DDL: Final = "key bigint, value bigint, stamp bigint"
WARM_BATCHES: Final = 20
WARM_ROWS: Final = 200
"""Rows of a warm-up batch that only has to warm: the Python APIs cost by the key, and a large one takes seconds."""
UNIFORM_10M: Final = RowSpec(keys=10_000_000, zipf=0.0)
DEFAULT_ROWS: Final = RowSpec()

QUICK_FILES: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""An internal setting of Spark's that spares a checkpoint on a local disk the forking of helper programs."""

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting rows costs RocksDB a second look-up for every write, and 8 MB of cache is for small state only.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "512",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}

Build = Callable[[DataFrame], DataFrame]


class PeerError(Exception):
    """A run of plain Spark gave no figure; the message says which run and why."""


def session(cores: int = 2, heap: str = "8g", partitions: int = 2) -> SparkSession:
    """Start plain Spark on `cores` cores with the settings that are best for it here.

    Two shuffle partitions beat four on two cores: a batch costs Spark per partition, not per row.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").appName("penstock-bench-peer")
    settings = {
        **_SETTINGS,
        "spark.driver.memory": heap,
        "spark.sql.shuffle.partitions": str(partitions),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def java_version(spark: SparkSession) -> str:
    jvm = spark.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("java.version")) if jvm is not None else "unknown"


def read_rows(spark: SparkSession, folder: str, files_per_trigger: int | None = None) -> DataFrame:
    """Read the watched folder as a stream; ingest is measured on this very DataFrame."""
    reader = spark.readStream.schema(ROW_DDL)
    if files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", files_per_trigger)
    return reader.parquet(folder)


def native(rows: DataFrame) -> DataFrame:
    """Count and add up in the JVM."""
    return rows.groupBy("key").agg(F.count("*").alias("rows"), F.sum("value").alias("total"))


def in_pandas(rows: DataFrame) -> DataFrame:
    """Count and add up by `applyInPandasWithState`."""
    return rows.groupBy("key").applyInPandasWithState(count_in_pandas, OUTPUT, STATE, "update", "NoTimeout")


def with_state(rows: DataFrame) -> DataFrame:
    """Count and add up by `transformWithState`, row flavour."""
    return rows.groupBy("key").transformWithState(CountRows(), OUTPUT, "Update", "None")


@contextmanager
def settings(spark: SparkSession, changes: Mapping[str, str]) -> Iterator[None]:
    """Change session settings for a while, and put the old ones back."""
    before = {name: spark.conf.get(name, None) for name in changes}
    for name, value in changes.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def run_batches(
    spark: SparkSession,
    rows_per_batch: int,
    build: Build = native,
    spec: RowSpec = DEFAULT_ROWS,
    batches: int = WARM_BATCHES,
    timeout_s: float = 120.0,
) -> BatchRun:
    """Run `batches` batches of prepared rows; the last half counts.

    Raises:
        PeerError: fewer than three batches were committed within `timeout_s`, or the query failed.
    """
    return run_sizes(spark, [(rows_per_batch, batches)], build, spec, timeout_s=timeout_s)[0]


def run_sizes(
    spark: SparkSession,
    sizes: Sequence[tuple[int, int]],
    build: Build = native,
    spec: RowSpec = DEFAULT_ROWS,
    warm_batches: int = 0,
    timeout_s: float = 120.0,
) -> list[BatchRun]:
    """Run batches of several sizes, one size after the other, in one query; the last half of each counts.

    Args:
        sizes: (rows a batch, batches).
        warm_batches: batches of `WARM_ROWS` rows that run before and count for nothing.

    Raises:
        PeerError: of some size fewer than three commits were seen, or the query failed.
    """
    with workspace() as space:
        first = 0
        for rows, batches in [(WARM_ROWS, warm_batches), *sizes]:
            prepare_batches(space, spec, rows, batches, first=first)
            first += batches
        times_s = _drain(spark, space, build, timeout_s)
    runs, first = [], warm_batches
    for rows, batches in sizes:
        # The commit before the first batch of a size is where that batch begins.
        runs.append(_batch_run(build, rows, times_s[max(0, first - 1) : first + batches]))
        first += batches
    return runs


def run_many_keys(
    spark: SparkSession,
    rows_per_batch: int = 1_000_000,
    spec: RowSpec = UNIFORM_10M,
    batches: int = WARM_BATCHES,
    timeout_s: float = 420.0,
) -> BatchRun:
    """Run `batches` batches on state that already holds every key; the last half of them counts, two at least."""
    with workspace() as space:
        prefill = prepare_every_key(space, spec.keys, rows_per_batch)
        prepare_batches(space, spec, rows_per_batch, batches, first=prefill)
        return _batch_run(native, rows_per_batch, _drain(spark, space, native, timeout_s)[prefill - 1 :])


def _drain(spark: SparkSession, space: Workspace, build: Build, timeout_s: float) -> list[float]:
    """Let a query take in all that lies ready; return when it committed each batch."""
    frame = build(read_rows(spark, str(space.rows), PARTS))
    query = _start(frame, space, available_now=True)
    watch = CommitWatch(space.checkpoint)
    deadline_s = time.monotonic() + timeout_s
    with _stopping(query):
        while _running(query) and time.monotonic() < deadline_s:
            watch.poll()
            time.sleep(0.2)
    return list(watch.poll().values())


def _batch_run(build: Build, rows_per_batch: int, times_s: Sequence[float]) -> BatchRun:
    name = f"{build.__name__}, {rows_per_batch:,} rows a batch"
    if len(times_s) < 3:
        raise PeerError(f"{name}: {len(times_s)} batches were committed in time; stop other work and retry")
    run = derive_batch_run(name, rows_per_batch, times_s)
    say(f"{name}: {run.rate_per_s.median:,.0f} rows/s, {run.interval_ms.median:.0f} ms a batch")
    return run


def run_steady(
    spark: SparkSession,
    rate_per_s: float,
    spec: RowSpec = DEFAULT_ROWS,
    batches: int = WARM_BATCHES,
    timeout_s: float = 40.0,
) -> SteadyRun:
    """Feed rows at a set rate until `batches` batches are committed; the last half counts.

    Raises:
        PeerError: fewer than four batches were committed within `timeout_s`, or the query failed.
    """
    with workspace() as space:
        feed = OpenLoopFeed(space, spec, rate_per_s)
        query = _start(native(read_rows(spark, str(space.rows))), space)
        watch = CommitWatch(space.checkpoint)
        with _stopping(query):
            feed.start()
            try:
                meter = _watch_batches(query, watch, feed, batches, time.monotonic() + timeout_s)
                cpu = meter.read()
            finally:
                feed.stop()
        return _steady_run(watch, feed, cpu)


def _watch_batches(
    query: StreamingQuery, watch: CommitWatch, feed: OpenLoopFeed, batches: int, deadline_s: float
) -> CpuMeter:
    """Wait for the batches; return a meter that was started when the first half was done."""
    meter: CpuMeter | None = None
    while time.monotonic() < deadline_s:
        committed = watch.poll()
        if meter is None and len(committed) >= batches // 2:
            meter = CpuMeter()
        if len(committed) >= batches:
            break
        done = sum(len(paths) for batch, paths in watch.files().items() if batch in committed)
        feed.remove_before(done)
        if not _running(query):
            raise PeerError("the steady query ended by itself")
        time.sleep(0.1)
    return meter or CpuMeter()


def _steady_run(watch: CommitWatch, feed: OpenLoopFeed, cpu: CpuUse) -> SteadyRun:
    committed_s = watch.poll()
    if len(committed_s) < 4:
        raise PeerError(f"{feed.rate_per_s:,.0f} rows/s: only {len(committed_s)} batches were committed")
    counted = list(committed_s)[len(committed_s) // 2 :]
    gaps_ms = [(committed_s[batch] - committed_s[batch - 1]) * 1000 for batch in counted]
    run = SteadyRun(
        feed.rate_per_s,
        len(committed_s),
        spread(gaps_ms),
        derive_latency(watch.waits_ms(counted, feed), feed.rows_per_file),
        cpu,
    )
    say(
        f"steady {run.rate_per_s:,.0f} rows/s: mean {run.latency.mean_ms:.0f} ms, "
        f"p99 {run.latency.p99_ms:.0f} ms, {run.interval_ms.median:.0f} ms a batch, {cpu.cores:.2f} cores"
    )
    return run


def find_held_rate(
    spark: SparkSession,
    known: Sequence[BatchRun],
    bound_ms: float = 500.0,
    probes: int = 4,
    batches: int = WARM_BATCHES,
    first_per_s: float | None = None,
) -> HeldRate:
    """Search, by open-loop runs, the highest rate whose mean latency stays within `bound_ms`.

    The closed-loop runs say where to look first, unless `first_per_s` does, and count themselves where they
    stay within the bound.
    """
    runs: list[SteadyRun] = []
    rate = first_per_s or estimate_held_rate(known, bound_ms)
    for _ in range(probes):
        runs.append(run_steady(spark, rate, batches=batches, timeout_s=20.0))
        found = derive_held_rate((), runs, bound_ms)
        rate = propose_rate(found.open_loop_per_s or None, found.too_fast_per_s)
    return derive_held_rate(known, runs, bound_ms)


def find_batch_size(
    spark: SparkSession,
    build: Build,
    known: Sequence[BatchRun],
    bound_ms: float,
    batches: int,
    tries: int = 2,
    warm_batches: int = 0,
) -> list[BatchRun]:
    """Run batches of the sizes that promise the highest rate within a mean latency; return all runs known."""
    runs = list(known)
    for _ in range(tries):
        rows = propose_batch_rows(runs, bound_ms)
        if any(0.85 < rows / run.rows_per_batch < 1.2 for run in runs):
            break  # as good as measured
        timeout_s = 30 + batches * bound_ms / 500
        runs.extend(
            run_sizes(spark, [(rows, batches)], build, warm_batches=warm_batches, timeout_s=timeout_s)
        )
    return runs


def idle_cpu(spark: SparkSession, seconds: float = 5.0) -> CpuUse:
    """Measure the CPU of all processes while a warmed query has nothing to do."""
    with workspace() as space:
        prepare_batches(space, DEFAULT_ROWS, 10_000, 5)
        query = _start(native(read_rows(spark, str(space.rows), PARTS)), space)
        with _stopping(query):
            query.processAllAvailable()
            time.sleep(2.0)  # let what the last batch left behind (maintenance, collection) settle
            meter = CpuMeter()
            time.sleep(seconds)
            use = meter.read()
    say(f"no input: {use.cores:.3f} cores")
    return use


BUILDS: Final[Mapping[str, Build]] = {"native": native, "in_pandas": in_pandas, "with_state": with_state}


def call(spark: SparkSession | None, name: str, arguments: Mapping[str, Any], quick_files: bool) -> object:
    """Run one of this module's measurements by name, with arguments as they come from JSON."""
    calls: Mapping[str, Callable[..., object]] = {
        "run_batches": run_batches,
        "run_sizes": run_sizes,
        "run_many_keys": run_many_keys,
        "run_steady": run_steady,
        "find_held_rate": find_held_rate,
        "find_batch_size": find_batch_size,
        "idle_cpu": idle_cpu,
    }
    if spark is None or name not in calls:
        raise PeerError(f"{name!r} is not one of {sorted(calls)}, or no session was started before it")
    given = dict(arguments)
    if "build" in given:
        given["build"] = BUILDS[given["build"]]
    if "spec" in given:
        given["spec"] = msgspec.convert(given["spec"], RowSpec)
    if "sizes" in given:
        given["sizes"] = msgspec.convert(given["sizes"], list[tuple[int, int]])
    if "known" in given:
        given["known"] = msgspec.convert(given["known"], list[BatchRun])
    with settings(spark, QUICK_FILES if quick_files else {}):
        return calls[name](spark, **given)


def _start(frame: DataFrame, space: Workspace, available_now: bool = False) -> StreamingQuery:
    writer = frame.writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", str(space.checkpoint))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def _running(query: StreamingQuery) -> bool:
    if query.isActive:
        return True
    failure = query.exception()
    if failure is not None:
        raise PeerError(f"a query of plain Spark failed: {failure}")
    return False


@contextmanager
def _stopping(query: StreamingQuery) -> Iterator[None]:
    try:
        yield
    finally:
        query.stop()


def say(text: str) -> None:
    """Report progress where it does not mix with a result on standard output."""
    print(f"[spark] {text}", file=sys.stderr, flush=True)
