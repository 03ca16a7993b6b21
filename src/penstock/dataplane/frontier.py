"""Frontiers: how far the rows of every chain upstream are through, which decides when an event time counts.

Shards do not always stand together: some sit out, are dealt to another executor, or take part of what the others take. An
event time that one shard has reached says nothing of the rows that another has yet to take, so it counts only when every
shard is past all that it came from. Kept where a watermark is declared further down, and nowhere else. A pure function of
the log: no clock, and nothing about what event times are for.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.dataplane.positions import NEVER, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.records import END_US, EdgeBase, FrontierBase, Position, Told

Through = Mapping[str, int]
"""By chain: an epoch before which rows came from it, or are through."""


@dataclass(frozen=True)
class Tracks:
    """The edges of a program on the way to a place where a watermark is declared by the event times of the rows there."""

    upstream: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By such an edge: the stages behind its producer whose rows come over it."""
    meets: Collection[int] = ()
    """Those of them whose rows meet others of the same stage that came another way."""


def derive_tracks(program: Program) -> Tracks:
    """Return the edges on which it is told how far rows are through; loops are no part of it, as of event time."""
    fed = {edge.edge: stage.name for stage in program.stages.values() for edge in stage.edges}
    forward = [
        (given.edge, fed.get(given.edge, given.producer), stage.name)
        for stage in program.stages.values()
        for given in stage.inputs
        if not given.feedback
    ]
    steps = [(consumer, producer) for _, producer, consumer in forward]
    ahead = {
        stage.name
        for stage in program.stages.values()
        if any(edge.marked and edge.delay_us is not None for edge in stage.edges)
    }
    while more := {after for before, after in steps if before in ahead} - ahead:
        ahead |= more
    behind: dict[str, frozenset[str]] = {name: _all_behind(name, steps) for name in ahead}
    tracked = [one for one in forward if one[2] in ahead]
    return Tracks(
        {edge: behind[producer] - {producer} for edge, producer, _ in tracked}, _meeting(tracked, behind)
    )


def _all_behind(name: str, steps: Iterable[tuple[str, str]]) -> frozenset[str]:
    found = {name}
    while more := {after for before, after in steps if before in found} - found:
        found |= more
    return frozenset(found)


def _meeting(tracked: Sequence[tuple[int, str, str]], behind: Mapping[str, frozenset[str]]) -> frozenset[int]:
    """Return the edges on two ways from one stage to another."""
    found: set[int] = set()
    for (one, left, consumer), (other, right, same) in itertools.combinations(tracked, 2):
        shared = behind[left] & behind[right]
        if consumer == same and shared:
            between = behind[left] | behind[right]
            found |= {
                edge
                for edge, producer, to in tracked
                if behind[producer] & shared and (edge in (one, other) or to in between)
            }
    return frozenset(found)


