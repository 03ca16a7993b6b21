"""esstream: parallelism by marginal cost, nodes by load skewness.

Es-Stream IV-A and V-B. For every operator, upstream ones first, the k that minimises βk + (1 - β) Q(k) under M/M/k,
when its load has changed by the trigger factor; new tasks go to the least loaded node that fits, or to another node
where the used ones are near their limit. The paper's bound is the queue, not an SLA: that one is only reported against.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.nodes import Need, derive_new_task_need
from penstock.control.model.queues import ModelError
from penstock.control.plan.placing import plan_executor
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.plan.shards import derive_shards
from penstock.control.policy.allocating import busiest, spread_by_load
from penstock.control.policy.demand import Demand, derive_demand
from penstock.control.policy.hotness import find_hot_shard, with_hot_shard
from penstock.control.policy.marginal import derive_best_k, describe_change, predict_mmk_s
from penstock.control.policy.negotiation import Negotiator, derive_usable_cores
from penstock.control.policy.nodeloads import (
    CHOICES,
    LEAST_LOADED,
    PLACEMENTS,
    NodeLoads,
    derive_node_loads,
)
from penstock.control.policy.options import NOT_NEGATIVE, check_options
from penstock.control.policy.ordering import derive_operators, derive_stations
from penstock.control.policy.pricing import price
from penstock.control.policy.protocol import Limits, Option, Proposal
from penstock.control.policy.shrinking import propose_within
from penstock.control.policy.wording import count, no_change, propose_unmeasured, propose_waiting
from penstock.control.sla import SLA
from penstock.errors import DeclarationError


@dataclass
class EsStreamPolicy:
    """Scales operators and nodes as Es-Stream does.

    Args:
        trigger: share by which an operator's load must have changed since it was last looked at.
        interval_s: least time between two adjustments; 5 s is the outcome of a sweep (docs/policies.md), the paper has 10.
        beta: share of a node that one task uses; None: of the resource that binds, the core it holds included.
        eta, phi: a bottleneck is near where SK <= η and the mean load >= φ: new tasks go to other nodes.
        chi, zeta: there is idle room where SK >= χ and the mean load <= ζ: nodes that came later are given up first.
        alpha: the most that a node may carry of CPU, memory and I/O.
        placement: "least-loaded", or for comparison "even" or "r-storm".
    """

    trigger: float = 0.2
    interval_s: float = 5.0
    beta: float | None = None
    eta: float = 0.0
    phi: float = 0.7
    chi: float = 0.0
    zeta: float = 0.3
    alpha: float = 0.85
    placement: str = LEAST_LOADED
    name: str = "esstream"
    model: ClassVar[str] = "mmk"
    """What predicts the latencies it names."""
    _negotiator: Negotiator = field(default_factory=Negotiator)
    _changed_at_s: float | None = None
    _seen: dict[str, float] = field(default_factory=dict)
    """Executor -> its load, in cores, when k* was last found for it."""

    def __post_init__(self) -> None:
        check_options(self, trigger=NOT_NEGATIVE, interval_s=NOT_NEGATIVE)
        if self.placement not in PLACEMENTS:
            raise DeclarationError(
                f"{self.name}: placement must be one of {', '.join(PLACEMENTS)}, not {self.placement!r}."
            )
        if self.beta is not None and not 0 < self.beta < 1:
            raise DeclarationError(f"{self.name}: beta must lie between 0 and 1, not {self.beta!r}.")
        if not 0 <= self.zeta <= self.phi <= self.alpha <= 1:
            raise DeclarationError(
                f"{self.name}: 0 <= zeta <= phi <= alpha <= 1 must hold, not {self.zeta!r}, {self.phi!r}, {self.alpha!r}."
            )

    def note_failure(self, reason: str) -> None:
        """Look at every operator anew at the next turn."""
        self._seen.clear()
        self._changed_at_s = None
        self._negotiator.forget()

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        within = propose_within(now, limits)
        return within or price(self._propose(now, sla, limits), now, sla, limits, is_mean=True)

    def _propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        waiting = propose_waiting(now)
        if waiting is not None:
            return waiting
        self._negotiator.look(now)
        unmeasured = propose_unmeasured(now)
        if unmeasured is not None:
            return unmeasured
        try:
            demand = derive_demand(now)
        except ModelError as error:
            return no_change(str(error), "nothing can help")
        return self._adjust(now, limits, demand, sla)

    def _adjust(self, now: Estimate, limits: Limits, demand: Demand, sla: SLA) -> Proposal:
        table = derive_node_loads(
            now, limits, Need(self.alpha, self.alpha, self.alpha), self._negotiator.preempted
        )
        symptom = self._symptom(now, table)
        held = {name: e.k for name, e in now.executors.items() if e.k}
        before_s = predict_mmk_s(demand, held)
        due = self._changed_at_s is None or now.at_s - self._changed_at_s >= self.interval_s
        wanted = self._find_best(now, demand, held)
        if not due and wanted != held:
            return no_change(
                symptom, f"the last adjustment is less than {self.interval_s:g} s old", (), before_s
            )
        usable = derive_usable_cores(now, limits)
        cores, problem = self._afford(wanted, held, demand, usable, limits)
        missing = sum(wanted.values()) - usable
        placed, unplaced = self._place(now, demand, held, cores, table)
        add = self._negotiator.ask(now, limits, max(missing, unplaced))
        release = self._release(now, limits, table) if not (add or unplaced or missing > 0) else ()
        plan = Plan(placed, add, release)
        after = {**held, **{name: executor.k for name, executor in placed.items()}}
        options = (
            Option("no change", before_s),
            Option(describe_change(held, wanted), predict_mmk_s(demand, wanted)),
        )
        if unplaced and not problem:
            problem = f"{count(unplaced, 'task')} fit on no node within {self.alpha:.0%} of its resources"
        hot = find_hot_shard(now, held)
        problem = with_hot_shard(problem, hot)
        if plan.changes_nothing:
            before_s = before_s if hot is None or hot.is_served else math.inf
            waits = (
                "" if not self._negotiator.asked else f"; {count(self._negotiator.asked, 'node')} on the way"
            )
            why = (
                f"nothing can help: {problem}"
                if problem and not waits
                else (problem or "every operator has its k*")
            )
            return no_change(symptom, why + waits, options, before_s)
        self._note(demand, after, wanted)
        self._changed_at_s = now.at_s
        actions = [describe_change(held, after)] if placed else []
        actions += [f"asked for {count(add, 'node')}"] if add else []
        actions += [f"gave back {', '.join(release)}"] if release else []
        predicted = predict_mmk_s(demand, after)
        return Proposal(
            plan, symptom, "; ".join(actions), options, predicted, before_s == math.inf, {"model": self.model}
        )

    # -- how many -----------------------------------------------------------------------------------------------------

    def _find_best(self, now: Estimate, demand: Demand, held: Mapping[str, int]) -> dict[str, int]:
        """Return k* of every executor whose load has changed enough, upstream ones first; what it has for the others.

        Rates are those of the traffic equations: what operators get once the ones before them keep up, loops solved
        as one station.
        """
        operators = derive_operators(now)
        order = [
            name
            for station in derive_stations(operators, now.edges)
            for o in station
            for name in operators[o]
        ]
        found = {}
        for name in (name for name in order if name in held):
            executor = now.executors[name]
            load = demand.rate_per_s[name] / demand.service_per_s[name]
            seen = self._seen.get(name)
            changed = seen is None or abs(load - seen) > self.trigger * seen or load >= held[name]
            shards = max(int((executor.arrival_per_s > 0).sum()), 1)
            k = held[name]
            if changed:
                best = derive_best_k(
                    demand.rate_per_s[name], demand.service_per_s[name], self._beta(now, name), max(shards, 1)
                )
                k = min(best, shards)
                if k == held[name]:
                    self._seen[name] = load
            found[name] = k
        return found

    def _beta(self, now: Estimate, name: str) -> float:
        """Return β: the mean share of a node that a task of this executor uses, of the resource that binds.

        A task holds its core whether it works or not, so that it never counts less than one core of its node.
        """
        if self.beta is not None:
            return self.beta
        shares = []
        for task in now.executors[name].tasks:
            node = now.nodes.get(task.node)
            core = 1.0 / max(node.cores, 1) if node is not None else 0.0
            shares.append(max(core, task.cpu_ratio, task.memory_ratio, task.io_ratio))
        return sum(shares) / len(shares)

    def _afford(
        self, wanted: Mapping[str, int], held: Mapping[str, int], demand: Demand, usable: int, limits: Limits
    ) -> tuple[dict[str, int], str]:
        """Return what can be had of what is wanted, and the problem where that does not serve the load."""
        loads = {name: demand.rate_per_s[name] / demand.service_per_s[name] for name in wanted}
        if sum(wanted.values()) <= usable:
            hot = [name for name, load in loads.items() if load >= wanted[name]]
            return dict(
                wanted
            ), f"{', '.join(hot)} needs more cores than it has shards with rows" if hot else ""
        dealt = spread_by_load(loads, usable)
        dealt = {name: min(k, wanted[name]) for name, k in dealt.items()}
        grows = sum(dealt.values()) > sum(held.values())
        helps = busiest(loads, dealt) < 0.9 * busiest(loads, held)
        problem = f"{sum(wanted.values())} cores are wanted and {usable} can be had"
        return (dealt if grows or helps else dict(held)), problem

    # -- where --------------------------------------------------------------------------------------------------------

    def _place(
        self,
        now: Estimate,
        demand: Demand,
        held: Mapping[str, int],
        cores: Mapping[str, int],
        table: NodeLoads,
    ) -> tuple[dict[str, ExecutorPlan], int]:
        """Return the plans of executors whose k changes, and how many tasks fit on no node."""
        by_node = {name: Counter(task.node for task in now.executors[name].tasks) for name in cores}
        needs = {name: self._need(now, demand, name, cores[name]) for name in cores}
        for name, k in cores.items():
            for _ in range(held[name] - k):
                node = self._giver(by_node[name], table)
                by_node[name] = +(by_node[name] - Counter([node]))
                table.take_off(node, self._need(now, demand, name, held[name]))
        unplaced = 0
        for name, k in cores.items():
            for _ in range(k - by_node[name].total()):
                taker = self._taker(table, needs[name])
                if taker is None:
                    unplaced += 1
                    continue
                by_node[name][taker] += 1
                table.put(taker, needs[name])
        speed = {name: node.speed for name, node in now.nodes.items()}
        changed = [name for name in cores if by_node[name].total() != held[name]]
        found = {n: plan_executor(derive_shards(now.executors[n]), by_node[n], speed).plan for n in changed}
        return found, unplaced

    def _taker(self, table: NodeLoads, need: Need) -> str | None:
        """Return the node for a new task: a used one, or another where the used ones are near a bottleneck."""
        if self.placement != LEAST_LOADED:
            return CHOICES[self.placement](table, need, sorted(table.cores))
        used = table.used
        others = sorted(set(table.cores) - set(used))
        is_tight = table.skewness() <= self.eta and table.mean() >= self.phi
        first, second = (others, used) if is_tight else (used, others)
        choose = CHOICES[LEAST_LOADED]
        return choose(table, need, first) or choose(table, need, second)

    def _giver(self, held: Counter[str], table: NodeLoads) -> str:
        """Return the node that loses a task: one that came later where there is idle room, else the most loaded."""
        late = [node for node in reversed(list(table.preempted)) if held[node] > 0]
        if late and table.skewness() >= self.chi and table.mean() <= self.zeta:
            return late[0]
        return max(held, key=lambda node: (table.load(node) if node in table.loads else math.inf, node))

    def _release(self, now: Estimate, limits: Limits, table: NodeLoads) -> tuple[str, ...]:
        """Return nodes to give back: empty ones while there is idle room, those that came later first."""
        if not (table.skewness() >= self.chi and table.mean() <= self.zeta):
            return ()
        empty = [name for name in now.nodes if table.tasks[name] == 0]
        late = list(table.preempted)
        empty.sort(key=lambda name: (-late.index(name) if name in late else 1, name))
        return tuple(empty[: max(len(now.nodes) - limits.min_nodes, 0)])

    def _need(self, now: Estimate, demand: Demand, name: str, k: int) -> Need:
        """Return what one task uses once k share what all use now (equation 21), or their load where none was measured."""
        need = derive_new_task_need(now.executors[name].tasks, k)
        if need != Need():
            return need
        cores = max(sum(node.cores for node in now.nodes.values()) / max(len(now.nodes), 1), 1.0)
        return Need(min(demand.rate_per_s[name] / demand.service_per_s[name] / k, 1.0) / cores)

    # -- words and memory ---------------------------------------------------------------------------------------------

    def _note(self, demand: Demand, after: Mapping[str, int], wanted: Mapping[str, int]) -> None:
        for name, k in wanted.items():
            if after[name] == k:
                self._seen[name] = demand.rate_per_s[name] / demand.service_per_s[name]

    def _symptom(self, now: Estimate, table: NodeLoads) -> str:
        parts = [
            f"{n} takes {e.rate_per_s:.0f} rows/s on {count(e.k, 'task')}"
            for n, e in sorted(now.executors.items())
        ]
        nodes = f"{count(len(table.used), 'node')} at {table.mean():.0%} on average, skewness {table.skewness():.2f}"
        return f"{'; '.join(parts)}; {nodes}"
