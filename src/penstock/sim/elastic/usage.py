"""What a run used: tasks and nodes over time."""

from __future__ import annotations

import numpy as np

from penstock.control.measure.sample import F64, I64
from penstock.sim.elastic.placement import Placement


class Usage:
    """Tasks that hold a core, starting and ending ones included, and nodes, as a step function of time."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._steps: list[tuple[float, int, int]] = []
        self._end_s = 0.0
        self.note(0.0)

    def note(self, now_s: float) -> None:
        """Something changed."""
        tasks = sum(len(placed.tasks) for placed in self._placement.executors.values())
        self._steps.append((now_s, tasks, len(self._placement.nodes)))

    def until(self, now_s: float) -> None:
        self._end_s = now_s

    def steps(self) -> tuple[F64, I64, I64]:
        """Return times, and tasks and nodes from each time on."""
        times, tasks, nodes = zip(*self._steps, strict=True)
        return np.array(times), np.array(tasks, np.int64), np.array(nodes, np.int64)

    def mean_tasks(self) -> float:
        """Return the mean over time of tasks that hold a core."""
        times, tasks, _ = self.steps()
        return _mean(times, tasks, self._end_s)

    def mean_nodes(self) -> float:
        times, _, nodes = self.steps()
        return _mean(times, nodes, self._end_s)


def _mean(times: F64, values: I64, end_s: float) -> float:
    if end_s <= 0:
        return float(values[-1])
    return float((np.diff(np.append(times, end_s)) * values).sum() / end_s)
