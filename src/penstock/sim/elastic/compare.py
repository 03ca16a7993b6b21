"""Policies on the same hours of traffic: cases and contenders in, one result each out. The same loop, guards and journal
as on Spark drive the simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from penstock.control.apply.journal import Decision, Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import F64
from penstock.control.model.fitting import EpochFits
from penstock.control.plan.guards import Guards
from penstock.control.policy.protocol import Policy
from penstock.control.policy.registry import DEFAULT
from penstock.sim.elastic.cases import Case
from penstock.sim.elastic.oracle import derive_oracle
from penstock.sim.elastic.simulation import Simulation
from penstock.sim.elastic.truth import Truth

ORACLE = "oracle"

NO_GUARDS = Guards(
    cool_down_s=0.0,
    hysteresis_s=0.0,
    hysteresis_ratio=0.0,
    max_moves_in_flight=10**9,
    max_actions_per_minute=10**9,
    payback_s=math.inf,
    min_gain_ratio=-math.inf,
    worse_ratio=math.inf,
)
"""For policies of the papers, which know none."""


def make_guards(policy: Policy) -> Guards:
    """Return the guards that a policy is compared with: those of the default, else none.

    The policies of the papers are compared as their papers describe them, and those know no guards; on Spark all
    policies have them.

    The default remembers by itself what it did, for `keep_s`, so that guards need not hold an action for longer.
    """
    if policy.name != DEFAULT:
        return NO_GUARDS
    return Guards(hysteresis_s=float(getattr(policy, "keep_s", Guards().hysteresis_s)))


@dataclass(frozen=True)
class Contender:
    """A policy as it enters a comparison."""

    name: str
    make: Callable[[], Policy] | None = None
    """None: nothing is ever changed."""
    tasks: int | None = None
    """To start with; None: as the case says."""
    guards: Guards = field(default_factory=Guards)


@dataclass(frozen=True)
class Series:
    """A run over time, for plots."""

    second: F64
    completed_per_s: F64
    mean_s: F64
    p99_s: F64
    tasks: F64
    """Mean tasks in the window that ends then."""


@dataclass(frozen=True)
class Result:
    """What came of one policy on one case."""

    case: str
    seed: int
    policy: str
    success: float
    """Share of (shard, window) pairs that met the SLA; of windows, where it is of the end-to-end latency."""
    mean_tasks: float
    mean_nodes: float
    mean_s: float
    p99_s: float
    actions: int
    """Plans that were carried out."""
    held_back: int
    moved_shards: int
    rows: int
    success_by_shard: F64
    series: Series
    decisions: tuple[Decision, ...] = ()
    """Those that acted."""


def static(tasks: int) -> Contender:
    """A fixed number of tasks, with the shards dealt once."""
    return Contender(f"static_{tasks}", None, tasks)


def run(case: Case, contender: Contender, progress: Callable[[float], None] | None = None) -> Result:
    """Run one contender through one case; `progress` is told the simulated time now and then."""
    sim = Simulation(
        case.setting(contender.tasks or case.tasks), case.feeds(), case.sla, case.seconds, case.seed
    )
    acted, held_back = _drive(sim, case, contender, progress)
    truth = _truth(sim, case)
    by_shard = sim.success(case.operator) if case.is_single else np.array([sim.end_to_end_success()])
    return Result(
        case.name,
        case.seed,
        contender.name,
        float(by_shard.mean()),
        sim.usage.mean_tasks(),
        sim.usage.mean_nodes(),
        truth.mean_s(),
        truth.quantile_s(0.99),
        len(acted),
        held_back,
        sum(one.outcome.moved_shards for one in acted if one.outcome is not None),
        int(truth.completed().sum()),
        by_shard,
        _series(sim, case),
        tuple(acted),
    )


def _truth(sim: Simulation, case: Case) -> Truth:
    """Return the latencies that the SLA is about: the operator's, or from source to end where there are several."""
    return sim.truth[case.operator] if case.is_single else sim.end_to_end


