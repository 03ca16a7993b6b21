"""Segments: how rows travel between operators, durable and replayable.

A producer sorts its rows by the consumer's shard and writes them once; it never learns where a shard runs. A
consumer reads slices of its own shards. Data files only grow and are shared by many frames; a record names
each frame by extent and CRC.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.dataplane import paths
from penstock.dataplane.arrow_bytes import check_whole, read_batch
from penstock.dataplane.disk import AppendFile, Disk
from penstock.dataplane.frames import FrameKind, decode_frame, encode_frame, frame_crc
from penstock.dataplane.keys.hashing import group_rows_by_shard, hash_keys, shards_of
from penstock.dataplane.records import Extent, Segment, pack_u32
from penstock.dataplane.state.protocol import ENTRY_SCHEMA, I64, U16, U32
from penstock.errors import CorruptFileError
from penstock.topology.stateless import FusedStep, Watermark

ROLL_BYTES = 64 << 20
_STRIDE = 0x9E37_79B1
"""Spreads the turns of consecutive epochs over the lanes."""
_HEAD = struct.Struct("<III4x")  # shards, rows, bytes of shard_rows; keeps the Arrow body 8-byte aligned


class Deal(enum.StrEnum):
    """How the rows of an edge come to the shards of its consumer."""

    KEY = "key"
    """By hash of the consumer's key columns; all to the one shard of a consumer without keys."""
    TURN = "turn"
    """In turn to all shards."""
    LOCAL = "local"
    """In turn to the shards on the producer's node, to all where there are none."""
    BROADCAST = "broadcast"
    """Every row to every shard."""


@dataclass(frozen=True)
class EdgeSpec:
    """One edge: which rows of the producer go over it, what becomes of them, and how they are dealt."""

    edge: int
    keys: tuple[str, ...]
    shards: int
    consumer: str
    routing: int = 0
    steps: tuple[FusedStep, ...] = ()
    """What happens to the producer's rows before they are dealt."""
    deal: Deal = Deal.KEY
    output: str = "main"
    """Which output of the producer's logic."""
    marked: bool = False
    """Whether the consumer is told of event time."""
    delay_us: int | None = None
    """How far the watermark stays behind the latest event time, where one is declared on the way."""

    def shape(self, rows: pa.Table) -> pa.Table:
        """Return what goes over this edge of the rows that its producer made."""
        return self.observe(rows)[0]

    def observe(self, rows: pa.Table) -> tuple[pa.Table, int | None]:
        """Return what goes over this edge, and the latest event time where a watermark is declared."""
        event_us: int | None = None
        for step in self.steps:
            rows = step.apply(rows)
            if isinstance(step, Watermark):
                event_us = step.latest_us(rows)
        return rows, event_us

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what goes over this edge, given that of the producer's rows."""
        return self.steps[-1].schema if self.steps else schema


class DataWriter:
    """Appends frames to a rolling data file of one writer; `sync` makes all of them durable at once."""

    def __init__(
        self,
        disk: Disk,
        checkpoint: str,
        generation: int,
        writer: str,
        kind: str,
        roll_bytes: int = ROLL_BYTES,
    ) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._generation = generation
        self.writer = writer
        self._kind = kind
        self._roll_bytes = roll_bytes
        self._number = 0
        self._name = ""
        self._file: AppendFile | None = None

    @property
    def current(self) -> str:
        """Name of the file being written, empty when none is open."""
        return self._name

    def append(self, kind: FrameKind, *parts: bytes | pa.Buffer) -> Extent:
        """Write one frame; durable after the next `sync`."""
        file = self._open()
        frame = encode_frame(kind, *parts)
        length = sum(len(part) for part in frame)
        offset = file.append(*frame)
        return Extent(self._name, offset, length, frame_crc(frame))

    def sync(self) -> None:
        """Make everything appended durable; roll to a new file when this one is long enough."""
        if self._file is None:
            return
        self._file.sync()
        if self._file.size >= self._roll_bytes:
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._name = None, ""

    def _open(self) -> AppendFile:
        if self._file is None:
            self._number += 1
            self._name = paths.data_name(
                paths.DataFile(self._generation, self.writer, self._number, self._kind)
            )
            self._file = self._disk.open_append(paths.data_file(self._checkpoint, self._name))
        return self._file


