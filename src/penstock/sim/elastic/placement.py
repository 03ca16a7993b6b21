"""Where everything is in a simulation: nodes, and the tasks and shards of each elastic executor; and what a plan would
change. Holds state, decides nothing, knows no time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.errors import PlanError
from penstock.sim.elastic.executor import ExecutorQueues
from penstock.sim.elastic.setting import SimNode


@dataclass
class Placed:
    """One elastic executor as it is now."""

    name: str
    queues: ExecutorQueues
    tasks: dict[int, str]
    """Tasks that hold a core, those included that are starting or about to end."""
    task_of: npt.NDArray[np.int32]
    """Shard -> task; a shard on its way still shows the task that it leaves. -1: another executor's."""
    target: npt.NDArray[np.int32]
    """Shard -> task, once everything under way has happened."""
    starting: set[int] = field(default_factory=set)
    treatment: int = 0
    """Grows when what is under way is void."""
    brought_bytes: int = 0

    @property
    def operator(self) -> str:
        return self.queues.operator.name


@dataclass(frozen=True)
class Shift:
    """A shard that is to change its task, or whose task changes its node."""

    shard: int
    source_node: str | None
    """None: nothing is left there."""
    task: int
    node: str


class Placement:
    """Nodes and executors."""

    def __init__(self, nodes: tuple[SimNode, ...], executors: dict[str, Placed]) -> None:
        self.nodes: dict[str, SimNode] = {node.name: node for node in nodes}
        self.executors = executors

    def cores_in_use(self) -> Counter[str]:
        """Return the tasks on each node."""
        return Counter(node for placed in self.executors.values() for node in placed.tasks.values())

    def free_cores(self) -> Iterator[str]:
        """Yield the node of every core that no task holds."""
        used = self.cores_in_use()
        for node in self.nodes.values():
            yield from [node.name] * (node.cores - used[node.name])

    def current(self) -> Mapping[str, ExecutorPlan]:
        return {
            name: ExecutorPlan(dict(placed.tasks), placed.task_of.copy())
            for name, placed in self.executors.items()
        }

    def check(self, plan: Plan) -> None:
        """Refuse a plan that cannot be carried out.

        Raises:
            PlanError: why not.
        """
        after: Counter[str] = Counter()
        for name, placed in self.executors.items():
            wanted = plan.executors.get(name)
            after.update((wanted.tasks if wanted else placed.tasks).values())
        for name, one in plan.executors.items():
            self._check_executor(name, one)
        for node, tasks in after.items():
            if node in plan.release_nodes:
                raise PlanError(f"Node {node} cannot be released: {tasks} tasks of the plan are on it.")
            if tasks > self.nodes[node].cores:
                raise PlanError(
                    f"Node {node} has {self.nodes[node].cores} cores, but the plan puts {tasks} tasks on it."
                )
        for node in plan.release_nodes:
            if node not in self.nodes:
                raise PlanError(f"Node {node} cannot be released: there is no such node.")

    def _check_executor(self, name: str, one: ExecutorPlan) -> None:
        placed = self.executors.get(name)
        if placed is None:
            raise PlanError(f"There is no executor {name}; there are {', '.join(self.executors)}.")
        missing = {node for node in one.tasks.values() if node not in self.nodes}
        if missing:
            raise PlanError(f"Executor {name}: there is no node {min(missing)}.")
        if one.task_of.shape != placed.task_of.shape or ((one.task_of >= 0) != (placed.task_of >= 0)).any():
            raise PlanError(f"Executor {name}: the plan does not cover exactly the shards that it has.")
        unknown = set(one.task_of[one.task_of >= 0].tolist()) - set(one.tasks)
        if unknown:
            raise PlanError(
                f"Executor {name}: shards are given to task {min(unknown)}, which the plan lacks."
            )

    def shifts(self, name: str, one: ExecutorPlan) -> list[Shift]:
        """Return what a plan moves."""
        placed = self.executors[name]
        found = []
        for shard in np.flatnonzero(one.task_of >= 0):
            now, then = int(placed.task_of[shard]), int(one.task_of[shard])
            source = placed.tasks.get(now)
            if now != then or source != one.tasks[then]:
                found.append(Shift(int(shard), source, then, one.tasks[then]))
        return found
