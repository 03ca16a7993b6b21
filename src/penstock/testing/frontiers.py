"""Which event times count when, derived again from the records of a run: where every shard of a chain stands, how far the
rows of everything upstream have come there, and what has so been reached.

Arithmetic of its own, shard by shard and over all epochs, published or not; a part of `times`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.records import Position, Record, unpack_u16

Channel = tuple[int, str]
"""Edge and producer chain."""
FIRST = Position(1, 0)
ALL = 1 << 62
MOST = 32
"""Event times of one edge that a chain keeps until they count."""


@dataclass
class _Journal:
    """What was true of a chain after each of its epochs."""

    epochs: list[int] = field(default_factory=list)
    low: list[dict[str, int]] = field(default_factory=list)
    reach: list[dict[str, int]] = field(default_factory=list)

    def before(self, epoch: int) -> tuple[dict[str, int], dict[str, int]]:
        at = bisect_left(self.epochs, epoch) - 1
        return (self.low[at], self.reach[at]) if at >= 0 else ({}, {})


class Frontiers:
    """How far rows are through, in all chains of a run; stages are followed one after the other, downstream."""

    def __init__(self, program: Program, has_ended: Callable[[Channel, int], bool]) -> None:
        """`has_ended` says whether a channel had said its end by an epoch."""
        steps = [
            (stage.name, given.producer)
            for stage in program.stages.values()
            for given in stage.inputs
            if not given.feedback
        ]
        self._behind = {name: _behind(name, steps) for name in program.stages}
        self._has_ended = has_ended
        self._journals: dict[str, _Journal] = {}
        self._given: dict[str, dict[str, int]] = {}
        """What chains have been given of the reach of others since their last epoch."""

    def follow(
        self, spec: StageSpec, chain: str, epoch: int, stands: Mapping[int, Mapping[Channel, Position]]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Take note of where all shards of a chain stand after one of its epochs; return before which epochs rows are
        through, and before which they came from."""
        producers = {given.edge: given.producer for given in spec.inputs if not given.feedback}
        places = {
            (channel, at) for ats in stands.values() for channel, at in ats.items() if channel[0] in producers
        }
        journal = self._journals.setdefault(chain, _Journal())
        reach = dict(journal.reach[-1]) if journal.reach else {}
        for one, top in self._given.pop(chain, {}).items():
            reach[one] = max(reach.get(one, 0), top)
        for (edge, name), at in places:
            known = self._journals.get(name, _Journal()).before(at.epoch + (at.row > 0))[1]
            known = known if self._behind[producers[edge]] else {}
            for one, top in [(name, at.epoch + (at.row > 0)), *known.items()]:
                reach[one] = max(reach.get(one, 0), top)
        low = dict.fromkeys(reach, ALL)
        for (edge, name), at in places:
            if self._has_ended((edge, name), at.epoch):
                continue
            told = self._journals.get(name, _Journal()).before(at.epoch)[0]
            for one in low:
                if one == name:
                    low[one] = min(low[one], at.epoch)
                elif operator_of(one) in self._behind[producers[edge]]:
                    low[one] = min(low[one], told.get(one, 0))
        journal.epochs.append(epoch)
        journal.low.append(low)
        journal.reach.append(reach)
        return low, reach

    def take_over(self, giver: str, taker: str) -> None:
        """Shards of one chain come to another, with what they have come from."""
        given = self._journals.get(giver, _Journal())
        self._given[taker] = given.reach[-1] if given.reach else {}


def _behind(name: str, steps: Iterable[tuple[str, str]]) -> set[str]:
    found: set[str] = set()
    left = [name]
    while left:
        now = left.pop()
        more = {producer for consumer, producer in steps if consumer == now} - found
        found |= more
        left += more
    return found


@dataclass(frozen=True)
class Reach:
    """An event time, and the epochs upstream before which the rows came from that brought it."""

    event_us: int
    came_from: Mapping[str, int]

    def is_past(self, low: Mapping[str, int]) -> bool:
        return all(low.get(name, 0) >= epoch for name, epoch in self.came_from.items())


