"""streamswitch: Examine, Diagnose, Treat for every elastic executor, one unit strategy at a time.

The two-level logic of StreamSwitch 3.2: a severe executor is balanced where that is enough, else scaled out; one whose
tasks are all good is scaled in where they stay good; anything else is left alone. What is measured is the estimate's;
which shards move is `switching`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.measure.sample import F64
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.diagnosing import (
    Diagnosis,
    derive_excess,
    describe_severe,
    describe_treatment,
    explain_nothing,
    explain_out_of_reach,
)
from penstock.control.policy.mapping import (
    adopt,
    derive_orphans,
    derive_plan,
    derive_switch,
    holds,
    is_known,
    restored,
    tail_factor,
)
from penstock.control.policy.negotiation import FreeCores, Negotiator, derive_free_cores
from penstock.control.policy.options import NOT_NEGATIVE, POSITIVE, SHARE, check_options
from penstock.control.policy.predicting import Whole
from penstock.control.policy.pricing import price
from penstock.control.policy.protocol import Limits, Option, Proposal
from penstock.control.policy.sharing import BoundSplit
from penstock.control.policy.shrinking import propose_within
from penstock.control.policy.switching import (
    BALANCE,
    SCALE_IN,
    SCALE_OUT,
    Health,
    Switch,
    UnitStrategy,
    derive_health,
    find_balancing,
    find_scale_in,
    find_scale_out,
)
from penstock.control.policy.wording import count, in_ms, no_change, propose_waiting
from penstock.control.sla import SLA


@dataclass
class StreamSwitchPolicy:
    """Holds a latency SLA by moving shards between tasks and changing their number (StreamSwitch 3).

    Args:
        margin: ε, the share of each service rate that is kept free.
        alert_s: l, the instantaneous latency from which a task counts as pressed; never more than half the bound.
        min_gain: share of a task's rate that a balancing move must take off the worst task where it cannot cure and
            no core is left; keeps an overload from causing endless moves.
        split: how an end-to-end bound is split between operators.
        idle_node_s: time without a task after which a node is given back.
    """

    margin: float = 0.2
    alert_s: float = 0.1
    min_gain: float = 0.1
    idle_node_s: float = 60.0
    split: BoundSplit = field(default_factory=BoundSplit)
    name: str = "streamswitch"
    model: ClassVar[str] = "mm1"
    """What predicts the latencies it names."""
    _negotiator: Negotiator = field(init=False)
    _assumed: dict[tuple[str, int], float] = field(default_factory=dict)
    """Service rates of new tasks that nothing was measured of yet: their source's."""
    _published: dict[str, tuple[ExecutorPlan, ExecutorPlan]] = field(default_factory=dict)
    """Executors of the last plan: as they were, and as it wanted them."""
    _failure: str | None = None

    def __post_init__(self) -> None:
        check_options(self, margin=SHARE, alert_s=POSITIVE, min_gain=SHARE, idle_node_s=NOT_NEGATIVE)
        self._negotiator = Negotiator(self.idle_node_s)

    def note_failure(self, reason: str) -> None:
        """Forget rates that were assumed of new tasks, and look at the next turn whether the mapping still holds."""
        self._assumed.clear()
        self._negotiator.forget()
        self._failure = reason

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        return propose_within(now, limits) or price(self._decide(now, sla, limits), now, sla, limits)

    def _decide(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        waiting = propose_waiting(now)
        if waiting is not None:
            return waiting
        self._negotiator.look(now)
        repair = self._propose_mapping(now)
        if repair is not None:
            return repair
        shares = self.split.shares(now, sla)
        shifted = self.split.learn(now, sla, shares)
        diagnoses = self._diagnose_all(now, sla, limits, shares)
        return self._compose(now, sla, limits, diagnoses, self.split.shares(now, sla) if shifted else {})

    # -- examine ------------------------------------------------------------------------------------------------------

    def _examine(self, executor: ExecutorEstimate) -> Switch:
        """Return the executor as the algorithms see it; what is measured replaces what was assumed."""
        for task in executor.tasks:
            if is_known(task.service_per_s):
                self._assumed.pop((executor.name, task.index), None)
        return derive_switch(executor, self.margin, self._assumed)

    # -- diagnose -----------------------------------------------------------------------------------------------------

    def _diagnose_all(
        self, now: Estimate, sla: SLA, limits: Limits, shares: Mapping[str, float]
    ) -> list[Diagnosis]:
        """Diagnose every executor, the one furthest over its bound first: free cores go by need."""
        free = derive_free_cores(now, limits)
        switches = {name: self._examine(e) for name, e in sorted(now.executors.items()) if e.k}
        bounds = {
            name: sla.latency * shares[now.executors[name].operator] / tail_factor(sla) for name in switches
        }
        order = list(switches)
        if len(order) > 1:
            order.sort(key=lambda name: (-derive_excess(switches[name], bounds[name]), name))
        found = []
        for name in order:
            diagnosis = self._diagnose(now.executors[name], switches[name], bounds[name], free)
            found.append(diagnosis)
            if diagnosis.treatment is not None and diagnosis.treatment.kind == SCALE_OUT:
                free.take(diagnosis.treatment.after.nodes[-1])
        return found

    def _diagnose(
        self, executor: ExecutorEstimate, switch: Switch, bound_s: float, free: FreeCores
    ) -> Diagnosis:
        alert_s = min(self.alert_s, bound_s / 2)
        instantaneous = switch.task_latencies(executor.backlog_rows)
        healths = derive_health(instantaneous, switch.projected_s, alert_s, bound_s)
        if max(healths) == Health.SEVERE:
            return self._improve(executor, switch, instantaneous, healths, alert_s, bound_s, free)
        worst = int(np.argmin(switch.headroom))
        symptom = (
            f"{executor.name}: latency {in_ms(float(instantaneous.max()))}, projected {in_ms(switch.worst_s)}"
            f" at task {switch.tasks[worst]}, bound {in_ms(bound_s)}"
        )
        if max(healths) == Health.MODERATE:
            return Diagnosis(
                executor.name, switch, Health.MODERATE, symptom, None, "moderate, neither cure nor saving"
            )
        saving = find_scale_in(switch, bound_s)
        if saving is None:
            why = "good, and no task can be given up" if executor.k > 1 else "good, on the one task it needs"
            return Diagnosis(executor.name, switch, Health.GOOD, symptom, None, why)
        options = (Option(SCALE_IN, saving.after.worst_s),)
        return Diagnosis(executor.name, switch, Health.GOOD, symptom, saving, "", options)

    def _improve(
        self,
        executor: ExecutorEstimate,
        switch: Switch,
        instantaneous: F64,
        healths: list[Health],
        alert_s: float,
        bound_s: float,
        free: FreeCores,
    ) -> Diagnosis:
        """Balance where that cures, else scale out, else balance where that helps, else say why nothing does."""
        severe = [at for at, health in enumerate(healths) if health == Health.SEVERE]
        least_s = min(switch.least_s, free.fastest_s((1.0 - switch.margin) * executor.service_per_s))
        if least_s > bound_s and switch.headroom.min() > 0:
            # No task meets the bound, however little it has to do, and those there are keep up: more would only be more.
            source = min(severe, key=lambda at: (float(switch.headroom[at]), at))
            symptom = describe_severe(executor, switch, instantaneous, source, bound_s)
            why = explain_out_of_reach(executor, least_s, bound_s)
            return Diagnosis(executor.name, switch, Health.SEVERE, symptom, None, why)
        curable = [at for at in severe if switch.can_be_cured(at, bound_s)]
        treatable = curable or [at for at in severe if switch.can_be_relieved(at)] or severe
        source = min(treatable, key=lambda at: (float(switch.headroom[at]), at))
        symptom = describe_severe(executor, switch, instantaneous, source, bound_s)
        balancing = find_balancing(switch, source)
        node = free.choose(switch.nodes[source])
        wider = None
        if node is not None:
            ratio = free.speed[node] / max(free.speed.get(switch.nodes[source], 1.0), 1e-9)
            wider = find_scale_out(switch, source, node, ratio)
        cured = False
        if balancing is not None:
            cured = self._cures(balancing, instantaneous, severe, curable, alert_s, bound_s)
        options = [Option(BALANCE, balancing.after.worst_s, feasible=cured)] if balancing is not None else []
        options += [Option(SCALE_OUT, wider.after.worst_s)] if wider is not None else []
        choice = balancing if cured else wider or self._worthwhile(switch, balancing, source)
        why = (
            "" if choice is not None else explain_nothing(executor, switch, source, node, free.speed.values())
        )
        return Diagnosis(
            executor.name,
            switch,
            Health.SEVERE,
            symptom,
            choice,
            why,
            tuple(options),
            lacks_core=node is None and not cured,
        )

    def _cures(
        self,
        strategy: UnitStrategy,
        instantaneous: F64,
        severe: list[int],
        curable: list[int],
        alert_s: float,
        bound_s: float,
    ) -> bool:
        """Return whether no task stays severe; one too hot on a single shard need only be rid of the others.

        What takes its shards must then be well itself, for in an overload of all tasks only more of them help.
        """
        then = derive_health(instantaneous, strategy.after.projected_s, alert_s, bound_s)
        hopeless = set(severe) - set(curable)
        taker = strategy.after.tasks.index(strategy.destination)
        fits = not hopeless or float(strategy.after.projected_s[taker]) <= bound_s
        return fits and all(health < Health.SEVERE for at, health in enumerate(then) if at not in hopeless)

    def _worthwhile(self, switch: Switch, balancing: UnitStrategy | None, source: int) -> UnitStrategy | None:
        if balancing is None:
            return None
        gain = float(balancing.after.headroom.min() - switch.headroom.min())
        scale = max(float(switch.service_per_s[source]), float(switch.task_rates[source]))
        return balancing if gain > self.min_gain * scale else None

    # -- treat --------------------------------------------------------------------------------------------------------

    def _compose(
        self, now: Estimate, sla: SLA, limits: Limits, diagnoses: list[Diagnosis], shares: Mapping[str, float]
    ) -> Proposal:
        treated = [found for found in diagnoses if found.treatment is not None]
        lacking = sum(found.lacks_core for found in diagnoses)
        add = self._negotiator.ask(now, limits, lacking)
        release = () if treated or lacking else self._negotiator.release(now, limits)
        plan = Plan({f.executor: derive_plan(f.after) for f in treated}, add, release, shares)
        told = treated or [found for found in diagnoses if found.health == Health.SEVERE] or diagnoses[:1]
        symptom = "; ".join(found.symptom for found in told)
        whole = Whole(now, sla)
        before_s = {found.executor: found.switch.worst_s for found in diagnoses}
        options = whole.derive_options(before_s, ((found.executor, found.options) for found in told))
        predicted = whole.predict_s({found.executor: found.after.worst_s for found in diagnoses})
        actions = [f"{found.executor}: {describe_treatment(found)}" for found in treated]
        actions += [f"asked for {count(add, 'node')}"] if add else []
        actions += [f"gave back {', '.join(release)}"] if release else []
        actions += (
            ["shifted the bound: " + ", ".join(f"{o} {s:.0%}" for o, s in shares.items())] if shares else []
        )
        if plan.changes_nothing:
            return no_change(symptom, "; ".join(found.why_not for found in told), options, predicted)
        self._remember(treated)
        urgent = any(found.health == Health.SEVERE for found in treated)
        return Proposal(plan, symptom, "; ".join(actions), options, predicted, urgent, {"model": self.model})

    def _remember(self, treated: list[Diagnosis]) -> None:
        self._published = {f.executor: (derive_plan(f.switch), derive_plan(f.after)) for f in treated}
        for found in treated:
            strategy = found.treatment
            if strategy is not None and strategy.kind == SCALE_OUT:
                self._assumed[found.executor, strategy.destination] = float(strategy.after.service_per_s[-1])

    def _propose_mapping(self, now: Estimate) -> Proposal | None:
        """Publish the newest mapping again where a failure left another one behind, or shards without a task.

        StreamSwitch 5: the control plane's mapping is the one that counts after a failure. A plan that was refused or
        done after all left nothing behind; one that stopped halfway is taken back.
        """
        reason, self._failure = self._failure, None
        held = {name: executor for name, executor in sorted(now.executors.items()) if executor.k}
        orphans = {name: derive_orphans(executor) for name, executor in held.items()}
        if reason is None and not any(len(shards) for shards in orphans.values()):
            self._published = {}
            return None
        switches = {name: self._examine(executor) for name, executor in held.items()}
        wanted: dict[str, Switch] = {}
        for name, (before, after) in self._published.items() if reason is not None else ():
            if name in switches and not holds(switches[name], before) and not holds(switches[name], after):
                wanted[name] = restored(switches[name], before)
        for name, shards in orphans.items():
            if len(shards):
                wanted[name] = adopt(wanted.get(name, switches[name]), shards)
        self._published = {}
        plans = {
            name: derive_plan(then)
            for name, then in wanted.items()
            if not holds(switches[name], derive_plan(then))
        }
        if not plans:
            return None
        symptom = f"the last plan failed: {reason}" if reason else "a task is gone"
        lost = sum(len(orphans[name]) for name in plans)
        action = f"published the mapping of {', '.join(plans)} again; {count(lost, 'shard')} given to a living task"
        return Proposal(Plan(plans), symptom, action, urgent=lost > 0)
