"""The work inside a lease: messages in, messages out. Knows nothing of sockets or Spark.

For every task it serves, a worker keeps the logic with its state, writes one run of frames per epoch and
syncs once. Staged writes become committed state only when a later message says that the record exists. A
worker that fails says so once and is of no further use.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from penstock.dataplane import messages, records
from penstock.dataplane.bring import bring_shards
from penstock.dataplane.channel import DataWriter, SegmentRows, read_segment, write_entries, write_rows
from penstock.dataplane.copying import Copier
from penstock.dataplane.disk import Disk
from penstock.dataplane.emulation import read_slowness
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.lease_home import LeaseHome, LeaseIdentity
from penstock.dataplane.logic.protocol import (
    DEAD,
    MAIN,
    EpochInput,
    Logic,
    ShardClock,
    ShardedRows,
    close_logic,
)
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.slices import Slice, join_slices, slice_pieces
from penstock.dataplane.state.protocol import U16, Delta, TaskState
from penstock.errors import CorruptFileError, OperatorError, PenstockError, StorageError
from penstock.raised import (
    describe,
    describe_own,
    describe_traceback,
    function_error,
    pass_on_end,
    type_name,
)

FLUSH_IDLE_S = 0.001
"""Time given to writing behind when no work is waiting."""
FLUSH_SHARE = 0.15
"""Share of an epoch's busy time given to writing behind when the next epoch is already here."""


@dataclass
class Task:
    """One task of one stage, as this lease serves it."""

    spec: StageSpec
    index: int
    logic: Logic | None
    committed: int = 0
    staged: int = 0
    last_busy_s: float = 0.0
    handed_over: bool = False
    """Whether another task may own an environment in this lease's folder by now."""
    locals: dict[int, str] = field(default_factory=dict)
    """Name of each owned shard's environment, relative to the node's directory."""

    @property
    def state(self) -> TaskState | None:
        return self.logic.state if self.logic is not None else None

    def next_timer_us(self) -> int | None:
        """Return the epoch time at which the task wants to be run again, rows or not."""
        next_of = getattr(self.state, "next_timer_us", None)
        found: int | None = next_of() if next_of is not None and self.spec.clocked else None
        return found

    def commit_to(self, epoch: int, flush_s: float) -> None:
        """Take note of the last epoch that has a record; apply what was staged for it, then write behind for
        a while."""
        if self.staged > self.committed and self.state is not None:
            if epoch < self.staged:
                raise PenstockError(
                    f"epoch {self.staged} of '{self.spec.name}' was staged but never got its record"
                )
            self.state.commit()
            self.state.flush(flush_s)
        self.committed = max(self.committed, epoch)
        self.staged = self.committed


