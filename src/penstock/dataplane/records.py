"""The record and everything it names: what one epoch of one chain committed.

Sources, operators, sinks, exports and fences use the same record. A base restates all chains, so that
start-up reads one base and its tail. Pure data and pure functions: no files, no clock. Decoding is typed;
nothing read here can run code.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
import numpy as np

from penstock.dataplane.state.protocol import U16, U32, U64

NO_HASH = bytes(16)
END_US = 1 << 62
"""Watermark of an input that has ended: nothing comes after it."""
IDLE_US = END_US - 1
"""Watermark of an input that is idle: it holds nobody up, and moves nobody on."""
DataName = Annotated[
    str, msgspec.Meta(pattern=r"\Ag[0-9]{6,18}-[A-Za-z0-9_]+-[0-9]{6,18}\.(seg|snp|pln|src)\Z", max_length=255)
]
"""Name of a data file: nothing that is read names a file outside of the folder `data`."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
"""Bytes, rows, epochs, and places among them."""
ShardNumber = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Extent(msgspec.Struct, array_like=True, frozen=True):
    """A frame inside a data file."""

    file: DataName
    offset: Size
    length: Size
    crc: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class Stamp(msgspec.Struct, array_like=True, frozen=True):
    """Arrival times, at the sources, of the rows an epoch took in."""

    rows: int
    first_us: int
    mean_us: float
    last_us: int


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """Rows one task wrote for one output edge, stable-sorted by the consumer's shard."""

    edge: int
    extent: Extent
    rows: int
    shard_rows: bytes
    """Rows per consumer shard, little-endian u32."""
    routing: int = 0
    """Version of the consumer's key -> shard table that sorted these rows."""


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """All entries of one shard as of `version`; `digest` is what they must add up to."""

    shard: ShardNumber
    version: Size
    digest: bytes
    extent: Extent | None
    """None for the empty shard, which needs no bytes."""
    size: Size = 0


class TaskPart(msgspec.Struct, array_like=True, frozen=True):
    """What one task did in one epoch."""

    task: int
    lease: str
    shards: bytes
    """Shards that took part, u16."""
    rows_in: int
    rows_out: int
    segments: list[Segment]
    delta: Extent | None = None
    changed: bytes = b""
    """Changed shards, u16 ascending; `digests` (16 bytes each) and `delta_bytes` (u32 each) go with them."""
    digests: bytes = b""
    delta_bytes: bytes = b""
    snapshots: list[Snapshot] = []
    busy_us: int = 0
    sync_us: int = 0
    state_bytes: int = 0
    event_us: list[tuple[int, int]] = []
    """Latest event time of the rows put out, by edge, where the edge has a watermark of its own."""
    late_rows: int = 0
    dead_rows: int = 0
    """Rows that were left out because they were late, and calls that ended as dead letters."""


class Position(msgspec.Struct, array_like=True, frozen=True, order=True):
    """Everything before producer epoch `epoch` is consumed, and of that epoch the first `row` rows of each
    shard."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    row: Size = 0


class Range(msgspec.Struct, array_like=True, frozen=True):
    """Part of one producer chain, from `start` up to `end`."""

    edge: int
    chain: str
    start: Position
    end: Position
    watermark_us: int | None = None
    """What the producer had said of event time by `end`."""


class Group(msgspec.Struct, array_like=True, frozen=True):
    """Shards that consumed the same ranges."""

    shards: bytes
    ranges: list[Range]
    watermark_us: int | None = None
    """Of these shards after the ranges; it never goes back."""


class PlannedFile(msgspec.Struct, array_like=True, frozen=True):
    """A file of what Spark planned for a batch, and where its bytes are kept."""

    path: str
    """Inside Spark's own folder of the source."""
    size: int
    crc: int
    """CRC32C of its bytes."""
    kept: Extent
    """A frame; of a data file of the kind `src` all of it, without one: a second name of Spark's own file."""


