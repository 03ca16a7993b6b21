"""How an elastic executor would fare under a placement of its shards: what each task has to do, and how late rows get.

Everything is in core-seconds. A task keeps the share ε of its time free and needs 1 / (μ L) more to hold the bound
L (M/M/1 with margin, StreamSwitch 4.2); what waits is to be cleared within a given time on top. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.sample import F64
from penstock.control.model.epoch import EpochStation
from penstock.control.model.epoch_chain import expected_most
from penstock.control.policy.forecasting import Forecast
from penstock.control.policy.mapping import is_known

OVERFULL_S = 10.0
"""Seconds that a task twice as full as it may be counts for, beyond its bound: orders what is unbounded."""
LEAST_FILL, UNREACHED_FILL = 0.25, 0.5
"""Shares of what a task may be filled to without a bound that it always may: where a bound is so tight that only an idle
task would hold it, and where not even that one does. Fewer rows for each task would then win next to nothing."""
FULLEST = 0.98
"""Load past which no queue is predicted to have settled: what it would then come to is never reached."""


@dataclass(frozen=True)
class Bound:
    """What one operator may take of the SLA."""

    mean_s: float
    """Mean latency at which what the SLA bounds is just held, waits being exponential."""
    latency_s: float
    """Latency that the SLA bounds, in the mean or at its quantile: what a row may wait is measured by it."""
    measured_s: float | None = None
    """The same as measured."""


@dataclass(frozen=True)
class Epochs:
    """The epoch model of one executor, as fitted, brought to what is measured."""

    station: EpochStation
    """Of one task."""
    row_s: float
    """1 / μ."""
    scv: float
    """Of the time that a row takes."""
    epoch_s: float
    """How long an epoch takes, as measured."""
    ratio: float = 1.0
    """Latency in the sense of the SLA, over what the model says: no quantile of a row that waits for epochs is that of an
    exponential one."""

    def predict_s(self, k: int, largest_load: float) -> float:
        """Return the latency on so many tasks, as a mean of exponential ones that the SLA would bound alike."""
        load = np.array([min(largest_load, FULLEST)])
        alone_s = np.array([replace(self.station, largest_load=load).latency_s(k)])
        return float(self._add_chance(np.array([k]), load, alone_s)[0])

    def derive_curve_s(self, largest_load: F64) -> F64:
        """Return the same for 1, 2, ... tasks, given the load of the busiest of so many."""
        load = np.minimum(largest_load, FULLEST)
        alone_s = replace(self.station, largest_load=load).curve_s
        return self._add_chance(np.arange(1, len(load) + 1), load, alone_s)

    def _add_chance(self, k: npt.NDArray[np.int64], load: F64, alone_s: F64) -> F64:
        """Return c D for each number of tasks: by chance some task of each epoch has more to do than any has on average.

        D = o + t + ρ D + e √(ρ v D): the overhead, what the busiest task by its shards has to do on average, and what
        chance adds to the busiest of k, e deviations as the largest of k normal draws. Rows come as they like, so that the
        work of an epoch varies by v = (1 + SCV) / μ over its mean; and few rows are no normal draw, which adds (Cornish and
        Fisher) t = (e² - 1) / 6 (1 + 2 SCV) / μ, exact for rows of one length and for exponential ones; less where a task
        has no row in most epochs.

        Args:
            alone_s: c D without chance, c o / (1 - ρ).
        """
        free, c = 1.0 - load, self.station.costs.c
        most = np.array([expected_most(int(one)) for one in k])
        rows = load * alone_s / (c * self.row_s)
        skewed_s = (
            np.maximum(most**2 - 1.0, 0.0) / 6.0 * (1.0 + 2.0 * self.scv) * self.row_s * np.minimum(rows, 1.0)
        )
        chance = most * np.sqrt(load * (1.0 + self.scv) * self.row_s)
        root = (chance + np.sqrt(chance**2 + 4.0 * free * (free * alone_s / c + skewed_s))) / (2.0 * free)
        found: F64 = self.ratio * c * root**2
        return found


@dataclass(frozen=True)
class Demand:
    """What the shards of one executor ask for. Arrays are by shard."""

    load: F64
    """Core-seconds a second on a node of speed 1, as expected."""
    waiting_s: F64
    """Core-seconds that wait beyond what always does."""
    bound_s: float
    service_per_s: float
    margin: float
    clear_s: float
    """Time in which what waits should be done with, where there are cores for it."""
    bear_ratio: float = 0.0
    """Share of the margin that may be used up."""
    epochs: Epochs | None = None
    """Where rows are taken by epochs."""

    @property
    def fill(self) -> float:
        """Share of a task of speed 1 that may be used: 1 - ε - 1 / (μ L), and what of ε may be used up; for a bound that is
        hard to hold, or cannot be, as much as serves the load well."""
        left = self._usable - 1.0 / (self.service_per_s * self.bound_s)
        return max(left, LEAST_FILL * self._usable) if left > 0 else UNREACHED_FILL * self._usable

    @property
    def least_s(self) -> float:
        """Mean latency of rows on a task of speed 1 that has next to nothing to do."""
        return 1.0 / self.service_per_s

    @property
    def _usable(self) -> float:
        return 1.0 - self.margin * (1.0 - self.bear_ratio)

    def derive_clear_s(self, speed: float) -> float:
        """Return how long tasks of so much speed in all need for what waits; infinite where the load alone fills them."""
        spare = speed - float(np.add.reduce(self.load))
        needed = float(np.add.reduce(self.waiting_s)) / spare if spare > 0 else np.inf
        return max(self.clear_s, needed)

    def derive_weights(self, speed: float) -> F64:
        """Return the share of one task of speed 1 that each shard asks for; tasks are healthy up to 1 together."""
        usual: F64 = self.load / max(self.fill, 1e-9)
        waits = float(np.add.reduce(self.waiting_s))
        if waits <= 0:
            return usual
        clear_s = self.derive_clear_s(speed)
        # Where the load alone is too much, nothing is ever cleared: then each shard's load says all.
        extra = self.waiting_s / clear_s if np.isfinite(clear_s) else np.zeros(len(self.load))
        return np.maximum(usual, self.load + extra)

    def derive_speed(self) -> float:
        """Return the speed that all tasks together need: as many tasks as that, on nodes of speed 1."""
        return float(self.derive_weights(np.inf).sum())


@dataclass(frozen=True)
class Tasks:
    """The tasks of an executor under some placement, by position."""

    indexes: tuple[int, ...]
    speed: F64
    at: npt.NDArray[np.int64]
    """Shard -> position; -1 for shards of others, and those without a task."""

    @cached_property
    def whole_speed(self) -> float:
        """Of all tasks together."""
        return float(np.add.reduce(self.speed))

    @cached_property
    def fastest(self) -> float:
        """Speed of the fastest task; 0 without any."""
        return float(np.maximum.reduce(self.speed, initial=0.0))

    @cached_property
    def shards(self) -> npt.NDArray[np.int64]:
        """How many shards each task has."""
        return np.bincount(self._lines[0], minlength=len(self.indexes) + 1)[:-1]

    @cached_property
    def _lines(self) -> tuple[npt.NDArray[np.int64], F64]:
        """Shard -> position, where no task has the place after the last one; and speeds above zero."""
        size = len(self.indexes)
        return np.where(self.at < 0, size, self.at), np.maximum(self.speed, 1e-9)

    def count(self, by_shard: F64) -> F64:
        """Add up by task."""
        found = np.bincount(self._lines[0], by_shard, len(self.indexes) + 1)[:-1]
        return found.astype(np.float64, copy=False)

    def count_each(self, by_shard: F64) -> F64:
        """Add up every line of [line, shard] by task, as `count` does."""
        number, size = len(by_shard), len(self.indexes) + 1
        cells = self._lines[0] + size * np.arange(number)[:, None]
        found = np.bincount(cells.ravel(), by_shard.ravel(), number * size).reshape(number, size)[:, :-1]
        return found.astype(np.float64, copy=False)

    def sum(self, by_shard: F64) -> F64:
        """Add up by task, over its speed."""
        return self.count(by_shard) / self._lines[1]


def derive_tasks(
    task_of: npt.NDArray[np.int32], tasks: Mapping[int, str], speeds: Mapping[int, float]
) -> Tasks:
    """Return tasks by position, from shard -> index."""
    indexes = tuple(sorted(tasks))
    table = [-1] * (max([int(np.maximum.reduce(task_of, initial=0)), *indexes]) + 2)
    for at, index in enumerate(indexes):
        table[index] = at
    positions = np.array(table, dtype=np.int64)
    return Tasks(indexes, np.array([speeds.get(one, 1.0) for one in indexes]), positions[task_of])


def derive_speeds(executor: ExecutorEstimate) -> dict[int, float]:
    """Return the speed of each task: its node's, or as its service rate says."""
    mean = executor.service_per_s
    found = {}
    for task in executor.tasks:
        speed = task.speed if task.speed is not None else task.service_per_s / mean if mean > 0 else 1.0
        found[task.index] = speed if is_known(speed) else 1.0
    return found


