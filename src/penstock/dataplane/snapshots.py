"""Which shards of a chain are due for a snapshot, and what the driver adds to those that were written. Writes nothing."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.dataplane import records
from penstock.dataplane.chain import Chain
from penstock.dataplane.state.protocol import U16


def due_snapshots(chain: Chain, candidates: U16, retain_bytes: int, max_epochs: int, min_bytes: int) -> U16:
    """Return the candidate shards whose deltas should be replaced by a snapshot, longest overdue first.

    A shard is due when its deltas outweigh its last snapshot, or when they pin more of the channel's files,
    or more epochs, than is to be kept.
    """
    dirty = chain.dirty_since[candidates].astype(np.int64)
    heavy = chain.delta_bytes[candidates] >= np.maximum(
        chain.snapshot_bytes[candidates], np.uint64(min_bytes)
    )
    pinning = chain.written - chain.written_at_dirty[candidates].astype(np.int64) > retain_bytes
    old = chain.epoch - dirty > max_epochs
    due = (dirty > 0) & (heavy | pinning | old)
    chosen: U16 = candidates[due][np.argsort(dirty[due], kind="stable")]
    return chosen


def complete_snapshots(chain: Chain, part: records.TaskPart) -> records.TaskPart:
    """Fill in what the driver knows of the snapshots a task wrote: version and digest as of the last
    commit."""
    if not part.snapshots:
        return part
    filled = [
        msgspec.structs.replace(s, version=int(chain.versions[s.shard]), digest=chain.digest(s.shard))
        for s in part.snapshots
    ]
    return msgspec.structs.replace(part, snapshots=filled)
