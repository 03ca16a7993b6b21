"""Ingest: a Structured Streaming query whose checkpoint lives inside ours; one batch is one record.

A batch is keyed by (source, query id, batch id), and its record names what Spark planned for it: Spark may run the last
one again after a crash, and what is the same is passed over. Our log leads and Spark's folder follows: `planned` puts it
back or refuses it. Back-pressure blocks before a batch is read.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane import recordlog, records
from penstock.dataplane.channel import DataWriter, EdgeSpec, write_rows
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.messages import Said
from penstock.dataplane.records import Batch, Stamp, TaskPart
from penstock.dataplane.speaking import Speaker
from penstock.errors import CheckpointError, OperatorError, PenstockError
from penstock.raised import describe_own, describe_traceback, noting_ctrl_c
from penstock.spark.hearing import level_wanted
from penstock.spark.hub import HubOver
from penstock.spark.judging import Turn
from penstock.spark.leases import reason_in
from penstock.spark.planned import Planned
from penstock.spark.session import is_alive
from penstock.spark.slots import is_local

if TYPE_CHECKING:
    from penstock.spark.shell import SparkShell

SEGMENT_ROWS = 1 << 20
SEGMENT_BYTES = 64 << 20
"""A segment of a batch ends at whichever comes first."""
BLOCK_POLL_S = 0.01
STOP_GRACE_S = 2.0
"""How long a stop waits for the batch that Spark is at."""
MAX_RESTARTS = 5
RESTARTS_WITHIN_S = 60.0
"""How often the Spark query is started again when its jobs are cancelled."""
RESTARTED_WITHIN_S = 10.0
CONCURRENT_POLL_S = 0.25
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled")
_CONCURRENT = re.compile(
    r"SparkConcurrentModificationException|queries are concurrently using|Concurrent update to the log"
    # A file under way that a driver which took over has cleared away.
    r"|/ingest/\S+\.tmp(\.crc)? does not exist"
)
_log = logging.getLogger("penstock")
_OURS = re.compile(r"penstock\.errors\.\w+: (.+)")


def is_concurrent(text: str) -> bool:
    """Whether an error of Spark's says that another driver has been at the same folder."""
    return _CONCURRENT.search(text) is not None


def is_cancelled(text: str) -> bool:
    """Whether an error of Spark's says that somebody cancelled the job."""
    return _CANCELLED.search(text) is not None


class WrittenPart(msgspec.Struct, array_like=True, frozen=True):
    """What one partition of a batch wrote, and what functions said meanwhile."""

    part: TaskPart
    stamp: Stamp | None
    said: list[Said] = []


