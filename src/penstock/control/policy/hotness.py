"""Shards that are as much as a core can do: a shard has one task at a time, so no number of cores helps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.control.measure.estimate import Estimate, ExecutorEstimate

HOT_CORES = 0.95
"""Share of the fastest core there is from which on no plan can help a shard."""


@dataclass(frozen=True)
class HotShard:
    """The hottest shard of an executor, where it is too hot."""

    executor: str
    shard: int
    share: float
    """Of the executor's load."""
    cores: float
    """Cores that it alone needs, of the fastest kind there is."""

    @property
    def is_served(self) -> bool:
        """Whether its rows are done as fast as they come, however late."""
        return self.cores < 1

    def __str__(self) -> str:
        return (
            f"one shard of {self.executor}, {self.shard}, is {self.share:.0%} of the load and alone needs "
            f"{self.cores:.1f} cores; a shard has one task, so only fewer rows of its hottest key or faster code can help"
        )


def find_hot_shard(now: Estimate, names: Iterable[str]) -> HotShard | None:
    """Return the hottest of the shards of some executors that are too hot; None where there is none."""
    found = [one for name in names if (one := _find(now, name)) is not None]
    return max(found, key=lambda one: (one.cores, one.executor), default=None)


def _find(now: Estimate, name: str) -> HotShard | None:
    executor = now.executors.get(name)
    speeds = (node.speed for node in now.nodes.values() if node.cores > 0)
    return None if executor is None else find_hot_shard_of(executor, speeds)


def find_hot_shard_of(executor: ExecutorEstimate, speeds: Iterable[float]) -> HotShard | None:
    """Return the hottest shard of one executor where it is too hot; None where it is not.

    Args:
        speeds: of the nodes that it could be on, besides those of its tasks.
    """
    if not executor.k or float(executor.load.sum()) <= 0:
        return None
    hottest = int(executor.load.argmax())
    cores = float(executor.load[hottest]) / max(*executor.task_speeds(), *speeds, 1e-9)
    if cores < HOT_CORES:
        return None
    return HotShard(executor.name, hottest, float(executor.load[hottest] / executor.load.sum()), cores)


def with_hot_shard(problem: str, hot: HotShard | None) -> str:
    """Return a problem and, where one shard alone needs a core or more, that too: no core more would help that one."""
    told = [] if hot is None or str(hot) in problem else [str(hot)]
    return "; ".join([problem, *told] if problem else told)
