"""The control loop: measure, model, policy, plan, apply. One turn per sample; time is the sample's.

It reads no clock and knows no data plane: whoever has one calls `turn` and gives an `Actuator`. Models are asked by
policies; here stands only the order of things.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from penstock.control.apply.actuator import Actuator, CountsMoves
from penstock.control.apply.journal import Decision, Inputs, Journal
from penstock.control.apply.past import Beginning, Past, describe_error
from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer
from penstock.control.measure.observed import derive_observed_s
from penstock.control.measure.sample import Sample
from penstock.control.plan.checking import check_plan, check_proposal
from penstock.control.plan.guards import Facts, Guards, resolve
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.protocol import Limits, Policy, Proposal
from penstock.control.sla import SLA
from penstock.errors import PlanError
from penstock.raised import pass_on_end


@dataclass(frozen=True)
class _Wanted:
    """A proposal, and the decision that it would undo."""

    proposal: Proposal
    rolls_back: int | None = None


class ControlLoop:
    """Holds an SLA on a data plane.

    Raises nothing for what a data plane reports or refuses, nor where a policy or an actuator fails: each turn ends in a
    decision that is journalled.
    """

    def __init__(
        self,
        measurer: Measurer,
        policy: Policy,
        sla: SLA,
        limits: Limits,
        guards: Guards,
        actuator: Actuator,
        journal: Journal,
    ) -> None:
        self.measurer, self.policy, self.sla, self.limits = measurer, policy, sla, limits
        self.guards, self.actuator, self.journal = guards, actuator, journal
        self._past = Past(actuator, journal)
        self._manual: deque[tuple[float, str]] = deque()
        self._turned_s = -math.inf
        self.stated = ""
        """The policy with its options, for the journal; empty where that is not known."""
        self._guard = threading.Lock()
        self._turning = False
        self._changes: list[Callable[[], None]] = []
        """Asked for in the middle of a turn."""

    def turn(self, sample: Sample) -> Decision:
        """Take one sample and decide; a plan that passes the guards is handed to the actuator."""
        with self._guard:
            self._turning = True
        try:
            return self._turn(sample)
        finally:
            with self._guard:
                self._turning, changes, self._changes = False, self._changes, []
                for change in changes:
                    change()

    def _turn(self, sample: Sample) -> Decision:
        now = self.measurer.rest(sample) if sample.paused else self.measurer.measure(sample, self.sla.window)
        self._turned_s = now.at_s
        self._take_manual(now)
        for failure in self._past.follow_up(now, self.sla):
            self._tell_policy(failure)
        if sample.paused:
            self._past.note_manual(now.at_s)  # rows that waited for a person are no decision's fault
            paused = Proposal(None, "the query is paused", "no change: paused")
            return self.journal.add(self._describe(now, paused, False, None), None)
        wanted = self._regret(now) or _Wanted(self._propose(now))
        refused = self._ask_guards(now, wanted)
        return self._apply(now, wanted, refused)

    def use(self, policy: Policy, stated: str = "") -> None:
        """Decide by another policy from the next turn on; actions under way are followed up all the same.

        What the one before did is not counted among the actions that it may take within a minute, and is not rolled back.
        May be called from any thread, as the two after it may: a turn under way ends as it began.

        Args:
            stated: the policy with its options, as `make_policy` reads it; empty where that is not known.
        """
        self._change(lambda: self._set_policy(policy, stated))

    def change_sla(self, sla: SLA) -> None:
        """Hold another bound from the next turn on.

        One that bounds another quantity leaves earlier actions unjudged: what was measured before cannot be compared.
        """
        self._change(lambda: self._set_sla(sla))

    def hold(self, sla: SLA, policy: Policy, stated: str, guards: Guards) -> None:
        """Hold another bound by another policy, within other guards, all of it from the same turn on."""

        def change() -> None:
            self._set_sla(sla)
            self._set_policy(policy, stated)
            self.guards = guards

        self._change(change)

    def _change(self, change: Callable[[], None]) -> None:
        with self._guard:
            if self._turning:
                self._changes.append(change)
            else:
                change()

    def _set_policy(self, policy: Policy, stated: str) -> None:
        self.policy, self.stated = policy, stated
        self._past.used_s = self._turned_s

    def _set_sla(self, sla: SLA) -> None:
        if (sla.quantile, sla.scope, sla.window) != (self.sla.quantile, self.sla.scope, self.sla.window):
            self._past.forget_latency()
        self.sla = sla

    def note_manual(self, now_s: float, sentence: str) -> None:
        """Take in that a person changed something, in a sentence that the next turn journals.

        From then on no earlier decision is rolled back, and what is not urgent waits for the cool-down. May be called
        from any thread.

        Args:
            now_s: when, on the clock of the samples.
        """
        self._manual.append((now_s, sentence))

    def _take_manual(self, now: Estimate) -> None:
        while self._manual:
            at_s, sentence = self._manual.popleft()
            self._past.note_manual(now.at_s)
            by_hand = Decision(0, at_s, self.policy.name, "by hand", sentence, acted=True, stated=self.stated)
            self.journal.add(by_hand, None)

    def _tell_policy(self, reason: str) -> None:
        """Tell the policy that its plan did not happen; one that fails at that too is asked again all the same."""
        with suppress(Exception):
            self.policy.note_failure(reason)

    def _regret(self, now: Estimate) -> _Wanted | None:
        found = self._past.find_regret(now, self.sla, self.guards)
        if found is None:
            return None
        action, reason, plan = found
        if self._exceeds_limits(now, plan):
            self._past.settle(action.number)
            return None
        self._tell_policy(reason)
        words = f"rolled back to the plan before decision {action.number}"
        return _Wanted(Proposal(plan, reason, words, urgent=True), action.number)

    def _exceeds_limits(self, now: Estimate, plan: Plan) -> bool:
        """Say whether a plan takes more cores than the policy may, now or ever: what it gave up for that is not given
        again."""
        most = getattr(self.policy, "k_max", None)
        held = {name: one.k for name, one in now.executors.items()}
        wanted = sum((held | {name: one.k for name, one in plan.executors.items()}).values())
        return wanted > max(self.limits.max_cores, sum(held.values())) or (most is not None and wanted > most)

    def _propose(self, now: Estimate) -> Proposal:
        if now.invalid is not None:
            return Proposal(None, f"the measurements cannot be used: {now.invalid}", "no change")
        try:
            proposal = check_proposal(self.policy.propose(now, self.sla, self.limits))
        except BaseException as error:  # a policy may be the user's
            pass_on_end(error)
            said = _reason_of(error)
            self._tell_policy(said)
            why = f"the policy {self.policy.name} failed: {said}"
            return Proposal(None, why, "no change: it is asked again at the next turn")
        if proposal.plan is not None and proposal.plan.changes_nothing:
            return replace(proposal, plan=None)
        return proposal

    def _ask_guards(self, now: Estimate, wanted: _Wanted) -> str | None:
        plan = wanted.proposal.plan
        if plan is None:
            return None
        try:
            check_plan(plan, now, self.limits)
            facts = self._facts(now, wanted.proposal, plan)
            refused = resolve(facts, rolls_back=wanted.rolls_back is not None)
        except Exception as error:
            return _reason_of(error)
        return refused or self._past.refusals.resolve(now.at_s, plan)

    def _facts(self, now: Estimate, proposal: Proposal, plan: Plan) -> Facts:
        return Facts(
            now.at_s,
            plan,
            self.actuator.current(),
            self.sla.latency,
            self.guards,
            proposal.urgent,
            proposal.predicted_s,
            next((one.predicted_s for one in proposal.options if one.action.startswith("no change")), None),
            derive_observed_s(now, self.sla),
            proposal.cost_s or _cost_of_chosen(proposal),
            self._past.recent,
            self.actuator.moves_in_flight() if isinstance(self.actuator, CountsMoves) else None,
            self._past.manual_s,
            self._past.refusals.count_since(max(now.at_s - 60.0, self._past.used_s)),
            self._past.used_s,
        )

    def _apply(self, now: Estimate, wanted: _Wanted, refused: str | None) -> Decision:
        proposal, plan, ticket = wanted.proposal, wanted.proposal.plan, None
        before: Mapping[str, ExecutorPlan] = {}
        if plan is not None and refused is None and not plan.touches_nothing:
            try:
                before = self.actuator.current()
                ticket = self.actuator.apply(plan)
            except Exception as error:
                refused = _reason_of(error)
                self._past.refusals.note(now.at_s, plan, refused)
            if wanted.rolls_back is not None:
                self._past.settle(wanted.rolls_back)
        decision = self.journal.add(
            self._describe(now, proposal, ticket is not None, refused),
            Inputs(now, self.sla, self.limits, plan, wanted.rolls_back),
        )
        if refused is not None:
            self._tell_policy(refused)
        elif plan is not None and ticket is not None:
            named = {name: before[name] for name in plan.executors if name in before}
            details = Beginning(named, proposal.predicted_s, wanted.rolls_back, self.guards.settle_s)
            self._past.begin(decision.number, now, plan, ticket, details)
        elif proposal.predicted_s is not None:
            self._past.expect(decision.number)
        return decision

    def _describe(self, now: Estimate, proposal: Proposal, acted: bool, refused: str | None) -> Decision:
        usual = getattr(self.policy, "model", self.policy.name)
        model = str(proposal.details.get("model", usual))
        return Decision(
            0, now.at_s, self.policy.name, proposal.symptom, proposal.action, acted, refused, proposal.options,
            proposal.predicted_s, model, stated=self.stated,
        )  # fmt: skip


def _reason_of(error: BaseException) -> str:
    return str(error) if isinstance(error, PlanError) else describe_error(error)


def _cost_of_chosen(proposal: Proposal) -> float:
    return next((one.cost_s for one in proposal.options if one.action == proposal.action), 0.0)
