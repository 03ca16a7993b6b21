"""What can be done for one elastic executor, cheapest first: move shards, add cores, give cores back.

A `Study` is what is known and expected of it; a `Treatment` the placement that something leads to, with the latency
predicted and what it costs. Pure functions; when to treat and whether a plan may be made is the policy's business.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.sample import F64
from penstock.control.plan.placing import Placement, plan_executor
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.plan.shards import Shards
from penstock.control.policy.forecasting import Forecast
from penstock.control.policy.negotiation import FreeCores
from penstock.control.policy.outlook import (
    Demand,
    Tasks,
    derive_certain_load,
    derive_row_s,
    derive_speeds,
    derive_tasks,
    predict_latency_s,
)
from penstock.control.policy.pricing import derive_delay, derive_held_s

MOVE, ADD, REMOVE = "move shards", "add cores", "remove cores"

EVEN = 1.05
"""Imbalance that is always good enough: evening out further would only follow noise."""
ROOM = 0.92
"""How full a task may be after a treatment, as a share of what is healthy: not every small change asks for the next."""
UNEVEN = 1.5
HEALTHY = 1.02
"""Weight up to which a task counts as healthy: two in a hundred is noise."""


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
    clear_ratio: float = 1.0
    """What waits should be done with in this share of the bound."""
    z: float = 4.0
    """Deviations of noise that a load must be over the limit."""


@dataclass(frozen=True)
class Study:
    """One executor: what it has to do, what it is headed for, and where the trouble is."""

    executor: ExecutorEstimate
    forecast: Forecast
    speeds: Mapping[int, float]
    tasks: Tasks
    demand: Demand
    waits_s: F64
    """By task: how long a row that comes now has to wait."""
    certain: F64
    """By task: its load, as far as noise does not explain it."""
    severe: bool
    """A task breaks the bound, or is about to."""
    rising: bool
    """Trend or season lead to so much more than the tasks can do that rows will wait; nothing is wrong yet."""
    strayed: bool
    """Shards have no task."""
    move_bytes_per_s: float = 100e6
    """How fast state is copied to another node."""

    @property
    def name(self) -> str:
        return self.executor.name

    @property
    def calm(self) -> bool:
        return not (self.severe or self.rising or self.strayed)

    @property
    def predicted_s(self) -> float:
        """Latency if nothing is done: none is ever reached for shards without a task."""
        return math.inf if self.strayed else predict_latency_s(self.demand, self.tasks)

    @property
    def worst(self) -> int:
        """Position of the task that is worst off."""
        weights = self.demand.derive_weights(float(self.tasks.speed.sum()))
        return int(np.argmax(self.tasks.sum(weights)))


@dataclass(frozen=True)
class Treatment:
    """A placement that could be, and what it leads to."""

    kind: str
    plan: ExecutorPlan
    moved: int
    pressure: float
    """Weight of the fullest task: healthy up to 1."""
    predicted_s: float
    cost_s: float
    """Row-seconds of delay by moves, for each row a second of the executor."""

    @property
    def healthy(self) -> bool:
        return self.pressure <= HEALTHY


def study(
    executor: ExecutorEstimate,
    forecast: Forecast,
    bound_s: float,
    judging: Judging,
    move_bytes_per_s: float = 100e6,
) -> Study:
    """Look at one executor."""
    speeds, row_s = derive_speeds(executor), derive_row_s(executor)
    tasks = derive_tasks(executor.task_of, {task.index: task.node for task in executor.tasks}, speeds)
    strayed = bool(np.any((executor.task_of >= 0) & (tasks.at < 0)))
    waiting = np.where(executor.task_of >= 0, executor.backlog_rows * row_s, 0.0)
    waits_s = tasks.sum(waiting)
    alert_s = judging.alert_ratio * bound_s
    beyond = np.maximum(1.0 - alert_s / np.maximum(waits_s, 1e-12), 0.0)
    ahead = forecast.ahead_per_s / max(forecast.total_per_s, 1e-12)
    demand = Demand(
        forecast.expected_per_s * row_s * max(ahead, 1.0),
        waiting * np.where(tasks.at >= 0, beyond[tasks.at], 1.0),
        bound_s,
        executor.service_per_s,
        judging.margin,
        bound_s * judging.clear_ratio,
        judging.bear_ratio / 2,
    )
    certain = derive_certain_load(forecast, tasks, row_s, judging.z)
    full = demand.fill + judging.margin * judging.bear_ratio / 2
    pressed = (certain > full) & (waits_s > alert_s)
    swamped = float((certain * tasks.speed).sum()) > float(tasks.speed.sum())
    severe = bool(pressed.any() or (waits_s > judging.panic_ratio * bound_s).any() or swamped)
    excess = float(demand.load.sum() / max(tasks.speed.sum(), 1e-9)) - 1.0
    rising = ahead > 1.0 and excess * forecast.horizon_s > alert_s
    return Study(
        executor,
        forecast,
        speeds,
        tasks,
        demand,
        waits_s,
        certain,
        severe,
        rising and not severe,
        strayed,
        move_bytes_per_s,
    )


def find_move(one: Study) -> Treatment:
    """Return the shards dealt anew to the tasks there are."""
    return _deal(one, MOVE, Counter(task.node for task in one.executor.tasks), {}, one.demand)


def count_missing(one: Study) -> int:
    """Return how many tasks of mean speed are missing for what is expected."""
    mean = float(one.tasks.speed.mean())
    return max(math.ceil(one.demand.derive_speed() / max(mean, 1e-9) - 1e-9) - len(one.tasks.indexes), 0)


def find_wider(one: Study, free: FreeCores, missing: int) -> Treatment | None:
    """Return the first healthy placement on more cores, else the one on as many as there are; None without any.

    Whole shards may not fit where the sum of them would: then a core or two more are tried.
    """
    found = None
    room = int(np.count_nonzero(one.executor.task_of >= 0)) - len(one.tasks.indexes)  # a shard has one task
    nodes = _choose_nodes(one, free, min(missing + 2, room))
    for more in range(max(missing, 1), len(nodes) + 1):
        found = _wider(one, nodes[:more], free.speed)
        if found.healthy:
            return found
    return found or (_wider(one, nodes, free.speed) if nodes else None)


def find_narrower(one: Study, spare: float) -> Treatment | None:
    """Return the placement on the fewest cores that is healthy with some room for the highest load of late."""
    load = one.demand.load
    held = max(one.forecast.held_per_s, one.forecast.ahead_per_s) / max(one.forecast.total_per_s, 1e-12)
    most = replace(
        one.demand, load=load * max(held, 1.0) * (1.0 + spare), waiting_s=np.zeros(len(load)), bear_ratio=0.0
    )
    size, mean = len(one.tasks.indexes), float(one.tasks.speed.mean())
    least = max(math.ceil(most.derive_speed() / max(mean, 1e-9) - 1e-9), 1)
    for wanted in range(least, size):
        cores = _fewer(one, size - wanted)
        found = _deal(one, REMOVE, cores, {}, most)
        if found.pressure <= 1.0:
            after = derive_tasks(found.plan.task_of, found.plan.tasks, one.speeds)
            return replace(found, predicted_s=predict_latency_s(one.demand, after))
    return None


def _choose_nodes(one: Study, free: FreeCores, most: int) -> list[str]:
    """Return nodes for new tasks: where the executor has most of its tasks, so that shards need not be copied."""
    left = FreeCores(free.left, dict(free.by_node), free.speed)
    held = Counter(task.node for task in one.executor.tasks)
    found: list[str] = []
    for _ in range(most):
        near = max(sorted(held), key=lambda node: (left.by_node.get(node, 0) > 0, held[node]), default="")
        node = left.choose(near)
        if node is None:
            break
        left.take(node)
        held[node] += 1
        found.append(node)
    return found


def _fewer(one: Study, count: int) -> Counter[str]:
    """Return cores by node with some given up: on slow nodes first, then where fewest are, so that nodes get empty."""
    held = Counter(task.node for task in one.executor.tasks)
    speed = {task.node: one.speeds[task.index] for task in one.executor.tasks}
    for _ in range(count):
        node = min(held, key=lambda name: (speed[name], held[name], name))
        held = +(held - Counter([node]))
    return held


def _wider(one: Study, nodes: list[str], speed: Mapping[str, float]) -> Treatment:
    cores = Counter(task.node for task in one.executor.tasks) + Counter(nodes)
    return _deal(one, ADD, cores, speed, one.demand)


def _deal(
    one: Study, kind: str, cores: Counter[str], speed: Mapping[str, float], demand: Demand
) -> Treatment:
    known = {task.node: one.speeds[task.index] for task in one.executor.tasks}
    by_node = {**speed, **known}
    total = sum(by_node.get(node, 1.0) * number for node, number in cores.items())
    weights = demand.derive_weights(total)
    mean = float(weights[one.executor.task_of >= 0].sum()) / max(total, 1e-9)
    theta = min(max(EVEN, ROOM / max(mean, 1e-9)), UNEVEN)
    shards = Shards(
        one.name, weights, one.executor.task_of, {task.index: task.node for task in one.executor.tasks},
        one.executor.state_bytes, one.speeds,
    )  # fmt: skip
    placed = plan_executor(shards, cores, by_node, theta)
    speeds = {
        index: one.speeds.get(index, by_node.get(node, 1.0)) for index, node in placed.plan.tasks.items()
    }
    after = derive_tasks(placed.plan.task_of, placed.plan.tasks, speeds)
    return Treatment(
        kind,
        placed.plan,
        len(placed.balance.moves),
        float(after.sum(weights).max(initial=0.0)),
        predict_latency_s(demand, after),
        _cost_s(one, placed),
    )


def _cost_s(one: Study, placed: Placement) -> float:
    """Return the delay that the moves of a placement cause, for each row a second of the executor."""
    if not placed.balance.moves:
        return 0.0
    rate = np.where(one.executor.task_of >= 0, one.forecast.expected_per_s, 0.0)
    held_s = derive_held_s(one.executor, placed.plan, one.move_bytes_per_s)
    return derive_delay(rate, held_s) / max(float(rate.sum()), 1e-12)
