"""One turn as elasticutor sees it: the target, what is measured and predicted, and how that reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.measure.observed import derive_observed_s
from penstock.control.plan.placing import Placement
from penstock.control.plan.shards import Balance, derive_imbalance, derive_shards
from penstock.control.policy.mapping import tail_factor
from penstock.control.policy.protocol import Limits, Option
from penstock.control.policy.sizing import Stations
from penstock.control.policy.wording import count, describe_moves, in_ms, name_tasks
from penstock.control.sla import OPERATOR, SLA

HOT_CORES = 0.95
"""A shard that needs this much of a core cannot be helped by any plan: it has one task at a time."""


@dataclass(frozen=True)
class Turn:
    """What a decision is made from."""

    now: Estimate
    sla: SLA
    limits: Limits
    stations: Stations
    usable: int
    """Cores that all executors together may hold."""

    @property
    def bound_s(self) -> float:
        """The target as a mean, which is what models predict."""
        return self.sla.latency / tail_factor(self.sla)

    @cached_property
    def cores(self) -> dict[str, int]:
        return {one.name: self.now.executors[one.name].k for one in self.stations.all}

    @property
    def total(self) -> int:
        return sum(self.cores.values())

    @cached_property
    def observed_s(self) -> float | None:
        return derive_observed_s(self.now, self.sla)

    @cached_property
    def predicted_s(self) -> float:
        """What the model says of the cores there are."""
        return self.stations.predict(self.cores)

    @property
    def is_measured_over(self) -> bool:
        return self.observed_s is not None and self.observed_s > self.sla.latency

    @property
    def is_over(self) -> bool:
        return self.is_measured_over or self.predicted_s > self.bound_s

    @cached_property
    def deltas(self) -> dict[str, float]:
        """δ of every executor that has more than one task."""
        return {n: derive_imbalance(derive_shards(e)) for n, e in self.now.executors.items() if e.k > 1}

    @property
    def worst(self) -> str:
        """The executor whose tasks are busiest."""
        loads = self.stations.loads
        return max(loads, key=lambda name: (loads[name] / max(self.cores[name], 1), name), default="")

    def options(self) -> tuple[Option, ...]:
        return (Option("no change", self.predicted_s),)

    @property
    def symptom(self) -> str:
        """`p99 840 ms over 500 ms: task 3 of match holds 41 % of load`, or how far within it is."""
        what = "mean" if self.sla.is_mean else f"p{100 * float(self.sla.quantile):g}"
        if self.is_measured_over or (self.observed_s is not None and not self.is_over):
            side = "over" if self.is_measured_over else "within"
            head = f"{what} {in_ms(self.observed_s or 0.0)} {side} {in_ms(self.sla.latency)}"
        else:
            head = f"predicted mean {in_ms(self.predicted_s)} {'over' if self.is_over else 'within'} {in_ms(self.bound_s)}"
        return f"{head}: {describe_busiest(self.now, self.worst)}" if self.is_over and self.worst else head

    def calm(self, theta: float) -> str:
        """Say with numbers why nothing has to be done."""
        deltas = self.deltas
        name = max(deltas, key=lambda one: deltas[one], default="")
        balance = f"δ of {name} is {deltas[name]:.2f}" if name else "every executor has one task"
        if name and deltas[name] > theta:
            return f"{balance} over {theta:g} and no move of a shard lowers it"
        return f"{balance}, {self.total} of {count(self.usable, 'core')} held"


def describe_busiest(now: Estimate, name: str) -> str:
    """Return which task of an executor has most load, and what share of it."""
    executor = now.executors[name]
    loads = executor.task_loads()
    at = int(loads.argmax())
    total = float(loads.sum())
    share = float(loads[at]) / total if total > 0 else 0.0
    return f"task {executor.tasks[at].index} of {name} holds {share:.0%} of load and is {loads[at]:.0%} busy"


def describe_hot_shard(now: Estimate, name: str) -> str:
    """Return what to say where one shard is as much as a core can do; nothing where none is."""
    executor = now.executors.get(name)
    if executor is None or not executor.k or float(executor.load.sum()) <= 0:
        return ""
    fastest = max(_speed(executor, task.service_per_s) for task in executor.tasks)
    hottest = int(executor.load.argmax())
    cores = float(executor.load[hottest]) / max(fastest, 1e-9)
    if cores < HOT_CORES:
        return ""
    share = executor.load[hottest] / executor.load.sum()
    return (
        f"one shard of {name}, {hottest}, is {share:.0%} of the load and alone needs {cores:.1f} cores; a shard has one "
        "task, so only fewer rows of its hottest key or faster code can help"
    )


def _speed(executor: ExecutorEstimate, service_per_s: float) -> float:
    return service_per_s / executor.service_per_s if executor.service_per_s > 0 else 1.0


def describe_change(now: Estimate, placements: Mapping[str, Placement], add_nodes: int) -> str:
    """Return what a change of cores does: `match: 2 -> 4 cores, moved 31 shards to tasks 2, 3; asked for 1 node`."""
    parts = []
    for name, placement in placements.items():
        before, after = now.executors[name].k, placement.plan.k
        moved = describe_moves(now.executors[name].task_of, placement.plan.task_of)
        if placement.added or placement.dropped:
            cores = count(after, "core")
            parts.append(
                f"{name}: {before} -> {cores}, {moved}"
                if before != after
                else f"{name}: {cores} on other nodes, {moved}"
            )
        else:
            parts.append(f"{name}: {moved}")
    return "; ".join(parts + ([f"asked for {count(add_nodes, 'node')}"] if add_nodes else []))


def describe_balance(found: Mapping[str, Balance]) -> str:
    """Return what balancing does: `moved 5 shards of match to task 1`."""
    parts = []
    for name, balance in found.items():
        tasks = sorted({move.destination for move in balance.moves})
        parts.append(f"moved {count(len(balance.moves), 'shard')} of {name} to {name_tasks(tasks)}")
    return "; ".join(parts)


def predict_tasks_s(now: Estimate, task_of: Mapping[str, npt.NDArray[np.int32]], sla: SLA) -> float:
    """Return the mean latency if shards lay so, every task a queue of its own: Σ_t (λ_t / λ) / (μ_t - λ_t).

    M/M/k for the whole executor cannot see imbalance, so balancing is judged by this, before and after alike.

    Args:
        task_of: executor -> its shards; an executor that is not named keeps them where they are.
    """
    source = sum(now.sources_per_s.values())
    found = []
    for name, executor in now.executors.items():
        rate = executor.rate_per_s
        if executor.k and rate > 0:
            latency = _tasks_s(executor, task_of.get(name, executor.task_of))
            found.append(
                latency * (rate / source if source > 0 else 1.0) if sla.scope != OPERATOR else latency
            )
    return max(found, default=0.0) if sla.scope == OPERATOR else math.fsum(found)


def _tasks_s(executor: ExecutorEstimate, task_of: npt.NDArray[np.int32]) -> float:
    total = 0.0
    for task in executor.tasks:
        mine = task_of == task.index
        rate = float(executor.arrival_per_s[mine].sum())
        busy = float(executor.load[mine].sum()) / max(_speed(executor, task.service_per_s), 1e-9)
        if rate > 0:
            total += rate / (task.service_per_s * (1 - busy)) if busy < 1 else math.inf
    return total / executor.rate_per_s
