"""penstock: the default policy. One decision space, cheapest first; looks ahead; acts in one step, and seldom.

An executor in trouble, or headed for it, gets its shards dealt anew where that is enough, else as many cores as it takes
at once, else as many as there are, and nodes are asked for; cores that the load of late did not need are given back. What
is expected is `forecasting`'s, what could be done `treating`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.observed import derive_observed_s
from penstock.control.plan.plan import Plan
from penstock.control.policy.coarse import CoarseStep
from penstock.control.policy.forecasting import Forecast, Forecaster
from penstock.control.policy.lateness import derive_measured_s
from penstock.control.policy.lingering import Holding, Lingering
from penstock.control.policy.negotiation import FreeCores, Negotiator, derive_free_cores, derive_usable_cores
from penstock.control.policy.options import COUNT, NOT_NEGATIVE, SHARE, check_options
from penstock.control.policy.passing import pass_on
from penstock.control.policy.predicting import Whole
from penstock.control.policy.pricing import price
from penstock.control.policy.protocol import Limits, Option, Proposal
from penstock.control.policy.sharing import BoundSplit
from penstock.control.policy.shortening import Shortener
from penstock.control.policy.shrinking import propose_within
from penstock.control.policy.studying import Judging, Study, derive_bound, study
from penstock.control.policy.telling import (
    describe,
    describe_miss,
    explain,
    explain_calm,
    explain_out_of_reach,
    tell,
)
from penstock.control.policy.treating import (
    ADD,
    MOVE,
    REMOVE,
    Treatment,
    count_lacking,
    count_missing,
    count_missing_for_load,
    find_even,
    find_move,
    find_narrower,
    find_wider,
)
from penstock.control.policy.wording import count, no_change, propose_waiting
from penstock.control.sla import SLA

PATIENCE = 0.1
"""Share of the time that what waits will take, for which an executor that cannot be cured is left alone."""


@dataclass(frozen=True)
class _Finding:
    """What was found out about one executor, and what is to be done."""

    study: Study
    treatment: Treatment | None = None
    why_not: str = ""
    options: tuple[Option, ...] = ()
    lacking: int = 0
    """Cores that would help and are not there."""
    stuck: bool = False
    """Something is wrong that nothing can be done about."""

    @property
    def told(self) -> bool:
        return self.stuck or not self.study.calm


@dataclass
class PenstockPolicy:
    """Holds a latency SLA with few actions, in the mean or at a quantile.

    Args:
        margin: ε, the share of each task's time that is kept free.
        keep_s: time for which a high load is remembered before cores are given back, and after a core was added.
        horizon_s: how far ahead trend and season are looked at.
        spare: room that must be left, beyond the margin, where cores are given back.
        min_gain: share of the fullest task's load that a plan must take off it where nothing cures.
        actions_per_minute: most plans for an executor in any minute; of these half may be other than urgent.
        idle_node_s: time without a task after which a node is given back.
        split: how an end-to-end bound is split between operators.
        coarse: splits and merges of executors, where nothing more pressing is to be done.
    """

    margin: float = 0.2
    keep_s: float = 5.0
    horizon_s: float = 3.0
    spare: float = 0.01
    min_gain: float = 0.1
    actions_per_minute: int = 12
    idle_node_s: float = 60.0
    split: BoundSplit = field(default_factory=lambda: BoundSplit(only_missed=True, by_service=True))
    coarse: CoarseStep = field(default_factory=CoarseStep)
    name: str = "penstock"
    model: ClassVar[str] = "mm1"
    """What predicts the latencies it names."""
    _forecasters: dict[str, Forecaster] = field(default_factory=dict)
    _negotiator: Negotiator = field(init=False)
    _acted_s: deque[tuple[float, bool, frozenset[str]]] = field(default_factory=deque)
    """When plans were made in the last minute, whether they were urgent, and which executors they were about."""
    _widened_s: dict[str, float] = field(default_factory=dict)
    _holding: Holding = field(default_factory=Holding)
    _lingering: Lingering = field(default_factory=Lingering)
    _shortener: Shortener = field(default_factory=Shortener)
    _missed: bool = False
    """Whether the bound as a whole is missed, as measured."""
    _patient_s: dict[str, float] = field(default_factory=dict)
    """Until when an executor that nothing can be done for is left alone: looking costs more than it finds."""

    def __post_init__(self) -> None:
        check_options(
            self,
            margin=SHARE,
            keep_s=NOT_NEGATIVE,
            horizon_s=NOT_NEGATIVE,
            spare=SHARE,
            min_gain=SHARE,
            actions_per_minute=COUNT,
            idle_node_s=NOT_NEGATIVE,
        )
        self._negotiator = Negotiator(self.idle_node_s)
        self._judging = Judging(self.margin)

    def note_failure(self, reason: str) -> None:
        """The last plan did not happen: what it would have cost is not counted, and nodes may be asked for again."""
        if self._acted_s:
            self._acted_s.pop()
        self._negotiator.forget()
        self._patient_s.clear()
        self._shortener.forget()
        self.coarse.note_failure()

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        within = propose_within(now, limits)
        if within is None:
            return price(self._decide(now, sla, limits), now, sla, limits)
        self._look_ahead(now)
        self._acted_s.append((now.at_s, True, frozenset(now.executors)))
        return within

    def _decide(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        forecasts = self._look_ahead(now) if now.invalid is None else {}
        waiting = propose_waiting(now)
        if waiting is not None:
            return waiting
        self._negotiator.look(now)
        forecasts = pass_on(now, forecasts)
        shares = self.split.shares(now, sla)
        shifted = self.split.learn(now, sla, shares)
        free = derive_free_cores(now, limits)
        observed_s = derive_observed_s(now, sla)
        self._missed = observed_s is not None and observed_s > sla.latency
        studies = [
            self._study(now, name, sla, shares, forecast, limits, free.usable)
            for name, forecast in forecasts.items()
            if now.executors[name].k
        ]
        studies = self._shortener.look(now, sla, studies, free.usable, self._holding)
        studies.sort(key=lambda one: (one.calm, -one.longest_s, one.name))
        findings = self._treat_all(now, studies, free, limits.node_start_s)
        found = self._compose(now, sla, limits, findings, self.split.shares(now, sla) if shifted else {})
        return self.coarse.propose(now, limits, found.plan is None) or found

    def _look_ahead(self, now: Estimate) -> dict[str, Forecast]:
        self._forecasters = {
            name: self._forecasters.get(name) or Forecaster(self.horizon_s, self.keep_s)
            for name in sorted(now.executors)
        }
        return {
            name: one.take(now.at_s, now.executors[name].arrival_per_s, now.executors[name].scv_arrival)
            for name, one in self._forecasters.items()
        }

    def _study(
        self,
        now: Estimate,
        name: str,
        sla: SLA,
        shares: Mapping[str, float],
        ahead: Forecast,
        limits: Limits,
        spare_cores: int,
    ) -> Study:
        executor, epochs = now.executors[name], name in self.split.by_epochs
        bound = derive_bound(executor, ahead, sla, shares[executor.operator], self.margin, epochs)
        one = study(executor, ahead, bound, self._judging, limits.move_bytes_per_s, spare_cores)
        lingers = self._lingering.take(now.at_s, one, self._judging.panic_ratio)
        if lingers:
            self._holding.note(name, now.at_s)
        self._holding.look(name, now.at_s, one.executor.k)
        return replace(one, severe=True, rising=False, cause="waits that do not pass") if lingers else one

    def _treat_all(
        self, now: Estimate, studies: list[Study], free: FreeCores, node_start_s: float
    ) -> list[_Finding]:
        """Treat one executor after the other; where cores are short, each is offered its share of the free ones.

        What the load of any of them needs goes before what would clear a backlog sooner.
        """
        ill = [not one.calm for one in studies]
        needed = [count_missing_for_load(one) if bad else 0 for one, bad in zip(studies, ill, strict=True)]
        wanted = [count_missing(one) if bad else 0 for one, bad in zip(studies, ill, strict=True)]
        findings = []
        for at, one in enumerate(studies):
            found = self._treat(now, one, _offer(free, needed[at:], wanted[at:], len(studies)), node_start_s)
            findings.append(found)
            if found.treatment is not None and found.treatment.kind == ADD:
                for index, node in found.treatment.plan.tasks.items():
                    if index not in one.tasks.indexes:
                        free.take(node)
        return findings

    # -- one executor -------------------------------------------------------------------------------------------------

    def _treat(self, now: Estimate, one: Study, free: FreeCores, node_start_s: float) -> _Finding:
        if one.calm and one.late:
            return self._shorten(now, one, free)
        if one.calm:
            found = self._save(now, one)
            return replace(found, why_not=explain(one, free), stuck=True) if one.stuck else found
        if now.at_s < self._patient_s.get(one.name, -np.inf) and not free.usable:
            return _Finding(one, why_not=explain(one, free))
        found = self._cure(one, free, node_start_s)
        self._patient_s.pop(one.name, None)
        if found.treatment is None or not found.treatment.healthy:
            clear_s = one.demand.derive_clear_s(one.tasks.whole_speed)
            self._patient_s[one.name] = now.at_s + min(max(clear_s * PATIENCE, 1.0), 10.0)
        return found

    def _cure(self, one: Study, free: FreeCores, node_start_s: float) -> _Finding:
        """Deal shards anew where that cures; else add cores; else take what helps most; else say why nothing does."""
        before = one.pressure
        options: list[Option] = []
        missing = count_missing(one)
        moved = find_move(one) if not missing or not free.usable or one.strayed else None
        if moved is not None:
            options.append(Option(MOVE, moved.predicted_s, moved.cost_s, moved.healthy))
            if moved.moved and moved.healthy:
                return _Finding(one, moved, options=tuple(options))
        # Where a hot shard is what is wrong, one more core would only be one more.
        wider = find_wider(one, free, missing) if missing or not one.hot.any() else None
        lacking = count_lacking(one, free, node_start_s)
        if wider is not None:
            options.append(Option(ADD, wider.predicted_s, wider.cost_s, wider.healthy))
        best = wider or moved
        if best is not None and best.moved:
            # Pressures compare on the same tasks only: more of them are asked to clear what waits sooner.
            gain = best.penalty_s / one.penalty_s if best is wider else best.pressure / before
            if gain < 1.0 - self.min_gain or one.strayed or (best is wider and best.healthy):
                return _Finding(one, best, options=tuple(options), lacking=lacking)
        return _Finding(one, why_not=explain(one, free), options=tuple(options), lacking=lacking)

    def _shorten(self, now: Estimate, one: Study, free: FreeCores) -> _Finding:
        """Deal shards evenly, to more tasks where it takes them, so that epochs get short enough."""
        found = self._shortener.wanted(one.name)
        more = found.more.get(one.name, 0)
        dealt = find_even(one, free, more) if one.name in found.more else None
        if dealt is None and more:
            why = f"the cores that are free go to others first, and it needs {more} more"
            return _Finding(one, why_not=why, lacking=more, stuck=True)
        if dealt is None:
            # A bound that nothing holds is no reason to keep cores that win nothing.
            narrower = self._save(now, one, one.predicted_s).treatment if found.hopeless else None
            return _Finding(one, narrower, found.why_not, lacking=found.lacking, stuck=True)
        return _Finding(
            one, dealt, options=(Option(dealt.kind, dealt.predicted_s, dealt.cost_s, dealt.healthy),)
        )

    def _save(self, now: Estimate, one: Study, limit_s: float | None = None) -> _Finding:
        """Give back cores that the highest load of late does not need, with epochs no longer than a limit."""
        since_s = self._widened_s.get(one.name, -np.inf)
        if one.longest_s > self._judging.alert_ratio * one.bound.latency_s:
            return _Finding(one, why_not="rows wait a little")
        if one.slow and self._missed and one.can_hold and one.name not in self.split.by_epochs:
            return _Finding(one, why_not="rows take longer than its share of the bound")
        if now.at_s < max(since_s + self.keep_s, self._holding.until_s(one.name)):
            return _Finding(one, why_not="cores were added a short while ago")
        if len(one.tasks.indexes) < 2 or not self._may_act(now.at_s, one.name, urgent=False):
            return _Finding(one, why_not="healthy")
        if now.at_s < self._patient_s.get(one.name, -np.inf):
            return _Finding(one, why_not="healthy, and every core is needed")
        fewer = find_narrower(one, self.spare, limit_s)
        if fewer is None or (limit_s is None and not self._shortener.spares(one, fewer.predicted_s)):
            self._patient_s[one.name] = now.at_s + 1.0
            return _Finding(one, why_not="healthy, and every core is needed")
        return _Finding(one, fewer, options=(Option(REMOVE, fewer.predicted_s, fewer.cost_s),))

    def _may_act(self, at_s: float, name: str, *, urgent: bool) -> bool:
        """Return whether an executor has had fewer plans in the last minute than are enough; others do not count."""
        while self._acted_s and self._acted_s[0][0] <= at_s - 60.0:
            self._acted_s.popleft()
        found = [was_urgent for _, was_urgent, names in self._acted_s if name in names]
        within = urgent or found.count(False) < max(self.actions_per_minute // 2, 1)
        return within and len(found) < self.actions_per_minute

    # -- all of them --------------------------------------------------------------------------------------------------

    def _compose(
        self, now: Estimate, sla: SLA, limits: Limits, findings: list[_Finding], shares: Mapping[str, float]
    ) -> Proposal:
        urgent = any(found.treatment is not None and not found.study.calm for found in findings)
        treated = [found for found in findings if found.treatment is not None]
        if urgent:
            treated = [found for found in treated if not found.study.calm]
        lacking = sum(found.lacking for found in findings)
        whole = Whole(now, sla)
        before_s = {found.study.name: found.study.predicted_s for found in findings}
        observed_s = derive_observed_s(now, sla)
        miss = describe_miss(observed_s, whole.predict_s(before_s), sla)
        ill = sorted((found for found in findings if found.told), key=lambda one: one.study.name)
        told = treated or ill or self._choose_calm(now, limits, findings, miss)
        symptom = "; ".join(describe(found.study, sla) for found in told)
        symptom = f"{miss}: {symptom}" if miss else symptom
        speed = max((node.speed for node in now.nodes.values() if node.cores > 0), default=1.0)
        studies = [found.study for found in findings]
        out_of_reach = explain_out_of_reach(whole, studies, sla, speed, observed_s) if miss else ""
        options = whole.derive_options(before_s, ((found.study.name, found.options) for found in told))
        allowed = [f for f in treated if self._may_act(now.at_s, f.study.name, urgent=urgent)]
        if treated and not allowed:
            why = f"{self.actions_per_minute} actions in the last minute are enough"
            return no_change(symptom, why, options, options[0].predicted_s)
        treated = allowed
        add = self._negotiator.ask(now, limits, lacking)
        release = () if treated or lacking else self._negotiator.release(now, limits)
        plan = Plan({f.study.name: f.treatment.plan for f in treated if f.treatment}, add, release, shares)
        if plan.changes_nothing:
            why = "; ".join(found.why_not for found in told)
            if out_of_reach:
                symptom = f"{miss}: {out_of_reach}" if miss else out_of_reach
                why = why if lacking else "nothing can help"
            return no_change(symptom, why, options, options[0].predicted_s)
        if out_of_reach and sla.is_mean:
            symptom = f"{symptom}; {out_of_reach}"
        actions = [tell(f.study, f.treatment) for f in treated if f.treatment]
        actions += [f"asked for {count(add, 'node')}"] if add else []
        actions += [f"gave back {', '.join(release)}"] if release else []
        actions += (
            ["shifted the bound: " + ", ".join(f"{o} {s:.0%}" for o, s in shares.items())] if shares else []
        )
        self._remember(now.at_s, treated, urgent)
        after_s = {f.study.name: f.treatment.predicted_s for f in treated if f.treatment is not None}
        predicted_s = whole.predict_s({**before_s, **after_s})
        return Proposal(
            plan, symptom, "; ".join(actions), options, predicted_s, urgent, {"model": self.model}
        )

    def _choose_calm(
        self, now: Estimate, limits: Limits, findings: list[_Finding], miss: str
    ) -> list[_Finding]:
        """Return what to tell where nothing is wrong with any executor: of the worst off where the bound is missed, else of
        the same one as ever."""
        if not miss:
            calm = sorted(findings, key=lambda one: one.study.name)[:1]
            return [
                replace(one, why_not="the bound is held as a whole") if one.study.slow else one
                for one in calm
            ]
        worst = max(findings, key=lambda one: derive_measured_s(one.study) / one.study.bound.mean_s)
        held = sum(one.k for one in now.executors.values())
        why = self._shortener.explain_calm(worst.study.name)
        return [replace(worst, why_not=explain_calm(held, derive_usable_cores(now, limits), why))]

    def _remember(self, at_s: float, treated: list[_Finding], urgent: bool) -> None:
        self._acted_s.append((at_s, urgent, frozenset(found.study.name for found in treated)))
        self._shortener.begin([found.study.name for found in treated if found.study.late])
        for found in treated:
            name, kind = found.study.name, found.treatment.kind if found.treatment is not None else MOVE
            if kind == ADD:
                self._widened_s[name] = at_s
                self._holding.regret(name, at_s, found.study.forecast.total_per_s)
            self._holding.forget(name)
            if kind == REMOVE:
                self._holding.expect(name, found.study.executor.k, found.study.forecast.held_per_s)


def _offer(free: FreeCores, needed: Sequence[int], wanted: Sequence[int], executors: int) -> FreeCores:
    """Return what the first of several may take.

    For what waits it has its share of the cores that no load needs: what it clears sooner, others get sooner.
    """
    lacking = [max(one, 0) for one in needed]
    left = free.usable - sum(lacking)
    if left < 0:
        return free.offer(lacking[0], sum(lacking[1:]))
    if wanted[0] > lacking[0] and executors > 1:
        left = max(max(left // executors, min(left, 1)) + min(needed[0], 0), 0)
    return FreeCores(lacking[0] + left, dict(free.by_node), free.speed)
