"""How the papers' experiments are run: one policy on one simulated case, followed over time.

Pure: a case, a policy and a seed in, numbers out. What is drawn from them stands in `papers_plots`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from penstock.control.apply.journal import Decision, Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import F64, I64
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.policy.protocol import Policy
from penstock.sim.elastic.cases import Case
from penstock.sim.elastic.compare import NO_GUARDS
from penstock.sim.elastic.setting import Setting
from penstock.sim.elastic.simulation import Simulation
from penstock.sim.elastic.topologies import topology_feed
from penstock.workloads.paper_topologies import PaperTopology, Rate

Make = Callable[[], Policy]
Table = dict[str, Any]
"""What an experiment gives: plain numbers, lists and names, ready for JSON."""

KINDS: Final = {"scale_out": "scaled out", "scale_in": "scaled in"}


@dataclass(frozen=True)
class Followed:
    """One run: what was held over time, and what the rows met after the warm-up."""

    at_s: list[float]
    tasks: dict[str, list[int]]
    """By operator, at each of these moments."""
    nodes: list[int]
    """Nodes that are held."""
    used_nodes: list[int]
    """Nodes with a task."""
    success: dict[str, float]
    """By operator: share of (shard, window) pairs that met the bound."""
    total_success: float
    """Of the end-to-end latency; for a single operator its own."""
    mean_s: float
    """End-to-end, or of the single operator."""
    mean_tasks: float
    mean_nodes: float
    rows_per_s: float
    """Completed by the operator that takes the input."""
    decisions: tuple[Decision, ...]
    """Those that acted after the warm-up."""
    placement: Mapping[str, ExecutorPlan]
    """At the end."""
    latency: tuple[F64, F64]
    """By window: its end, and the mean latency."""

    def counts(self) -> dict[str, int]:
        """Return treatments by kind: scale out, scale in, and balancing, which is what the others are not."""
        found = {kind: sum(one.action.count(word) for one in self.decisions) for kind, word in KINDS.items()}
        moves = sum(one.action.count("moved ") for one in self.decisions)
        return {**found, "balance": max(moves - sum(found.values()), 0)}

    def last(self) -> dict[str, int]:
        """Return the tasks of each operator at the end."""
        return {name: found[-1] for name, found in self.tasks.items()}


def follow(
    case: Case,
    make: Make | None,
    *,
    warm_s: float = 0.0,
    look_s: float = 1.0,
    guards: Guards = NO_GUARDS,
    measuring: Measuring | None = None,
    latencies: int = 1,
    started: Callable[[Simulation], None] | None = None,
) -> Followed:
    """Run one policy, or none, through a case; papers know no guards, so there are none unless they are given.

    Args:
        latencies: turns over which the measured end-to-end latency is averaged before the policy sees it.
        started: is given the simulation before its clock runs.
    """
    sim = Simulation(case.setting(case.tasks), case.feeds(), case.sla, case.seconds, case.seed)
    if started is not None:
        started(sim)
    journal = Journal(capacity=20_000)
    loop = None
    if make is not None:
        measurer = Measurer(measuring or Measuring(case.sla.window))
        loop = ControlLoop(measurer, make(), case.sla, case.limits, guards, sim, journal)
    seen = _Seen(sim, case.operator)
    turns = round(case.seconds / case.interval_s)
    looks = max(round(look_s / case.interval_s), 1)
    warm = round(warm_s / case.interval_s)
    late: deque[float] = deque(maxlen=latencies)
    for turn in range(1, turns + 1):
        sim.advance(turn * case.interval_s)
        if loop is not None:
            sample = sim.sample()
            late.extend([sample.latency_s] if sample.latency_s is not None else [])
            loop.turn(replace(sample, latency_s=sum(late) / len(late) if late else None))
        if turn % looks == 0:
            seen.look()
        if turn == warm:
            seen.start_counting()
    acted = tuple(one for one in journal.decisions() if one.acted and one.at_s >= warm_s)
    return seen.close(acted)


class _Seen:
    """What is noted while a run goes on."""

    def __init__(self, sim: Simulation, entry: str) -> None:
        self._sim, self._entry = sim, entry
        self._operators = [one.name for one in sim.setting.operators]
        self._at: list[float] = []
        self._tasks: dict[str, list[int]] = {name: [] for name in self._operators}
        self._nodes: list[int] = []
        self._used: list[int] = []
        self._from_s = 0.0
        self._before: dict[str, float] = {}
        self._total_before = 0.0
        self._rows_before = 0

    def look(self) -> None:
        placed = self._sim.placement.executors.values()
        held: Counter[str] = Counter()
        for one in placed:
            held[one.operator] += len(one.tasks)
        self._at.append(self._sim.now_s)
        for name in self._operators:
            self._tasks[name].append(held[name])
        self._nodes.append(len(self._sim.placement.nodes))
        self._used.append(len({node for one in placed for node in one.tasks.values()}))

    def start_counting(self) -> None:
        self._from_s = self._sim.now_s
        self._before = {name: float(self._sim.success(name).mean()) for name in self._operators}
        self._total_before = self._sim.end_to_end_success()
        self._rows_before = int(self._sim.truth[self._entry].completed().sum())

    def _since(self, now: float, before: float) -> float:
        """Return the mean over the time after the warm-up, of means over all time until now and until then."""
        end, start = self._sim.now_s, self._from_s
        return (now * end - before * start) / (end - start)

    def close(self, acted: tuple[Decision, ...]) -> Followed:
        sim = self._sim
        single = len(self._operators) == 1
        truth = sim.truth[self._entry] if single else sim.end_to_end
        ends, mean, _ = truth.series()
        rows = np.nan_to_num(truth.completed_by_window())
        counted = (ends > self._from_s) & (ends <= sim.now_s + 1e-9) & (rows > 0)
        weights = rows[counted]
        mean_s = float((mean[counted] * weights).sum() / weights.sum()) if len(weights) else math.nan
        times, tasks, nodes = sim.usage.steps()
        return Followed(
            self._at,
            self._tasks,
            self._nodes,
            self._used,
            {n: self._since(float(sim.success(n).mean()), self._before.get(n, 0.0)) for n in self._operators},
            self._since(sim.end_to_end_success(), self._total_before),
            mean_s,
            _mean_since(times, tasks, self._from_s, sim.now_s),
            _mean_since(times, nodes, self._from_s, sim.now_s),
            (int(sim.truth[self._entry].completed().sum()) - self._rows_before) / (sim.now_s - self._from_s),
            acted,
            sim.current(),
            (ends, mean),
        )


def _mean_since(times: F64, values: I64, start_s: float, end_s: float) -> float:
    edges = np.clip(np.append(times, end_s), start_s, end_s)
    return float((np.diff(edges) * values).sum() / (end_s - start_s))


def with_setting(case: Case, **changes: Any) -> Case:
    """Return the case with another setting of the same shape."""
    make = case.setting

    def changed(tasks: int) -> Setting:
        return replace(make(tasks), **changes)

    return replace(case, setting=changed)


def with_rate(case: Case, topology: PaperTopology, rate: Rate) -> Case:
    """Return the case with another input rate over time."""
    return replace(
        case, feeds=lambda: {topology.entry: topology_feed(topology, rate, case.seconds, case.seed)}
    )


def by_minute(found: Followed) -> list[float | None]:
    """Return the mean latency of each minute in ms; None where no row was completed."""
    ends, mean = found.latency
    minutes = np.ceil(ends / 60.0 - 1e-9).astype(int)
    shown: list[float | None] = []
    for minute in range(1, int(minutes.max(initial=0)) + 1):
        here = mean[(minutes == minute) & np.isfinite(mean)]
        shown.append(round(1e3 * float(here.mean()), 1) if len(here) else None)
    return shown


def rounded(value: float, digits: int = 4) -> float | None:
    """Return a number as it is shown; None where there is none."""
    return round(value, digits) if math.isfinite(value) else None
