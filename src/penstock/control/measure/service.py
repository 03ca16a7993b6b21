"""Service rates by useful time (StreamSwitch 4.2): per task, per operator, and how fast nodes are beside each other.

Waiting never counts, so an idle task keeps its rate; a task without history borrows one until it has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.control.measure.dispersion import Dispersion
from penstock.control.measure.estimate import TaskEstimate
from penstock.control.measure.sample import ExecutorSample, NodeSample, TaskSample

EWMA = 1 / 8
"""η: weight of the newest interval, as for round trips in TCP."""


@dataclass
class _Task:
    node: str
    rows: float
    """Smoothed, of the intervals in which it completed some; for a borrowed rate, rows a second."""
    useful_s: float
    """Smoothed alike: their ratio is the rate, for a mean of ratios of few rows each is far above it."""
    borrowed: bool
    useful_ratio: float = 0.0
    intervals: int = 1

    @property
    def service_per_s(self) -> float:
        return self.rows / self.useful_s

    def add(self, rows: float, useful_s: float) -> None:
        """Take one interval more; the first ones count alike, or the very first would stand out for long."""
        self.intervals += 1
        newest = max(EWMA, 1 / self.intervals)
        self.rows += newest * (rows - self.rows)
        self.useful_s += newest * (useful_s - self.useful_s)


class ServiceRates:
    """The service rates of one elastic executor."""

    def __init__(self) -> None:
        self._tasks: dict[int, _Task] = {}
        self._rows = self._useful_s = 0.0
        self._dispersion: dict[int, Dispersion] = {}

    @property
    def service_per_s(self) -> float | None:
        """μ: rows a second of useful time on a node of speed 1; None before the first row."""
        return self._rows / self._useful_s if self._useful_s > 0 and self._rows > 0 else None

    def update(
        self, before: ExecutorSample, after: ExecutorSample, elapsed_s: float, speeds: Mapping[str, float]
    ) -> None:
        """Take one interval: μ_i = C_i / ρ_i, rows over seconds of useful time, each smoothed with η."""
        known = {task.index: task for task in before.tasks}
        indexes = {task.index for task in after.tasks}
        if self._tasks.keys() != indexes:
            self._tasks = {index: self._tasks[index] for index in indexes if index in self._tasks}
        rows = useful_s = 0.0
        for task in after.tasks:
            done = _work(known.get(task.index), task)
            self._take_task(task, done, elapsed_s)
            rows += done[0]
            useful_s += done[1] * speeds.get(task.node, 1.0)
        if rows > 0 and useful_s > 0:
            self._rows = (1 - EWMA) * self._rows + EWMA * rows
            self._useful_s = (1 - EWMA) * self._useful_s + EWMA * useful_s
        self._borrow(before, after, speeds)

    def _take_task(self, task: TaskSample, done: tuple[int, float], elapsed_s: float) -> None:
        rows, useful_s = done
        held = self._tasks.get(task.index)
        if held is not None and held.node != task.node:
            held = None
            self._tasks.pop(task.index)
        if rows > 0 and useful_s > 0:
            dispersion = self._dispersion.get(task.index)
            if dispersion is None:
                dispersion = self._dispersion[task.index] = Dispersion()
            dispersion.add(useful_s / rows, rows)
            if held is None or held.borrowed:
                held = self._tasks[task.index] = _Task(task.node, rows, useful_s, False, useful_s / elapsed_s)
            else:
                held.add(rows, useful_s)
        if held is not None:
            held.useful_ratio += 0.5 * (useful_s / elapsed_s - held.useful_ratio)

    def _borrow(self, before: ExecutorSample, after: ExecutorSample, speeds: Mapping[str, float]) -> None:
        """Give every task without history the rate of the task that most of its shards came from."""
        for task in after.tasks if len(self._tasks) < len(after.tasks) else ():
            if task.index in self._tasks:
                continue
            came = before.task_of[(after.task_of == task.index) & (before.task_of >= 0)]
            for index, _ in Counter(came.tolist()).most_common():
                origin = self._tasks.get(index)
                if origin is not None:
                    ratio = speeds.get(task.node, 1.0) / speeds.get(origin.node, 1.0)
                    self._tasks[task.index] = _Task(task.node, origin.service_per_s * ratio, 1.0, True)
                    break

    def estimate_tasks(
        self,
        sample: ExecutorSample,
        nodes: Mapping[str, NodeSample],
        speeds: Mapping[str, float],
        unknown: float,
    ) -> tuple[TaskEstimate, ...]:
        """Return every task; one that has no rate yet gets the operator's on its node, or `unknown`."""
        mean = self.service_per_s or unknown
        return tuple(self._estimate_task(task, mean, nodes, speeds) for task in sample.tasks)

    def _estimate_task(
        self, task: TaskSample, mean: float, nodes: Mapping[str, NodeSample], speeds: Mapping[str, float]
    ) -> TaskEstimate:
        held, speed = self._tasks.get(task.index), speeds.get(task.node, 1.0)
        useful = held.useful_ratio if held is not None else 0.0
        cores = max(nodes[task.node].cores, 1) if task.node in nodes else 1
        return TaskEstimate(
            task.index,
            task.node,
            held.service_per_s if held is not None else mean * speed,
            useful,
            speed,
            task.cpu_ratio if task.cpu_ratio is not None else useful / cores,
            task.memory_ratio or 0.0,
            task.io_ratio or 0.0,
        )

    def estimate_scv(self) -> float:
        """Return the squared coefficient of variation of service times; 1 while too little was seen."""
        found = [scv for one in self._dispersion.values() if (scv := one.estimate_scv()) is not None]
        return sum(found) / len(found) if found else 1.0


