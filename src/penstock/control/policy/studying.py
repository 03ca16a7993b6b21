"""What is known and expected of one elastic executor, and whether it is in trouble.

A queue of random length is no trouble: waits count against the bound, and against what chance alone makes of them. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.observed import derive_executor_s
from penstock.control.measure.sample import F64
from penstock.control.policy.fewness import derive_mean_s
from penstock.control.policy.forecasting import Forecast
from penstock.control.policy.mapping import tail_factor
from penstock.control.policy.outlook import (
    FULLEST,
    Bound,
    Demand,
    Tasks,
    derive_always_s,
    derive_certain_load,
    derive_epochs,
    derive_penalty_s,
    derive_row_s,
    derive_speeds,
    derive_tasks,
    predict_latency_s,
)
from penstock.control.sla import SLA

AS_FAST = 0.9
"""Share of the greatest speed from which on a task counts as fast as any."""


@dataclass(frozen=True)
class Judging:
    """When a task is in trouble."""

    margin: float = 0.2
    bear_ratio: float = 0.5
    """Share of the margin that may be used up before a task counts as too full: what is added is not given back at
    the next small change."""
    alert_ratio: float = 0.3
    """Share of the bound that a row may have to wait: beyond it a task that is too full is in trouble."""
    panic_ratio: float = 0.5
    """Share of the bound from which on waiting alone is trouble."""
    alert_noise: float = 5.0
    panic_noise: float = 14.0
    """The same in mean latencies of a task that is well: a queue of random length is exponential, and one in a million
    turns finds it this long."""
    clear_ratio: float = 1.0
    """What waits should be done with in this share of the bound."""
    z: float = 4.0
    """Deviations of noise that a load must be over the limit."""


@dataclass(frozen=True)
class Study:
    """One executor as it is."""

    executor: ExecutorEstimate
    forecast: Forecast
    speeds: Mapping[int, float]
    tasks: Tasks
    demand: Demand
    bound: Bound
    waits_s: F64
    """By task: how long a row that comes now has to wait, beyond what epochs always hold."""
    noise_s: F64
    """By task: mean latency of one that is well and as full as this one."""
    certain: F64
    """By task: its load, as far as noise does not explain it."""
    severe: bool
    """A task breaks the bound, or is about to."""
    rising: bool
    """Trend or season lead to so much more than the tasks can do that rows will wait; nothing is wrong yet."""
    strayed: bool
    """Shards have no task."""
    hot: npt.NDArray[np.bool_]
    """By shard: too much for any task, while the others can be served. For each no more than a whole task is asked."""
    excused: npt.NDArray[np.bool_]
    """By task: has one shard, and none is faster: nothing can be done for it."""
    stuck: bool
    """A hot shard has a task of its own, and that is not enough."""
    move_bytes_per_s: float = 100e6
    """How fast state is copied to another node."""
    late: bool = False
    """Epochs alone take too long for the bound, and have for a while."""
    cause: str = ""
    """What is severe, in words."""

    @property
    def name(self) -> str:
        return self.executor.name

    @property
    def slow(self) -> bool:
        """Whether what the SLA bounds is over this executor's share of it, as measured."""
        return self.bound.measured_s is not None and self.bound.measured_s > self.bound.latency_s

    @property
    def can_hold(self) -> bool:
        """Whether a row alone is quick enough for the bound on one of its tasks: else no core wins anything."""
        return self.demand.least_s < self.bound.latency_s * self.tasks.fastest

    @property
    def calm(self) -> bool:
        return not (self.severe or self.rising or self.strayed)

    @property
    def predicted_s(self) -> float:
        """Latency if nothing is done: none is ever reached for shards without a task."""
        return math.inf if self.strayed else predict_latency_s(self.demand, self.tasks)

    @property
    def penalty_s(self) -> float:
        return math.inf if self.strayed else derive_penalty_s(self.demand, self.tasks)

    @property
    def longest_s(self) -> float:
        """Longest wait of those that something can be done about."""
        return float(np.maximum.reduce(self.waits_s, initial=0.0, where=~self.excused))

    @property
    def worst(self) -> int:
        """Position of the task that is worst off."""
        return int(self._weights.argmax())

    @property
    def pressure(self) -> float:
        """How full the worst task is, as a share of what is healthy, until what waits is done with."""
        return float(self._weights.max(initial=0.0))

    @property
    def _weights(self) -> F64:
        """By task."""
        return self.tasks.sum(self.demand.derive_weights(self.tasks.whole_speed))


def derive_bound(
    executor: ExecutorEstimate, forecast: Forecast, sla: SLA, share: float, margin: float, by_epochs: bool
) -> Bound:
    """Return what an executor may take of the SLA.

    Args:
        share: of the bound, that its operator has.
        by_epochs: whether it takes rows by epochs: else the rows of a window may be few (`fewness`).
    """
    latency_s = sla.latency * share
    mean_s = latency_s / tail_factor(sla)
    if sla.is_mean and not by_epochs and executor.service_per_s > 0:
        load = float((forecast.expected_per_s * derive_row_s(executor)).sum())
        most = int(np.count_nonzero(executor.task_of >= 0))
        mean_s = derive_mean_s(latency_s, sla.window, executor.service_per_s, load, most, margin)
    return Bound(mean_s, latency_s, derive_executor_s(executor, sla))