class BatchPlan(msgspec.Struct, array_like=True, frozen=True):
    """What Spark planned for a batch: all that it takes to run the batch again, and to go on after it."""

    files: list[PlannedFile]
    stateful: bool = False
    """Whether the streaming DataFrame has state, which is Spark's and is not among the files."""


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """Which Structured Streaming batch a source epoch holds."""

    query: str
    number: int
    plan: BatchPlan | None = None
    """None where nothing is planned outside our own records, and in those of early releases."""


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One committed step of one chain: the whole descriptor the tasks saw, and what came of it."""

    chain: str
    epoch: int
    kind: str
    """epoch | intent | done | export | handover"""
    generation: int
    previous: bytes
    time_us: int
    groups: list[Group] = []
    parts: list[TaskPart] = []
    stamp: Stamp | None = None
    offsets: tuple[int, int] | None = None
    """Native source: the row numbers generated, start and end."""
    batch: Batch | None = None
    watermark_us: int | None = None
    """Of a source: `END_US` when it has ended."""
    idle: bool = False
    routing: int = 0
    code: bytes = b""
    attempt: int = 0


class DeltaFrame(msgspec.Struct, array_like=True, frozen=True):
    """A delta that some shard still needs on top of its snapshot."""

    epoch: int
    task: int
    extent: Extent


class Published(msgspec.Struct, array_like=True, frozen=True):
    """Segments of one producer epoch on one edge, in task order."""

    epoch: int
    segments: list[Segment]
    stamp: Stamp | None
    watermark_us: int | None = None
    barrier: list[str] = []
    """Chains between which shards were dealt anew at this epoch of theirs: nobody goes past it on one of them before all
    that came before it is taken on every one."""
    through: dict[str, int] = {}
    """Where a watermark is declared further down: by chain upstream, the epoch before which all its rows are out."""
    reach: dict[str, int] = {}
    """The epochs before which all rows that are out so far came from, where that is not `through`."""


class Reached(msgspec.Struct, array_like=True, frozen=True):
    """An event time that rows of a chain have reached on an edge, and the epochs of each chain upstream before which they
    came from. It counts when every shard is past those."""

    event_us: int
    at: list[tuple[int, str, Position]] = []
    """Edge, producer chain and position: what there was instead of `through` once; only read."""
    through: dict[str, int] = {}


class EdgeBase(msgspec.Struct, array_like=True, frozen=True):
    edge: int
    published: list[Published]
    event_us: int | None = None
    """Latest event time that counts, where the edge has a watermark of its own."""
    watermark_us: int | None = None
    """What was last said of event time on this edge."""
    event_at: list[tuple[int, str, Position]] = []
    """Of `event_us` as `Reached.at`, in what was written once; only read."""
    ahead: Reached | None = None
    """One that did not count yet, in what was written once; only read."""
    event_through: dict[str, int] = {}
    """Of `event_us`, as in `Reached`."""
    pending: list[Reached] = []
    """What does not count yet."""
    through: dict[str, int] = {}
    reach: dict[str, int] = {}
    """What was last said on this edge, as in `Published`."""


class ChainBase(msgspec.Struct, array_like=True, frozen=True):
    """All of one chain that a restart needs."""

    chain: str
    epoch: int
    hash: bytes
    groups: list[Group]
    """Positions: each range starts and ends at the group's position."""
    edges: list[EdgeBase]
    """What its consumers have not consumed yet."""
    versions: bytes = b""
    digests: bytes = b""
    dirty_since: bytes = b""
    snapshots: list[Snapshot] = []
    deltas: list[DeltaFrame] = []
    offset: int = 0
    batch: Batch | None = None
    intent: Record | None = None
    watermark_us: int | None = None
    routing: int = 0
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    dead_rows: int = 0
    ended: bool = False
    time_us: int = 0


class Told(msgspec.Struct, array_like=True, frozen=True):
    """What a producer had said, before an epoch of its own at which some shards stand, of how far rows are through."""

    edge: int
    chain: str
    epoch: int
    through: dict[str, int]


class FrontierBase(msgspec.Struct, array_like=True, frozen=True):
    """How far the rows of all chains upstream have come in one chain."""

    reach: dict[str, int]
    """By chain upstream: the epoch before which all rows came from that any shard has taken."""
    told: list[Told]


class Redeal(msgspec.Struct, array_like=True, frozen=True):
    """Shards of one operator that passed from one of its chains to another, as a base begins."""

    giver: str
    taker: str
    shards: bytes
    """u16, ascending."""