@dataclass(frozen=True)
class PartitionWriter:
    """Writes one partition of a batch as segments; runs on Spark executors."""

    checkpoint: str
    generation: int
    writer: str
    source: str
    schema: pa.Schema
    edges: tuple[EdgeSpec, ...]
    stamp: str | None
    log_level: int = logging.WARNING
    echo: bool = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        speaker = Speaker(echo=self.echo)
        speaker.stage = self.source
        with speaker.listening(self.log_level), noting_ctrl_c():
            try:
                written = self._write(batches, speaker)
            except PenstockError as error:
                raise _told_by_spark(error) from None
        written = msgspec.structs.replace(written, said=speaker.take())
        yield pa.RecordBatch.from_pydict(
            {"written": [msgspec.msgpack.encode(written)]}, pa.schema([("written", pa.binary())])
        )

    def _write(self, batches: Iterator[pa.RecordBatch], speaker: Speaker) -> WrittenPart:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition, attempt = (
            (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        )
        speaker.task = partition
        writer = f"{self.writer}_{partition}_{attempt}"
        data = DataWriter(PosixDisk(), self.checkpoint, self.generation, writer, "seg")
        segments: list[records.Segment] = []
        events: dict[int, int] = {}
        stamps: list[Stamp] = []
        rows = 0
        for table in _in_chunks(batches, self.schema):
            rows += table.num_rows
            stamps.extend(self._stamp(table))
            for edge in self.edges:
                written = write_rows(data, edge, table, self.schema, self.source, partition + len(segments))
                if written.segment is not None:
                    segments.append(written.segment)
                if written.event_us is not None:
                    events[edge.edge] = max(written.event_us, events.get(edge.edge, written.event_us))
        data.sync()
        data.close()
        part = TaskPart(partition, writer, b"", rows, rows, segments, event_us=sorted(events.items()))
        return WrittenPart(part, records.combine_stamps(stamps))

    def _stamp(self, table: pa.Table) -> list[Stamp]:
        if self.stamp is None or table.num_rows == 0:
            return []
        column = table.column(self.stamp)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        if column.null_count:
            raise OperatorError(
                f"source '{self.source}': column '{self.stamp}' is its stamp and has {column.null_count} nulls; filter "
                "them out, or do without stamp=."
            )
        low, high = pc.min_max(column).as_py().values()
        return [Stamp(table.num_rows, low, pc.mean(column).as_py(), high)]


def _told_by_spark(error: PenstockError) -> PenstockError:
    """Return an error that says the same in text that Spark can send; of its causes nothing but the text is left."""
    told = type(error)(describe_own(error))
    told.add_note(describe_traceback(error))
    return told


def _in_chunks(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= SEGMENT_ROWS or size >= SEGMENT_BYTES:
            yield _fit(held, schema)
            held, rows, size = [], 0, 0
    if rows:
        yield _fit(held, schema)


def _fit(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)


class _Interrupted(Exception):
    """Ends the batch of a query that is being stopped. Spark knows such an end by this text alone; it looks for it with an
    expression that a long traceback makes overflow Java's stack."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
        )


class Ingest:
    """Feeds one source of a running query from a streaming DataFrame."""

    def __init__(
        self,
        shell: SparkShell,
        source: str,
        dataframe: Any,
        schema: pa.Schema,
        stamp: str | None,
        trigger: dict[str, Any] | None = None,
    ) -> None:
        self._shell = shell
        self._source = source
        self._dataframe = dataframe
        self._schema = schema
        self._stamp = stamp
        self._trigger = trigger or {}
        self.planned = Planned(PosixDisk(open_files=1), shell.opened, source)  # what Spark planned is read once
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._between_batches = threading.Event()
        self._between_batches.set()
        self._said: PenstockError | None = None
        """What we have to say of a batch that failed; Spark would bury it."""
        self._echo = not is_local(dataframe.sparkSession)
        self._restarts: list[float] = []
        self.query: Any = None

    def prepare(self) -> None:
        """Bring Spark's folder to where the log is, before anything runs on it.

        Raises:
            CheckpointError: the folder says more than the log, or something else, or cannot be put back.
        """
        self.planned.prepare(self._shell.opened.chains[self._source].batch)

    def start(self) -> None:
        writer = self._dataframe.writeStream.foreachBatch(self._on_batch).option(
            "checkpointLocation", self.planned.folder
        )
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        deadline = time.monotonic() + RESTARTED_WITHIN_S
        while not self._begin(writer, time.monotonic() > deadline):
            time.sleep(CONCURRENT_POLL_S)

    def _begin(self, writer: Any, last: bool) -> bool:
        """Have Spark start its query; False where that of a driver that was overtaken, and does not know it yet, still
        writes to the folder.

        Raises:
            FencedError: this driver is the one that was overtaken.
            OperatorError: Spark refuses the query.
        """
        try:
            self.query = writer.start()
            return True
        except Exception as error:
            self._check_owner()
            if is_concurrent(str(error)) and not last:
                return False
            raise OperatorError(
                f"source '{self._source}': Spark did not start its query: {reason_in(str(error))}"
            ) from error

    def _check_owner(self) -> None:
        opened = self._shell.opened
        recordlog.check_claim(PosixDisk(), opened.checkpoint, opened.claim)

    @property
    def finished(self) -> bool:
        """Whether everything that was available at the start is committed; never without such a trigger."""
        if not self._ends or self.query is None or self.query.isActive:
            return False
        return self.query.exception() is None

    @property
    def _ends(self) -> bool:
        return "once" in self._trigger or "availableNow" in self._trigger

    def stop(self) -> None:
        """End the Spark query, after the batch that it is at if that does not take long."""
        self._stopping.set()
        self._between_batches.wait(STOP_GRACE_S)
        self._stopped.set()
        if self.query is not None:
            self.query.stop()

    def failure(self) -> PenstockError | None:
        """Return why the Spark query ended by itself, None while it runs.

        One that ended because its job was cancelled (`sc.cancelAllJobs()`, which Ctrl-C calls too, or the Spark UI) is
        started again, a few times: whoever cancels jobs did not mean the query, which has `stop()`. So is one beside which
        a driver that was overtaken has planned a batch: Spark takes that batch as it was planned.
        """
        if self.query is None or self.query.isActive or self._stopping.is_set():
            return None
        error = self.query.exception()
        if error is not None and is_alive(self._dataframe.sparkSession):
            if is_cancelled(str(error)):
                return self._restart("its Spark job was cancelled")
            if is_concurrent(str(error)):
                return self._restart("its Spark query met that of a driver that was overtaken")
        if error is None and self._ends:
            return None
        if error is None:
            return OperatorError(
                f"source '{self._source}': its Spark query was stopped from outside; start the query again to go on."
            )
        return self._said or OperatorError(
            f"source '{self._source}': its Spark query failed: {reason_in(str(error))}"
        )

    def _restart(self, why: str) -> PenstockError | None:
        now = time.monotonic()
        self._restarts = [*(at for at in self._restarts if now - at < RESTARTS_WITHIN_S), now]
        if len(self._restarts) > MAX_RESTARTS:
            return OperatorError(
                f"source '{self._source}': {why} {len(self._restarts)} times within "
                f"{RESTARTS_WITHIN_S:.0f} s; start the query again to go on."
            )
        try:
            self._check_owner()
            _log.warning("source '%s': %s; its ingest starts again.", self._source, why)
            self.planned.prepare(self._known())
            self.start()
        except HubOver:
            return None
        except PenstockError as error:
            return error
        return None

    def drain(self) -> None:
        """Let Spark take in everything that is available now."""
        while self.query is not None and (self.query.isActive or not self._ends):
            draining = self.query
            try:
                draining.processAllAvailable()
                return
            except Exception as error:
                if not (is_cancelled(str(error)) or is_concurrent(str(error))):
                    raise
                self._await_other(draining, error)

    def _await_other(self, ended: Any, error: Exception) -> None:
        """Wait until a query that is started again has its successor."""
        deadline = time.monotonic() + RESTARTED_WITHIN_S
        while self.query is ended:
            if self._stopped.is_set() or time.monotonic() > deadline:
                raise error
            time.sleep(BLOCK_POLL_S)

    def _on_batch(self, dataframe: Any, number: int) -> None:
        self._between_batches.clear()
        self._say_begun(True)
        try:
            if self._stopping.is_set():
                raise _Interrupted
            description = f"penstock {self._shell.label}, ingest {self._source}"
            dataframe.sparkSession.sparkContext.setJobDescription(description)
            self._take_in(dataframe, number)
        except Exception as error:
            if self._stopping.is_set():
                raise _Interrupted from None
            self._note(error)
            raise
        finally:
            self._say_begun(False)
            self._between_batches.set()

    def _say_begun(self, begun: bool) -> None:
        with contextlib.suppress(Exception):  # the query has ended
            self._shell.hub.post(lambda: self._shell.engine.sources.on_batch_begun(self._source, begun))

    def _note(self, error: Exception) -> None:
        told = _OURS.search(str(error))
        if isinstance(error, PenstockError):
            self._said = error
        elif told is not None:
            self._said = OperatorError(told.group(1))

    def _take_in(self, dataframe: Any, number: int) -> None:
        batch = Batch(self.planned.query_id(), int(number))
        known = self._known()
        if self.planned.judge(known, batch) is Turn.NEXT:
            self._wait_for_room()
            self._commit(dataframe, batch)
        elif known is None or known.plan is None or known.plan.stateful:
            self._run_again(dataframe, batch)
        # Else nothing needs the rows again, and the source may have let them go.

    def _run_again(self, dataframe: Any, batch: Batch) -> None:
        """Run a committed batch for what it does to the state of the streaming DataFrame; its rows go nowhere."""
        try:
            dataframe.write.format("noop").mode("overwrite").save()
        except Exception as error:
            if is_cancelled(str(error)) or self._stopping.is_set():
                raise
            raise CheckpointError(
                f"source '{self._source}': batch {batch.number} is committed, and Spark has to run it again for the state "
                f"of the streaming DataFrame, but cannot ({reason_in(str(error))}); bring back what the source has lost, "
                "or start with an empty checkpointLocation."
            ) from error

    def _known(self) -> Batch | None:
        """The last committed batch. Any thread but the hub's."""
        hub, engine = self._shell.hub, self._shell.engine
        known: Batch | None = hub.ask(lambda: engine.chains[self._source].batch)
        return known

    def _commit(self, dataframe: Any, batch: Batch) -> None:
        """Write a batch and wait for its record."""
        hub, number = self._shell.hub, batch.number
        began = round(self._shell.engine.wall() * 1e6)
        writer = f"b{number}x{secrets.token_hex(4)}"
        with self._shell.writing(writer):
            written = self._write(dataframe, writer)
            parts = [one.part for one in written if one.part.rows_out]
            stamps = [one.stamp for one in written if one.stamp is not None]
            rows = sum(part.rows_out for part in parts)
            stamp = records.combine_stamps(stamps) or (Stamp(rows, began, began, began) if rows else None)
            planned = self._plan(batch, writer)
            committed = threading.Event()
            hub.ask(
                lambda: self._shell.engine.sources.on_batch(
                    self._source, planned, parts, stamp, committed.set
                )
            )
            while not committed.wait(0.05):
                if self._shell.engine.failed is not None or self._stopped.is_set() or self._shell.over:
                    raise PenstockError(
                        f"batch {number} of source '{self._source}' was not committed: the query has ended."
                    )
        self.planned.told = None

    def _plan(self, batch: Batch, writer: str) -> Batch:
        """Make what Spark planned for a batch durable, before the record that names it is."""
        return self.planned.keep(batch, writer, self._known())

    def _write(self, dataframe: Any, writer: str) -> list[WrittenPart]:
        spec = self._shell.engine.program.stages[self._source]
        write = PartitionWriter(
            self._shell.opened.checkpoint,
            self._shell.opened.claim.generation,
            writer,
            self._source,
            self._schema,
            tuple(spec.edges),
            self._stamp,
            level_wanted(),
            self._echo,
        )
        rows = dataframe.mapInArrow(write, "written binary").collect()
        found = [msgspec.msgpack.decode(bytes(row[0]), type=WrittenPart) for row in rows]
        for said in (said for one in found for said in one.said):
            self._shell.hearing.hear(said)
        return sorted(found, key=lambda one: one.part.task)

    def _wait_for_room(self) -> None:
        engine = self._shell.engine
        limit = engine.settings.max_waiting_bytes
        while not self._stopped.is_set() and self._shell.hub.ask(
            lambda: engine.chains.waiting_bytes() > limit or not engine.sources.may_begin(self._source)
        ):
            time.sleep(BLOCK_POLL_S)
