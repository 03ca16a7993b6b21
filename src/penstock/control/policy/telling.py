"""What penstock found out about an executor and what it does, in words."""

from __future__ import annotations

import numpy as np

from penstock.control.policy.negotiation import FreeCores
from penstock.control.policy.outlook import derive_row_s
from penstock.control.policy.studying import Study
from penstock.control.policy.treating import MOVE, Treatment
from penstock.control.policy.wording import count, describe_moves, in_ms


def describe(one: Study) -> str:
    """Return how an executor fares, with its numbers."""
    worst = one.worst
    load = one.tasks.sum(one.demand.load)
    total = max(float((load * one.tasks.speed).sum()), 1e-12)
    trouble = one.severe or one.late or one.stuck
    state = "rising" if one.rising else "in trouble" if trouble else "healthy"
    return (
        f"{one.name} {state}: {one.forecast.total_per_s:.0f} rows/s, waits up to {in_ms(float(one.waits_s.max()))},"
        f" bound {in_ms(one.demand.bound_s)}: task {one.tasks.indexes[worst]} holds"
        f" {load[worst] * one.tasks.speed[worst] / total:.0%} of load and is filled to {load[worst]:.0%}"
    )


def tell(one: Study, done: Treatment) -> str:
    """Return a treatment in words."""
    moved = describe_moves(one.executor.task_of, done.plan.task_of)
    if done.kind == MOVE:
        return f"{one.name}: {moved}"
    return f"{one.name}: from {len(one.tasks.indexes)} to {count(done.plan.k, 'task')}, {moved}"


def explain(one: Study, free: FreeCores) -> str:
    """Say why nothing can be done: too few cores, or one hot shard."""
    load = np.where(one.executor.task_of >= 0, one.demand.load, 0.0)
    expected = load if not one.hot.any() else one.forecast.expected_per_s * derive_row_s(one.executor)
    total = max(float(load.sum()), 1e-12)
    tasks, speed = len(one.tasks.indexes) + free.usable, float(one.tasks.speed.mean())
    whole = one.demand.fill * one.tasks.fastest
    if float(np.minimum(load, whole).sum()) > one.demand.fill * speed * tasks:
        return (
            f"nothing can help within the cores there are: {one.forecast.total_per_s:.0f} rows/s need"
            f" {np.ceil(total / max(one.demand.fill * speed, 1e-9)):.0f} tasks and there are {tasks}"
        )
    hottest = int(expected.argmax())
    if one.hot.any() or load[hottest] > whole:
        share = expected[hottest] / max(float(expected.sum()), 1e-12)
        return (
            f"nothing can help: one shard, which no move can divide, is {share:.0%} of the load:"
            f" shard {hottest} of {one.name}"
        )
    clear_s = one.demand.derive_clear_s(tasks * speed)
    if one.demand.waiting_s.any() and not free.usable:
        return f"every core is at work on what waits, which takes {clear_s:.0f} s more"
    return "no move of shards helps"
