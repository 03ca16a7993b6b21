"""What an epoch has changed: collected as states are settled, readable in the same epoch, then made into its delta.

In memory alone. Nothing is committed here: what is staged counts when its record exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.state.bringing import entry_batch
from penstock.dataplane.state.kinds import Changes
from penstock.dataplane.state.owned import Pending
from penstock.dataplane.state.protocol import U32, U64, Delta
from penstock.dataplane.state.sealing import hash_lanes

_NOTHING: Final[Pending] = {}


@dataclass(frozen=True)
class Staged:
    """The changes of an epoch, by shard, as they are committed."""

    version: int
    keys: list[bytes]
    values: list[bytes | None]
    shards: list[int]
    bounds: list[int]
    """Where the entries of each shard begin and end."""
    digests: U64


class Settled:
    """The changes of the epoch that is being worked on."""

    def __init__(self) -> None:
        self.changes = Changes()
        self._overlay: dict[tuple[int, bytes], Pending] = {}
        self._overlaid = 0
        """Changes by shard and prefix, and how many of them are in there; made when something is read."""

    def of(self, shard: int, prefix: bytes) -> Pending:
        """What this epoch has settled of one state of one key: a key may be used again in an epoch, by a timer after its
        rows; None deletes."""
        changes = self.changes
        for at in range(self._overlaid, len(changes.keys)):
            key = changes.keys[at]
            self._overlay.setdefault((changes.shards[at], prefix_of(key)), {})[key] = changes.values[at]
        self._overlaid = len(changes.keys)
        return self._overlay.get((shard, prefix), _NOTHING)

    def stage(self, epoch: int, digest_of: Callable[[int], U64]) -> tuple[Delta, Staged | None]:
        """End the epoch: return its delta, and what to commit when it has its record; None where nothing has changed.

        Args:
            digest_of: the digest of a shard before the epoch.
        """
        changes, self.changes = self.changes, Changes()
        self._overlay, self._overlaid = {}, 0
        if not changes.keys:
            return Delta.empty(), None
        moved = hash_lanes(changes.hashes) - hash_lanes(changes.olds)
        places = np.array(changes.shards, np.uint16)
        keys, values = changes.keys, changes.values
        if not bool(np.all(places[1:] >= places[:-1])):
            order = np.argsort(places, kind="stable")
            places, moved, pick = places[order], moved[order], itemgetter(*order.tolist())
            keys, values = list(pick(keys)), list(pick(values))
        shards, starts = np.unique(places, return_index=True)
        before = np.array([digest_of(shard) for shard in shards.tolist()], np.uint64)
        digests: U64 = before + np.add.reduceat(moved, starts, axis=0)
        staged = Staged(epoch, keys, values, shards.tolist(), [*starts.tolist(), len(keys)], digests)
        entries = entry_batch(places, keys, values)
        return Delta(entries, shards, digests, _bytes_per_shard(entries, starts)), staged


def prefix_of(entry: bytes) -> bytes:
    """Return what all entry keys of the same state and key begin with; index entries of timers are never read that way."""
    return entry[: 3 + (entry[1] << 8 | entry[2])]


def _bytes_per_shard(entries: pa.RecordBatch, starts: Any) -> U32:
    sizes = (
        pc.binary_length(entries.column(1)).to_numpy()
        + pc.binary_length(entries.column(2)).fill_null(0).to_numpy()
    )
    total: U32 = np.add.reduceat(sizes.astype(np.uint32), starts)
    return total