def study(
    executor: ExecutorEstimate,
    forecast: Forecast,
    bound: Bound,
    judging: Judging,
    move_bytes_per_s: float = 100e6,
    spare_cores: int = 0,
) -> Study:
    """Look at one executor.

    Args:
        spare_cores: cores that it could still be given.
    """
    speeds, row_s = derive_speeds(executor), derive_row_s(executor)
    tasks = derive_tasks(executor.task_of, {task.index: task.node for task in executor.tasks}, speeds)
    strayed = bool(np.any((executor.task_of >= 0) & (tasks.at < 0)))
    ahead = forecast.ahead_per_s / max(forecast.total_per_s, 1e-12)
    demand = Demand(
        forecast.expected_per_s * row_s * max(ahead, 1.0),
        np.where(executor.task_of >= 0, executor.backlog_rows * row_s, 0.0),
        bound.mean_s,
        executor.service_per_s,
        judging.margin,
        bound.latency_s * judging.clear_ratio,
        judging.bear_ratio / 2,
        derive_epochs(executor, forecast, tasks, row_s, bound),
    )
    full = demand.fill + judging.margin * judging.bear_ratio / 2
    hot = _find_hot(executor, forecast, demand, tasks, row_s, judging, spare_cores)
    excused = _find_excused(demand, tasks, hot)
    noise_s = _derive_noise_s(demand, tasks, full)
    always_s = derive_always_s(demand, tasks, full)
    waited_s = tasks.sum(demand.waiting_s)
    waits_s = np.maximum(waited_s - always_s, 0.0)
    alert_s = np.maximum(judging.alert_ratio * bound.latency_s, judging.alert_noise * noise_s)
    beyond = np.maximum(1.0 - (alert_s + always_s) / np.maximum(waited_s, 1e-12), 0.0)
    waiting = demand.waiting_s * np.where(tasks.at >= 0, beyond[tasks.at], 1.0)
    if hot.any():
        # A task has no more than a whole one's time for a hot shard, however many there are and whatever waits for it.
        most = demand.fill * tasks.fastest
        demand = replace(demand, load=np.where(hot, np.minimum(demand.load, most), demand.load))
        waiting = np.where(hot, 0.0, waiting)
    demand = replace(demand, waiting_s=waiting)
    certain = derive_certain_load(forecast, tasks, row_s, judging.z)
    panic_s = np.maximum(judging.panic_ratio * bound.latency_s, judging.panic_noise * noise_s)
    pressed = ((certain > full) & (waits_s > judging.alert_ratio * bound.latency_s)) | (waits_s > panic_s)
    held = np.where(excused, np.minimum(certain, 1.0), certain)
    swamped = float(np.add.reduce(held * tasks.speed)) > tasks.whole_speed
    severe = bool((pressed & ~excused).any() or swamped)
    stuck = bool(hot.any()) and bool(
        (excused & (tasks.count(hot.astype(np.float64)) > 0) & ((certain > 1.0) | (waits_s > panic_s))).any()
    )
    excess = float(np.add.reduce(demand.load)) / max(tasks.whole_speed, 1e-9) - 1.0
    rising = ahead > 1.0 and excess * forecast.horizon_s > judging.alert_ratio * bound.latency_s
    return Study(
        executor,
        forecast,
        speeds,
        tasks,
        demand,
        bound,
        waits_s,
        noise_s,
        certain,
        severe,
        rising and not severe,
        strayed,
        hot,
        excused,
        stuck,
        move_bytes_per_s,
        cause=_tell_cause(judging, swamped, bool(((waits_s > panic_s) & ~excused).any())) if severe else "",
    )


def _tell_cause(judging: Judging, swamped: bool, panics: bool) -> str:
    if swamped:
        return "more comes than its tasks can serve"
    if panics:
        return f"rows wait for over {judging.panic_ratio:.0%} of its bound"
    return f"a task is too full, where rows wait for over {judging.alert_ratio:.0%} of its bound"


def _find_hot(
    executor: ExecutorEstimate,
    forecast: Forecast,
    demand: Demand,
    tasks: Tasks,
    row_s: F64,
    judging: Judging,
    spare_cores: int,
) -> npt.NDArray[np.bool_]:
    """Return the shards that no task can serve, unless all cores together could not serve the others either."""
    most = demand.fill * tasks.fastest
    hot = (executor.task_of >= 0) & (demand.load > most)
    if most <= 0 or not hot.any():
        return np.zeros(len(hot), np.bool_)
    room = demand.fill * (tasks.whole_speed + spare_cores * float(tasks.speed.mean()))
    if float(np.minimum(demand.load, most).sum()) >= room * (1 - 1e-9):
        return np.zeros(len(hot), np.bool_)
    certain: npt.NDArray[np.bool_] = forecast.derive_certain(forecast.readings, judging.z) * row_s > most
    return hot & certain


def _find_excused(demand: Demand, tasks: Tasks, hot: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the tasks of one shard that are as fast as any, unless the whole of the others is too much as well."""
    if float(np.add.reduce(np.where(hot, 0.0, demand.load))) > tasks.whole_speed:
        return np.zeros(len(tasks.indexes), np.bool_)
    found: npt.NDArray[np.bool_] = (tasks.shards == 1) & (tasks.speed >= AS_FAST * tasks.fastest)
    return found


def _derive_noise_s(demand: Demand, tasks: Tasks, full: float) -> F64:
    """Return the mean latency of each task that is well: waits of some times that are nothing but chance."""
    load = np.minimum(tasks.sum(demand.load), min(full, FULLEST))
    found: F64 = 1.0 / np.maximum(demand.service_per_s * tasks.speed * (1.0 - load), 1e-9)
    return found
