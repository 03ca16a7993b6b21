"""The shards of one elastic executor on the table: who has which, how loaded every task is, and what changed in the end.

Loads are in time: a shard's load over the speed of its task's node, so that unlike nodes compare. Decides nothing;
`balancing` and `dealing` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.sample import F64, I64
from penstock.control.plan.plan import Move

TINY = 1e-9
"""Loads that differ by less than this share are equal."""


@dataclass(frozen=True)
class Shards:
    """One executor's shards, what each costs, and the tasks that have them. Arrays are by shard of the operator."""

    executor: str
    load: F64
    """Core-seconds per second of each shard on a node of speed 1."""
    task_of: npt.NDArray[np.int32]
    """Shard -> index of its task; -1 for shards of other executors."""
    tasks: Mapping[int, str]
    """Index of each task -> its node."""
    state_bytes: I64 | None = None
    speed: Mapping[int, float] = field(default_factory=dict)
    """Index of a task -> its speed; 1 where it is not said."""


@dataclass(frozen=True)
class Balance:
    """Shards dealt anew, and what came of it."""

    task_of: npt.NDArray[np.int32]
    moves: tuple[Move, ...]
    delta_before: float
    delta_after: float
    reason: str
    moved_bytes: int = 0
    """State that has to be copied to another node; a move inside a node copies none."""


def derive_shards(executor: ExecutorEstimate) -> Shards:
    """Return what the balancer needs to know of an executor."""
    rate = executor.service_per_s
    return Shards(
        executor.name,
        executor.dealt_load,
        executor.task_of,
        {task.index: task.node for task in executor.tasks},
        executor.state_bytes,
        {task.index: task.service_per_s / rate if rate > 0 else 1.0 for task in executor.tasks},
    )


def derive_imbalance(shards: Shards) -> float:
    """Return δ = largest task load / mean task load (Elasticutor 3.1); 1 where there is no load.

    The mean is what every task would have if the work were dealt perfectly: total load / total speed.
    """
    return Table(shards, shards.tasks, shards.speed).delta()


class Table:
    """Shards while they are dealt. A task is known by its place, 0, 1, ... in the order of indexes.

    Args:
        tasks: the tasks to deal to, which need not be those that have the shards now.
    """

    def __init__(
        self, shards: Shards, tasks: Mapping[int, str], speed: Mapping[int, float], load: F64 | None = None
    ) -> None:
        self.shards = shards
        self.names = np.array(sorted(tasks), dtype=np.int64)
        self.nodes = [tasks[int(name)] for name in self.names]
        numbers = {node: number for number, node in enumerate(dict.fromkeys(self.nodes))}
        self.node = np.array([numbers[node] for node in self.nodes], dtype=np.int64)
        """Place -> number of its node."""
        self.home = np.array([numbers.get(shards.tasks.get(int(t), ""), -1) for t in shards.task_of])
        """Shard -> number of the node its state is on; -1 where no task will be."""
        self.speed = np.array([max(speed.get(int(name), 1.0), TINY) for name in self.names])
        self.speeds = np.unique(self.speed)
        self.load = np.asarray(shards.load if load is None else load, dtype=np.float64)
        self.mine = shards.task_of >= 0
        self.at = self._places(shards.task_of)
        """Shard -> place; -1 for those without a task, and for those of other executors."""
        held = self.at >= 0
        # Of no shards at all bincount makes integers, whatever the weights are.
        loads = np.bincount(self.at[held], weights=self.load[held], minlength=len(self.names))
        self.loads = loads.astype(np.float64)
        self.total = float(self.load[self.mine].sum())
        self.mean = self.total / float(self.speed.sum()) if len(self.names) else 0.0

    def _places(self, task_of: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        top = max(int(task_of.max(initial=0)), int(self.names.max(initial=0)))
        place = np.full(top + 1, -1, dtype=np.int64)
        place[self.names] = np.arange(len(self.names))
        return np.where(task_of >= 0, place[task_of], -1)

    @property
    def times(self) -> F64:
        """Load of each task in time, on its own node."""
        found: F64 = self.loads / self.speed
        return found

    def delta(self) -> float:
        if self.mean <= 0:
            return 1.0
        return float(self.times.max()) / self.mean

    def move(self, shard: int, destination: int) -> None:
        """Give a shard to another task; one without a task is given its first."""
        source = self.at[shard]
        if source >= 0:
            self.loads[source] -= self.load[shard]
        self.at[shard] = destination
        self.loads[destination] += self.load[shard]

    def result(self, delta_before: float, reason: str) -> Balance:
        """Return the shards as they lie now. One that was moved twice counts once, one moved back not at all."""
        before = self.shards.task_of
        after = before.copy()
        after[self.mine] = self.names[self.at[self.mine]]
        moved = np.flatnonzero(after != before)
        away = moved[self.home[moved] != self.node[self.at[moved]]]
        size = self.shards.state_bytes
        return Balance(
            after,
            tuple(Move(self.shards.executor, int(s), int(before[s]), int(after[s])) for s in moved),
            delta_before,
            self.delta(),
            reason,
            0 if size is None else int(size[away].sum()),
        )
