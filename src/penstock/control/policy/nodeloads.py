"""Loads of nodes while tasks are placed: skewness, what fits, and where the next task goes.

Es-Stream III-C and V-B, with the two placements it is compared with: even, and R-Storm's. Pure; a `NodeLoads` is a
table that a policy writes its intended placement into.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.nodes import Need
from penstock.control.policy.protocol import Limits

LEAST_LOADED, EVEN, R_STORM = "least-loaded", "even", "r-storm"
PLACEMENTS = (LEAST_LOADED, EVEN, R_STORM)


def derive_skewness(loads: Sequence[float]) -> float:
    """Return SK of node loads (Es-Stream, equations 19 and 20); 0 where fewer than three nodes or all alike.

    SK = cs Σ (R_i - R̄)³ / ((cs - 1)(cs - 2) σ³). Below zero most nodes are loaded above the mean.
    """
    size = len(loads)
    mean = sum(loads) / size if size else 0.0
    deviation = math.sqrt(sum((load - mean) ** 2 for load in loads) / size) if size else 0.0
    if size < 3 or deviation < 1e-9:
        return 0.0
    return size * sum((load - mean) ** 3 for load in loads) / ((size - 1) * (size - 2) * deviation**3)


@dataclass
class NodeLoads:
    """What each node carries and may still take."""

    cores: dict[str, int]
    """Cores that are free."""
    left: int
    """Cores that may be taken in all."""
    loads: dict[str, list[float]]
    """CPU, memory and I/O, each as a share of what the node was given."""
    tasks: Counter[str]
    """Tasks of all executors by node."""
    limit: Need
    """α: the most that a node may carry of each."""
    preempted: Sequence[str] = ()
    placed: list[str] = field(default_factory=list)

    @property
    def used(self) -> list[str]:
        """Nodes with a task."""
        return sorted(name for name in self.cores if self.tasks[name] > 0)

    def load(self, node: str) -> float:
        """Return R, the greatest of a node's three loads (equation 6)."""
        return max(self.loads[node])

    def mean(self) -> float:
        """Return R̄ of the nodes in use."""
        used = self.used
        return sum(self.load(name) for name in used) / len(used) if used else 0.0

    def skewness(self) -> float:
        """Return SK of the nodes in use."""
        return derive_skewness([self.load(name) for name in self.used])

    def fits(self, node: str, need: Need) -> bool:
        """Return whether one more task stays within α of every resource (equation 22) and has a core."""
        if self.left <= 0 or self.cores[node] <= 0:
            return False
        wanted = (need.cpu_ratio, need.memory_ratio, need.io_ratio)
        most = (self.limit.cpu_ratio, self.limit.memory_ratio, self.limit.io_ratio)
        return all(
            have + more <= top + 1e-9 for have, more, top in zip(self.loads[node], wanted, most, strict=True)
        )

    def put(self, node: str, need: Need) -> None:
        """Count one task more on a node."""
        self._change(node, need, 1)
        self.placed.append(node)

    def take_off(self, node: str, need: Need) -> None:
        """Count one task less on a node."""
        self._change(node, need, -1)

    def _change(self, node: str, need: Need, by: int) -> None:
        self.cores[node] -= by
        self.left -= by
        self.tasks[node] += by
        wanted = (need.cpu_ratio, need.memory_ratio, need.io_ratio)
        self.loads[node] = [
            max(have + by * more, 0.0) for have, more in zip(self.loads[node], wanted, strict=True)
        ]


def derive_node_loads(now: Estimate, limits: Limits, limit: Need, preempted: Sequence[str] = ()) -> NodeLoads:
    """Return the table for an estimate."""
    tasks = Counter(task.node for executor in now.executors.values() for task in executor.tasks)
    return NodeLoads(
        {name: node.cores - tasks[name] for name, node in now.nodes.items()},
        limits.max_cores - tasks.total(),
        {name: [node.cpu_ratio, node.memory_ratio, node.io_ratio] for name, node in now.nodes.items()},
        tasks,
        limit,
        preempted,
    )


def choose_least_loaded(table: NodeLoads, need: Need, nodes: Iterable[str]) -> str | None:
    """Return the least loaded of these nodes that a task fits on (Es-Stream V-B)."""
    fitting = [name for name in nodes if table.fits(name, need)]
    return min(fitting, key=lambda name: (table.load(name), name), default=None)


def choose_even(table: NodeLoads, need: Need, nodes: Iterable[str]) -> str | None:
    """Return the node with fewest tasks that has a core: Storm's even scheduler, which looks at no load."""
    open_nodes = [name for name in nodes if table.left > 0 and table.cores[name] > 0]
    return min(open_nodes, key=lambda name: (table.tasks[name], name), default=None)


def choose_r_storm(table: NodeLoads, need: Need, nodes: Iterable[str]) -> str | None:
    """Return the node nearest to the need in what it has left: R-Storm's rule.

    Distance over memory, CPU and the network way to the node of the task placed before (0 on it, else 1); memory is a
    hard constraint, CPU and network are soft (R-Storm 4). The first task goes where most is left.
    """
    fitting = [
        name
        for name in nodes
        if table.left > 0
        and table.cores[name] > 0
        and table.loads[name][1] + need.memory_ratio <= table.limit.memory_ratio + 1e-9
    ]
    if not table.placed:
        return min(fitting, key=lambda name: (sum(table.loads[name][:2]), name), default=None)
    return min(fitting, key=lambda name: (_distance(table, need, name), name), default=None)


def _distance(table: NodeLoads, need: Need, node: str) -> float:
    cpu_left = table.limit.cpu_ratio - table.loads[node][0]
    memory_left = table.limit.memory_ratio - table.loads[node][1]
    away = 0.0 if table.placed[-1] == node else 1.0
    return math.sqrt((memory_left - need.memory_ratio) ** 2 + (cpu_left - need.cpu_ratio) ** 2 + away**2)


CHOICES = {LEAST_LOADED: choose_least_loaded, EVEN: choose_even, R_STORM: choose_r_storm}
"""Placement -> where the next task goes."""


def place_tasks(table: NodeLoads, needs: Sequence[Need], placement: str) -> list[str | None]:
    """Place tasks one after another, in topological order, on all nodes there are; None where one fits nowhere."""
    found: list[str | None] = []
    for need in needs:
        node = CHOICES[placement](table, need, sorted(table.cores))
        if node is not None:
            table.put(node, need)
        found.append(node)
    return found
