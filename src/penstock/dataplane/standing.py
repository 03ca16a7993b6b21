"""Where shards stand: groups of shards at the same positions, after epochs, merges and deals. Pure; takes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.dataplane.positions import NEVER, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.records import Position
from penstock.dataplane.state.protocol import I64, U16


@dataclass(frozen=True)
class Moved:
    """Where some shards stand after an epoch."""

    shards: U16
    at: Mapping[ChannelKey, Position]
    marks: Mapping[ChannelKey, int | None] = field(default_factory=dict)
    watermark_us: int | None = None


def advance(groups: Sequence[ShardGroup], moved: Sequence[Moved]) -> list[ShardGroup]:
    """Return the groups after some shards moved on; groups at equal positions and watermarks merge."""
    return merge(
        [
            *without(groups, [one.shards for one in moved]),
            *(ShardGroup(one.shards, one.at, one.marks, one.watermark_us) for one in moved),
        ]
    )


def merge(groups: Sequence[ShardGroup]) -> list[ShardGroup]:
    """Return one group for all shards at equal positions and watermarks."""
    merged: dict[tuple[object, ...], list[ShardGroup]] = {}
    for group in groups:
        if len(group.shards):
            place = (tuple(sorted(group.at.items())), group.watermark_us)
            merged.setdefault(place, []).append(group)
    return [
        replace(same[0], shards=np.sort(np.concatenate([group.shards for group in same])))
        if len(same) > 1
        else same[0]
        for same in merged.values()
    ]


def without(groups: Sequence[ShardGroup], gone: Sequence[U16]) -> list[ShardGroup]:
    """Return the groups less some of their shards; one that moved on as a whole, the usual case, costs nothing."""
    if len(groups) == len(gone) == 1 and len(groups[0].shards) == len(gone[0]):
        return []
    every = [group.shards for group in groups] + list(gone)
    left = np.zeros(1 + max((int(shards.max()) for shards in every if len(shards)), default=0), np.bool_)
    for group in groups:
        left[group.shards] = True
    for shards in gone:
        left[shards] = False
    return [replace(group, shards=group.shards[left[group.shards]]) for group in groups]


def oldest(groups: Sequence[ShardGroup], key: ChannelKey) -> Position:
    """The position before which nobody needs anything any more; the last there is where there is nobody."""
    return min((group.at[key] for group in groups), default=NEVER)


def waiting_rows(
    groups: Sequence[ShardGroup], waiting: Mapping[ChannelKey, Sequence[PublishedRows]], shards: int
) -> I64:
    """Count, per shard, the rows that are published and not consumed."""
    found = np.zeros(shards, np.int64)
    for group in groups:
        for key, at in group.at.items():
            for item in waiting.get(key, ()):
                if item.epoch >= at.epoch:
                    low = at.row if item.epoch == at.epoch else 0
                    found[group.shards] += np.maximum(item.counts[group.shards] - low, 0)
    return found


@dataclass(frozen=True)
class Standing:
    """Where every shard of an operator stands on one channel."""

    epochs: I64
    rows: I64

    def rows_left(self, item: PublishedRows, shards: U16) -> I64:
        """Return the rows of a producer epoch that each of some shards has not taken."""
        left = item.counts[shards] - np.where(self.epochs[shards] == item.epoch, self.rows[shards], 0)
        found: I64 = np.where(self.epochs[shards] > item.epoch, 0, np.maximum(left, 0))
        return found


def stand(groups: Sequence[ShardGroup], key: ChannelKey, shards: int) -> Standing:
    """Return where the shards of some groups stand on a channel."""
    stands = Standing(np.zeros(shards, np.int64), np.zeros(shards, np.int64))
    for group in groups:
        stands.epochs[group.shards] = group.at[key].epoch
        stands.rows[group.shards] = group.at[key].row
    return stands