def derive_row_s(executor: ExecutorEstimate) -> F64:
    """Return core-seconds a row of each shard; the mean where a shard has had none."""
    rate, mean = executor.arrival_per_s, 1.0 / max(executor.service_per_s, 1e-9)
    found = np.empty(len(rate))
    found.fill(mean)
    np.divide(executor.load, rate, out=found, where=(rate > 0) & (executor.load > 0))
    return found


def derive_penalty_s(demand: Demand, tasks: Tasks) -> float:
    """Return how badly the worst task fares once the time to clear what waits is over: it ranks placements.

    1 / (μ (1 - ε - ρ)) for a task of load ρ below what it may be filled to, which is the bound there; past it, in
    proportion to the excess; and what then still waits. No row is that late: what is expected says `predict_latency_s`.
    """
    if not len(tasks.indexes):
        return np.inf
    load = tasks.sum(demand.load)
    fill = 1.0 - demand.margin - 1.0 / (demand.service_per_s * tasks.speed * demand.bound_s)
    free = demand.service_per_s * tasks.speed * (1.0 - demand.margin - load)
    usual = np.where(
        load <= fill,
        1.0 / np.maximum(free, 1.0 / demand.bound_s),
        demand.bound_s + OVERFULL_S * (load - fill) / np.maximum(fill, 0.1),
    )
    return float((usual + _derive_left_s(demand, tasks, load)).max())


