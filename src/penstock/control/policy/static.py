"""static: tasks and shards as they were declared, or a fixed number of tasks; the spectrum that others are held against.

It measures nothing and knows no load: shards are counted, not weighed, as hashing would deal them (StreamSwitch 6,
Elasticutor 5).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.negotiation import FreeCores, derive_free_cores
from penstock.control.policy.options import COUNT, check_options
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.policy.wording import count, no_change, propose_waiting
from penstock.control.sla import SLA


@dataclass
class StaticPolicy:
    """Leaves every executor as it was declared; or gives each so many tasks, once, and then leaves it alone.

    Shards whose task is gone are dealt again, since nobody would work on them.

    Args:
        tasks: tasks of each executor; None: as many as were declared.
    """

    tasks: int | None = None
    name: str = "static"
    _done: bool = False
    _declared: dict[str, int] = field(default_factory=dict)
    """Executor -> its tasks when it was first seen."""

    def __post_init__(self) -> None:
        check_options(self, tasks=COUNT)

    def note_failure(self, reason: str) -> None:
        self._done = False

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        waiting = propose_waiting(now)
        if waiting is not None:
            return waiting
        self._declared = {
            name: self._declared.get(name, one.k) for name, one in sorted(now.executors.items())
        }
        lost = [name for name in self._declared if not _is_whole(now.executors[name])]
        first = self.tasks is not None and not self._done
        if not first and not lost:
            return no_change("static: nothing is looked at", "tasks and shards are fixed")
        self._done = True
        return self._deal(now, derive_free_cores(now, limits), list(self._declared) if first else lost)

    def _deal(self, now: Estimate, free: FreeCores, names: list[str]) -> Proposal:
        plans = {}
        for name in names:
            executor = now.executors[name]
            plan = deal_evenly(executor, self.tasks or max(self._declared[name], 1), free)
            if not _is_same(executor, plan):
                plans[name] = plan
        if not plans:
            return no_change("static: first look", f"every executor has its {count(self.tasks or 0, 'task')}")
        got = ", ".join(f"{name} {count(plan.k, 'task')}" for name, plan in plans.items())
        return Proposal(
            Plan(plans), f"static: fixed tasks for {', '.join(plans)}", f"dealt shards evenly: {got}"
        )


def deal_evenly(executor: ExecutorEstimate, tasks: int, free: FreeCores) -> ExecutorPlan:
    """Return so many tasks, or as many as cores allow, with the same number of shards each, dealt by turns."""
    mine = np.flatnonzero(executor.task_of >= 0)
    kept = {task.index: task.node for task in executor.tasks[: max(min(tasks, len(mine)), 1)]}
    for task in executor.tasks[len(kept) :]:
        free.give_back(task.node)
    near = Counter(kept.values()).most_common(1)[0][0] if kept else ""
    for index in range(len(executor.tasks) + tasks):
        node = free.choose(near) if len(kept) < min(tasks, max(len(mine), 1)) and index not in kept else None
        if node is not None:
            kept[index] = node
            free.take(node)
    task_of = np.full(len(executor.task_of), -1, dtype=np.int32)
    order = np.array(sorted(kept), dtype=np.int32)
    task_of[mine] = order[np.arange(len(mine)) % len(order)]
    return ExecutorPlan(dict(sorted(kept.items())), task_of)


def _is_whole(executor: ExecutorEstimate) -> bool:
    return bool(np.isin(executor.task_of, [-1, *(task.index for task in executor.tasks)]).all())


def _is_same(executor: ExecutorEstimate, plan: ExecutorPlan) -> bool:
    tasks = {task.index: task.node for task in executor.tasks}
    return tasks == plan.tasks and bool(np.array_equal(executor.task_of, plan.task_of))
