"""Loads of nodes and the need of a new task (Es-Stream III-C and V). Pure functions on estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.control.measure.estimate import NodeEstimate, TaskEstimate
from penstock.control.measure.sample import NodeSample


@dataclass(frozen=True)
class Need:
    """Shares of what a node was given, by resource."""

    cpu_ratio: float = 0.0
    memory_ratio: float = 0.0
    io_ratio: float = 0.0


def estimate_nodes(
    nodes: Mapping[str, NodeSample], idle: Need, speeds: Mapping[str, float]
) -> dict[str, NodeEstimate]:
    """Return the load of every node: what its tasks use plus the base b it needs when idle (eq. 4)."""
    return {
        name: NodeEstimate(
            name,
            node.cores,
            node.cpu_ratio + idle.cpu_ratio,
            node.memory_ratio + idle.memory_ratio,
            node.io_ratio + idle.io_ratio,
            speeds.get(name, node.speed),
        )
        for name, node in nodes.items()
    }


def derive_new_task_need(siblings: Sequence[TaskEstimate], k: int | None = None) -> Need:
    """Return what a new task of an operator will need: the mean of its siblings, by resource (eq. 21).

    Args:
        k: tasks that share what the siblings use, once the new ones are there; as many as there are where it is None.
            Siblings that are overloaded give load away to a new task: it does not need all that each of them uses.
    """
    k = len(siblings) if k is None else k
    if not siblings or k < 1:
        return Need()
    return Need(
        sum(task.cpu_ratio for task in siblings) / k,
        sum(task.memory_ratio for task in siblings) / k,
        sum(task.io_ratio for task in siblings) / k,
    )


def find_node_fault(node: NodeSample) -> str | None:
    """Say what of a node's sample is no number; None where all is."""
    if (  # no number fails every comparison
        0 <= node.cpu_ratio < math.inf
        and 0 <= node.memory_ratio < math.inf
        and 0 <= node.io_ratio < math.inf
        and 0 <= node.speed < math.inf
    ):
        return None
    return f"node {node.name} reports a load or speed that is no number"