def predict_latency_s(demand: Demand, tasks: Tasks) -> float:
    """Return the mean latency of the worst task once the time to clear what waits is over.

    1 / (μ (1 - ρ)), or what the epoch model says where it is fitted, and what then still waits.
    """
    if not len(tasks.indexes):
        return np.inf
    load = tasks.sum(demand.load)
    left = _derive_left_s(demand, tasks, load)
    if demand.epochs is not None:
        return demand.epochs.predict_s(len(tasks.indexes), float(load.max())) + float(left.max())
    free = demand.service_per_s * tasks.speed * (1.0 - np.minimum(load, FULLEST))
    return float((1.0 / np.maximum(free, 1e-9) + left).max())


def derive_epochs(
    executor: ExecutorEstimate, forecast: Forecast, tasks: Tasks, row_s: F64, bound: Bound
) -> Epochs | None:
    """Return the epoch model of an executor; None where rows are not taken by epochs."""
    if executor.commit_s is None or executor.processing_s is None or not len(tasks.indexes):
        return None
    station = EpochStation(executor.epoch, np.zeros(1), arrival_per_s=forecast.expected_per_s)
    mean_row_s = 1.0 / max(executor.service_per_s, 1e-9)
    found = Epochs(
        station, mean_row_s, max(executor.scv_service, 0.0), executor.processing_s + executor.commit_s
    )
    said_s = found.predict_s(
        len(tasks.indexes), float(tasks.sum(forecast.expected_per_s * row_s).max(initial=0.0))
    )
    if executor.measured_s is None or not 0 < said_s < np.inf:
        return found
    # What waits is counted by itself: it is the length of epochs that corrects the model.
    longer = found.epoch_s * executor.epoch.c / said_s
    tail = (
        max((bound.measured_s or 0.0) / max(executor.measured_s, 1e-9), 1.0) * bound.mean_s / bound.latency_s
    )
    return replace(found, ratio=min(max(longer, 0.5), 4.0) * min(tail, 1.0))


def derive_always_s(demand: Demand, tasks: Tasks, fullest: float) -> F64:
    """Return the work that rows of epochs under way are for each task, up to a load of `fullest`: those of the one that
    goes on, and those that came since it began."""
    if demand.epochs is None:
        return np.zeros(len(tasks.indexes))
    found: F64 = 2.0 * np.minimum(tasks.sum(demand.load), fullest) * demand.epochs.epoch_s
    return found


def _derive_left_s(demand: Demand, tasks: Tasks, load: F64) -> F64:
    found: F64 = np.maximum(tasks.sum(demand.waiting_s) + (load - 1.0) * demand.clear_s, 0.0)
    return found


def derive_certain_load(forecast: Forecast, tasks: Tasks, row_s: F64, z: float) -> F64:
    """Return the load that each task has for certain, noise aside."""
    rates = tasks.count_each(forecast.readings)
    work = tasks.sum(forecast.expected_per_s * row_s)
    row = work / np.maximum(tasks.sum(forecast.expected_per_s), 1e-12)
    return forecast.derive_certain(rates, z) * row / np.maximum(tasks.speed, 1e-9)
