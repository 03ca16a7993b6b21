"""All chains of a query, and what flows between them; the executors of an operator share its edges.

A pure function of the log, like each `Chain`; a base restates all of them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.dataplane import paths, records
from penstock.dataplane.chain import Chain
from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.executors import begin_shares, in_order, pass_shards, spread_specs
from penstock.dataplane.frontier import Tracks, derive_tracks
from penstock.dataplane.positions import START, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.program import Program, operator_of
from penstock.dataplane.records import (
    END_US,
    Base,
    Group,
    Position,
    Record,
    Redeal,
)
from penstock.dataplane.standing import oldest
from penstock.dataplane.taking import PieceTaken
from penstock.errors import CorruptFileError


def _begin(program: Program, tracks: Tracks) -> dict[str, Chain]:
    """The chains of a new checkpoint."""
    shares = {name: share for spec in program.stages.values() for name, share in begin_shares(spec).items()}
    specs = spread_specs(program, shares)
    return {name: Chain(spec, shares[name], tracks) for name, spec in specs.items()}


class Chains:
    """All chains of a query, and what flows between them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tracks = derive_tracks(program)
        self.by_name = _begin(program, self.tracks)
        self.placed: dict[str, records.Placed] = {}
        """By chain: where plans have put it, of those that are not as the program says."""

    def of(self, operator: str) -> list[Chain]:
        """Return the chains of a stage: one, or those of all executors of an operator."""
        if self.is_plain:
            return [self.by_name[operator]] if operator in self.by_name else []
        return [chain for name, chain in self.by_name.items() if operator_of(name) == operator]

    def digests_of(self, operator: str) -> list[tuple[int, bytes]]:
        """Return version and digest of every shard of an operator, by number, whichever executor has it."""
        found = {shard: chain for chain in self.of(operator) for shard in chain.shards().tolist()}
        return [(int(found[shard].versions[shard]), found[shard].digest(shard)) for shard in sorted(found)]

    def consumers(self, chain: Chain) -> list[Chain]:
        """Return the chains that take rows of the same edges as this one, itself included."""
        return [chain] if self.is_plain else self.of(operator_of(chain.name))

    def lags(self, chain: Chain) -> bool:
        """Whether another executor says a later event time that counts for this one too: it owes an epoch."""
        if self.is_plain or chain.spec.kind != "operator":
            return False
        return any(chain.lags_behind(one) for one in self.consumers(chain) if one is not chain)

    def lagging(self) -> bool:
        """Whether some executor owes an epoch that says how far event time is."""
        return any(self.lags(chain) for chain in self.by_name.values())

    @property
    def is_plain(self) -> bool:
        """Whether every operator has one executor."""
        return len(self.by_name) == len(self.program.stages)

    def __getitem__(self, name: str) -> Chain:
        return self.by_name[name]

    def apply(self, record: Record, encoded: bytes) -> list[tuple[EdgeSpec, PublishedRows]]:
        """Fold in one durable record; forget what it consumed; return what it published, by edge."""
        chain = self.by_name[record.chain]
        siblings = [one for one in self.consumers(chain) if one is not chain]
        published = chain.apply(record, encoded, siblings, self.waiting(chain))
        self.drop_consumed(chain)
        return published

    def drop_consumed(self, chain: Chain) -> None:
        """Forget what all executors of a stage have taken."""
        groups = [group for one in self.consumers(chain) for group in one.groups]
        for given in chain.spec.inputs:
            key = ChannelKey(given.edge, given.producer)
            self.by_name[given.producer].drop_consumed(given.edge, oldest(groups, key))

    def waiting(self, chain: Chain) -> Mapping[ChannelKey, deque[PublishedRows]]:
        """Return what is published for a stage and not consumed by all of its shards."""
        return {
            ChannelKey(given.edge, given.producer): self.by_name[given.producer].out[given.edge]
            for given in chain.spec.inputs
        }

    def resolve(self, chain: Chain, groups: Iterable[Group]) -> list[PieceTaken]:
        """Return the pieces that recorded ranges stand for; they are retained until the chain moves past
        them."""
        pieces: list[PieceTaken] = []
        for group in groups:
            for taken in group.ranges:
                key = ChannelKey(taken.edge, taken.chain)
                for item in self.by_name[taken.chain].out[taken.edge]:
                    if Position(item.epoch, 0) < taken.end and item.epoch >= taken.start.epoch:
                        low = taken.start.row if item.epoch == taken.start.epoch else 0
                        high = taken.end.row if item.epoch == taken.end.epoch else -1
                        pieces.append(PieceTaken(key, low, high, item))
        return pieces

    def waiting_bytes(self) -> int:
        """Bytes in all channels that some consumer has not consumed."""
        return sum(chain.out_bytes for chain in self.by_name.values())

    def waiting_bytes_for(self, chain: Chain) -> int:
        """Bytes that wait for one stage."""
        return sum(self.by_name[given.producer].edge_bytes[given.edge] for given in chain.spec.inputs)

    def live_files(self) -> set[str]:
        return set().union(*(chain.live_files() for chain in self.by_name.values()))

    def to_base(
        self,
        query: str,
        generation: int,
        part: int,
        identity: bytes,
        time_us: int,
        redeals: Sequence[Redeal] = (),
    ) -> Base:
        """Restate all chains; `redeals` have just been applied to them."""
        chains = [chain.to_base() for chain in self.by_name.values()]
        return Base(
            paths.FORMAT_VERSION,
            query,
            generation,
            part,
            identity,
            time_us,
            chains,
            dict(self.placed),
            list(redeals),
            {
                name: frontier
                for name, chain in self.by_name.items()
                if (frontier := chain.frontier.to_base()) is not None
            },
        )

    def redeal(self, one: Redeal) -> None:
        """Let shards pass from one chain of an operator to another, which may be new.

        Raises:
            CorruptFileError: the giver does not have them.
        """
        if one.taker not in self.by_name:
            self._add(one.taker)
        pass_shards(self.by_name[one.giver], self.by_name[one.taker], records.unpack_u16(one.shards))
        for name in (one.giver, one.taker):
            self.drop_consumed(self.by_name[name])

    def load(self, base: Base, tail: Iterable[tuple[Record, bytes]]) -> None:
        """Take over a base and the records after it.

        Raises:
            CorruptFileError: they were put together from others. What else a forger may write raises what it raises.
        """
        self.placed = dict(base.placed)
        stated = {saved.chain for saved in base.chains}
        known = {operator_of(name) for name in stated}
        for name in [name for name in self.by_name if operator_of(name) in known and name not in stated]:
            del self.by_name[name]  # the checkpoint says which executors there are
        for name in stated - {*self.by_name}:
            if operator_of(name) in self.program.stages:
                self.by_name[name] = Chain(self.program.stages[operator_of(name)], tracks=self.tracks)
        self._spread()
        for saved in base.chains:
            if saved.chain in self.by_name:
                self.by_name[saved.chain].load_base(saved, base.frontiers.get(saved.chain))
        for record, encoded in tail:
            self.apply(record, encoded)
        self._check_shards()

    def _check_shards(self) -> None:
        """Refuse shards that nobody has, that two have, or that there are not."""
        for name, spec in self.program.stages.items():
            held = np.sort(np.concatenate([chain.shards() for chain in self.of(name)]))
            if not np.array_equal(held, np.arange(spec.shards)):
                raise CorruptFileError(
                    f"the records give '{name}' {len(held)} shards, and it has {spec.shards}, each once; restore the "
                    "log from a copy."
                )

    def _spread(self) -> None:
        """Let every chain have the inputs that the chains there are give it."""
        specs = spread_specs(self.program, self.by_name)
        self.by_name = {name: self.by_name[name] for name in specs}
        for name, chain in self.by_name.items():
            if chain.spec is not specs[name]:
                chain.be(name, specs[name], self.tracks)

    def _add(self, name: str) -> None:
        """Begin a further executor, without shards: it has said that nothing comes of it."""
        self.by_name[name] = Chain(
            self.program.stages[operator_of(name)], np.empty(0, np.uint16), self.tracks
        )
        self._spread()
        for chain in self.by_name.values():
            given = [ChannelKey(one.edge, name) for one in chain.spec.inputs if one.producer == name]
            chain.groups = [
                replace(
                    group,
                    at={**group.at, **dict.fromkeys(given, START)},
                    marks={**group.marks, **dict.fromkeys(given, END_US)},
                )
                if given
                else group
                for group in chain.groups
            ]

    def adopt(self, program: Program) -> dict[ChannelKey, int]:
        """Go on with a program that has other edges or more stages.

        An edge that is new begins behind what its producer has committed: those rows went elsewhere.

        Returns:
            Rows that wait on edges that the program lacks, and that nobody would take.
        """
        left: dict[ChannelKey, int] = {}
        self.tracks = derive_tracks(program)
        began = _begin(program, self.tracks)
        fresh = {name for name in began if not self.of(operator_of(name))}
        names = in_order(program, [*fresh, *self.by_name])
        specs = spread_specs(program, names)
        for name, chain in self.by_name.items():
            for edge, queue in chain.take_on(specs[name], self.tracks).items():
                if rows := sum(item.rows for item in queue):
                    left[ChannelKey(edge, name)] = rows
        self.program = program
        self.by_name = {name: self.by_name.get(name) or began[name] for name in names}
        self._spread()
        for chain in self.by_name.values():
            if chain.name in fresh:
                chain.groups = [ShardGroup(group.shards, {}) for group in chain.groups]
            chain.stand_at(
                {
                    ChannelKey(given.edge, given.producer): self[given.producer].behind(given.edge)
                    for given in chain.spec.inputs
                }
            )
        return left
