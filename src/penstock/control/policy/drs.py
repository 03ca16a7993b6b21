"""drs: how many cores each executor needs by an open queueing network, and the better split of those there are.

DRS III-B and IV-B. With `k_max` it solves problem (6), least latency with at most so many cores; without, problem (8),
fewest cores for the bound. It decides numbers; `realizing` moves the shards. `drs-lb` also balances shards the
StreamSwitch way when numbers stay (StreamSwitch 6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.model.allocation import assign_processors, min_processors
from penstock.control.model.queues import ModelError
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.allocating import (
    Group,
    Want,
    busiest,
    derive_options,
    in_ratio,
    propose_fit,
    propose_making_do,
    propose_split,
    spread_by_load,
)
from penstock.control.policy.demand import MMK, MODELS, Demand, derive_demand, derive_station
from penstock.control.policy.following import Followed
from penstock.control.policy.hotness import find_hot_shard, with_hot_shard
from penstock.control.policy.mapping import is_known, tail_factor
from penstock.control.policy.negotiation import Negotiator, derive_usable_cores
from penstock.control.policy.options import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, check_options
from penstock.control.policy.pricing import price
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.policy.realizing import plan_cores, plan_unit_steps
from penstock.control.policy.relieving import propose_relief
from penstock.control.policy.wording import count, no_change, propose_unmeasured, propose_waiting
from penstock.control.sla import OPERATOR, SLA
from penstock.errors import DeclarationError

SPREAD, UNIT = "spread", "unit"


@dataclass
class DrsPolicy:
    """Assigns cores by the DRS model.

    Args:
        k_max: cores to split so that latency is least; None: use as few as the bound allows.
        t_max_s: the bound T_max on the mean total sojourn time; the SLA's where it is None.
        t_min_s: measured latency under which cores are given up; 0.45 of the bound where it is None (figure 9).
        reallocation_s: T_ra, the least time between two re-allocations.
        model: "mmk", "gigk" or "epoch".
        margin: ε on service rates, 0 as in DRS; StreamSwitch 6.1 compares with the same ε on both sides.
        min_gain: share of the predicted latency that a mere re-split must save.
        migration: "spread" deals shards to all new numbers at once; "unit" moves by one task a turn, as StreamSwitch 6
            lets DRS do.
        balances: also balance shards where numbers stay, be it that they fit or that T_ra is not over (drs-lb).
        idle_node_s: time without a task after which a node is given back.

    Raises:
        DeclarationError: T_min above T_max, a k_max below one, an unknown model.
    """

    k_max: int | None = None
    t_max_s: float | None = None
    t_min_s: float | None = None
    reallocation_s: float = 60.0
    model: str = MMK
    margin: float = 0.0
    min_gain: float = 0.05
    balances: bool = False
    migration: str = SPREAD
    alert_s: float = 0.1
    idle_node_s: float = 60.0
    name: str = "drs"
    _negotiator: Negotiator = field(init=False)
    _changed_at_s: float | None = None
    _checked: bool = False
    """Whether the configuration was looked at under a measured load."""
    _followed: dict[str, Followed] = field(default_factory=dict)
    """By group."""

    def __post_init__(self) -> None:
        check_options(
            self,
            k_max=COUNT,
            t_max_s=POSITIVE,
            t_min_s=NOT_NEGATIVE,
            reallocation_s=NOT_NEGATIVE,
            margin=SHARE,
            min_gain=SHARE,
            alert_s=POSITIVE,
            idle_node_s=NOT_NEGATIVE,
        )
        if self.model not in MODELS:
            raise DeclarationError(
                f"{self.name}: model must be one of {', '.join(MODELS)}, not {self.model!r}."
            )
        if self.migration not in (SPREAD, UNIT):
            raise DeclarationError(
                f"{self.name}: migration must be {SPREAD} or {UNIT}, not {self.migration!r}."
            )
        if self.t_max_s is not None:
            self._refuse_crossed(self.t_max_s)
        self._negotiator = Negotiator(self.idle_node_s)

    def check(self, now: Estimate, sla: SLA, limits: Limits) -> None:
        """Refuse a configuration that this load makes impossible, with the bound that would make it possible.

        Raises:
            DeclarationError: T_min above T_max.
            ModelError: K below the stable minimum, or a bound under the least that any number of cores reaches.
        """
        self.check_sla(sla)
        for group in self._groups(now, sla, derive_demand(now), limits):
            try:
                if self.k_max is not None:
                    assign_processors(group.stations, self.k_max)
                else:
                    min_processors(group.stations, self._bound_s(sla))
            except ModelError as error:
                option = "t_max_s" if self.t_max_s is not None else "latency of the SLA"
                raise ModelError(f"{'k_max' if self.k_max is not None else option}: {error}") from error

    def check_sla(self, sla: SLA) -> None:
        """Refuse options that do not go with a bound, whatever the load.

        Raises:
            DeclarationError: T_min above T_max.
        """
        self._refuse_crossed(self._bound_s(sla))

    def note_failure(self, reason: str) -> None:
        """Let the next turn decide again, without waiting for T_ra."""
        self._changed_at_s = None
        self._negotiator.forget()

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        return price(self._propose(now, sla, limits), now, sla, limits, is_mean=True)

    def _propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        waiting = propose_waiting(now)
        if waiting is not None:
            return waiting
        self._negotiator.look(now)
        unmeasured = propose_unmeasured(now) or self._propose_refusal(now, sla, limits)
        if unmeasured is not None:
            return unmeasured
        try:
            demand = derive_demand(now)
            groups = self._groups(now, sla, demand, limits)
        except ModelError as error:
            return no_change(str(error), "nothing can help")
        bound_s = self._bound_s(sla)
        for group in groups:
            self._followed.setdefault(group.label, Followed()).look(now.at_s, group.waiting_s, group.loads)
        return self._compose(
            now, sla, limits, [self._decide(group, now, limits, bound_s) for group in groups]
        )

    def _propose_refusal(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal | None:
        """Say once what is wrong with the configuration, when the first load is seen; the query goes on, and from the next
        turn on what can be had is made do with. Crossed bounds leave nothing to decide by, so those are said always."""
        try:
            self.check_sla(sla)
            if not self._checked:
                self._checked = True
                self.check(now, sla, limits)
        except (DeclarationError, ModelError) as error:
            return no_change(f"{self.name}: the configuration is refused", str(error))
        return None

    # -- what each group should have ----------------------------------------------------------------------------------

    def _groups(self, now: Estimate, sla: SLA, demand: Demand, limits: Limits) -> list[Group]:
        usable = max(derive_usable_cores(now, limits), self.k_max or 0, 1)
        executors = {name: e for name, e in sorted(now.executors.items()) if e.k}
        stations = {
            n: derive_station(e, demand, self.model, self.margin, usable) for n, e in executors.items()
        }
        loads = {n: demand.rate_per_s[n] / (demand.service_per_s[n] * (1 - self.margin)) for n in executors}
        if sla.scope == OPERATOR and self.k_max is None:
            return [
                Group(
                    n,
                    [replace(stations[n], visits=1.0)],
                    e.measured_s,
                    {n: e.k},
                    {n: loads[n]},
                    _waiting_s(e),
                    find_hot_shard(now, (n,)),
                )
                for n, e in executors.items()
            ]
        current = {name: e.k for name, e in executors.items()}
        waiting_s = sum(_waiting_s(e) for e in executors.values())
        hot = find_hot_shard(now, executors)
        return [Group("all", list(stations.values()), now.latency_s, current, loads, waiting_s, hot)]

    def _decide(self, group: Group, now: Estimate, limits: Limits, bound_s: float) -> Want:
        usable = derive_usable_cores(now, limits)
        most, followed = min(self.k_max or usable, usable), self._followed[group.label]
        try:
            if self.k_max is not None:
                return propose_split(group, most, self.min_gain)
            serves = partial(self._serves, now, limits, group)
            floor, t_min_s = followed.floor(now.at_s), self._t_min_s(bound_s)
            found = propose_fit(group, bound_s, t_min_s, floor, self.min_gain, serves)
        except ModelError as error:
            followed.holds(False, now.at_s)
            limit = f"k_max: {error}" if most == self.k_max else str(error)
            return propose_making_do(group, bound_s, most, self.min_gain, limit)
        # A mere re-split can wait until it is certain; what is short, or not needed, cannot.
        is_split = bool(found.action) and sum(found.cores.values()) == group.total
        if is_split == followed.holds(is_split, now.at_s):
            return found
        return replace(found, cores=group.current, action="", predicted_s=group.predict(group.current))

    def _serves(self, now: Estimate, limits: Limits, group: Group, cores: Mapping[str, int]) -> bool:
        """Say whether fewer cores keep up with the load even where shards cannot be dealt evenly."""
        loads = self._followed[group.label].loads
        if busiest(loads, cores) >= 1:
            return False
        if self.migration == UNIT:
            return True  # one task at a time, and every step looks again
        placed = plan_cores(now, limits, cores, loads)
        return all(loads[name] / one.plan.k * one.balance.delta_after < 1 for name, one in placed.items())

    def _squeeze(self, wants: list[Want], usable: int) -> list[Want]:
        """Deal the cores there are where more are wanted: by marginal benefit, by load where they do not suffice."""
        wanted = {name: k for want in wants for name, k in want.cores.items()}
        held = {name: k for want in wants for name, k in want.group.current.items()}
        must = sum(held.values()) > usable
        if sum(wanted.values()) <= usable or not (must or any(want.action for want in wants)):
            return wants
        loads = {name: load for want in wants for name, load in want.group.loads.items()}
        try:
            dealt = assign_processors([s for want in wants for s in want.group.stations], usable).cores
        except ModelError:
            dealt = spread_by_load(loads, usable)
        problem = f"{sum(wanted.values())} cores are wanted and {usable} can be had"
        helps = must or busiest(loads, dealt) < (1 - 2 * self.min_gain) * busiest(loads, held)
        cores = dealt if helps else held
        change = f"{sum(held.values())} -> {count(sum(cores.values()), 'core')}{in_ratio(cores, ' as ')}"
        return [
            replace(
                want,
                cores={name: cores[name] for name in want.cores},
                action=change if helps else "",
                problem=want.problem or problem,
                predicted_s=want.group.predict({name: cores[name] for name in want.cores}),
            )
            for want in wants
        ]

    # -- one proposal of them -----------------------------------------------------------------------------------------

    def _compose(self, now: Estimate, sla: SLA, limits: Limits, first: list[Want]) -> Proposal:
        usable = derive_usable_cores(now, limits)
        wants = self._squeeze(first, usable)
        symptom = "; ".join(want.symptom for want in wants)
        options = derive_options(wants)
        predicted = max((want.predicted_s for want in wants), default=0.0)
        cores = {name: k for want in wants if want.action for name, k in want.cores.items()}
        waited = self._changed_at_s is None or now.at_s - self._changed_at_s >= self.reallocation_s
        problems = "; ".join(dict.fromkeys(_problem_of(want) for want in wants if want.problem))
        cause = f"{symptom}: {problems}" if problems else symptom
        exceeds = sum(want.group.total for want in wants) > usable
        if cores and not (waited or exceeds):
            why = f"the last re-allocation is less than {self.reallocation_s:g} s old"
            keeps = f"{why}, which holds {self._describe_wanted(wants)} back"
            return self._relieve(now, sla, keeps) or no_change(cause, why, options, predicted)
        missing = self._missing(first, usable)
        add = self._negotiator.ask(now, limits, missing)
        placed = self._realize(now, limits, cores)
        release = () if cores or missing > 0 else self._negotiator.release(now, limits)
        plan = Plan(placed, add, release)
        if plan.changes_nothing:
            fits = "no other number of cores helps" if problems else "the number of cores fits"
            relief = self._relieve(now, sla, fits)
            why = f"nothing can help: {problems}" if problems else "the numbers fit"
            return relief or no_change(symptom, why, options, predicted)
        if placed:
            for want in wants:
                if want.action and _grows(want):
                    self._followed[want.group.label].note_too_few(want.group.total, now.at_s)
            if all(placed[name].k == cores[name] for name in placed):
                self._changed_at_s = now.at_s
        actions = list(dict.fromkeys(want.action for want in wants if want.action)) if placed else []
        actions += [f"asked for {count(add, 'node')}"] if add else []
        actions += [f"gave back {', '.join(release)}"] if release else []
        held = sum(want.group.total for want in wants)
        if placed and held > min(self.k_max or usable, usable):
            # More than may be held is given up whatever latency that leads to, so none is promised.
            return Proposal(plan, cause, "; ".join(actions), options, None, urgent=True)
        return Proposal(plan, cause, "; ".join(actions), options, predicted, urgent=predicted == math.inf)

    def _missing(self, wants: list[Want], usable: int) -> int:
        """Return the cores that nodes would have to bring (IV-B, negotiator)."""
        if self.k_max is not None:
            return self.k_max - usable
        total = 0
        for want in wants:
            least = sum(math.floor(load) + 1 for load in want.group.loads.values())
            total += max(sum(want.cores.values()), least if want.problem else 0)
        return total - usable

    def _realize(self, now: Estimate, limits: Limits, cores: Mapping[str, int]) -> dict[str, ExecutorPlan]:
        if self.migration == UNIT:
            return plan_unit_steps(now, limits, cores, self.margin)
        loads = {name: load for one in self._followed.values() for name, load in one.loads.items()}
        return {name: placement.plan for name, placement in plan_cores(now, limits, cores, loads).items()}

    def _relieve(self, now: Estimate, sla: SLA, why: str) -> Proposal | None:
        if not self.balances:
            return None
        return propose_relief(now, sla, margin=self.margin, alert_s=self.alert_s, why=why)

    def _describe_wanted(self, wants: list[Want]) -> str:
        wanted = {name: k for want in wants if want.action for name, k in want.cores.items()}
        return f"{count(sum(wanted.values()), 'core')}{in_ratio(wanted, ' as ')}"

    def _bound_s(self, sla: SLA) -> float:
        return self.t_max_s if self.t_max_s is not None else sla.latency / tail_factor(sla)

    def _t_min_s(self, bound_s: float) -> float:
        return self.t_min_s if self.t_min_s is not None else 0.45 * bound_s

    def _refuse_crossed(self, bound_s: float) -> None:
        if self._t_min_s(bound_s) >= bound_s:
            raise DeclarationError(
                f"{self.name}: t_min_s of {self._t_min_s(bound_s):g} s must lie under the bound of {bound_s:g} s."
            )


def _waiting_s(executor: ExecutorEstimate) -> float:
    """Return how long all tasks of an executor together work on what waits."""
    service_per_s = sum(task.service_per_s for task in executor.tasks if is_known(task.service_per_s))
    return float(executor.backlog_rows.sum()) / service_per_s if service_per_s > 0 else 0.0


def _problem_of(want: Want) -> str:
    return with_hot_shard(want.problem, want.group.hot)


def _grows(want: Want) -> bool:
    return sum(want.cores.values()) > want.group.total


def make_drs_lb(**options: object) -> DrsPolicy:
    """Return drs with load balancing where numbers stay: DRS-LB of StreamSwitch 6."""
    return DrsPolicy(**{"name": "drs-lb", "balances": True, **options})  # type: ignore[arg-type]