class Placed(msgspec.Struct, array_like=True, frozen=True):
    """Where plans have put a stage: what a restart begins with, where that still fits."""

    declared: int
    """Tasks that the program gave it: with another number the user wants something else."""
    tasks: list[int]
    nodes: list[str]
    """Node of each task; empty: any."""
    task_of: bytes = b""
    """Task of each shard, u16; of a source, nothing."""


class Base(msgspec.Struct, array_like=True, frozen=True):
    """All chains at one moment: the first frame of every log part."""

    format: int
    query: str
    generation: int
    part: int
    identity: bytes
    time_us: int
    chains: list[ChainBase]
    placed: dict[str, Placed] = {}
    """By stage: where plans have put it. No part of the fold: of records and chains it says nothing."""
    redeals: list[Redeal] = []
    """What happened after the last record before this base; the chains here have it in them."""
    frontiers: dict[str, FrontierBase] = {}
    """By chain, of those behind which a watermark is declared further down."""


_BASE_FIELDS = Base.__struct_fields__.index("chains") + 1
_encoder = msgspec.msgpack.Encoder()
_record = msgspec.msgpack.Decoder(Record)
_base = msgspec.msgpack.Decoder(Base)


def encode(value: Record | Base) -> bytes:
    """Return the bytes of a record or base; the same value always gives the same bytes.

    A base ends with its chains, or with the last thing behind them that it has, as it did before there were any; a
    batch likewise with its number, or its plan.
    """
    if isinstance(value, Base):
        fields = list(msgspec.structs.astuple(value))
        while not fields[-1] and len(fields) > _BASE_FIELDS:
            fields.pop()
        fields[_BASE_FIELDS - 1] = [_with_short_batch(chain) for chain in value.chains]
        return _encoder.encode(fields)
    return _encoder.encode(_with_short_batch(value))


def _with_short_batch(value: Record | ChainBase) -> Record | ChainBase | list[object]:
    if value.batch is None or value.batch.plan is not None:
        return value
    fields = list(msgspec.structs.astuple(value))
    fields[value.__struct_fields__.index("batch")] = [value.batch.query, value.batch.number]
    return fields


def decode_record(data: bytes | memoryview) -> Record:
    return _record.decode(data)


def decode_base(data: bytes | memoryview) -> Base:
    return _base.decode(data)


def hash_of(encoded: bytes) -> bytes:
    """Return what the next record of the chain must carry as `previous`."""
    return hashlib.blake2b(encoded, digest_size=16).digest()


def pack_u16(values: U16) -> bytes:
    return values.astype("<u2", copy=False).tobytes()


def unpack_u16(data: bytes) -> U16:
    return np.frombuffer(data, "<u2").astype(np.uint16, copy=False)


def pack_u32(values: U32) -> bytes:
    return values.astype("<u4", copy=False).tobytes()


def unpack_u32(data: bytes) -> U32:
    return np.frombuffer(data, "<u4").astype(np.uint32, copy=False)


def pack_u64(values: U64) -> bytes:
    return values.astype("<u8", copy=False).tobytes()


def unpack_u64(data: bytes) -> U64:
    return np.frombuffer(data, "<u8").astype(np.uint64)


def files_of(part: TaskPart) -> set[str]:
    """Return the names of all data files that a part names."""
    return {extent.file for extent in extents_of(part)}


def files_of_batch(batch: Batch | None) -> set[str]:
    """Return the names of all data files that keep what was planned for a batch."""
    return {file.kept.file for file in batch.plan.files} if batch is not None and batch.plan else set()


def extents_of(part: TaskPart) -> list[Extent]:
    """Return everything that a part names: segments, delta and snapshots."""
    named = [segment.extent for segment in part.segments]
    named.extend(snapshot.extent for snapshot in part.snapshots if snapshot.extent is not None)
    return [*named, part.delta] if part.delta is not None else named


def combine_stamps(stamps: list[Stamp]) -> Stamp | None:
    """Return the stamp of rows that came from all of these."""
    rows = sum(s.rows for s in stamps)
    if rows == 0:
        return None
    return Stamp(
        rows=rows,
        first_us=min(s.first_us for s in stamps if s.rows),
        mean_us=sum(s.mean_us * s.rows for s in stamps) / rows,
        last_us=max(s.last_us for s in stamps if s.rows),
    )
