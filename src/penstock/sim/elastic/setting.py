"""What is simulated: nodes, operators, how rows flow between them, what moving and starting costs. Plain data.

Nothing here changes while a simulation runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.control.measure.sample import F64, I64
from penstock.control.plan.plan import ExecutorPlan
from penstock.errors import DeclarationError

FIXED = "fixed"
EXPONENTIAL = "exponential"


@dataclass(frozen=True)
class SimNode:
    """A node: cores it can give, and its speed relative to a node of speed 1 (StreamSwitch 6.4)."""

    name: str
    cores: int
    speed: float = 1.0


@dataclass(frozen=True)
class SimOperator:
    """An operator: its shards, what a row costs, and the state that moves with a shard."""

    name: str
    shards: int
    service_per_s: float
    """μ: rows a second of one task on a node of speed 1."""
    service: str = FIXED
    """`fixed`: every row costs 1/μ; `exponential`: 1/μ on average."""
    state_bytes: I64 | int = 32 * 1024
    """Of each shard."""
    row_bytes: int = 128

    def __post_init__(self) -> None:
        if self.service not in (FIXED, EXPONENTIAL):
            raise DeclarationError(
                f'Operator {self.name}: service must be "{FIXED}" or "{EXPONENTIAL}", not {self.service!r}.'
            )
        if not self.service_per_s > 0 or self.shards < 1:
            raise DeclarationError(
                f"Operator {self.name}: needs at least one shard and a service rate above zero."
            )

    def shard_bytes(self) -> I64:
        """Return the state of each shard."""
        return np.broadcast_to(np.asarray(self.state_bytes, np.int64), (self.shards,)).copy()


@dataclass(frozen=True)
class SimEdge:
    """Rows that one operator sends to another; an edge may lead back and so close a loop."""

    producer: str
    consumer: str
    selectivity: float = 1.0
    """Rows sent per row completed; the part after the point is a chance."""
    burst: int = 1
    """Rows that are always sent together: a burst of 10 with a selectivity of 5 is ten rows for every other one."""
    weights: F64 | None = None
    """How the rows spread over the consumer's shards; None: evenly."""
    network_s: float = 0.0
    in_turn: bool = False
    """Whether rows go to the shards in turn, as where no key decides; `weights` are not looked at then."""


@dataclass(frozen=True)
class SimExecutor:
    """An elastic executor at the start: its operator and its placement."""

    operator: str
    plan: ExecutorPlan


@dataclass(frozen=True)
class EpochTiming:
    """How the engine steps: D = o0 + o1 k + o2 touched shards + the busiest task's work; all rows commit at its end.

    This is the epoch model of design.md seen from below: with rows waiting for the next epoch its c is near 1.5.
    """

    o0_s: float = 0.004
    o1_s: float = 0.001
    o2_s: float = 0.00005
    max_work_s: float = 0.5
    """An epoch takes at most this much work a task; the rest waits for the next."""


@dataclass(frozen=True)
class Costs:
    """What it costs to act."""

    within_node_s: float = 0.002
    """A shard that changes its task inside a node is held up for this long."""
    move_fixed_s: float = 0.05
    """A shard that changes its node is held up for this long, and for the copying of its state."""
    move_bytes_per_s: float = 100e6
    """A node's outgoing link; its moves share it one after the other."""
    task_start_s: float = 0.2
    """Until a new task takes its first row; it is paid for from the start."""
    node_start_s: float = 10.0
    detect_s: float = 0.25
    """Until the loss of a node is known."""
    drain_max_s: float = 2.0
    """Global pause: most time given to tasks to finish what they have."""
    sync_s: float = 0.1
    """Global pause: time to stop and to start everything upstream again."""


@dataclass(frozen=True)
class NodeLost:
    at_s: float
    node: str


@dataclass(frozen=True)
class NodeSpeed:
    """From this moment the node has another speed."""

    at_s: float
    node: str
    speed: float


@dataclass(frozen=True)
class Setting:
    """A whole simulated system."""

    nodes: tuple[SimNode, ...]
    operators: tuple[SimOperator, ...]
    executors: Mapping[str, SimExecutor]
    edges: tuple[SimEdge, ...] = ()
    costs: Costs = Costs()
    epochs: EpochTiming | None = None
    """None: the ideal of the papers, where a task takes and completes one row after the other."""
    disturbances: tuple[NodeLost | NodeSpeed, ...] = ()
    new_node: SimNode = field(default_factory=lambda: SimNode("new", 8))
    """What a node that is added later looks like; its name gets a number."""
    step_s: float = 1.0
    """Longest step of the clock. It is not the resolution: rows have exact times, events split a step. Only a row that
    goes back through a loop can be late in a queue, by at most one step."""


def spread_evenly(shards: int, nodes: tuple[SimNode, ...], tasks: int) -> ExecutorPlan:
    """Place tasks on nodes in turn and deal the shards to them in turn.

    Raises:
        DeclarationError: there are fewer cores than tasks.
    """
    return spread_over({"": shards}, nodes, {"": tasks})[""]


def spread_over(
    shards: Mapping[str, int], nodes: tuple[SimNode, ...], tasks: Mapping[str, int]
) -> dict[str, ExecutorPlan]:
    """Place the tasks of several executors on nodes in turn, and deal each one's shards to its tasks in turn.

    Raises:
        DeclarationError: there are fewer cores than tasks.
    """
    places = [node.name for core in range(max(n.cores for n in nodes)) for node in nodes if core < node.cores]
    if len(places) < sum(tasks.values()):
        raise DeclarationError(
            f"{sum(tasks.values())} tasks were asked for, but the nodes have {len(places)} cores."
        )
    found, used = {}, 0
    for name, count in tasks.items():
        placed = dict(enumerate(places[used : used + count]))
        found[name] = ExecutorPlan(placed, (np.arange(shards[name]) % count).astype(np.int32))
        used += count
    return found
