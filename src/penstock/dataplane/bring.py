"""`bring`: makes the state of shards present on a node, for migration, retry and recovery alike. Never inside
an epoch.

Tries, in order: the environment handed over on this node, brought forward by later deltas; the last snapshot
plus deltas; nothing at all for a shard that was never written. It accepts nothing whose version and digest
differ from what the committed chain says.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.dataplane.channel import read_entries
from penstock.dataplane.disk import Disk
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.messages import Bring, BringShard, BroughtShard, Prepare
from penstock.dataplane.records import DeltaFrame
from penstock.dataplane.state.protocol import U16, Delta, TaskState


def bring_shards(
    state: TaskState,
    message: Bring | Prepare,
    disk: Disk,
    checkpoint: str,
    node_dir: str,
    home: str,
    prefix: str = "",
) -> list[tuple[BroughtShard, str]]:
    """Bring all shards of a message; return what came of each and the name of its environment, which is in the folder
    `home` of the node's directory and begins with `prefix` where it is made anew.

    Raises:
        CorruptFileError: a snapshot or delta that the chain names is damaged.
    """
    taken = _take_locals(state, message, disk, checkpoint, node_dir)
    results: list[tuple[BroughtShard, str]] = []
    rebuild: list[tuple[BringShard, str]] = []
    for wanted in message.shards:
        if wanted.shard in taken:
            assert wanted.local is not None
            results.append((BroughtShard(wanted.shard, True, "local"), wanted.local))
        else:
            name = f"{home}/{prefix}{message.stage}-{message.task}-{wanted.shard}"
            rebuild.append((wanted, name))
    results.extend(_rebuild(state, rebuild, message.deltas, disk, checkpoint, node_dir))
    return results


def _take_locals(
    state: TaskState, message: Bring | Prepare, disk: Disk, checkpoint: str, node_dir: str
) -> set[int]:
    """Take over the environments that are on this node; return the shards for which that gave what the chain says.

    Deltas are read once for all of them: rows of all these shards wait, and every delta has entries of many.
    """
    opened = [
        wanted
        for wanted in message.shards
        if wanted.local is not None
        and state.open(wanted.shard, f"{node_dir}/{wanted.local}", wanted.local_version)
    ]
    behind, goal = {}, {}
    for wanted in opened:
        if wanted.local_version < wanted.version:
            behind[wanted.shard], goal[wanted.shard] = wanted.local_version, wanted.version
    _apply_deltas(state, behind, goal, message.deltas, disk, checkpoint)
    return {wanted.shard for wanted in opened if state.seal(wanted.shard, wanted.version, wanted.digest)}


def _rebuild(
    state: TaskState,
    wanted: list[tuple[BringShard, str]],
    deltas: Iterable[DeltaFrame],
    disk: Disk,
    checkpoint: str,
    node_dir: str,
) -> list[tuple[BroughtShard, str]]:
    have: dict[int, int] = {}
    for shard, name in wanted:
        state.open(shard.shard, f"{node_dir}/{name}", None)
        snapshot = shard.snapshot
        have[shard.shard] = snapshot.version if snapshot is not None else 0
        if snapshot is not None:
            entries = (
                read_entries(disk, checkpoint, snapshot.extent, FrameKind.SNAPSHOT)
                if snapshot.extent is not None
                else Delta.empty().entries  # all its keys were cleared
            )
            state.apply(shard.shard, snapshot.version, entries.column("key"), entries.column("value"))
    goal = {shard.shard: shard.version for shard, _ in wanted}
    touched = _apply_deltas(state, have, goal, deltas, disk, checkpoint)
    results: list[tuple[BroughtShard, str]] = []
    for shard, name in wanted:
        ok = state.seal(shard.shard, shard.version, shard.digest)
        how = "empty" if shard.version == 0 else "changelog" if shard.shard in touched else "snapshot"
        results.append((BroughtShard(shard.shard, ok, how if ok else "version or digest differs"), name))
    return results


def _apply_deltas(
    state: TaskState,
    have: dict[int, int],
    goal: dict[int, int],
    deltas: Iterable[DeltaFrame],
    disk: Disk,
    checkpoint: str,
) -> set[int]:
    """Fold in every delta later than what each shard has; return the shards that got any."""
    touched: set[int] = set()
    if all(have[shard] >= goal[shard] for shard in goal):
        return touched
    first = min(have[shard] for shard in goal if have[shard] < goal[shard])
    for frame in deltas:
        if frame.epoch <= first:
            continue
        entries = read_entries(disk, checkpoint, frame.extent, FrameKind.DELTA)
        for shard, start, count in runs(np.asarray(entries.column("shard"))):
            if shard in goal and have[shard] < frame.epoch <= goal[shard]:
                keys, values = (
                    entries.column("key").slice(start, count),
                    entries.column("value").slice(start, count),
                )
                state.apply(shard, frame.epoch, keys, values)
                have[shard] = frame.epoch
                touched.add(shard)
    return touched


def runs(shards: U16) -> Iterable[tuple[int, int, int]]:
    """Yield (shard, first row, rows) of each run of equal shards."""
    if len(shards) == 0:
        return
    edges = np.flatnonzero(np.diff(shards)) + 1
    starts = np.concatenate([[0], edges])
    ends = np.concatenate([edges, [len(shards)]])
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield int(shards[start]), start, end - start
