"""The sinks of a query on Spark: what each does with the rows of a sink epoch, on the sink thread, one after the other.

A sink is called with the same rows under the same number until it returns once; only then is the sink epoch done. It
owns no record of that: intent and done records are the engine's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.dataplane.compile import SINK, sink_stage
from penstock.dataplane.disk import PosixDisk, check_scheme
from penstock.dataplane.metas import query_of
from penstock.dataplane.opening import Opened
from penstock.dataplane.parquet_folder import HIDDEN, ParquetFolder, check_folder
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import check_claim
from penstock.dataplane.settings import Settings
from penstock.spark.dataframes import dataframe_of
from penstock.topology.options import (
    CONSOLE_TRUNCATE,
    NUM_ROWS,
    PARQUET_COMPRESSION,
    ROLL_BYTES,
    ROLL_SECONDS,
    SINK_PATH,
)
from penstock.topology.writer import ARROW_FUNCTION, BATCH_FUNCTION, Declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONSOLE_EPOCH_S = 1.0
"""Shortest time between two prints."""
_RULE = "-" * 43

Consume = Callable[[pa.Table, int], Any]


class Sink(Protocol):
    """Takes sink epochs, in order, on one thread."""

    def take(self, table: pa.Table, sink_epoch: int) -> None:
        """Carry out the side effect of a sink epoch, the first time and when it is repeated."""

    def cancel(self) -> None:
        """End Spark jobs that are under way; the query is over. Any thread."""

    def note_failure(self, told: str) -> None:
        """The query has failed: say so to those who read what the sink keeps. Called last, after `cancel`."""


def sink_settings(declared: Declared) -> dict[str, Any]:
    """Return the settings of the data plane that a sink asks for."""
    if declared.sink == "console":
        return {"sink_epoch_s": CONSOLE_EPOCH_S}
    if declared.sink != "parquet":
        return {}
    size = ROLL_BYTES.of(declared.options)
    # What gathers for a file counts as waiting: sources must not be stopped by it.
    room = max(Settings.max_waiting_bytes, 4 * size)
    return {
        "sink_hold_s": ROLL_SECONDS.of(declared.options),
        "sink_bytes": size,
        "max_waiting_bytes": room,
    }


def check_sink(declared: Declared, checkpoint: str) -> None:
    """Refuse a place that a sink cannot write to, before anything is opened or made.

    Raises:
        CheckpointError: the folder of a Parquet sink is no local one, or belongs to another query than the checkpoint.
    """
    if declared.sink == "parquet":
        path = check_scheme(SINK_PATH.of(declared.options), "The path of the Parquet sink")
        check_folder(path, query_of(PosixDisk(), checkpoint), declared.partition_by)


def with_sink_settings(program: Program, further: Sequence[Declared]) -> Program:
    """Return the program with what each further sink asks for; the first sink's is in the settings of the query."""
    stages = dict(program.stages)
    for one in further:
        name, asked = sink_stage(str(one.name)), sink_settings(one)
        stages[name] = replace(
            stages[name],
            min_epoch_s=asked.get("sink_epoch_s", Settings.sink_epoch_s),
            hold_s=asked.get("sink_hold_s", 0.0),
            hold_bytes=asked.get("sink_bytes", Settings.sink_bytes),
        )
    return replace(program, stages=stages)


def kinds_of(declared: Declared) -> dict[str, str]:
    """Return the kind of each sink stage of a declared query: memory, parquet, ..."""
    return {
        SINK if one is declared else sink_stage(str(one.name)): one.sink for one in (declared, *declared.also)
    }


def make_sinks(
    declared: Declared, spark: SparkSession, opened: Opened, remember: Callable[[str, pa.Table], None]
) -> dict[str, Sink]:
    """Return what takes the rows of each sink stage of a declared query; nothing for those that drop them.

    Args:
        remember: keeps rows of a sink for `query.table()`.
    """
    found = {}
    for one in (declared, *declared.also):
        stage = SINK if one is declared else sink_stage(str(one.name))
        sink = make_sink(one, spark, opened, partial(_remember_epoch, remember, stage))
        if sink is not None:
            found[stage] = sink
    return found


def _remember_epoch(
    remember: Callable[[str, pa.Table], None], stage: str, table: pa.Table, sink_epoch: int
) -> None:
    remember(stage, table)


def make_sink(declared: Declared, spark: SparkSession, opened: Opened, remember: Consume) -> Sink | None:
    """Return what takes the rows of a declared query; None where nobody does.

    Args:
        remember: keeps rows for `query.table()`.
    """
    label = declared.name or declared.node.name
    # A driver that ends cancels its own jobs, and not those of the one that has taken over.
    group = f"penstock-{opened.query}-{opened.claim.generation}-sink"
    if declared.sink == "parquet":
        return ParquetSink(declared, opened)
    if declared.sink == "console":
        return ConsoleSink(declared, Jobs(spark, label, group))
    if declared.sink == "memory":
        view = MemoryView(spark, declared.name, declared.node.schema) if declared.name else None
        return MemorySink(remember, view, Jobs(spark, label, group))
    if declared.sink == ARROW_FUNCTION:
        assert declared.function is not None
        return ArrowSink(declared.function)
    if declared.sink == BATCH_FUNCTION:
        assert declared.function is not None
        return DataFrameSink(declared.function, Jobs(spark, label, group))
    return None


