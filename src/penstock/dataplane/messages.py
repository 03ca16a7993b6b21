"""Typed messages between the driver and a lease. msgpack, tagged, never pickle.

The driver speaks first in every exchange but four: hello, heartbeat, a failure, and what a user function says. A task
is named by stage and index; one lease may serve several tasks.
"""

from __future__ import annotations

import msgspec

from penstock.dataplane.records import DeltaFrame, Extent, Snapshot, TaskPart


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Rows [start, end) of each shard's slice in one producer epoch; end -1 means to the end."""

    input: int
    start: int
    end: int
    segments: list[Extent]
    late_us: int | None = None
    """Rows whose event time is not after this are late."""


class TaskGroup(msgspec.Struct, array_like=True, frozen=True):
    shards: bytes
    pieces: list[Piece]
    watermark_us: int | None = None
    """Of these shards after the pieces."""


class Work(msgspec.Struct, tag="work", frozen=True):
    """Do one epoch. Everything before `committed` (inclusive) has its record."""

    stage: str
    task: int
    epoch: int
    committed: int
    time_us: int
    groups: list[TaskGroup] = []
    offsets: tuple[int, int] | None = None
    snapshots: bytes = b""
    """Shards to snapshot as of the last committed epoch, u16."""
    lanes: list[tuple[int, bytes]] = []
    """By edge whose rows are kept on their node: the consumer's shards there, u16."""


class Commit(msgspec.Struct, tag="commit", frozen=True):
    """The record of this epoch exists; sent alone when no work follows soon."""

    stage: str
    task: int
    committed: int


class BringShard(msgspec.Struct, array_like=True, frozen=True):
    shard: int
    version: int
    digest: bytes
    snapshot: Snapshot | None
    local: str | None = None
    """Name of an environment on this node that was handed over, and the version it was released with."""
    local_version: int = 0


class Bring(msgspec.Struct, tag="bring", frozen=True):
    """Make these shards present. Deltas are in epoch order; each shard skips those its snapshot covers."""

    stage: str
    task: int
    shards: list[BringShard]
    deltas: list[DeltaFrame]


class Prepare(msgspec.Struct, tag="prepare", frozen=True):
    """Copy these shards as of a committed epoch, beside the work, while another task goes on with them. A later `Bring`
    names the copies, or `Forget` lets them go."""

    stage: str
    task: int
    shards: list[BringShard]
    deltas: list[DeltaFrame]


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """Copies of these shards that were prepared are not needed."""

    stage: str
    task: int
    shards: bytes


class Release(msgspec.Struct, tag="release", frozen=True):
    """Everything up to `committed` has its record: write these shards to their environments, close them, say so."""

    stage: str
    task: int
    shards: bytes
    committed: int
    keep: bool = True
    """Whether another task of this node takes them over; otherwise they are deleted."""


class End(msgspec.Struct, tag="end", frozen=True):
    """Give the core back."""

    reason: str = ""


ToLease = Work | Commit | Bring | Prepare | Forget | Release | End


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """First message of a lease after authentication."""

    lease: str
    node: str
    host: str
    pid: int
    version: str


class Done(msgspec.Struct, tag="done", frozen=True):
    stage: str
    epoch: int
    part: TaskPart
    next_timer_us: int | None = None
    """Epoch time at which the task wants to be run again, rows or not."""
    shard_us: list[tuple[int, int]] = []
    """Time spent on each shard, where it was looked at."""


class BroughtShard(msgspec.Struct, array_like=True, frozen=True):
    shard: int
    ok: bool
    how: str
    """local | snapshot | changelog | empty, or why it failed."""


class Brought(msgspec.Struct, tag="brought", frozen=True):
    stage: str
    task: int
    shards: list[BroughtShard]
    next_timer_us: int | None = None


class PreparedShard(msgspec.Struct, array_like=True, frozen=True):
    shard: int
    local: str
    """Name of the copy; empty when there is none."""
    version: int
    why: str = ""
    """Why there is none."""


class Prepared(msgspec.Struct, tag="prepared", frozen=True):
    stage: str
    task: int
    shards: list[PreparedShard]


class ReleasedShard(msgspec.Struct, array_like=True, frozen=True):
    shard: int
    local: str


class Released(msgspec.Struct, tag="released", frozen=True):
    stage: str
    task: int
    shards: list[ReleasedShard]
    next_timer_us: int | None = None


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The lease cannot go on. `kind`: user (the query ends), storage (the lease ends, another tries), corrupt
    (the query ends)."""

    stage: str
    task: int
    kind: str
    message: str
    detail: str = ""


class Alive(msgspec.Struct, tag="alive", frozen=True):
    load: tuple[float, float, float] | None = None
    """Of the node, from one of its leases: shares of CPU, memory and I/O in use."""
    own: tuple[float, float, float] | None = None
    """Of the lease's own process and those below it: shares of what the node was given."""


class Said(msgspec.Struct, tag="said", frozen=True):
    """A user function printed or logged something; `level` as in `logging`."""

    stage: str
    task: int
    level: int
    text: str
    where: str = ""
    """Shard and key, or the step, as far as known."""


FromLease = Hello | Done | Brought | Prepared | Released | Failed | Alive | Said

_encoder = msgspec.msgpack.Encoder()
_to_lease = msgspec.msgpack.Decoder(ToLease)
_from_lease = msgspec.msgpack.Decoder(FromLease)


def encode(message: ToLease | FromLease) -> bytes:
    return _encoder.encode(message)


def decode_to_lease(data: bytes) -> ToLease:
    return _to_lease.decode(data)  # type: ignore[no-any-return]


def decode_from_lease(data: bytes) -> FromLease:
    return _from_lease.decode(data)  # type: ignore[no-any-return]
