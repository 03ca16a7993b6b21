"""One turn as elasticutor sees it: the target, what is measured and predicted, and how that reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.measure.observed import derive_executor_s, derive_observed_s
from penstock.control.plan.placing import Placement
from penstock.control.plan.shards import Balance, derive_imbalance, derive_shards
from penstock.control.policy.hotness import HotShard, find_hot_shard
from penstock.control.policy.mapping import tail_factor
from penstock.control.policy.protocol import Limits, Option
from penstock.control.policy.sizing import Stations
from penstock.control.policy.wording import count, describe_moves, in_ms, name_measure, name_tasks
from penstock.control.sla import OPERATOR, SLA


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

    @cached_property
    def late(self) -> list[str]:
        """Executors that rows may be late for: those over a bound of their own where it is on operators, else all."""
        names = list(self.cores)
        if self.sla.scope != OPERATOR:
            return names
        found = {name: derive_executor_s(self.now.executors[name], self.sla) for name in names}
        return [name for name, one in found.items() if one is not None and one > self.sla.latency] or names

    @cached_property
    def busiest_task(self) -> dict[str, float]:
        """Executor -> load of its busiest task."""
        return {name: float(self.now.executors[name].task_loads().max(initial=0.0)) for name in self.cores}

    def busy(self, name: str) -> float:
        """Return the mean load of an executor's tasks."""
        return float(self.now.executors[name].task_loads().mean())

    @property
    def worst(self) -> str:
        """The executor with the busiest task, of those that are late."""
        return max(self.late, key=lambda name: (self.busiest_task[name], name), default="")

    @cached_property
    def slowest(self) -> tuple[str, float] | None:
        """The executor in which rows spend most time as measured, and that time, where there are several."""
        times = {name: derive_executor_s(self.now.executors[name], self.sla) for name in self.cores}
        known = {name: seconds for name, seconds in times.items() if seconds is not None}
        if len(times) < 2 or not known or self.sla.scope == OPERATOR:
            return None
        name = max(known, key=lambda one: (known[one], one))
        return name, known[name]

    @property
    def named(self) -> str:
        """The executor that the symptom names: the one that rows spend most time in where that is measured."""
        return self.slowest[0] if self.is_measured_over and self.slowest is not None else self.worst

    @cached_property
    def hot(self) -> HotShard | None:
        """A shard that rows are late for whatever is done."""
        return find_hot_shard(self.now, self.late)

    def is_pressed(self, name: str) -> bool:
        """Whether rows are late in an executor: in the one that they spend most time in where that is measured, else in
        any that may be late."""
        if not self.is_over:
            return False
        if self.is_measured_over and self.slowest is not None:
            return name == self.slowest[0]
        return name in self.late

    def options(self) -> tuple[Option, ...]:
        return (Option("no change", self.predicted_s),)

    @property
    def symptom(self) -> str:
        """`p99 840 ms over 500 ms: task 3 of match holds 41 % of load`, or how far within it is."""
        what = name_measure(self.sla)
        if self.is_measured_over or (self.observed_s is not None and not self.is_over):
            side = "over" if self.is_measured_over else "within"
            head = f"{what} {in_ms(self.observed_s or 0.0)} {side} {in_ms(self.sla.latency)}"
        else:
            head = f"predicted mean {in_ms(self.predicted_s)} {'over' if self.is_over else 'within'} {in_ms(self.bound_s)}"
        if not self.is_over or not self.worst:
            return head
        slowest = self.slowest if self.is_measured_over else None
        if slowest is None:
            return f"{head}: {describe_busiest(self.now, self.worst)}"
        name, seconds = slowest
        return f"{head}, {in_ms(seconds)} in {name}: {describe_busiest(self.now, name)}"

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