class Worker:
    """Serves the tasks of one lease, one message at a time."""

    def __init__(
        self,
        identity: LeaseIdentity,
        program: Program,
        disk: Disk,
        clock: Callable[[], float] = time.perf_counter,
        later: Callable[[messages.FromLease], None] | None = None,
    ) -> None:
        """`later` sends an answer that comes beside the work; without it everything is done in turn."""
        self._clock = clock
        self._copier = Copier(self._copy, later)
        self._copies, self._brings = itertools.count(), itertools.count()
        self._slowness = read_slowness()
        self._identity = identity
        self._home = LeaseHome(identity)
        self._program = program
        self._disk = disk
        self._tasks: dict[tuple[str, int], Task] = {}
        self._segments = DataWriter(disk, identity.checkpoint, identity.generation, identity.lease, "seg")
        self._snapshots = DataWriter(disk, identity.checkpoint, identity.generation, identity.lease, "snp")

    def handle(self, message: messages.ToLease) -> messages.FromLease | None:
        """Carry out one message and return the answer, None when there is none.

        Raises nothing but what ends the process: it becomes a `Failed` answer, after which the lease must end.
        """
        if isinstance(message, messages.End):
            return None
        try:
            return self._dispatch(message)
        except OperatorError as error:
            return self._failed(message, "user", error)
        except StorageError as error:
            return self._failed(message, "storage", error)
        except CorruptFileError as error:
            # Damage to the node's own copy is mended by rebuilding it elsewhere; damage to the checkpoint is not.
            local = self._identity.node_dir in str(error)
            return self._failed(message, "local" if local else "corrupt", error)
        except BaseException as error:
            pass_on_end(error)
            return self._failed(message, "internal", error)

    def idle(self) -> messages.Failed | None:
        """Use a pause to write some committed state behind; return what failed, after which the lease must end."""
        for task in self._tasks.values():
            if task.state is not None and task.staged == task.committed:
                try:
                    task.state.flush(10 * FLUSH_IDLE_S)
                except (StorageError, CorruptFileError) as error:
                    return messages.Failed(task.spec.name, task.index, "local", describe_own(error))
        return None

    def is_behind(self) -> bool:
        """Whether committed state is left that a further pause is to write behind."""
        return any(
            task.state is not None and task.staged == task.committed and task.state.is_behind()
            for task in self._tasks.values()
        )

    def close(self) -> None:
        self._copier.close()
        for task in self._tasks.values():
            close_logic(task.logic)
            if task.state is not None:
                task.state.close()
        self._segments.close()
        self._snapshots.close()
        self._home.leave(
            [name for task in self._tasks.values() for name in task.locals.values()],
            any(task.handed_over for task in self._tasks.values()),
        )

    def _dispatch(self, message: messages.ToLease) -> messages.FromLease | None:
        task = self._task(message.stage, message.task)  # type: ignore[union-attr]
        if isinstance(message, messages.Work):
            return self._work(task, message)
        if isinstance(message, messages.Commit):
            task.commit_to(message.committed, FLUSH_IDLE_S)
            return None
        if isinstance(message, messages.Bring):
            return self._bring(task, message)
        if isinstance(message, messages.Prepare):
            home = self._home.enter()
            return self._copier.copy(message, self._build(task.spec), home)
        if isinstance(message, messages.Forget):
            self._copier.forget(message.stage, records.unpack_u16(message.shards).tolist())
            return None
        assert isinstance(message, messages.Release)
        return self._release(task, message)

    def _task(self, stage: str, index: int) -> Task:
        key = (stage, index)
        if key not in self._tasks:
            spec = self._program.stages[operator_of(stage)]
            self._tasks[key] = Task(spec, index, self._build(spec))
        return self._tasks[key]

    def _build(self, spec: StageSpec) -> Logic | None:
        if spec.logic is None:
            return None
        schema = next(given.schema for given in spec.inputs if given.slot == 0)
        return spec.logic.build(spec.name, spec.keys, schema, spec.shards, self._program.memory_bytes)

    def _copy(self, state: TaskState, message: messages.Prepare, home: str) -> list[messages.PreparedShard]:
        """Make copies of shards that another task works on; nothing of this worker's own state is touched."""
        identity, home_name = self._identity, os.path.basename(home)
        prefix = f"copy{next(self._copies)}-"
        made = bring_shards(
            state, message, self._disk, identity.checkpoint, identity.node_dir, home_name, prefix
        )
        versions = {shard.shard: shard.version for shard in message.shards}
        found = []
        for brought, name in made:
            if brought.ok:
                state.release(brought.shard)
            local = name if brought.ok else ""
            found.append(messages.PreparedShard(brought.shard, local, versions[brought.shard], brought.how))
        return found

    def _work(self, task: Task, work: messages.Work) -> messages.FromLease:
        began = self._clock()
        task.commit_to(work.committed, FLUSH_SHARE * task.last_busy_s)
        snapshots = self._write_snapshots(task, records.unpack_u16(work.snapshots))
        if task.spec.kind == "source":
            rows_in, rows = self._generate(task, work)
            out: Mapping[str, pa.Table] = {MAIN: rows}
        else:
            rows_in, out = self._run(task, work)
        delta = task.state.stage(work.epoch) if task.state is not None else Delta.empty()
        part = self._write(task, work, out, delta, snapshots, rows_in)
        self._slowness.stretch(self._clock() - began)
        busy = self._clock()
        self._segments.sync()
        if snapshots:
            self._snapshots.sync()
        ended = self._clock()
        task.staged = work.epoch
        task.last_busy_s = busy - began
        timed = msgspec.structs.replace(
            part,
            busy_us=round((busy - began) * 1e6),
            sync_us=round((ended - busy) * 1e6),
            state_bytes=task.state.state_bytes() if task.state is not None else 0,
        )
        looked: dict[int, float] = getattr(task.logic, "shard_s", {})
        shard_us = [(shard, round(seconds * 1e6)) for shard, seconds in looked.items()]
        return messages.Done(work.stage, work.epoch, timed, task.next_timer_us(), shard_us)

    def _write(
        self,
        task: Task,
        work: messages.Work,
        out: Mapping[str, pa.Table],
        delta: Delta,
        snapshots: list[records.Snapshot],
        rows_in: int,
    ) -> records.TaskPart:
        segments: list[records.Segment] = []
        events: list[tuple[int, int]] = []
        lanes = {edge: records.unpack_u16(shards) for edge, shards in work.lanes}
        turn = work.epoch * 31 + task.index
        for edge in task.spec.edges:
            rows = out.get(edge.output)
            if rows is None:
                continue
            name, near = task.spec.name, lanes.get(edge.edge)
            written = write_rows(self._segments, edge, rows, task.spec.schema, name, turn, near)
            segments.extend([written.segment] if written.segment is not None else [])
            events.extend([(edge.edge, written.event_us)] if written.event_us is not None else [])
        extent = write_entries(self._segments, FrameKind.DELTA, delta.entries) if len(delta.shards) else None
        shards = b"".join(group.shards for group in work.groups)
        return records.TaskPart(
            task.index, self._identity.lease, shards, rows_in, out[MAIN].num_rows, segments, extent,
            records.pack_u16(delta.shards),
            np.ascontiguousarray(delta.digests, "<u8").tobytes(), records.pack_u32(delta.shard_bytes), snapshots,
            event_us=events,
            late_rows=task.logic.late_rows if task.logic is not None else 0,
            dead_rows=out[DEAD].num_rows if DEAD in out else 0,
        )  # fmt: skip

    def _generate(self, task: Task, work: messages.Work) -> tuple[int, pa.Table]:
        assert work.offsets is not None and task.spec.generate is not None
        start, end = work.offsets
        try:
            batch = task.spec.generate(start, end - start)
        except BaseException as error:
            raise function_error(
                f"source '{task.spec.name}' failed for rows {start} to {end}", error
            ) from error
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if not isinstance(table, pa.Table):
            raise OperatorError(
                f"source '{task.spec.name}' made a {type_name(table)} for rows {start} to {end}; its function returns "
                f"a pyarrow.RecordBatch or Table with the columns {', '.join(map(repr, task.spec.schema.names))}."
            )
        if table.num_rows != end - start:
            raise OperatorError(
                f"source '{task.spec.name}' was asked for {end - start} rows and made {table.num_rows}."
            )
        if not table.schema.equals(task.spec.schema):
            table = _fit(table, task.spec)
        return table.num_rows, table

    def _run(self, task: Task, work: messages.Work) -> tuple[int, Mapping[str, pa.Table]]:
        assert task.logic is not None
        inputs = [self._read_input(task, work, slot) for slot in range(task.spec.slots)]
        rows_in = sum(given.rows.num_rows for given in inputs)
        if rows_in == 0 and not task.spec.clocked:
            return 0, {MAIN: task.spec.schema.empty_table()}
        clocks = [ShardClock(records.unpack_u16(group.shards), group.watermark_us) for group in work.groups]
        made = task.logic.run(EpochInput(work.epoch, work.time_us, inputs, clocks))
        return rows_in, {**task.logic.sides, MAIN: made}

    def _read_input(self, task: Task, work: messages.Work, slot: int) -> ShardedRows:
        """The rows of one input of the logic: those of each channel that belongs to it, in declared order."""
        slices: list[Slice] = []
        # Shards of one task that stand at different places take from the same segments.
        segments: dict[tuple[int, records.Extent], SegmentRows] = {}
        schema = next(given.schema for given in task.spec.inputs if given.slot == slot)
        for number, given in enumerate(task.spec.inputs):
            if given.slot != slot:
                continue
            for group in work.groups:
                wanted = records.unpack_u16(group.shards)
                for piece in group.pieces:
                    if piece.input == number:
                        for at in piece.segments:
                            if (number, at) not in segments:
                                segments[number, at] = read_segment(
                                    self._disk, self._identity.checkpoint, at, given.schema, given.older
                                )
                        found = [segments[number, at] for at in piece.segments]
                        late_us = piece.late_us if task.spec.clocked else None
                        slices.extend(slice_pieces(found, wanted, piece.start, piece.end, late_us))
        return join_slices(slices, schema, getattr(task.logic, "wants_shard_order", True))

    def _write_snapshots(self, task: Task, shards: U16) -> list[records.Snapshot]:
        """Snapshot shards as of the last committed epoch; the driver knows their version and digest."""
        written: list[records.Snapshot] = []
        for shard in shards.tolist():
            assert task.state is not None
            entries = task.state.snapshot(shard)
            extent = write_entries(self._snapshots, FrameKind.SNAPSHOT, entries) if entries.num_rows else None
            written.append(records.Snapshot(shard, 0, b"", extent, extent.length if extent else 0))
        return written

    def _bring(self, task: Task, message: messages.Bring) -> messages.FromLease:
        assert task.state is not None
        home = self._home.enter()
        brought = bring_shards(
            task.state,
            message,
            self._disk,
            self._identity.checkpoint,
            self._identity.node_dir,
            os.path.basename(home),
            # Never a name of before: another lease may have taken that environment over, and still have it open.
            f"{next(self._brings)}-",
        )
        task.locals.update({shard.shard: name for shard, name in brought})
        paths = {shard.shard: f"{self._identity.node_dir}/{name}" for shard, name in brought}
        self._copier.taken(message.stage, paths)
        found = [shard for shard, _ in brought]
        return messages.Brought(message.stage, message.task, found, task.next_timer_us())

    def _release(self, task: Task, message: messages.Release) -> messages.FromLease:
        assert task.state is not None
        task.commit_to(message.committed, 0.0)
        if message.keep:
            self._home.mark_handed_over()
        released = []
        for shard in records.unpack_u16(message.shards).tolist():
            name = task.locals.pop(shard)
            if message.keep:
                task.state.release(shard)
                task.handed_over = True
            else:
                task.state.drop(shard)
                shutil.rmtree(f"{self._identity.node_dir}/{name}", ignore_errors=True)
            released.append(messages.ReleasedShard(shard, name))
        return messages.Released(message.stage, message.task, released, task.next_timer_us())

    def _failed(self, message: messages.ToLease, kind: str, error: BaseException) -> messages.Failed:
        stage, index = getattr(message, "stage", ""), getattr(message, "task", 0)
        text = describe_own(error) if isinstance(error, PenstockError) else f"'{stage}': {describe(error)}"
        return messages.Failed(stage, index, kind, text, describe_traceback(error))


def _fit(table: pa.Table, spec: StageSpec) -> pa.Table:
    try:
        return table.select(spec.schema.names).cast(spec.schema)
    except (pa.ArrowException, KeyError) as error:
        raise OperatorError(f"source '{spec.name}' made rows that do not fit its schema: {error}") from error