class Frontier:
    """How far the rows of all chains upstream have come through the shards of one chain."""

    def __init__(self, spec: StageSpec, tracks: Tracks) -> None:
        self.reach: dict[str, int] = {}
        """The epochs before which all rows came from that any shard has taken, in order of chains."""
        self.low: dict[str, int] = {}
        """Those before which every shard has taken all."""
        self.said: dict[int, tuple[dict[str, int], dict[str, int]]] = {}
        """By edge: `low` and `reach` as they were last told."""
        self._told: dict[ChannelKey, dict[int, Through]] = {}
        """What channels had said by the epochs at which shards stand."""
        self.be(spec, tracks)

    def be(self, spec: StageSpec, tracks: Tracks) -> None:
        """Have these inputs and edges from now on."""
        self._tracks = tracks
        self._edges = {edge.edge for edge in spec.edges if edge.edge in tracks.upstream}
        self._upstream = {
            ChannelKey(given.edge, given.producer): tracks.upstream[given.edge]
            for given in spec.inputs
            if given.edge in tracks.upstream
        }
        self._least: dict[ChannelKey, _Least] = {}

    # -- following ----------------------------------------------------------------------------------------------------

    def follow(
        self,
        groups: Sequence[ShardGroup],
        ends: Iterable[Mapping[ChannelKey, Position]],
        waiting: Mapping[ChannelKey, Sequence[PublishedRows]],
    ) -> None:
        """Take note of where shards stand now, some of which have come to `ends`; `waiting` still has what they took."""
        if not self._upstream:
            return
        reach = dict(self.reach)
        for at in ends:
            for key, behind in self._upstream.items():
                raise_to(reach, {key.chain: at[key].epoch + (at[key].row > 0)})
                touched = _last(waiting.get(key, ()), at[key]) if behind else None
                if touched is not None:
                    raise_to(reach, touched.published.reach or touched.published.through)
        self._reach_to(reach)
        self.stand(groups, waiting)

    def stand(
        self,
        groups: Sequence[ShardGroup],
        waiting: Mapping[ChannelKey, Sequence[PublishedRows]] | None = None,
    ) -> None:
        """Have these shards, where they stand."""
        if not self._upstream:
            return
        told: dict[ChannelKey, dict[int, Through]] = {}
        live: dict[ChannelKey, set[int]] = {}
        for key, behind in self._upstream.items():
            places, live[key] = _places(groups, key)
            if behind:
                said = {epoch: self._said_by(key, epoch, waiting or {}) for epoch in places}
                told[key] = {epoch: through for epoch, through in said.items() if through}
        self._told = told
        self.low = self._lowest(live)

    def _said_by(
        self, key: ChannelKey, epoch: int, waiting: Mapping[ChannelKey, Sequence[PublishedRows]]
    ) -> Through:
        known = self._told.get(key, {})
        if epoch in known:
            return known[epoch]
        passed = _last(waiting.get(key, ()), Position(epoch))
        if passed is not None:
            return passed.published.through
        before = max((at for at in known if at <= epoch), default=None)
        return known[before] if before is not None else {}

    def _lowest(self, live: Mapping[ChannelKey, set[int]]) -> dict[str, int]:
        low = dict.fromkeys(self.reach, NEVER.epoch)
        for key, epochs in live.items():
            if not epochs:
                continue
            lower_to(low, {key.chain: min(epochs)})
            if self._upstream[key]:
                lower_to(low, self._told_by_all(key, epochs))
        return low

    def _told_by_all(self, key: ChannelKey, epochs: set[int]) -> Through:
        """Return what a channel had said by all of some epochs, which are few more or less than at the last call."""
        least = self._least.get(key)
        if least is None:
            behind = self._upstream[key]
            least = self._least[key] = _Least([name for name in self.reach if operator_of(name) in behind])
        return least.of(epochs, self._told.get(key, {}))

    def _reach_to(self, reach: dict[str, int]) -> None:
        if reach.keys() == self.reach.keys():
            self.reach = reach
        else:
            self.reach, self._least = dict(sorted(reach.items())), {}

    def is_past(self, came_from: Through) -> bool:
        """Whether every shard has taken all that came before some epochs."""
        return all(
            self.low.get(name, -1) >= epoch or (name not in self.low and not self._carries(name))
            for name, epoch in came_from.items()
        )

    def _carries(self, chain: str) -> bool:
        """Whether rows of a chain can come here; after a change of the topology they may not any more."""
        stage = operator_of(chain)
        return any(key.chain == chain or stage in behind for key, behind in self._upstream.items())

    # -- telling ------------------------------------------------------------------------------------------------------

    def has_news(self, edge: int, has_siblings: bool, worked: bool) -> bool:
        """Whether to tell, without rows too, how far rows are through: somebody may wait for it. That is so where what
        was told last was not all that is out, where other executors tell more, and where rows of one source meet.

        Args:
            worked: whether tasks took part in the epoch.
        """
        if edge not in self._edges:
            return False
        if not self._upstream:
            return worked and edge in self._tracks.meets
        through, reach = self.said.get(edge, ({}, {}))
        everyone = has_siblings or edge in self._tracks.meets
        return self.low != through and (everyone or not covers(through, reach))

    def tell(self, edge: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return what to publish with an epoch on an edge."""
        if edge not in self._edges or not self._upstream:
            return {}, {}
        told = self.low, {} if self.low == self.reach else self.reach
        self.said[edge] = told
        return told

    # -- shards that pass, and bases --------------------------------------------------------------------------------------

    def take_over(self, giver: Frontier) -> None:
        """Let shards of another executor of the operator come to this one; `stand` then says which it has."""
        for key, told in giver._told.items():
            self._told[key] = {**told, **self._told.get(key, {})}
        self._least = {}
        reach = dict(self.reach)
        raise_to(reach, giver.reach)
        self._reach_to(reach)

    def to_base(self) -> FrontierBase | None:
        """Restate it; None where nothing is kept."""
        if not self._upstream:
            return None
        told = [
            Told(key.edge, key.chain, at, dict(through))
            for key, places in sorted(self._told.items())
            for at, through in sorted(places.items())
        ]
        return FrontierBase(self.reach, told)

    def load(
        self, base: FrontierBase | None, edges: Iterable[EdgeBase], groups: Sequence[ShardGroup]
    ) -> None:
        """Be as a base says; one of before there were frontiers says only where shards stand."""
        self.said = {one.edge: (one.through, one.reach) for one in edges if one.through or one.reach}
        told = base.told if base is not None else []
        self._told, self._least = {}, {}
        for one in told:
            self._told.setdefault(ChannelKey(one.edge, one.chain), {})[one.epoch] = one.through
        reach = dict(base.reach) if base is not None else {}
        for group in groups if base is None else ():
            places = {
                key.chain: at.epoch + (at.row > 0) for key, at in group.at.items() if key in self._upstream
            }
            raise_to(reach, places)
        self._reach_to(reach)
        self.stand(groups)


class _Least:
    """The least of what one channel had said of some chains by the epochs at which shards stand.

    What is said later is no less, but where shards were dealt. So as a rule all of it comes from the first epoch, and while
    that stays, only epochs that are new can make it less.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._epochs: set[int] = set()
        self._said: dict[str, int] = {}
        self._is_of_first = False

    def of(self, epochs: set[int], told: Mapping[int, Through]) -> Through:
        """Return it for these epochs; what was told by one of them stays the same for as long as shards stand there."""
        first = min(epochs)
        stays = self._is_of_first and first == min(self._epochs)
        said = dict(self._said) if stays else dict.fromkeys(self._names, NEVER.epoch)
        for epoch in epochs - self._epochs if stays else epochs:
            through = told.get(epoch, {})
            for name, known in said.items():
                if (epoch_said := through.get(name, 0)) < known:
                    said[name] = epoch_said
        led = told.get(first, {})
        self._is_of_first = all(led.get(name, 0) == known for name, known in said.items())
        self._epochs, self._said = epochs, said
        return said


def covers(more: Through, less: Through) -> bool:
    """Whether some epochs are at or after all others."""
    return all(more.get(name, 0) >= epoch for name, epoch in less.items())


def raise_to(reach: dict[str, int], more: Through) -> None:
    """Let a reach be no less than some epochs."""
    for name, epoch in more.items():
        if epoch > reach.get(name, 0):
            reach[name] = epoch


def lower_to(low: dict[str, int], other: Through) -> None:
    """Let epochs of the same chains be no more than some others."""
    for name, epoch in other.items():
        if epoch < low.get(name, 0):
            low[name] = epoch


def _places(groups: Iterable[ShardGroup], key: ChannelKey) -> tuple[set[int], set[int]]:
    """Return the epochs of a channel at which shards stand, and those of them at which more may come of it."""
    every: set[int] = set()
    live: set[int] = set()
    for group in groups:
        epoch = group.at[key].epoch
        every.add(epoch)
        if group.marks.get(key) != END_US:
            live.add(epoch)
    return every, live


def _last(items: Sequence[PublishedRows], end: Position) -> PublishedRows | None:
    """Return the last item of which something is before a position."""
    at = bisect.bisect_left(items, end.epoch + (end.row > 0), key=lambda item: item.epoch)
    return items[at - 1] if at else None
