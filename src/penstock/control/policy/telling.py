"""What penstock found out about an executor and what it does, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.control.policy.mapping import tail_factor
from penstock.control.policy.negotiation import FreeCores
from penstock.control.policy.outlook import derive_row_s
from penstock.control.policy.predicting import Whole
from penstock.control.policy.studying import Study
from penstock.control.policy.treating import MOVE, Treatment
from penstock.control.policy.wording import count, describe_moves, in_ms, name_measure
from penstock.control.sla import SLA

SLOWEST_NAMED = 4
"""Executors that are named for their rows, at most."""


def describe(one: Study, sla: SLA) -> str:
    """Return how an executor fares, with its numbers and, where it fares ill, the cause."""
    worst = one.worst
    load = one.tasks.sum(one.demand.load)
    total = max(float((load * one.tasks.speed).sum()), 1e-12)
    bound_s = one.bound.latency_s
    share = f" (its share of {in_ms(sla.latency)})" if bound_s < sla.latency * (1 - 1e-9) else ""
    return (
        f"{one.name} {_describe_state(one)}: {one.forecast.total_per_s:.0f} rows/s, waits up to"
        f" {in_ms(float(one.waits_s.max()))}, bound {in_ms(bound_s)}{share}: task {one.tasks.indexes[worst]} holds"
        f" {load[worst] * one.tasks.speed[worst] / total:.0%} of load and is filled to {load[worst]:.0%}"
    )


def _describe_state(one: Study) -> str:
    if one.severe:
        return f"in trouble ({one.cause})"
    if one.rising:
        return "rising"
    if one.strayed:
        return "in trouble (shards have no task)"
    if one.late:
        return "in trouble (its epochs take too long)"
    if one.stuck:
        return "in trouble (one shard is too much for a task)"
    if one.slow:
        return f"slow ({in_ms(one.bound.measured_s or 0.0)})"
    return "healthy"


def describe_miss(observed_s: float | None, predicted_s: float, sla: SLA) -> str:
    """Return how a bound is missed, as measured or else as predicted; empty where it is not."""
    bound = f"over {in_ms(sla.latency)}"
    if observed_s is not None and observed_s > sla.latency:
        return f"{name_measure(sla)} {in_ms(observed_s)} {bound}"
    if observed_s is None and predicted_s > sla.latency:
        return f"{name_measure(sla)} {in_ms(predicted_s)} predicted, {bound}"
    return ""


def explain_out_of_reach(
    whole: Whole, studies: Sequence[Study], sla: SLA, speed: float, observed_s: float | None = None
) -> str:
    """Return by how much no number of tasks holds a bound that is missed, and which one could be held; empty where some
    number may.

    Args:
        speed: of the fastest node.
        observed_s: latency that is measured: one that is less than what is said to be the least belies it.
    """
    row_s = {one.name: one.demand.least_s / max(speed, 1e-9) for one in studies}
    # Rows that all take equally long have no tail where none waits.
    tail = tail_factor(sla)
    spread = {one.name: 1.0 + (tail - 1.0) * min(one.executor.scv_service, 1.0) for one in studies}
    least_s = whole.predict_s({name: row_s[name] * spread[name] / tail for name in row_s})
    if least_s <= sla.latency or (not sla.is_mean and observed_s is not None and observed_s <= least_s):
        return ""
    named = sorted(row_s, key=lambda name: (-row_s[name], name))[:SLOWEST_NAMED]
    each = ", ".join(f"{in_ms(row_s[name])} in {name}" for name in sorted(named))
    times = least_s * tail / max(whole.predict_s(row_s), 1e-12)
    tail_of = "" if sla.is_mean else f", and its {name_measure(sla)} is taken to be {times:.3g} times that"
    return (
        f"no number of tasks holds a bound of {in_ms(sla.latency)}: a row takes {each} even where none waits{tail_of}; "
        f"ask for more than {in_ms(least_s)}"
    )


def explain_calm(held: int, usable: int, why: str) -> str:
    """Say why nothing is done about a bound that is missed while no executor is in trouble.

    Args:
        held: cores that all executors have.
        usable: cores that they may have.
        why: why the executor that is worst off gets nothing.
    """
    return f"no task is in trouble, and {held} of {count(usable, 'core')} are held; {why}"


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
    whole, hottest = one.demand.fill * one.tasks.fastest, int(expected.argmax())
    hot = ""
    if one.hot.any() or load[hottest] > whole:
        share = expected[hottest] / max(float(expected.sum()), 1e-12)
        hot = (
            f"one shard, which no move can divide, is {share:.0%} of the load: shard {hottest} of {one.name}"
        )
    if float(np.minimum(load, whole).sum()) > one.demand.fill * speed * tasks:
        short = (
            f"nothing can help within the cores there are: {one.forecast.total_per_s:.0f} rows/s need"
            f" {np.ceil(total / max(one.demand.fill * speed, 1e-9)):.0f} tasks, and {one.name} has"
            f" {len(one.tasks.indexes)} and can have {free.usable} more"
        )
        return f"{short}; and {hot}" if hot else short
    if hot:
        return f"nothing can help: {hot}"
    clear_s = one.demand.derive_clear_s(tasks * speed)
    if one.demand.waiting_s.any() and not free.usable:
        return f"every core is at work on what waits, which takes {_in_s(clear_s)} more"
    return "no move of shards helps"


def _in_s(seconds: float) -> str:
    return in_ms(seconds) if seconds < 1 else f"{seconds:.0f} s"
