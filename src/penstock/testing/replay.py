"""The reference: replays, undisturbed, the schedule that a run committed, and compares outputs and state.

Every operator gets exactly the recorded ranges, epoch by epoch, in a fresh logic that owns all shards; source
rows are made again. Reads segments and records, never the state that the run built; slices rows with code of
its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.dataplane import records
from penstock.dataplane.channel import Deal, deal_rows, read_entries, read_segment
from penstock.dataplane.disk import Disk
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.logic.protocol import MAIN, EpochInput, Logic, ShardClock, ShardedRows
from penstock.dataplane.program import Program, StageSpec
from penstock.dataplane.records import Record, TaskPart, unpack_u16
from penstock.dataplane.state.protocol import Delta
from penstock.errors import PenstockError
from penstock.testing.line import CheckFailure, Line, read_line
from penstock.testing.times import Times

Batches = Mapping[str, Callable[[records.Batch], pa.Table]]
"""For ingested sources: the rows of a batch, in order; without it their segments are taken as given."""
FLUSH_EVERY = 64


@dataclass(frozen=True)
class Replayed:
    """What a replay went through; a check of nothing proves nothing."""

    epochs: int
    rows: int
    digests: int


def replay(
    checkpoint: str, program: Program, *, disk: Disk | None = None, batches: Batches | None = None
) -> Replayed:
    """Replay the committed schedule; compare every output row, delta, snapshot and digest with what it gave.

    Raises:
        CheckFailure: names stage, epoch and what differs.
        CorruptFileError: a segment that a record names is damaged or gone.
    """
    return replay_line(read_line(checkpoint, disk), program, batches)


def replay_line(line: Line, program: Program, batches: Batches | None = None) -> Replayed:
    """Replay a line that was read already."""
    times = Times(line, program)
    faults: list[str] = list(times.faults)
    done = []
    for name, spec in program.stages.items():
        if spec.kind == "source":
            done.append(_replay_source(line, spec, faults, (batches or {}).get(name)))
        elif spec.kind == "operator":
            with tempfile.TemporaryDirectory(prefix="penstock-replay-") as folder:
                done.append(_Operator(line, program, spec, folder, faults, times).run())
    if faults:
        raise CheckFailure(faults)
    return Replayed(sum(d.epochs for d in done), sum(d.rows for d in done), sum(d.digests for d in done))


def _replay_source(
    line: Line, spec: StageSpec, faults: list[str], rows_of: Callable[[records.Batch], pa.Table] | None
) -> Replayed:
    epochs, total = 0, 0
    for record in line.of(spec.name):
        if record.offsets is not None and spec.generate is not None:
            start, end = record.offsets
            made = spec.generate(start, end - start)
            table = pa.Table.from_batches([made]) if isinstance(made, pa.RecordBatch) else made
        elif record.batch is not None and rows_of is not None:
            table = rows_of(record.batch)
        else:
            continue
        table = table.select(spec.schema.names).cast(spec.schema)
        first = 0
        for part in record.parts:
            mine = {MAIN: table.slice(first, part.rows_out)}
            faults.extend(_output_faults(line, spec, record, part, mine))
            first += part.rows_out
        if first != table.num_rows:
            faults.append(
                f"'{spec.name}' epoch {record.epoch} committed {first} rows, its source made {table.num_rows}"
            )
        epochs, total = epochs + 1, total + first
    return Replayed(epochs, total, 0)


def _output_faults(
    line: Line, spec: StageSpec, record: Record, part: TaskPart, outputs: Mapping[str, pa.Table]
) -> list[str]:
    """Compare the rows that a task must have put out with the segments it committed, shard by shard."""
    faults = []
    for edge in spec.edges:
        where = f"'{spec.name}' epoch {record.epoch} task {part.task} edge {edge.edge}"
        rows = outputs.get(edge.output)
        if rows is None:
            if any(segment.edge == edge.edge for segment in part.segments):
                faults.append(f"{where}: rows were committed, the replay gives none")
            continue
        found = [
            read_segment(line.disk, line.checkpoint, segment.extent, edge.schema_of(rows.schema))
            for segment in part.segments
            if segment.edge == edge.edge
        ]
        shaped, event_us = (
            edge.observe(rows) if rows.num_rows else (edge.schema_of(rows.schema).empty_table(), None)
        )
        if spec.kind == "operator" and dict(part.event_us).get(edge.edge) != event_us:
            faults.append(f"{where}: the latest event time is not that which the replay gives")
        named = [records.unpack_u32(s.shard_rows) for s in part.segments if s.edge == edge.edge]
        if any(not np.array_equal(a, b.counts) for a, b in zip(named, found, strict=True)):
            faults.append(f"{where}: a segment has other rows per shard than its record says")
        first = 0
        for segment in found:
            mine = shaped.slice(first, segment.batch.num_rows)
            if edge.deal in (Deal.TURN, Deal.LOCAL):
                # Whose turn it was is no part of what must be the same; which rows there are is.
                same = sorted(map(repr, mine.to_pylist())) == sorted(map(repr, segment.batch.to_pylist()))
            else:
                counts, batch = deal_rows(edge, mine, spec.name)
                same = np.array_equal(counts, segment.counts) and _equal(batch, segment.batch)
            if not same:
                faults.append(f"{where}: the committed rows are not those that the replay gives")
            first += segment.batch.num_rows
        if first != shaped.num_rows:
            faults.append(f"{where}: {first} rows were committed, the replay gives {shaped.num_rows}")
    return faults


def _equal(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    # NaN equals nothing, itself included; the bytes decide then.
    return bool(left.equals(right)) or (
        left.num_rows == right.num_rows and bytes(left.serialize()) == bytes(right.serialize())
    )


class _Operator:
    """One operator's replay."""

    def __init__(
        self,
        line: Line,
        program: Program,
        spec: StageSpec,
        folder: str,
        faults: list[str],
        times: Times,
    ) -> None:
        assert spec.logic is not None
        self._times = times
        self._watermarks: dict[int, int | None] = {}
        self._line = line
        self._spec = spec
        self._faults = faults
        self._outputs = {
            (given.edge, chain): _segments_by_epoch(line, given.edge, chain)
            for given in spec.inputs
            for chain in line.chains_of(given.producer)
        }
        schema = next(given.schema for given in spec.inputs if given.slot == 0)
        self._logic: Logic = spec.logic.build(spec.name, spec.keys, schema, spec.shards, program.memory_bytes)
        self._state = self._logic.state
        for shard in range(spec.shards if self._state is not None else 0):
            assert self._state is not None
            self._state.open(shard, f"{folder}/{shard}", None)
            self._state.seal(shard, 0, bytes(16))

    def run(self) -> Replayed:
        epochs = rows = digests = 0
        try:
            for record in self._line.of_stage(self._spec.name):
                try:
                    took, compared = self._epoch(record)
                except (PenstockError, ValueError, pa.ArrowException) as error:
                    self._fault(record, f"cannot be replayed: {error}")
                    break
                epochs, rows, digests = epochs + 1, rows + took, digests + compared
                if epochs % FLUSH_EVERY == 0 and self._state is not None:
                    self._state.flush(0.5)
            else:
                self._check_content()
        finally:
            if self._state is not None:
                self._state.close()
        return Replayed(epochs, rows, digests)

    def _check_content(self) -> None:
        """What the replay has built adds up to the digests it has staged: an error that both runs made is found here."""
        for shard in range(self._spec.shards if self._state is not None else 0):
            assert self._state is not None
            try:
                self._state.snapshot(shard)
            except PenstockError as error:
                self._faults.append(f"'{self._spec.name}' shard {shard}: {error}")

    def _fault(self, record: Record, what: str) -> None:
        self._faults.append(f"'{self._spec.name}' epoch {record.epoch} {what}")

    def _epoch(self, record: Record) -> tuple[int, int]:
        for part in record.parts:
            self._compare_snapshots(record, part)
        took = compared = 0
        for part in record.parts:
            inputs = [self._input(record, part, slot) for slot in range(self._spec.slots)]
            rows = sum(given.rows.num_rows for given in inputs)
            if rows != part.rows_in:
                self._fault(record, f"task {part.task} worked on {part.rows_in} rows, its ranges hold {rows}")
            out: Mapping[str, pa.Table] = {MAIN: self._spec.schema.empty_table()}
            if rows or self._spec.clocked:
                given = EpochInput(record.epoch, record.time_us, inputs, self._clocks(record, part))
                made = self._logic.run(given)
                out = {**self._logic.sides, MAIN: made}
                if self._logic.late_rows != part.late_rows:
                    self._fault(
                        record, f"left out {part.late_rows} late rows, the replay {self._logic.late_rows}"
                    )
            self._faults.extend(_output_faults(self._line, self._spec, record, part, out))
            if self._state is not None:
                delta = self._state.stage(record.epoch)
                self._compare_changes(record, part, delta)
                self._state.commit()
                compared += len(delta.shards)
            took += rows
        for group in record.groups:
            self._watermarks.update(dict.fromkeys(unpack_u16(group.shards).tolist(), group.watermark_us))
        return took, compared

    def _clocks(self, record: Record, part: TaskPart) -> list[ShardClock]:
        """The shards of a task, group by group, in the order in which the record has them."""
        mine = set(unpack_u16(part.shards).tolist())
        groups = [
            (np.array([s for s in unpack_u16(group.shards).tolist() if s in mine], np.uint16), group)
            for group in record.groups
        ]
        return [ShardClock(shards, group.watermark_us) for shards, group in groups if len(shards)]

    def _input(self, record: Record, part: TaskPart, slot: int) -> ShardedRows:
        """The rows of one task's shards on one input of its logic, shard by shard, in the order the channels fix."""
        mine = set(unpack_u16(part.shards).tolist())
        pieces: dict[int, list[tuple[pa.RecordBatch, int | None]]] = {}
        for given in (one for one in self._spec.inputs if one.slot == slot):
            for group in record.groups:
                shards = [shard for shard in unpack_u16(group.shards).tolist() if shard in mine]
                for taken in group.ranges:
                    if taken.edge == given.edge and shards:
                        prior = self._watermarks.get(shards[0])
                        for shard, epoch, batch in self._rows_of(taken, shards, given.schema):
                            late_us = self._times.late_us(self._spec, taken, epoch, group.ranges, prior)
                            pieces.setdefault(shard, []).append((batch, late_us))
        shards = sorted(pieces)
        counts = [sum(batch.num_rows for batch, _ in pieces[shard]) for shard in shards]
        batches = [batch for shard in shards for batch, _ in pieces[shard]]
        table = pa.Table.from_batches(batches, given.schema).combine_chunks()
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        bounds = [late_us for shard in shards for _, late_us in pieces[shard]]
        late = None
        if self._spec.clocked and any(bound is not None for bound in bounds):
            lowest = np.iinfo(np.int64).min
            each = np.array([lowest if bound is None else bound for bound in bounds], np.int64)
            late = np.repeat(each, [batch.num_rows for batch in batches])
        return ShardedRows(np.array(shards, np.uint16), offsets, table, late)

    def _rows_of(
        self, taken: records.Range, shards: Sequence[int], schema: pa.Schema
    ) -> list[tuple[int, int, pa.RecordBatch]]:
        found = []
        for epoch, extents in self._outputs[(taken.edge, taken.chain)].items():
            if not taken.start.epoch <= epoch <= taken.end.epoch:
                continue
            segments = [
                read_segment(self._line.disk, self._line.checkpoint, extent, schema) for extent in extents
            ]
            low = taken.start.row if epoch == taken.start.epoch else 0
            high = taken.end.row if epoch == taken.end.epoch else None
            for shard in shards:
                passed = 0
                for segment in segments:
                    count = int(segment.counts[shard])
                    begin = max(low - passed, 0)
                    end = count if high is None else min(count, high - passed)
                    if end > begin:
                        shared = int(segment.counts.sum()) != segment.batch.num_rows  # a broadcast
                        first = 0 if shared else int(segment.counts[:shard].sum())
                        found.append((shard, epoch, segment.batch.slice(first + begin, end - begin)))
                    passed += count
        return found

    def _compare_changes(self, record: Record, part: TaskPart, delta: Delta) -> None:
        changed = unpack_u16(part.changed).tolist()
        recorded = {shard: part.digests[16 * at : 16 * at + 16] for at, shard in enumerate(changed)}
        digests = np.ascontiguousarray(delta.digests, "<u8").tobytes()
        replayed = {shard: digests[16 * at : 16 * at + 16] for at, shard in enumerate(delta.shards.tolist())}
        if replayed != recorded:
            wrong = sorted(s for s in {*replayed, *recorded} if replayed.get(s) != recorded.get(s))
            self._fault(record, f"committed other digests than the replay gives, for shards {wrong[:10]}")
        entries = {}
        if part.delta is not None:
            held = read_entries(self._line.disk, self._line.checkpoint, part.delta, FrameKind.DELTA)
            entries = _entries(held)
        if entries != _entries(delta.entries):
            self._fault(record, "committed a delta with other entries than the replay gives")

    def _compare_snapshots(self, record: Record, part: TaskPart) -> None:
        for snapshot in part.snapshots:
            assert self._state is not None
            mine = _entries(self._state.snapshot(snapshot.shard))
            theirs = {}
            if snapshot.extent is not None:
                held = read_entries(
                    self._line.disk, self._line.checkpoint, snapshot.extent, FrameKind.SNAPSHOT
                )
                theirs = _entries(held)
            if mine != theirs:
                self._fault(record, f"committed a snapshot of shard {snapshot.shard} that is not its state")


def _segments_by_epoch(line: Line, edge: int, producer: str) -> dict[int, list[records.Extent]]:
    found: dict[int, list[records.Extent]] = {}
    for record in line.of(producer):
        extents = [
            segment.extent for part in record.parts for segment in part.segments if segment.edge == edge
        ]
        if extents:
            found[record.epoch] = extents
    return found


def _entries(batch: pa.RecordBatch) -> dict[tuple[int, bytes], bytes | None]:
    shards, keys, values = (batch.column(name).to_pylist() for name in ("shard", "key", "value"))
    return {(shard, key): value for shard, key, value in zip(shards, keys, values, strict=True)}
