"""Shards that were asked to move, and the moves that were made: when, from where to where, and how much was copied.

A ledger for measuring and for people: nothing is decided here, and a shard moves the same without it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.dataplane.placement import ShardMove
from penstock.dataplane.run import Run
from penstock.dataplane.state.protocol import U16


@dataclass
class Wish:
    """When a shard was asked to move, and what has come of it."""

    wanted_at: float
    source: str = ""
    released_at: float = 0.0
    bytes: int = 0


class Moves:
    """The moves of all stages of one engine."""

    def __init__(self, stages: Iterable[str]) -> None:
        self._wishes: dict[tuple[str, int], Wish] = {}
        self.last: deque[ShardMove] = deque(maxlen=10_000)
        self.made = 0
        """How many, in all."""
        self.bytes_of: defaultdict[str, int] = defaultdict(int, dict.fromkeys(stages, 0))
        """State that was copied to another node, by stage."""

    def ask(self, run: Run, shards: U16, now: float) -> None:
        """Shards were asked to move; the first time counts."""
        for shard in shards.tolist():
            self._wishes.setdefault((run.spec.name, shard), Wish(now))

    def release(self, run: Run, shards: U16, node: str, now: float) -> None:
        """A task on this node is asked to let shards go."""
        for shard in shards.tolist():
            wish = self._wishes.setdefault((run.spec.name, shard), Wish(now))
            wish.source, wish.released_at = node, now

    def weigh(self, run: Run, shard: int, bytes_: int) -> None:
        """So much of a shard has to be copied to another node."""
        wish = self._wishes.get((run.spec.name, shard))
        if wish is not None:
            wish.bytes = bytes_

    def forget(self, run: Run, shards: U16) -> None:
        """Nothing that was asked of these shards counts."""
        for shard in shards.tolist():
            self._wishes.pop((run.spec.name, shard), None)

    def arrive(self, run: Run, shards: U16, node: str, now: float) -> None:
        """A task on this node has shards; those that are where they should be have moved."""
        name = run.spec.name
        for shard in shards.tolist():
            wish = self._wishes.get((name, shard))
            if wish is not None and run.task_of[shard] == run.shards.goal[shard]:
                del self._wishes[name, shard]
                if not wish.released_at:
                    continue  # nobody held it yet
                self.bytes_of[name] += wish.bytes
                self.made += 1
                self.last.append(
                    ShardMove(
                        name, shard, wish.source, node, wish.bytes, wish.wanted_at, wish.released_at, now
                    )
                )