def read_frame(disk: Disk, checkpoint: str, extent: Extent, kind: FrameKind) -> pa.Buffer:
    """Return the payload of a recorded frame, checked against the record.

    Raises:
        CorruptFileError: names the file, when it is absent, too short, damaged, swapped or stale.
    """
    path = paths.data_file(checkpoint, extent.file)
    try:
        data = disk.view(path, extent.offset, extent.length)
    except FileNotFoundError as error:
        raise CorruptFileError(
            f"{path} is gone though a record names it; restore the file from a copy."
        ) from error
    if len(data) != extent.length:
        raise CorruptFileError(
            f"{path} is damaged at offset {extent.offset}: it ends after {len(data)} of the {extent.length} bytes that are "
            "recorded; restore the file from a copy."
        )
    return decode_frame(data, kind, path, extent.offset, expected_crc=extent.crc)


@dataclass(frozen=True)
class Written:
    """What became of a producer's rows on one edge."""

    segment: Segment | None
    event_us: int | None = None
    """Latest event time, where a watermark is declared on the edge."""


def write_rows(
    writer: DataWriter,
    spec: EdgeSpec,
    rows: pa.Table,
    schema: pa.Schema,
    operator: str,
    turn: int = 0,
    lanes: U16 | None = None,
) -> Written:
    """Shape rows of `schema` for an edge, deal them to the consumer's shards and append them as one frame; no segment
    when there are none.

    Args:
        turn: whose turn it is where rows are dealt in turn; any number, another one for every epoch.
        lanes: the consumer's shards on this node, for `Deal.LOCAL`.
    """
    rows, event_us = spec.observe(rows) if rows.num_rows else (rows, None)
    if rows.num_rows == 0:
        return Written(None, event_us)
    # A bad key is told in the name of the operator that is keyed by it.
    counts, batch = deal_rows(spec, rows, spec.consumer if spec.keys else operator, turn, lanes)
    shard_rows = pack_u32(counts)
    head = _HEAD.pack(spec.shards, batch.num_rows, len(shard_rows))
    padding = bytes(-len(shard_rows) % 8)
    extent = writer.append(FrameKind.SEGMENT, head + shard_rows + padding, batch.serialize())
    return Written(Segment(spec.edge, extent, batch.num_rows, shard_rows, spec.routing), event_us)


def deal_rows(
    spec: EdgeSpec, rows: pa.Table, operator: str, turn: int = 0, lanes: U16 | None = None
) -> tuple[U32, pa.RecordBatch]:
    """Return rows per shard and the rows, stable-sorted by shard."""
    if spec.deal is Deal.BROADCAST:
        return np.full(spec.shards, rows.num_rows, np.uint32), _one_batch(rows)
    if spec.deal is not Deal.KEY:
        chosen = lanes if spec.deal is Deal.LOCAL and lanes is not None and len(lanes) else None
        return _deal_in_turn(spec, rows, turn, chosen)
    if not spec.keys:
        return np.array([rows.num_rows], np.uint32), _one_batch(rows)
    hashes = hash_keys([rows.column(name) for name in spec.keys], spec.keys, operator)
    order, counts = group_rows_by_shard(shards_of(hashes, spec.shards), spec.shards)
    if order is None:
        return counts, _one_batch(rows)
    return counts, _one_batch(rows).take(pa.array(order))


def _deal_in_turn(spec: EdgeSpec, rows: pa.Table, turn: int, lanes: U16 | None) -> tuple[U32, pa.RecordBatch]:
    """Cut the rows into one run for each lane, as even as can be; who comes first goes round, so that a few rows now
    and then do not always come to the same lane."""
    chosen = np.arange(spec.shards, dtype=np.int64) if lanes is None else lanes.astype(np.int64)
    count, total = len(chosen), rows.num_rows
    first = (turn * _STRIDE) % count
    ends = (np.arange(1, count + 1, dtype=np.int64) * total) // count
    sizes = np.diff(ends, prepend=0)
    # The runs go to lanes first, first + 1, ...; sorted by lane the runs that wrapped around come first.
    wrapped = int(sizes[: count - first].sum())
    table = pa.concat_tables([rows.slice(wrapped), rows.slice(0, wrapped)]) if first and wrapped else rows
    counts = np.zeros(spec.shards, np.uint32)
    counts[chosen] = np.roll(sizes, first)
    return counts, _one_batch(table)


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    """The rows as one batch whose buffers hold nothing else (a slice would serialise with its offset)."""
    if rows.num_columns == 0:
        return pa.RecordBatch.from_pylist([{}] * rows.num_rows, schema=rows.schema)
    arrays = [
        column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in rows.columns
    ]
    arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


