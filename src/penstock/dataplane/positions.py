"""Positions: what was published in each channel, and where shards stand in it. Facts alone; nothing here chooses rows.

Shards that stand at the same place form a group. Usually there is one; a shard that sat out (it was being
brought, or its lease was lost) stands in a group of its own until it has caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.dataplane.records import Position, Published, unpack_u32
from penstock.dataplane.state.protocol import I64, U16

START = Position(1, 0)
NEVER = Position(1 << 62, 0)


@dataclass(frozen=True, order=True)
class ChannelKey:
    """One producer chain on one edge."""

    edge: int
    chain: str


class PublishedRows:
    """A published producer epoch with its rows per consumer shard, counted once; one without rows says something of
    event time alone."""

    __slots__ = (
        "arrived_us",
        "barrier",
        "bytes",
        "counts",
        "epoch",
        "published",
        "row_bytes",
        "rows",
        "stamp",
    )

    def __init__(self, published: Published, shards: int = 1) -> None:
        self.published = published
        self.epoch = published.epoch
        self.stamp = published.stamp
        self.barrier = published.barrier
        self.arrived_us: int | None = None
        """When another stage published them; None for rows of a source, and for those of before a restart."""
        counts = np.zeros(shards, np.int64)
        for at, segment in enumerate(published.segments):
            found = unpack_u32(segment.shard_rows)
            counts = counts + found if at else found.astype(np.int64)
        self.counts: I64 = counts
        self.rows = int(counts.sum())
        self.bytes = sum(segment.extent.length for segment in published.segments)
        self.row_bytes = self.bytes / max(1, self.rows)


@dataclass(frozen=True)
class ShardGroup:
    """Shards that stand at the same positions."""

    shards: U16
    at: Mapping[ChannelKey, Position]
    marks: Mapping[ChannelKey, int | None] = field(default_factory=dict)
    """What the producer of each channel had said of event time by that position."""
    watermark_us: int | None = None
    """Of these shards; it never goes back."""