class Jobs:
    """How the Spark jobs of a sink appear: in the caller's session and pool, named by query and sink epoch."""

    def __init__(self, spark: SparkSession, label: str, group: str) -> None:
        self.spark = spark
        self._label = label
        self._group = group
        self._pool = spark.sparkContext.getLocalProperty("spark.scheduler.pool")

    def dataframe(self, table: pa.Table, sink_epoch: int) -> DataFrame:
        """Return the rows as a DataFrame; jobs that this thread starts from now on belong to the sink epoch."""
        context = self.spark.sparkContext
        context.setJobGroup(self._group, f"penstock {self._label}, sink epoch {sink_epoch}")
        if self._pool is not None:
            context.setLocalProperty("spark.scheduler.pool", self._pool)
        return dataframe_of(self.spark, table)

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # Spark may be gone, and its jobs with it
            self.spark.sparkContext.cancelJobGroup(self._group)


class ArrowSink:
    """Calls the user's function with Arrow."""

    def __init__(self, function: Consume) -> None:
        self._function = function

    def take(self, table: pa.Table, sink_epoch: int) -> None:
        self._function(table, sink_epoch)

    def cancel(self) -> None:
        pass

    def note_failure(self, told: str) -> None:
        pass


class DataFrameSink:
    """Calls the user's function with a DataFrame."""

    def __init__(self, function: Callable[..., Any], jobs: Jobs) -> None:
        self._function = function
        self._jobs = jobs

    def take(self, table: pa.Table, sink_epoch: int) -> None:
        self._function(self._jobs.dataframe(table, sink_epoch), sink_epoch)

    def cancel(self) -> None:
        self._jobs.cancel()

    def note_failure(self, told: str) -> None:
        pass


class ConsoleSink:
    """Prints sink epochs as Spark's console sink prints batches."""

    def __init__(self, declared: Declared, jobs: Jobs) -> None:
        self._rows = NUM_ROWS.of(declared.options)
        self._truncate = CONSOLE_TRUNCATE.of(declared.options)
        self._jobs = jobs

    def take(self, table: pa.Table, sink_epoch: int) -> None:
        shown = self._jobs.dataframe(table.slice(0, self._rows + 1), sink_epoch)
        text = shown._show_string(self._rows, self._truncate, False)  # type: ignore[operator]
        print(f"{_RULE}\nBatch: {sink_epoch}\n{_RULE}\n{text}", flush=True)

    def cancel(self) -> None:
        self._jobs.cancel()

    def note_failure(self, told: str) -> None:
        pass


class MemoryView:
    """All rows so far as a temporary view. Rows stay in parts of growing size, so that an epoch costs what it adds."""

    def __init__(self, spark: SparkSession, name: str, schema: pa.Schema) -> None:
        self._spark = spark
        self._name = name
        self._parts: list[tuple[pa.Table, DataFrame]] = []
        self._empty = dataframe_of(spark, schema.empty_table())
        self._empty.createOrReplaceTempView(name)

    def add(self, table: pa.Table) -> None:
        while self._parts and self._parts[-1][0].num_rows <= 2 * table.num_rows:
            table = pa.concat_tables([self._parts.pop()[0], table])
        self._parts.append((table, dataframe_of(self._spark, table)))
        whole = self._parts[0][1]
        for _, part in self._parts[1:]:
            whole = whole.unionAll(part)
        whole.createOrReplaceTempView(self._name)

    def fail(self, told: str) -> None:
        """Let whoever reads the view from now on get this text as an error."""
        from pyspark.sql import functions

        # A condition is kept whatever columns are asked for, and over values the planner evaluates it: no job fails.
        one = self._spark.sql(
            "SELECT * FROM VALUES (1) AS t(one) WHERE raise_error(:told) IS NULL", {"told": told}
        )
        columns = [functions.lit(None).cast(field.dataType).alias(field.name) for field in self._empty.schema]
        one.select(*columns).createOrReplaceTempView(self._name)


class MemorySink:
    """Keeps the rows on the driver, for `query.table()` and, where the query has a name, for `spark.sql`."""

    def __init__(self, remember: Consume, view: MemoryView | None, jobs: Jobs) -> None:
        self._remember = remember
        self._view = view
        self._jobs = jobs

    def take(self, table: pa.Table, sink_epoch: int) -> None:
        if self._view is not None:
            self._view.add(table)
        self._remember(table, sink_epoch)

    def cancel(self) -> None:
        self._jobs.cancel()

    def note_failure(self, told: str) -> None:
        if self._view is not None:
            self._view.fail(f"{told}; query.table() has the rows that reached the view before")


class ParquetSink:
    """Adds a file, or one per partition, for every sink epoch."""

    def __init__(self, declared: Declared, opened: Opened) -> None:
        path = check_scheme(SINK_PATH.of(declared.options), "The path of the Parquet sink")
        self._folder = ParquetFolder(
            path,
            opened.query,
            opened.claim.generation,
            partition_by=declared.partition_by,
            compression=PARQUET_COMPRESSION.of(declared.options),
            disk=PosixDisk(temps=os.path.join(path, HIDDEN)),
            check=lambda: check_claim(PosixDisk(), opened.checkpoint, opened.claim),
        )

    def take(self, table: pa.Table, sink_epoch: int) -> None:
        self._folder.add(table, sink_epoch)

    def cancel(self) -> None:
        pass

    def note_failure(self, told: str) -> None:
        pass
