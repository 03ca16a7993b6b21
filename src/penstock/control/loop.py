"""The control loop: measure, model, policy, plan, apply. One turn per sample; time is the sample's.

It reads no clock and knows no data plane: whoever has one calls `turn` and gives an `Actuator`. Models are asked by
policies; here stands only the order of things.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.control.apply.actuator import Actuator, Ticket
from penstock.control.apply.journal import Decision, Inputs, Journal
from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer
from penstock.control.measure.observed import derive_observed_s
from penstock.control.measure.sample import Sample
from penstock.control.plan.guards import Action, Facts, Guards, judge, plan_back, resolve
from penstock.control.policy.protocol import Limits, Policy, Proposal
from penstock.control.sla import SLA
from penstock.errors import PlanError

_KEEP_S = 600.0
"""Actions older than this are no longer looked at by guards."""


@dataclass(frozen=True)
class _Wanted:
    """A proposal, whose it is, and what it would undo."""

    proposal: Proposal
    rolls_back: int | None = None


class ControlLoop:
    """Holds an SLA on a data plane.

    Raises nothing for what a data plane reports or refuses; each turn ends in a decision that is journalled.
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
        self._actions: list[Action] = []
        self._tickets: dict[int, Ticket] = {}
        self._unjudged: list[int] = []
        self._unobserved: int | None = None

    def turn(self, sample: Sample) -> Decision:
        """Take one sample and decide; a plan that passes the guards is handed to the actuator."""
        now = self.measurer.measure(sample, self.sla.window)
        self._follow_up(now)
        wanted = self._judge_past(now) or _Wanted(self._propose(now))
        refused = self._ask_guards(now, wanted)
        decision = self._apply(now, wanted, refused)
        self._forget(now.at_s)
        return decision

    def use(self, policy: Policy) -> None:
        """Decide by another policy from the next turn on; actions under way are followed up all the same."""
        self.policy = policy

    def change_sla(self, sla: SLA) -> None:
        """Hold another bound from the next turn on."""
        self.sla = sla

    def _propose(self, now: Estimate) -> Proposal:
        if now.invalid is not None:
            return Proposal(None, f"the measurements cannot be used: {now.invalid}", "no change")
        proposal = self.policy.propose(now, self.sla, self.limits)
        if proposal.plan is not None and proposal.plan.changes_nothing:
            return replace(proposal, plan=None)
        return proposal

    def _ask_guards(self, now: Estimate, wanted: _Wanted) -> str | None:
        proposal = wanted.proposal
        if proposal.plan is None:
            return None
        facts = Facts(
            now.at_s,
            proposal.plan,
            self.actuator.current(),
            self.sla.latency,
            self.guards,
            proposal.urgent,
            proposal.predicted_s,
            _without_s(proposal, derive_observed_s(now, self.sla)),
            next((option.cost_s for option in proposal.options if option.action == proposal.action), 0.0),
            tuple(self._actions),
        )
        return resolve(facts, rolls_back=wanted.rolls_back is not None)

    def _apply(self, now: Estimate, wanted: _Wanted, refused: str | None) -> Decision:
        proposal, ticket = wanted.proposal, None
        before = self.actuator.current() if proposal.plan is not None else {}
        if proposal.plan is not None and refused is None:
            try:
                ticket = self.actuator.apply(proposal.plan)
            except PlanError as error:
                refused = str(error)
        if refused is not None:
            self.policy.note_failure(refused)
        decision = self.journal.add(
            Decision(
                0,
                now.at_s,
                self.policy.name,
                proposal.symptom,
                proposal.action,
                ticket is not None,
                refused,
                proposal.options,
                proposal.predicted_s,
                str(proposal.details.get("model", self.policy.name)),
            ),
            Inputs(now, self.sla, self.limits, proposal.plan, wanted.rolls_back),
        )
        if ticket is not None and proposal.plan is not None:
            self._tickets[decision.number] = ticket
            self._actions.append(
                Action(
                    decision.number,
                    now.at_s,
                    {name: before[name] for name in proposal.plan.executors if name in before},
                    proposal.plan,
                    derive_observed_s(now, self.sla),
                    _rate(now),
                    proposal.predicted_s,
                    rolls_back=wanted.rolls_back,
                )
            )
        elif proposal.predicted_s is not None and refused is None:
            self._unobserved = decision.number
        return decision

    def _follow_up(self, now: Estimate) -> None:
        """Ask what came of plans under way, and note what was predicted for this turn beside what is measured."""
        if self._unobserved is not None and now.invalid is None:
            observed_s = derive_observed_s(now, self.sla)
            if observed_s is not None:
                self.journal.note_observed(self._unobserved, observed_s)
            self._unobserved = None
        for number, ticket in list(self._tickets.items()):
            outcome = self.actuator.status(ticket)
            if outcome is not None:
                del self._tickets[number]
                self.journal.note_outcome(number, outcome)
                self._end(number, now.at_s)
                if outcome.ok:
                    self._unjudged.append(number)
                else:
                    self.policy.note_failure(outcome.reason)

    def _end(self, number: int, at_s: float) -> None:
        self._actions = [replace(one, ended_s=at_s) if one.number == number else one for one in self._actions]

    def _judge_past(self, now: Estimate) -> _Wanted | None:
        """Compare latency with what it was before actions that have settled; propose to undo the last bad one, once."""
        if now.invalid is not None:
            return None
        observed_s, wanted = derive_observed_s(now, self.sla), None
        for action in [one for one in self._actions if one.number in self._unjudged]:
            if action.ended_s is None or now.at_s - action.ended_s < self.guards.settle_s:
                continue
            self._unjudged.remove(action.number)
            if observed_s is not None:
                self.journal.note_observed(action.number, observed_s)
            reason = judge(action, observed_s, _rate(now), self.sla.latency, self.guards)
            if reason is not None and action is self._actions[-1]:
                wanted = self._roll_back(now, action, reason)
        return wanted

    def _roll_back(self, now: Estimate, action: Action, reason: str) -> _Wanted | None:
        plan = plan_back(action, self.actuator.current(), now.nodes)
        if plan is None:
            return None
        self.policy.note_failure(reason)
        return _Wanted(
            Proposal(plan, reason, f"rolled back to the plan before decision {action.number}", urgent=True),
            action.number,
        )

    def _forget(self, at_s: float) -> None:
        self._actions = [
            one for one in self._actions if one.number in self._tickets or at_s - one.at_s < _KEEP_S
        ]
        self._unjudged = [
            number for number in self._unjudged if number in {one.number for one in self._actions}
        ]


def _without_s(proposal: Proposal, observed_s: float | None) -> float | None:
    """Latency if nothing is done: as the policy predicts it, or else as it is."""
    said = [option.predicted_s for option in proposal.options if option.action.startswith("no change")]
    return said[0] if said else observed_s


def _rate(now: Estimate) -> float:
    return sum(executor.rate_per_s for executor in now.executors.values())