class Events:
    """Latest event time that counts for each executor of a stage on its edges: of its own rows, and of those of others."""

    def __init__(self, spec: StageSpec, frontiers: Frontiers, channels: Iterable[Channel]) -> None:
        self._spec = spec
        self._begin = dict.fromkeys(channels, FIRST)
        self._edges = [edge.edge for edge in spec.edges if edge.delay_us is not None]
        self._frontiers = frontiers
        self._at: dict[int, dict[Channel, Position]] = {}
        self._counted: dict[tuple[str, int], Reach] = {}
        self._pending: dict[tuple[str, int], list[Reach]] = {}
        self._chains: list[str] = []

    def said(self, chain: str) -> dict[int, int]:
        return {
            edge: self._counted[chain, edge].event_us
            for edge in self._edges
            if (chain, edge) in self._counted
        }

    def take(self, record: Record, mine: list[int]) -> None:
        """Follow a record of a chain with these shards."""
        if record.chain not in self._chains:
            self._chains.append(record.chain)
        for group in record.groups:
            ends = {(one.edge, one.chain): one.end for one in group.ranges}
            for shard in unpack_u16(group.shards).tolist():
                self._at[shard] = {**self._at.get(shard, self._begin), **ends}
        low, reach = self._follow(record.chain, record.epoch, mine)
        for edge in self._edges:
            own = [
                Reach(event_us, reach)
                for part in record.parts
                for number, event_us in part.event_us
                if number == edge
            ]
            others = [
                self._counted[one, edge]
                for one in self._chains
                if one != record.chain and (one, edge) in self._counted
            ]
            self._count(record.chain, edge, low, [*own, *others])

    def deal(self, giver: str, taker: str, epoch: int, owners: dict[int, str], shards: list[int]) -> None:
        """Let shards pass: the taker says no more than both did, until what it has now has come as far."""
        self._chains += [one for one in (giver, taker) if one not in self._chains]
        was_empty = taker not in owners.values()
        owners.update(dict.fromkeys(shards, taker))
        self._frontiers.take_over(giver, taker)
        lows = {
            chain: self._follow(chain, epoch, [shard for shard, owner in owners.items() if owner == chain])[0]
            for chain in (giver, taker)
        }
        for edge in self._edges:
            mine, theirs = self._counted.pop((taker, edge), None), self._counted.get((giver, edge))
            if theirs is not None and (was_empty or mine is not None):
                lesser = mine is not None and mine.event_us < theirs.event_us and not was_empty
                self._counted[taker, edge] = mine if lesser and mine is not None else theirs
            more = [
                *self._pending.get((giver, edge), []),
                *(one for one in (mine, theirs) if one is not None),
            ]
            self._count(taker, edge, lows[taker], more)
            if giver in owners.values():  # those it waited for may be gone
                self._count(giver, edge, lows[giver], [])

    def _follow(self, chain: str, epoch: int, mine: list[int]) -> tuple[dict[str, int], dict[str, int]]:
        stands = {shard: self._at.get(shard, self._begin) for shard in mine}
        return self._frontiers.follow(self._spec, chain, epoch, stands)

    def _count(self, chain: str, edge: int, low: Mapping[str, int], more: list[Reach]) -> None:
        known = [*self._pending.pop((chain, edge), []), *more]
        best = self._counted.get((chain, edge))
        for one in known:
            if one.is_past(low) and (best is None or one.event_us > best.event_us):
                best = one
        if best is not None:
            self._counted[chain, edge] = best
        left = [one for one in known if best is None or one.event_us > best.event_us]
        if left:
            self._pending[chain, edge] = _kept(left)


def _kept(left: list[Reach]) -> list[Reach]:
    """Without those that come from as much as a later one, and without the last but one of too many."""
    kept: list[Reach] = []
    for one in sorted(left, key=lambda one: -one.event_us):
        if not kept or any(one.came_from.get(name, 0) < epoch for name, epoch in kept[-1].came_from.items()):
            kept.append(one)
    kept.reverse()
    return kept if len(kept) <= MOST else [*kept[: MOST - 1], kept[-1]]