@dataclass(frozen=True)
class OlderSchema:
    """What rows of an edge looked like in files of driver generations before `until`."""

    until: int
    schema: pa.Schema


def written_schema(file: str, schema: pa.Schema, older: Sequence[OlderSchema]) -> pa.Schema:
    """Return the schema that the rows in a data file were written with."""
    named = paths.parse_data(file) if older else None
    if named is None:
        return schema
    return next((was.schema for was in older if named.generation < was.until), schema)


def fill_in(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of an older schema as rows of this one: by name, with nulls for what they lack."""
    names = batch.schema.names
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class SegmentRows:
    """One segment as read: rows sorted by shard, and rows per shard."""

    counts: U32
    batch: pa.RecordBatch
    path: str
    """Of the file, for whoever finds that the rows do not fit."""
    repeated: bool = False
    """Of a broadcast: whether all rows belong to every shard."""

    @property
    def firsts(self) -> I64:
        """Where the rows of each shard begin; those of a broadcast are the same for all."""
        return np.zeros(len(self.counts), np.int64) if self.repeated else _offsets(self.counts)


def read_segment(
    disk: Disk,
    checkpoint: str,
    extent: Extent,
    schema: pa.Schema,
    older: Sequence[OlderSchema] = (),
    *,
    whole: bool = False,
) -> SegmentRows:
    """Read one segment; rows that were written with an older schema get nulls for what they lack.

    Args:
        whole: look at every value, which takes longer than reading them.

    Raises:
        CorruptFileError: the frame is damaged, or holds rows of another schema, or not the rows that it says.
    """
    payload = read_frame(disk, checkpoint, extent, FrameKind.SEGMENT)
    path = paths.data_file(checkpoint, extent.file)
    counts, rows, start = _read_head(payload, path, extent.offset)
    written = written_schema(extent.file, schema, older)
    batch = read_batch(payload.slice(start), written, path, extent.offset)
    if batch.num_rows != rows:
        raise CorruptFileError(
            f"{path} holds {batch.num_rows} rows, not {rows}; restore the file from a copy."
        )
    repeated = int(counts.sum()) != rows
    if repeated and not (counts == rows).all():
        raise CorruptFileError(
            f"{path} has other rows per shard at offset {extent.offset} than its {rows} rows; restore the file from a copy."
        )
    if whole:
        check_whole(batch, path, extent.offset)
    return SegmentRows(counts, batch if written is schema else fill_in(batch, schema), path, repeated)


def _read_head(payload: pa.Buffer, path: str, offset: int) -> tuple[U32, int, int]:
    """Rows per shard, rows, and where the batch begins."""
    shards, rows, size = _HEAD.unpack_from(payload, 0) if payload.size >= _HEAD.size else (0, 0, 0)
    start = _HEAD.size + size + -size % 8
    if not shards or size != 4 * shards or start > payload.size:
        raise CorruptFileError(
            f"{path} holds a segment at offset {offset} that is shorter than its head says; restore the file from a copy."
        )
    counts = np.frombuffer(payload, "<u4", shards, _HEAD.size).astype(np.uint32, copy=False)
    return counts, rows, start


def _offsets(counts: U32) -> I64:
    ends = np.cumsum(counts, dtype=np.int64)
    return ends - counts


def write_entries(writer: DataWriter, kind: FrameKind, entries: pa.RecordBatch) -> Extent:
    """Append a delta or a snapshot."""
    return writer.append(kind, entries.serialize())


def read_entries(
    disk: Disk, checkpoint: str, extent: Extent, kind: FrameKind, *, whole: bool = False
) -> pa.RecordBatch:
    """Read a delta or a snapshot (ENTRY_SCHEMA).

    Args:
        whole: look at every entry, which takes longer than reading them.

    Raises:
        CorruptFileError: the frame is damaged, or holds no entries.
    """
    payload = read_frame(disk, checkpoint, extent, kind)
    path = paths.data_file(checkpoint, extent.file)
    entries = read_batch(payload, ENTRY_SCHEMA, path, extent.offset)
    if entries.column(0).null_count or entries.column(1).null_count:
        raise CorruptFileError(
            f"{path} holds an entry without a shard or key at offset {extent.offset}; restore the file from a copy."
        )
    if whole:
        check_whole(entries, path, extent.offset)
    return entries
