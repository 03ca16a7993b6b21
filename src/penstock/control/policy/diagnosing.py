"""What streamswitch found out about an executor, and how it says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.sample import F64
from penstock.control.policy.hotness import find_hot_shard_of, with_hot_shard
from penstock.control.policy.protocol import Option
from penstock.control.policy.switching import SCALE_IN, SCALE_OUT, Health, Switch, UnitStrategy
from penstock.control.policy.wording import count, in_ms


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about one executor, and the treatment that follows."""

    executor: str
    switch: Switch
    health: Health
    symptom: str
    treatment: UnitStrategy | None
    why_not: str
    """Why nothing is done, where nothing is."""
    options: tuple[Option, ...] = ()
    lacks_core: bool = False

    @property
    def after(self) -> Switch:
        return self.switch if self.treatment is None else self.treatment.after


def derive_excess(switch: Switch, bound_s: float) -> float:
    """Return how far the least headroom is under what the bound asks for, as a share of the service rate."""
    at = int(np.argmin(switch.headroom))
    return float((1.0 / bound_s - switch.headroom[at]) / max(switch.service_per_s[at], 1e-9))


def describe_severe(
    executor: ExecutorEstimate, switch: Switch, instantaneous: F64, source: int, bound_s: float
) -> str:
    """Return the symptom of a severe task, with its numbers."""
    total = max(executor.rate_per_s, 1e-12)
    return (
        f"{executor.name}: latency {in_ms(float(instantaneous[source]))} and projected"
        f" {in_ms(float(switch.projected_s[source]))} over {in_ms(bound_s)}: task {switch.tasks[source]} takes"
        f" {switch.task_rates[source]:.0f} rows/s, {switch.task_rates[source] / total:.0%} of the load, and serves"
        f" {switch.service_per_s[source]:.0f}"
    )


def explain_nothing(
    executor: ExecutorEstimate, switch: Switch, source: int, node: str | None, speeds: Iterable[float] = ()
) -> str:
    """Return why nothing can be done for a severe task: one hot shard, no core, or both.

    Args:
        node: where a core is free; None where none is.
        speeds: of the nodes that shards could be on, besides those of the tasks there are.
    """
    mine = switch.rate_per_s[switch.at == source]
    heaviest = float(mine.max(initial=0.0)) / max(executor.rate_per_s, 1e-12)
    usable = (1.0 - switch.margin) * float(switch.service_per_s[source])
    if np.count_nonzero(mine > 0) <= 1 or float(mine.max(initial=0.0)) >= usable:
        return f"{executor.name}: nothing can help: one shard is {heaviest:.0%} of the load, and a shard has one task"
    if node is None:
        needed = executor.rate_per_s / max(usable, 1e-12)
        problem = (
            f"{executor.name}: nothing can help within the cores there are: {executor.rate_per_s:.0f} rows/s need"
            f" {math.floor(needed) + 1} tasks and no core is free beyond its {executor.k}"
        )
        return with_hot_shard(problem, find_hot_shard_of(executor, speeds))
    return f"{executor.name}: no move of shards helps"


def explain_out_of_reach(executor: ExecutorEstimate, least_s: float, bound_s: float) -> str:
    """Return why no deal of shards to any number of tasks meets a bound, and which bound could be met."""
    return (
        f"{executor.name}: nothing can help: a task with hardly any rows is projected to take {in_ms(least_s)} for"
        f" one, and the bound is {in_ms(bound_s)}; only a bound over {in_ms(least_s)} can be met"
    )


def describe_treatment(found: Diagnosis) -> str:
    """Return a unit strategy in words."""
    strategy = found.treatment
    assert strategy is not None
    moved = f"moved {count(len(strategy.shards), 'shard')} from task {strategy.source} to"
    if strategy.kind == SCALE_OUT:
        return f"scaled out, {moved} new task {strategy.destination} on {strategy.after.nodes[-1]}"
    if strategy.kind == SCALE_IN:
        return f"scaled in, {moved} task {strategy.destination}, gave up task {strategy.source}"
    return f"{moved} task {strategy.destination}"