def _drive(
    sim: Simulation, case: Case, contender: Contender, progress: Callable[[float], None] | None
) -> tuple[list[Decision], int]:
    if contender.make is None:
        sim.advance(case.seconds)
        return [], 0
    journal = Journal(capacity=10_000)
    loop = ControlLoop(
        Measurer(Measuring(case.sla.window), fit=EpochFits()),
        contender.make(),
        case.sla,
        case.limits,
        contender.guards,
        sim,
        journal,
    )
    turns, held_back, acted = round(case.seconds / case.interval_s), 0, 0
    for turn in range(1, turns + 1):
        sim.advance(turn * case.interval_s)
        decision = loop.turn(sim.sample())
        acted += decision.acted
        held_back += decision.refused is not None
        if progress is not None and turn % 1000 == 0:
            progress(sim.now_s)
    kept = [one for one in journal.decisions() if one.acted]
    return kept, held_back


def run_oracle(case: Case) -> Result:
    """Run the oracle of a case: all the tasks that are allowed, balanced perfectly."""
    operator = next(one for one in case.setting(case.tasks).operators if one.name == case.operator)
    tasks = case.limits.max_cores
    truth, success = derive_oracle(
        case.feeds()[case.operator], operator.service_per_s, tasks, case.sla, case.seconds
    )
    second, mean, p99 = truth.series()
    empty = np.full(len(second), float(tasks))
    return Result(
        case.name, case.seed, ORACLE, success, tasks, math.nan, truth.mean_s(), truth.quantile_s(0.99), 0, 0, 0,
        int(truth.completed().sum()), np.empty(0), Series(second, truth.completed_by_window(), mean, p99, empty),
    )  # fmt: skip


def compare(
    cases: Iterable[Case], contenders: Iterable[Contender], progress: Callable[[str], None] | None = None
) -> list[Result]:
    """Run every contender through every case; first the oracle, which is known for a single operator."""
    chosen, found = list(contenders), []
    for case in cases:
        if case.is_single:
            found.append(run_oracle(case))
        for contender in chosen:
            if progress is not None:
                progress(f"{case.name} {case.seed}: {contender.name}")
            found.append(run(case, contender))
    return found


@dataclass(frozen=True)
class Summary:
    """One policy over all seeds: means, and the standard deviation of what is compared."""

    policy: str
    seeds: int
    success: float
    success_spread: float
    tasks: float
    tasks_spread: float
    mean_s: float
    p99_s: float
    actions: float
    moved_shards: float


def summarise(results: Iterable[Result]) -> list[Summary]:
    """Return one line per policy, in the order in which they came."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.policy, []).append(result)

    def mean(group: list[Result], name: str) -> float:
        return float(np.mean([getattr(one, name) for one in group]))

    def spread(group: list[Result], name: str) -> float:
        return float(np.std([getattr(one, name) for one in group], ddof=1)) if len(group) > 1 else 0.0

    return [
        Summary(
            policy, len(group), mean(group, "success"), spread(group, "success"), mean(group, "mean_tasks"),
            spread(group, "mean_tasks"), mean(group, "mean_s"), mean(group, "p99_s"), mean(group, "actions"),
            mean(group, "moved_shards"),
        )
        for policy, group in groups.items()
    ]  # fmt: skip


def _series(sim: Simulation, case: Case) -> Series:
    truth = _truth(sim, case)
    second, mean, p99 = truth.series()
    times, tasks, _ = sim.usage.steps()
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * tasks[:-1])])

    def until(at_s: F64) -> F64:
        place = np.searchsorted(times, at_s, "right") - 1
        found: F64 = area[place] + (at_s - times[place]) * tasks[place]
        return found

    held = (until(second) - until(second - case.sla.window)) / case.sla.window
    return Series(second, truth.completed_by_window(), mean, p99, held)
