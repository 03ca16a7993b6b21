"""What can be done for one elastic executor, cheapest first: move shards, add cores, give cores back.

A `Treatment` is the placement that something leads to, with the latency predicted and what it costs. Pure functions; when
to treat and whether a plan may be made is the policy's business.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.measure.sample import F64
from penstock.control.plan.placing import plan_executor
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.plan.shards import Shards
from penstock.control.policy.negotiation import FreeCores
from penstock.control.policy.outlook import Demand, derive_penalty_s, derive_tasks, predict_latency_s
from penstock.control.policy.pricing import derive_delay, derive_held_s
from penstock.control.policy.studying import Study

MOVE, ADD, REMOVE = "move shards", "add cores", "remove cores"

EVEN = 1.05
"""Imbalance that is always good enough: evening out further would only follow noise."""
ROOM = 0.92
"""How full a task may be after a treatment, as a share of what is healthy: not every small change asks for the next."""
UNEVEN = 1.5
LATE_ROOM, SPARE_ROOM = 0.7, 0.6
"""Share of the bound that epochs may take where cores are added for their sake, and where cores are given back."""
LEAST_KEPT = 0.75
"""Share of the tasks that is kept at once where rows are taken by epochs: how much longer fewer make them is measured."""
HEALTHY = 1.02
"""Weight up to which a task counts as healthy: two in a hundred is noise."""


@dataclass(frozen=True)
class Treatment:
    """A placement that could be, and what it leads to."""

    kind: str
    plan: ExecutorPlan
    moved: int
    pressure: float
    """Weight of the fullest task: healthy up to 1."""
    predicted_s: float
    penalty_s: float
    """What placements are ranked by."""
    cost_s: float
    """Row-seconds of delay by moves, for each row a second of the executor."""

    @property
    def healthy(self) -> bool:
        return self.pressure <= HEALTHY


def find_move(one: Study) -> Treatment:
    """Return the shards dealt anew to the tasks there are."""
    return _deal(one, MOVE, Counter(task.node for task in one.executor.tasks), {}, one.demand)


def find_even(one: Study, free: FreeCores, more: int) -> Treatment | None:
    """Return the shards dealt evenly to so many more tasks; None where there are not as many cores. The busiest task is
    what an epoch waits for, however healthy it is."""
    nodes = _choose_nodes(one, free, more)
    if len(nodes) < more:
        return None
    cores = Counter(task.node for task in one.executor.tasks) + Counter(nodes)
    return _deal(one, ADD if more else MOVE, cores, free.speed, one.demand, even=True)


def count_missing(one: Study) -> int:
    """Return how many tasks of mean speed are missing for what is expected."""
    return max(_count_missing(one, one.demand), 0)


def count_missing_for_load(one: Study) -> int:
    """Return how many are missing for what comes, leaving aside what waits; below zero where there are more."""
    return _count_missing(one, replace(one.demand, waiting_s=np.zeros(len(one.demand.load))))


def count_lacking(one: Study, free: FreeCores, node_start_s: float) -> int:
    """Return how many tasks are missing that nodes would have to bring: for what comes, and for what waits where the cores
    there are would not be done with it before a node is there."""
    lacking = count_missing(one) - free.usable
    speed = one.tasks.whole_speed + free.usable * float(one.tasks.speed.mean())
    if lacking > 0 and one.demand.derive_clear_s(speed) <= node_start_s:
        lacking = count_missing_for_load(one) - free.usable
    return max(lacking, 0)


def _count_missing(one: Study, demand: Demand) -> int:
    mean = float(one.tasks.speed.mean())
    return math.ceil(demand.derive_speed() / max(mean, 1e-9) - 1e-9) - len(one.tasks.indexes)


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


def find_narrower(one: Study, spare: float, limit_s: float | None = None) -> Treatment | None:
    """Return the placement on the fewest cores that is healthy with some room for the highest load of late.

    Args:
        limit_s: latency that epochs may lead to; None: what leaves room under the bound.
    """
    limit_s = SPARE_ROOM * one.bound.mean_s if limit_s is None else limit_s
    load = one.demand.load
    held = max(one.forecast.held_per_s, one.forecast.ahead_per_s) / max(one.forecast.total_per_s, 1e-12)
    most = replace(
        one.demand, load=load * max(held, 1.0) * (1.0 + spare), waiting_s=np.zeros(len(load)), bear_ratio=0.0
    )
    if one.hot.any():
        whole = most.fill * one.tasks.fastest
        most = replace(most, load=np.where(one.hot, np.minimum(most.load, whole), most.load))
    size, mean = len(one.tasks.indexes), float(one.tasks.speed.mean())
    least = max(math.ceil(most.derive_speed() / max(mean, 1e-9) - 1e-9), 1)
    if most.epochs is not None:
        least = max(least, min(math.ceil(LEAST_KEPT * size), size - 1))
    for wanted in range(least, size):
        cores = _fewer(one, size - wanted)
        found = _deal(one, REMOVE, cores, {}, most, even=most.epochs is not None)
        if found.pressure <= 1.0:
            after = derive_tasks(found.plan.task_of, found.plan.tasks, one.speeds)
            predicted_s = predict_latency_s(one.demand, after)
            if most.epochs is None or predicted_s <= limit_s:
                return replace(found, predicted_s=predicted_s)
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
    one: Study,
    kind: str,
    cores: Counter[str],
    speed: Mapping[str, float],
    demand: Demand,
    *,
    even: bool = False,
) -> Treatment:
    known = {task.node: one.speeds[task.index] for task in one.executor.tasks}
    by_node = {**speed, **known}
    total = sum(by_node.get(node, 1.0) * number for node, number in cores.items())
    weights = demand.derive_weights(total)
    mean = float(weights[one.executor.task_of >= 0].sum()) / max(total, 1e-9)
    theta = EVEN if even else min(max(EVEN, ROOM / max(mean, 1e-9)), UNEVEN)
    shards = Shards(
        one.name, weights, one.executor.task_of, {task.index: task.node for task in one.executor.tasks},
        one.executor.state_bytes, one.speeds,
    )  # fmt: skip
    plan = plan_executor(shards, cores, by_node, theta).plan
    speeds = {index: one.speeds.get(index, by_node.get(node, 1.0)) for index, node in plan.tasks.items()}
    if one.hot.any():
        plan = _set_apart(one, plan, weights, speeds)
    after = derive_tasks(plan.task_of, plan.tasks, speeds)
    return Treatment(
        kind,
        plan,
        int(np.count_nonzero(plan.task_of != one.executor.task_of)),
        float(after.sum(weights).max(initial=0.0)),
        predict_latency_s(demand, after),
        derive_penalty_s(demand, after),
        _cost_s(one, plan),
    )


def _set_apart(one: Study, plan: ExecutorPlan, weights: F64, speeds: Mapping[int, float]) -> ExecutorPlan:
    """Return a plan in which nothing waits behind a hot shard, where there are tasks without one."""
    task_of = plan.task_of.copy()
    avoid = {int(index) for index in task_of[one.hot]}
    rest = [index for index in sorted(plan.tasks) if index not in avoid]
    if not rest:
        return plan
    loads = {index: float(weights[task_of == index].sum()) / speeds[index] for index in rest}
    beside = np.flatnonzero(np.isin(task_of, sorted(avoid)) & ~one.hot)
    for shard in beside[np.argsort(-weights[beside], kind="stable")]:
        index = min(rest, key=lambda name: loads[name] + float(weights[shard]) / speeds[name])
        loads[index] += float(weights[shard]) / speeds[index]
        task_of[shard] = index
    return replace(plan, task_of=task_of)


def _cost_s(one: Study, plan: ExecutorPlan) -> float:
    """Return the delay that the moves of a placement cause, for each row a second of the executor."""
    if np.array_equal(plan.task_of, one.executor.task_of):
        return 0.0
    rate = np.where(one.executor.task_of >= 0, one.forecast.expected_per_s, 0.0)
    held_s = derive_held_s(one.executor, plan, one.move_bytes_per_s)
    return derive_delay(rate, held_s) / max(float(rate.sum()), 1e-12)
