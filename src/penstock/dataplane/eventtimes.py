"""Event times: the latest that the rows of a chain have reached on each edge, and which of them count.

Which shards have taken what is the frontier's to know. A pure function of the log: no clock, and nothing about rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.dataplane.frontier import Frontier, covers, raise_to
from penstock.dataplane.records import EdgeBase, Position, Reached

PENDING = 32
"""Event times of one edge that are kept until they count; with more, the last but one goes."""


class EventTimes:
    """The latest event times of one chain, by edges that have a watermark of their own."""

    def __init__(self) -> None:
        self.counted: dict[int, Reached] = {}
        self.pending: dict[int, list[Reached]] = {}
        """Those that some shard has not come as far as yet. The first ones stay until they count, so that a chain whose
        shards never stand together says some too."""

    def count(self, edge: int, frontier: Frontier, more: Iterable[Reached] = ()) -> None:
        """Let every event time count that all shards are past, of those that are kept and some more."""
        known = [*self.pending.pop(edge, ()), *more]
        best = self.counted.get(edge)
        for one in known:
            if (best is None or one.event_us > best.event_us) and frontier.is_past(one.through):
                best = one
        if best is not None:
            self.counted[edge] = best
        left = [one for one in known if best is None or one.event_us > best.event_us]
        if left:
            self.pending[edge] = _thin(left)

    def lags_behind(self, edge: int, sibling: EventTimes, frontier: Frontier) -> bool:
        """Whether another executor says a later event time, which counts here too."""
        theirs, mine = sibling.counted.get(edge), self.counted.get(edge)
        ahead = theirs is not None and (mine is None or theirs.event_us > mine.event_us)
        return ahead and theirs is not None and frontier.is_past(theirs.through)

    def load(self, edges: Iterable[EdgeBase]) -> None:
        """Be as a base says, in its words of before too."""
        self.counted = {
            one.edge: Reached(one.event_us, through=one.event_through or _through_of(one.event_at))
            for one in edges
            if one.event_us is not None
        }
        self.pending = {
            one.edge: [
                Reached(known.event_us, through=known.through or _through_of(known.at))
                for known in (*one.pending, *([one.ahead] if one.ahead is not None else []))
            ]
            for one in edges
            if one.pending or one.ahead is not None
        }

    def take_over(self, giver: EventTimes, edge: int, was_empty: bool) -> None:
        """Let shards of another executor come to this one: what has counted of both counts still, the rest is kept."""
        mine, theirs = self.counted.pop(edge, None), giver.counted.get(edge)
        both = [one for one in (mine, theirs) if one is not None]
        if theirs is not None and (was_empty or mine is not None):
            self.counted[edge] = theirs if was_empty else min(both, key=lambda one: one.event_us)
        known = [*self.pending.pop(edge, ()), *giver.pending.get(edge, ()), *both]
        if known:
            self.pending[edge] = known


def _thin(left: Sequence[Reached]) -> list[Reached]:
    """Of event times that do not count yet, the ones worth to keep: by time, none that comes from more than a later one."""
    kept: list[Reached] = []
    for one in sorted(left, key=lambda reached: reached.event_us, reverse=True):
        if not kept or not covers(one.through, kept[-1].through):
            kept.append(one)
    kept.reverse()
    return [*kept[: PENDING - 1], kept[-1]] if len(kept) > PENDING else kept


def _through_of(at: Iterable[tuple[int, str, Position]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, chain, position in at:
        raise_to(found, {chain: position.epoch + (position.row > 0)})
    return found
