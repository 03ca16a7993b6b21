"""How task loads vary within epochs: the busiest task of one epoch is seldom that of the next. Numbers from samples only.

An epoch lasts as long as its busiest task, whichever that is, so it is longer than the mean loads of tasks tell.
"""

from __future__ import annotations

from penstock.control.measure.estimate import EpochSpread
from penstock.control.measure.sample import ExecutorSample
from penstock.control.measure.service import EWMA

SATURATED = 0.95
"""Share of an epoch from which on it is as long as its busiest task: how loads vary cannot be seen then."""

_ENOUGH = 3
"""Intervals with the same tasks before what they say replaces what is known."""


class SpreadMeasure:
    """The memory of one elastic executor: useful time of each task, of the busiest of each epoch, and of epochs."""

    def __init__(self) -> None:
        self.known = EpochSpread()
        self._busy_s: dict[int, float] = {}
        self._longest_s = self._epochs_s = 0.0
        self._intervals = 0

    def take(self, before: ExecutorSample, after: ExecutorSample, elapsed_s: float) -> None:
        """Take one interval in which epochs ended; one in which tasks came, went or began again tells nothing."""
        start = {task.index: task.busy_s for task in before.tasks}
        busy_s = {task.index: task.busy_s - start.get(task.index, task.busy_s) for task in after.tasks}
        epochs_s, longest_s = after.epochs_s - before.epochs_s, after.longest_task_s - before.longest_task_s
        if busy_s.keys() != self._busy_s.keys():
            self._busy_s, self._intervals = dict.fromkeys(busy_s, 0.0), 0
        if start.keys() != busy_s.keys() or min(busy_s.values(), default=-1.0) < 0:
            return
        if epochs_s <= 0 or not 0 < longest_s < SATURATED * epochs_s:
            return
        self._intervals += 1
        newest = max(min(EWMA * elapsed_s, 1.0), 1 / self._intervals)
        self._longest_s += newest * (longest_s / elapsed_s - self._longest_s)
        self._epochs_s += newest * (epochs_s / elapsed_s - self._epochs_s)
        for index, spent_s in busy_s.items():
            self._busy_s[index] += newest * (spent_s / elapsed_s - self._busy_s[index])
        largest_s = max(self._busy_s.values())
        if self._intervals >= _ENOUGH and 0 < largest_s < self._epochs_s:
            delta = largest_s * len(self._busy_s) / sum(self._busy_s.values())
            self.known = EpochSpread(max(self._longest_s / largest_s, 1.0), largest_s / self._epochs_s, delta)
