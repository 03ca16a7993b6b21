"""What one epoch changes in columnar state, and its delta; pure, over all shards of a task at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dataplane.state.column_entries import (
    PREFIX_BYTES,
    EntryFormat,
    binary_sizes,
    entry_keys,
    pack_values,
)
from penstock.dataplane.state.protocol import ENTRY_SCHEMA, I64, U16, U64, Delta


@dataclass(frozen=True)
class KeyBatch:
    """Distinct keys of one epoch, sorted by shard."""

    hashes: U64
    shards: U16
    keys: pa.BinaryArray
    """Key bytes as `encode_keys` gives them."""


@dataclass(frozen=True)
class Change:
    """The changed entries of one `update`."""

    slots: I64
    shards: U16
    starts: I64
    """Where the runs of equal shards begin."""
    keys: pa.BinaryArray
    rows: U64


def changed_part(change: Change, changed: npt.NDArray[np.bool_]) -> Change:
    """Return the part of a change whose entries differ from what was there."""
    if changed.all():
        return change
    at = np.flatnonzero(changed)
    shards, keys = change.shards[at], change.keys.take(pa.array(at))
    return Change(change.slots[at], shards, starts_of(shards), keys, change.rows.take(at, axis=0))


def pack_delta(change: Change, form: EntryFormat, key_bytes: int | None, digests: U64) -> Delta:
    """Pack a change that is not empty; `key_bytes` is the length of all keys where it is fixed.

    Args:
        digests: of all shards, after the change.
    """
    keys = entry_keys(change.keys, key_bytes)
    shards, counts = change.shards[change.starts], _counts(change.starts, len(keys))
    if key_bytes is None:
        sizes = np.add.reduceat(binary_sizes(keys), change.starts, dtype=np.int64)
    else:
        sizes = counts * (PREFIX_BYTES + key_bytes)
    return Delta(
        entries=entry_batch(pa.array(change.shards), keys, pack_values(change.rows, form)),
        shards=shards,
        digests=digests[shards],
        shard_bytes=(sizes + counts * form.value_bytes).astype(np.uint32),
    )


def entry_batch(shards: pa.Array, keys: pa.BinaryArray, values: pa.BinaryArray) -> pa.RecordBatch:
    """Return entries as deltas and snapshots hold them."""
    return pa.RecordBatch.from_arrays([shards, keys, values], schema=ENTRY_SCHEMA)


def starts_of(shards: U16) -> I64:
    """Return the first position of each run of equal shards."""
    starts = np.flatnonzero(shards[1:] != shards[:-1])
    starts += 1
    return np.concatenate((np.zeros(min(1, len(shards)), np.int64), starts))


def _counts(starts: I64, total: int) -> I64:
    """Return how long the runs are."""
    counts = np.empty(len(starts), np.int64)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = total - starts[-1:]
    return counts
