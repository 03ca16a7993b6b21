"""From cores per node to tasks and shards: the plan of one elastic executor.

Stands between `assignment`, which says how many cores an executor has on each node, and the shell that starts and ends
leases. What need not change does not: tasks that stay keep their index, shards move only where a task goes, comes, or
is loaded above θ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType

import numpy as np

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.sample import F64
from penstock.control.plan.assignment import Assignment, CoreDemand
from penstock.control.plan.balancing import THETA
from penstock.control.plan.dealing import deal_shards
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.plan.shards import Balance, Shards, derive_shards


@dataclass(frozen=True)
class Placement:
    """The plan of one executor, and how its shards came to lie."""

    plan: ExecutorPlan
    balance: Balance
    added: tuple[int, ...] = ()
    """Indexes of tasks to start."""
    dropped: tuple[int, ...] = ()
    """Indexes of tasks to end."""

    @property
    def changes_nothing(self) -> bool:
        return not (self.added or self.dropped or self.balance.moves)


def derive_core_demand(
    now: Estimate,
    cores: Mapping[str, int],
    capacity: Mapping[str, int] | None = None,
    max_cores: int | None = None,
) -> CoreDemand:
    """Return the assignment problem that an estimate and the wanted cores of each executor make.

    Data intensity is what an executor reads and writes in a second, per core it is to have; home is the node with most of
    its state, and of those with the same the one with most of its cores (Elasticutor 4.2).

    Args:
        cores: executor -> k; one that is not named keeps what it has.
        capacity: node -> cores that may be used there; what the nodes have where it is not given.
        max_cores: what all executors together may hold; all of it where it is not given.
    """
    executors, nodes = tuple(now.executors), tuple(now.nodes)
    column = {node: at for at, node in enumerate(nodes)}
    present = np.zeros((len(executors), len(nodes)), dtype=np.int64)
    home = np.zeros(len(executors), dtype=np.int64)
    for row, executor in enumerate(now.executors.values()):
        shards = derive_shards(executor)
        for node in shards.tasks.values():
            if node in column:
                present[row, column[node]] += 1
        home[row] = np.lexsort((present[row], _state_by_node(shards, column)))[-1]
    demand = np.array([cores.get(name, now.executors[name].k) for name in executors], dtype=np.int64)
    flow = np.array([one.in_bytes_per_s + one.out_bytes_per_s for one in now.executors.values()])
    return CoreDemand(
        executors,
        nodes,
        demand,
        np.array([now.nodes[node].cores if capacity is None else capacity.get(node, 0) for node in nodes]),
        present,
        np.array([float(one.state_bytes[one.task_of >= 0].sum()) for one in now.executors.values()]),
        flow / np.maximum(demand, 1),
        home,
        max_cores,
    )


def _state_by_node(shards: Shards, column: Mapping[str, int]) -> F64:
    found = np.zeros(len(column))
    for index, node in shards.tasks.items():
        if node in column and shards.state_bytes is not None:
            found[column[node]] += float(shards.state_bytes[shards.task_of == index].sum())
    return found


def plan_executor(
    shards: Shards,
    cores: Mapping[str, int],
    speed: Mapping[str, float] | None = None,
    theta: float = THETA,
    fine: float | None = None,
) -> Placement:
    """Return the plan of one executor that has these cores on each node.

    A new task takes the lowest index that no task has now: one that ends in the same plan is not reused, so that an index
    never means two tasks at once. Where a node loses cores, the tasks go whose shards are cheapest to move.

    Args:
        cores: node -> cores of this executor there.
        speed: node -> its speed, for new tasks; 1 where it is not said.
        fine: δ to go on to by moves inside nodes, where anything moves.
    """
    kept, dropped = _kept_and_dropped(shards, cores)
    here = Counter(kept.values())
    free = (index for index in count() if index not in shards.tasks)
    added = {next(free): node for node in sorted(cores) for _ in range(cores[node] - here[node])}
    tasks = {**kept, **added}
    speeds = {index: shards.speed.get(index, 1.0) for index in kept}
    speeds |= {index: (speed or {}).get(node, 1.0) for index, node in added.items()}
    balance = deal_shards(shards, tasks, speeds, theta, fine)
    plan = ExecutorPlan(dict(sorted(tasks.items())), balance.task_of)
    return Placement(plan, balance, tuple(added), tuple(sorted(dropped)))


def plan_executors(
    now: Estimate,
    assignment: Assignment,
    theta: Mapping[str, float] = MappingProxyType({}),
    fine: float | None = None,
) -> dict[str, Placement]:
    """Return the placements of all executors that change; those that stay as they are are left out.

    Args:
        theta: executor -> δ to balance it to; `THETA` for one that is not named.
    """
    speed = {name: node.speed for name, node in now.nodes.items()}
    found = {}
    for name, executor in now.executors.items():
        shards = derive_shards(executor)
        placement = plan_executor(shards, assignment.cores_by_node(name), speed, theta.get(name, THETA), fine)
        if not placement.changes_nothing:
            found[name] = placement
    return found


def _kept_and_dropped(shards: Shards, cores: Mapping[str, int]) -> tuple[dict[int, str], list[int]]:
    dropped: list[int] = []
    for node, held in Counter(shards.tasks.values()).items():
        there = [index for index, name in shards.tasks.items() if name == node]
        there.sort(key=lambda index: _moving_cost(shards, index))
        dropped += there[: max(held - cores.get(node, 0), 0)]
    return {index: node for index, node in shards.tasks.items() if index not in dropped}, dropped


def _moving_cost(shards: Shards, index: int) -> tuple[float, int, int]:
    """Return what it costs to move all shards of a task: state bytes, then shards, then the later index goes first."""
    mine = shards.task_of == index
    size = 0.0 if shards.state_bytes is None else float(shards.state_bytes[mine].sum())
    return size, int(mine.sum()), -index
