"""What every kind of task state offers the worker, and the one format in which entries travel.

State is a set of entries (entry key bytes -> value bytes) per shard. Deltas and snapshots carry entries as
one Arrow batch, so that `bring` needs no knowledge of the operator. A digest is the order-independent sum of
the hashes of a shard's entries: two lanes of 64 bits, each modulo 2**64. Nothing here touches files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ShardId = NewType("ShardId", int)
Epoch = NewType("Epoch", int)
Version = NewType("Version", int)
"""The epoch that last changed a shard; 0 for a shard that was never written."""

U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

EMPTY_DIGEST = bytes(16)
ENTRY_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.uint16(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
"""Entries of deltas and snapshots, sorted by shard; a null value deletes its key."""


@dataclass(frozen=True)
class Delta:
    """What one task changed in one epoch: staged, not yet applied to local state."""

    entries: pa.RecordBatch
    """ENTRY_SCHEMA, sorted by shard; empty when nothing changed."""
    shards: U16
    """Changed shards, ascending."""
    digests: U64
    """Shape (len(shards), 2): the digest of each changed shard after this epoch."""
    shard_bytes: U32
    """Key and value bytes per changed shard."""

    @staticmethod
    def empty() -> Delta:
        return Delta(
            entries=pa.RecordBatch.from_pylist([], schema=ENTRY_SCHEMA),
            shards=np.empty(0, np.uint16),
            digests=np.empty((0, 2), np.uint64),
            shard_bytes=np.empty(0, np.uint32),
        )


class TaskState(Protocol):
    """The state of the shards that one task owns right now.

    Life of an epoch: logic reads and writes; `stage` turns the writes into a delta; the driver commits the
    record; the next message makes the worker call `commit`, and only then may anything reach the local LMDB.
    There is no undo: a task whose epoch is not committed is thrown away with its process.

    Life of a shard: `open`, any number of `apply` (snapshot first, then deltas in order), `seal`, then
    epochs, then `release`.
    """

    def open(self, shard: int, path: str, local_version: int | None) -> bool:
        """Begin to bring a shard into the local environment at `path`.

        With `local_version` None the environment is made anew and empty. Otherwise the environment is
        expected to be there, handed over with exactly that version; return False (and leave nothing open)
        when it is absent, damaged, or of another version, and True when its content is taken over as it is.
        """
        ...

    def apply(self, shard: int, version: int, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        """Fold entries of one snapshot or one delta, whose shard version is `version`, into a shard being
        brought."""
        ...

    def seal(self, shard: int, version: int, digest: bytes) -> bool:
        """End the bringing: True when version and digest of the content equal the ones given, else drop it
        all."""
        ...

    def release(self, shard: int) -> None:
        """Write everything committed of this shard to its environment (version and digest too) and close
        it."""
        ...

    def drop(self, shard: int) -> None:
        """Forget a shard without writing."""
        ...

    def stage(self, epoch: int) -> Delta:
        """Return what logic changed since the last commit, as the delta of `epoch`."""
        ...

    def commit(self) -> None:
        """The record of the staged epoch exists: staged writes become committed state."""
        ...

    def flush(self, budget_s: float) -> None:
        """Write committed entries to the local environments for at most about `budget_s`; called between
        epochs."""
        ...

    def is_behind(self) -> bool:
        """Whether committed entries are left that `flush` is to write."""
        ...

    def snapshot(self, shard: int) -> pa.RecordBatch:
        """Return all committed entries of a shard (ENTRY_SCHEMA), verified against its digest.

        Legal only between `commit` and the next write. Raises CorruptFileError naming the environment when
        the content does not give the digest.
        """
        ...

    def owned(self) -> Sequence[int]:
        """Shards that are sealed and not released, ascending."""
        ...

    def state_bytes(self) -> int:
        """Approximate key and value bytes of all owned shards."""
        ...

    def close(self) -> None:
        """Close every environment without writing."""
        ...


def digest_bytes(lanes: Iterable[int] | U64) -> bytes:
    """Return the 16 stored bytes of a digest from its two lanes."""
    return np.asarray(list(lanes), dtype="<u8").tobytes()


def digest_lanes(digest: bytes) -> U64:
    """Return the two lanes of a stored digest."""
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
