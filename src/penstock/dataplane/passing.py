"""What shards that sit out may pass: ranges that hold no rows for them, so that nobody waits for them.

Owns which of them pass how far, behind the shards that work. Pure decisions over what was published; takes no rows. It
looks at the rows of every item once an epoch, however many groups there are.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.dataplane.positions import ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.records import Position
from penstock.dataplane.state.protocol import I64, U16

IsReached = Callable[[ShardGroup, ChannelKey, PublishedRows], bool]
"""Whether a group has taken all that came before a barrier on a channel."""


@dataclass(frozen=True)
class Passed:
    """How far some shards pass on one channel."""

    end: Position
    last: PublishedRows | None = None
    """The last item of which they pass something."""
    mark: int | None = None
    """What the producer has said of event time by the end."""


class Passing:
    """What may be passed in one epoch.

    Args:
        caps: where those that work stand after it; nobody passes them.
    """

    def __init__(
        self,
        waiting: Mapping[ChannelKey, Sequence[PublishedRows]],
        caps: Mapping[ChannelKey, Position],
        is_reached: IsReached,
    ) -> None:
        self._is_reached = is_reached
        self._ways = {key: _Way(waiting.get(key, ()), cap) for key, cap in caps.items()}

    def split(self, group: ShardGroup, out: U16) -> list[U16]:
        """Return those of a group's shards for which nothing waits up to the caps, and the others: these go together, as
        what is held up by one of them is held up by all."""
        free = np.ones(len(out), np.bool_)
        for key, at in group.at.items():
            way = self._ways[key]
            free &= way.first_rows(at, out) == len(way.items)
        return [part for part in (out[free], out[~free]) if len(part)]

    def passes(self, group: ShardGroup, shards: U16) -> dict[ChannelKey, Passed]:
        """Return how far shards of a group pass on every channel."""
        return {key: self._pass(group, key, shards) for key in group.at}

    def _pass(self, group: ShardGroup, key: ChannelKey, shards: U16) -> Passed:
        way, at = self._ways[key], group.at[key]
        if at >= way.cap:
            return Passed(at, None, group.marks.get(key))  # with several channels it may be in front on one
        stop = int(way.first_rows(at, shards).min())
        start = way.index(at)
        for number in way.barriers:
            if start <= number < stop and not self._is_reached(group, key, way.items[number]):
                stop = number
                break
        mark = next(
            (one for item in reversed(way.items[start:stop]) for one in way.said(item)), group.marks.get(key)
        )
        end = way.end(at, start, stop)
        return Passed(end, way.items[stop - 1] if stop > start else None, mark)


class _Way:
    """What waits on one channel before its cap."""

    def __init__(self, items: Sequence[PublishedRows], cap: Position) -> None:
        self.cap = cap
        self.items = [item for item in items if Position(item.epoch, 0) < cap]
        self.barriers = [number for number, item in enumerate(self.items) if item.barrier]
        self._next: I64 | None = None

    def index(self, at: Position) -> int:
        """Return the first item of which something comes at or after a position."""
        return bisect.bisect_left(self.items, at.epoch, key=lambda item: item.epoch)

    def first_rows(self, at: Position, shards: U16) -> I64:
        """Return, for each of some shards at a position, the first item that has rows for it; their number where none
        has."""
        start = self.index(at)
        if start == len(self.items):
            return np.full(len(shards), start)
        cut = at.row > 0 and self.items[start].epoch == at.epoch
        found: I64 = self._next_rows()[start + cut, shards]
        return np.where(self.items[start].counts[shards] > at.row, start, found) if cut else found

    def _next_rows(self) -> I64:
        """For every item and shard: the first item from there on that has rows for it."""
        if self._next is None:
            count = len(self.items)
            has = np.stack([item.counts for item in self.items]) > 0
            at = np.where(has, np.arange(count)[:, None], count)
            nearest = np.minimum.accumulate(at[::-1], axis=0)[::-1]
            self._next = np.concatenate([nearest, np.full((1, at.shape[1]), count)])
        return self._next

    def end(self, at: Position, start: int, stop: int) -> Position:
        """Return the position before the item that stops them, or the cap."""
        if stop == len(self.items):
            return max(at, self.cap)
        return max(at, Position(self.items[stop - 1].epoch + 1, 0)) if stop > start else at

    def said(self, item: PublishedRows) -> list[int | None]:
        """What an item says of event time, when they pass all of it: at a barrier nothing said is nothing known."""
        said, whole = item.published.watermark_us, item.epoch < self.cap.epoch
        return [said] if whole and (said is not None or item.barrier) else []
