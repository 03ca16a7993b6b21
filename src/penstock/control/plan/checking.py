"""The last look of the loop at a plan before it is carried out: every way it could be impossible, each refused in a
sentence.

Policies build plans that pass; one of a faulty policy is stopped here, and the plan before it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.protocol import Limits, Proposal
from penstock.errors import PlanError


def check_proposal(proposed: object) -> Proposal:
    """Return what a policy has answered, where it is a proposal.

    Raises:
        PlanError: it is something else, and what.
    """
    if not isinstance(proposed, Proposal):
        raise PlanError(f"propose must return a Proposal, not {_kind_of(proposed)}")
    if proposed.plan is not None and not isinstance(proposed.plan, Plan):
        raise PlanError(f"the plan of a Proposal must be a Plan or None, not {_kind_of(proposed.plan)}")
    for what, said in (("symptom", proposed.symptom), ("action", proposed.action)):
        if not isinstance(said, str):
            raise PlanError(f"the {what} of a Proposal must be a sentence, not {_kind_of(said)}")
    return proposed


def check_plan(plan: Plan, now: Estimate, limits: Limits) -> None:
    """Refuse a plan that cannot be carried out on what there is now; return where it can.

    Raises:
        PlanError: names the executor or node, the numbers, and the fix.
    """
    _check_nodes(plan, now, limits)
    for name, wanted in plan.executors.items():
        if name not in now.executors:
            raise PlanError(f"plan: there is no executor {name!r}; there is {_listed(now.executors)}.")
        _check_shape(name, wanted, now.executors[name])
        _check_tasks(name, wanted, plan, now)
        _check_shards(name, wanted, now.executors[name])
    _check_cores(plan, now, limits)
    _check_passes(plan, now)


def _check_passes(plan: Plan, now: Estimate) -> None:
    for one in plan.passes:
        giver, taker = now.executors.get(one.giver), now.executors.get(one.taker)
        if giver is None or (one.taker and (taker is None or taker.operator != giver.operator)):
            raise PlanError(
                f"plan: shards cannot pass from {one.giver!r} to {one.taker or 'a new executor'!r}: "
                f"there is {_listed(now.executors)}; name two executors of one operator."
            )
        foreign = [shard for shard in one.shards if giver.task_of[shard] < 0]
        if foreign or not one.shards:
            raise PlanError(
                f"plan: {one.giver!r} does not have shard {foreign[0] if foreign else 'none'}: pass shards it has."
            )


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, names))) or "none"


def _check_nodes(plan: Plan, now: Estimate, limits: Limits) -> None:
    for node in plan.release_nodes:
        if node not in now.nodes:
            raise PlanError(
                f"plan: node {node!r} is to be released and does not exist; there is {_listed(now.nodes)}."
            )
    if plan.add_nodes < 0:
        raise PlanError(f"plan: {plan.add_nodes} nodes are to be added; name nodes in release_nodes instead.")
    if not (plan.add_nodes or plan.release_nodes):
        return
    after = len(now.nodes) + plan.add_nodes - len(set(plan.release_nodes))
    if not limits.min_nodes <= after <= limits.max_nodes:
        raise PlanError(
            f"plan: it would leave {after} nodes where {limits.min_nodes} to {limits.max_nodes} are allowed: "
            f"add or release fewer, or change the limits."
        )


def _check_tasks(name: str, wanted: ExecutorPlan, plan: Plan, now: Estimate) -> None:
    held = {task.index: task.node for task in now.executors[name].tasks}
    if wanted.k < 1:
        raise PlanError(f"plan: executor {name!r} would have {wanted.k} tasks: give it at least 1.")
    for index, node in wanted.tasks.items():
        if index < 0:
            raise PlanError(f"plan: task {index} of executor {name!r}: an index is 0 or more.")
        if node not in now.nodes and held.get(index) != node:
            raise PlanError(
                f"plan: task {index} of executor {name!r} is on node {node!r}, which does not exist; "
                f"there is {_listed(now.nodes)}."
            )
        if node in plan.release_nodes:
            raise PlanError(
                f"plan: task {index} of executor {name!r} is on node {node!r}, which is to be released: "
                "put it on a node that stays."
            )


def _check_shape(name: str, wanted: object, now: ExecutorEstimate) -> None:
    """Refuse what is no plan of an executor before anything is computed with it."""
    if not isinstance(wanted, ExecutorPlan) or not isinstance(wanted.tasks, Mapping):
        raise PlanError(
            f"plan: executor {name!r} has {_kind_of(wanted)}: give an ExecutorPlan(tasks, task_of), tasks by index with "
            "the node of each."
        )
    task_of, size = wanted.task_of, len(now.task_of)
    needed = f"an array of {size} whole numbers, the task of each shard"
    if not isinstance(task_of, np.ndarray):
        raise PlanError(f"plan: task_of of executor {name!r} is {_kind_of(task_of)}: give {needed}.")
    if task_of.dtype.kind not in "iu" or task_of.ndim != 1:
        raise PlanError(
            f"plan: task_of of executor {name!r} is an array of {task_of.ndim} dimensions of {task_of.dtype}: "
            f"give {needed}."
        )
    if len(task_of) != size:
        raise PlanError(
            f"plan: executor {name!r} maps {len(task_of)} shards and its operator has {size}: "
            "map every shard of the operator, -1 where another executor has it."
        )


def _kind_of(given: object) -> str:
    return "None" if given is None else f"a {type(given).__name__}"


def _check_shards(name: str, wanted: ExecutorPlan, now: ExecutorEstimate) -> None:
    mine = now.task_of >= 0
    held = int(mine.sum())
    if wanted.k > held:
        raise PlanError(
            f"plan: executor {name!r} would have {wanted.k} tasks for {held} shards: give it at most {held}."
        )
    lost = np.flatnonzero(mine & ~np.isin(wanted.task_of, list(wanted.tasks)))
    if lost.size:
        raise PlanError(
            f"plan: shard {int(lost[0])} of executor {name!r} ({lost.size} in all) has task "
            f"{int(wanted.task_of[lost[0]])}, which is none of {_listed(wanted.tasks)}: give it one of those."
        )
    foreign = np.flatnonzero(~mine & (wanted.task_of >= 0))
    if foreign.size:
        raise PlanError(
            f"plan: shard {int(foreign[0])} ({foreign.size} in all) is not of executor {name!r}: "
            "leave it at -1; shards change their executor by a split or a merge."
        )


def _check_cores(plan: Plan, now: Estimate, limits: Limits) -> None:
    """Count the cores of every executor, those that the plan does not name included.

    Where more are held than may be, by a limit that was lowered or a node that is gone, a plan that holds no more than
    that passes: it may be a step on the way.
    """
    used: Counter[str] = Counter()
    held = Counter(task.node for executor in now.executors.values() for task in executor.tasks)
    for name, executor in now.executors.items():
        wanted = plan.executors.get(name)
        if wanted is not None:
            used.update(wanted.tasks.values())
            continue
        for task in executor.tasks:
            if task.node in plan.release_nodes:
                raise PlanError(
                    f"plan: node {task.node!r} is to be released and executor {name!r}, which the plan does not name, "
                    f"has task {task.index} there: plan it elsewhere."
                )
            used[task.node] += 1
    for node, cores in used.items():
        if node in now.nodes and cores > max(now.nodes[node].cores, held[node]):
            raise PlanError(
                f"plan: node {node!r} would give {cores} cores and has {now.nodes[node].cores}: "
                f"take {cores - now.nodes[node].cores} away or put them on another node."
            )
    total = sum(used.values())
    if total > max(limits.max_cores, held.total()):
        raise PlanError(
            f"plan: executors would hold {total} cores and may hold {limits.max_cores}: "
            f"take {total - limits.max_cores} away or raise the limit."
        )
