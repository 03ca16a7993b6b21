"""Watermarks: what the channels of a stage say of event time, and what follows for the shards that take from them.

Owns the watermark of a group, which rows are late by it, and when nothing comes for now. Pure: it takes no rows, and what a
chain says on its own edges is `chain`'s to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.dataplane.positions import ChannelKey, ShardGroup
from penstock.dataplane.records import END_US, IDLE_US


@dataclass(frozen=True)
class Channels:
    """What the channels of a stage have to do with event time and with each other."""

    marked: Collection[ChannelKey] = ()
    """Those whose producers say when their rows have ended, and when they are idle."""
    timed: Collection[ChannelKey] = ()
    """Those of them that say a watermark; the watermark here is the least of theirs."""
    first: Collection[ChannelKey] = ()
    """Those of loops: their rows are taken before any others."""


NO_TIME = Channels()


def derive_watermark(
    group: ShardGroup, channels: Channels, marks: Mapping[ChannelKey, int | None]
) -> int | None:
    """Return the watermark of a group after its channels said these marks: the least of them, leaving out idle ones; the
    end when all have ended; never back.

    Executors of one operator hear the same: while one is idle and another is not, one of them is behind, and may have rows
    of before what the other says.
    """
    said = [marks.get(key) for key in group.at if key in channels.timed]
    others = [marks.get(key) for key in group.at if key in channels.marked and key not in channels.timed]
    known = [mark for mark in said if mark is not None]
    if len(known) < len(said) or not (said or others):
        return group.watermark_us
    least = min(known, default=END_US)
    if least < IDLE_US and IDLE_US in known and _is_one_behind(channels, marks):
        return group.watermark_us
    if least == END_US and any(mark != END_US for mark in others):
        return group.watermark_us
    if least == IDLE_US:
        return group.watermark_us
    return least if group.watermark_us is None else max(least, group.watermark_us)


def _is_one_behind(channels: Channels, marks: Mapping[ChannelKey, int | None]) -> bool:
    idle = {key.edge for key in channels.timed if marks.get(key) == IDLE_US}
    return any(
        key.edge in idle and mark is not None and mark < IDLE_US
        for key, mark in marks.items()
        if key in channels.timed
    )


def is_idle(group: ShardGroup, channels: Channels) -> bool:
    """Whether nothing comes for now: every channel is idle or has ended, and not all have ended."""
    said = [group.marks.get(key) for key in group.at if key in channels.marked]
    return IDLE_US in said and all(mark in (IDLE_US, END_US) for mark in said)


def derive_late_us(group: ShardGroup, channels: Channels, key: ChannelKey, mark: int | None) -> int | None:
    """Return what the watermark was just before some rows of a channel: of that channel as its producer said with the rows
    before them, of the others as the epoch began."""
    return derive_watermark(group, channels, {**group.marks, key: mark}) if channels.marked else None
