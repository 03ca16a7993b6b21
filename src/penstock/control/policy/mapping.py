"""From an executor's estimate to the switch that algorithms work on, and from a switch to a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.policy.switching import Ints, Switch
from penstock.control.sla import SLA


def is_known(rate_per_s: float) -> bool:
    """Return whether a service rate was measured: a number above zero."""
    return 0 < rate_per_s < math.inf


def derive_switch(
    executor: ExecutorEstimate, margin: float, assumed: Mapping[tuple[str, int], float] | None = None
) -> Switch:
    """Return the executor as the algorithms of `switching` see it.

    A task whose service rate is not known yet has the one that is assumed of it, else the mean of its siblings.
    """
    place = {task.index: at for at, task in enumerate(executor.tasks)}
    table = [-1] * (max([int(np.maximum.reduce(executor.task_of, initial=0)), *place]) + 2)
    for index, at in place.items():
        table[index] = at
    service = [task.service_per_s for task in executor.tasks]
    known = [one for one in service if is_known(one)]
    if len(known) < len(service):
        mean = sum(known) / len(known) if known else executor.service_per_s
        fallback = mean if is_known(mean) else 0.0
        service = [
            task.service_per_s
            if is_known(task.service_per_s)
            else (assumed or {}).get((executor.name, task.index), fallback)
            for task in executor.tasks
        ]
    return Switch(
        tuple(place),
        tuple(task.node for task in executor.tasks),
        np.array(service, dtype=np.float64),
        np.array(table, dtype=np.int64)[executor.task_of],
        executor.arrival_per_s,
        executor.latency_s,
        margin,
    )


def tail_factor(sla: SLA) -> float:
    """Return the quantile of an M/M/1 sojourn time over its mean: -ln(1 - q), for it is exponential; 1 for the mean."""
    return 1.0 if sla.is_mean else -math.log1p(-float(sla.quantile))


def derive_plan(switch: Switch) -> ExecutorPlan:
    """Return the plan that leads to a switch."""
    index = np.array([*switch.tasks, -1], dtype=np.int32)
    return ExecutorPlan(dict(zip(switch.tasks, switch.nodes, strict=True)), index[switch.at])


def derive_orphans(executor: ExecutorEstimate) -> Ints:
    """Return the shards whose task is not there."""
    if {*executor.task_of.tolist()} <= {-1, *(task.index for task in executor.tasks)}:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(
        (executor.task_of >= 0) & ~np.isin(executor.task_of, [t.index for t in executor.tasks])
    )


def adopt(switch: Switch, orphans: Ints) -> Switch:
    """Give each shard without a task to the one with most headroom, the heaviest first."""
    for shard in orphans[np.argsort(-switch.rate_per_s[orphans], kind="stable")]:
        switch = switch.moved(np.array([shard]), int(np.argmax(switch.headroom)))
    return switch


def holds(switch: Switch, plan: ExecutorPlan) -> bool:
    """Return whether the switch is what a plan wants: the same tasks, and every shard with its own."""
    now = derive_plan(switch)
    return dict(now.tasks) == dict(plan.tasks) and bool(np.array_equal(now.task_of, plan.task_of))


def restored(switch: Switch, plan: ExecutorPlan) -> Switch:
    """Return the switch with the shards where a plan has them, as far as those tasks are still there."""
    place = {index: at for at, index in enumerate(switch.tasks)}
    wanted = np.array([place.get(int(index), -1) for index in plan.task_of], dtype=np.int64)
    return replace(switch, at=np.where((wanted >= 0) & (switch.at >= 0), wanted, switch.at))
