"""The plan: cores per elastic executor and node, shard -> task, node count. Plain data, checked as a whole.

Whoever carries it out decides nothing; what it does not name stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class ExecutorPlan:
    """What one elastic executor should look like."""

    tasks: Mapping[int, str]
    """Index of each task -> its node. A task that stays keeps its index; a new one takes the lowest that is free."""
    task_of: npt.NDArray[np.int32]
    """Shard -> index of its task; -1 for shards of other executors of the operator."""

    @property
    def k(self) -> int:
        return len(self.tasks)

    def cores_by_node(self) -> Mapping[str, int]:
        """Return the cores the executor holds on each node (x_ij of Elasticutor 4.2)."""
        return Counter(self.tasks.values())


@dataclass(frozen=True)
class Pass:
    """Shards that pass from one executor of an operator to another, with the tasks that have them."""

    giver: str
    taker: str
    """Empty: a new executor of the same operator."""
    shards: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What the control plane wants next."""

    executors: Mapping[str, ExecutorPlan] = field(default_factory=dict)
    add_nodes: int = 0
    release_nodes: tuple[str, ...] = ()
    sla_shares: Mapping[str, float] = field(default_factory=dict)
    """Operator -> its share of an end-to-end latency bound, where that is split."""
    global_pause: bool = False
    """Stop all rows while it is carried out, as the resource-centric baseline does."""
    passes: tuple[Pass, ...] = ()
    """Executors that are split or merged."""

    @property
    def changes_nothing(self) -> bool:
        return not self.sla_shares and self.touches_nothing

    @property
    def touches_nothing(self) -> bool:
        """Whether there is nothing to carry out: a bound that is split otherwise is the policy's own business."""
        return not (self.executors or self.add_nodes or self.release_nodes or self.passes)


@dataclass(frozen=True)
class Move:
    """A shard that changes its task."""

    executor: str
    shard: int
    source: int
    destination: int


def derive_moves(name: str, now: ExecutorPlan, then: ExecutorPlan) -> list[Move]:
    """Return the shards whose task differs between two plans of one executor."""
    moved = np.flatnonzero(now.task_of != then.task_of)
    return [Move(name, int(s), int(now.task_of[s]), int(then.task_of[s])) for s in moved]