class NodeSpeeds:
    """How fast each node is, beside the others that run the same operators.

    The speed of a node is what it is said to be, times how its rows per useful second compare with those of all nodes;
    only operators that run on several nodes tell anything.
    """

    def __init__(self) -> None:
        self._work: dict[tuple[str, str], tuple[float, float]] = {}

    def update(self, before: ExecutorSample, after: ExecutorSample) -> None:
        """Take one interval of one executor."""
        known = {task.index: task for task in before.tasks}
        for task in after.tasks:
            rows, useful_s = _work(known.get(task.index), task)
            if rows > 0 and useful_s > 0:
                at = (after.operator, task.node)
                old = self._work.get(at, (float(rows), useful_s))
                self._work[at] = (old[0] + EWMA * (rows - old[0]), old[1] + EWMA * (useful_s - old[1]))

    def estimate(self, nodes: Mapping[str, NodeSample]) -> dict[str, float]:
        """Return node -> speed."""
        said = {name: node.speed if node.speed > 0 else 1.0 for name, node in nodes.items()}
        found: dict[str, list[tuple[float, float]]] = {}
        by_operator: dict[str, dict[str, tuple[float, float]]] = {}
        for (operator, node_name), work in self._work.items():
            if node_name in said:
                by_operator.setdefault(operator, {})[node_name] = work
        for here in by_operator.values():
            if len(here) > 1:
                mean = sum(rows for rows, _ in here.values()) / sum(s * said[n] for n, (_, s) in here.items())
                for name, (rows, useful_s) in here.items():
                    found.setdefault(name, []).append((rows / useful_s / (mean * said[name]), useful_s))
        return {name: said[name] * _mean(found.get(name, ())) for name in said}


def _mean(weighted: Iterable[tuple[float, float]]) -> float:
    total = summed = 0.0
    for value, weight in weighted:
        total += weight
        summed += value * weight
    return summed / total if total > 0 else 1.0


def _work(before: TaskSample | None, after: TaskSample) -> tuple[int, float]:
    """Rows and useful time of a task in one interval; one that is new here, or began again, says nothing yet: its totals
    may be of an earlier task with that index."""
    if before is None or after.rows < before.rows or after.busy_s < before.busy_s:
        return 0, 0.0
    return after.rows - before.rows, after.busy_s - before.busy_s
