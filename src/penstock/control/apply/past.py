"""What the loop remembers of its own actions: which go on, what came of them, and whether latency got worse.

It asks the actuator what became of plans and tells the journal; it decides nothing but whether to propose a roll-back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from penstock.control.apply.actuator import Actuator, Outcome, Ticket
from penstock.control.apply.journal import Journal
from penstock.control.apply.refusals import Refusals
from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.measure.observed import derive_observed_s
from penstock.control.plan.guards import Action, Guards, Pressure, judge, plan_back
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.hotness import find_hot_shard
from penstock.control.sla import SLA
from penstock.raised import describe

EPOCH_CHANCE = 0.5
"""Deviation of the rows that a count is off by because epochs end when they end, in epochs."""
CHANCE_S, LEAST_TURNS = 30.0, 10
"""Time before an action whose turns tell what chance makes of latency, and how many of them it takes."""
WITHIN_ONE = 0.6827
"""Share of a normal distribution that lies within one deviation of its mean."""
_KEEP_S = 600.0
"""Actions older than this are no longer looked at by guards."""


@dataclass(frozen=True)
class Beginning:
    """What is known of an action when it begins."""

    before: Mapping[str, ExecutorPlan]
    predicted_s: float | None
    rolls_back: int | None
    settle_s: float


class _Watched(NamedTuple):
    """An action that latency may still be blamed on."""

    action: Action
    age_s: float
    """Since it was carried out."""
    superseded: bool
    """Whether something was done for its executors since."""
    obscured: bool
    """Whether what was done for others since may be to blame, or may just have been undone: it has not settled."""


class Past:
    """The actions of a loop and the latencies around them."""

    def __init__(self, actuator: Actuator, journal: Journal) -> None:
        self._actuator, self._journal = actuator, journal
        self._actions: list[Action] = []
        self._tickets: dict[int, Ticket] = {}
        self._node_tickets: dict[int, Ticket] = {}
        self._unsettled: set[int] = set()
        self._unjudged: set[int] = set()
        self._observed: deque[tuple[float, float]] = deque(maxlen=1000)
        self._unobserved: int | None = None
        self._incomparable: set[int] = set()
        """Under way when another latency began to be measured."""
        self.manual_s: float | None = None
        """When something was last changed by hand."""
        self.used_s = -math.inf
        """When another policy began to decide: what came until then is not its doing."""
        self.refusals = Refusals()

    @property
    def recent(self) -> tuple[Action, ...]:
        """Actions of the last minutes, oldest first."""
        return tuple(self._actions)

    def begin(self, number: int, now: Estimate, plan: Plan, ticket: Ticket, details: Beginning) -> None:
        """Note that a plan was handed to the actuator."""
        self._tickets[number] = ticket
        if ticket.nodes is not None:
            self._node_tickets[number] = ticket.nodes
        self._actions.append(
            Action(
                number,
                now.at_s,
                details.before,
                plan,
                self._typical_s(now.at_s - details.settle_s),
                rate_of(now),
                details.predicted_s,
                rolls_back=details.rolls_back,
                pressure=pressure_of(now),
                chance_s=self._chance_s(now.at_s - CHANCE_S),
            )
        )

    def note_manual(self, at_s: float) -> None:
        """Note that a person changed something: no decision before it is rolled back over it."""
        self.manual_s = at_s

    def forget_latency(self) -> None:
        """Note that another latency is measured from now on: nothing that was done is judged by it."""
        self._observed.clear()
        self._unsettled.clear()
        self._unjudged.clear()
        self._unobserved = None
        self._incomparable = set(self._tickets)

    def expect(self, number: int) -> None:
        """Note that a decision without a plan predicted the latency of the next turn."""
        self._unobserved = number

    def follow_up(self, now: Estimate, sla: SLA) -> list[str]:
        """Take in what came of plans under way, and what is measured; return why plans failed."""
        observed_s = derive_observed_s(now, sla) if now.invalid is None else None
        if observed_s is not None:
            self._observed.append((now.at_s, observed_s))
            if self._unobserved is not None:
                self._journal.note_observed(self._unobserved, observed_s)
        self._unobserved = None
        failures = []
        for number, ticket in list(self._tickets.items()):
            outcome = self._ask(ticket)
            if outcome is not None:
                del self._tickets[number]
                self._journal.note_outcome(number, outcome)
                self._end(number, now.at_s)
                self._note_ended(number, now.at_s, outcome)
                if not outcome.ok:
                    failures.append(outcome.reason)
                elif number not in self._incomparable:
                    self._unsettled.add(number)
                    self._unjudged.add(number)
        failures += self._follow_up_nodes()
        self._forget(now.at_s)
        return failures

    def _follow_up_nodes(self) -> list[str]:
        """Take in what came of nodes that plans asked for beside their cores."""
        failures = []
        for number, ticket in list(self._node_tickets.items()):
            outcome = self._ask(ticket)
            if outcome is not None:
                del self._node_tickets[number]
                self._journal.note_nodes(number, outcome)
                failures += [] if outcome.ok else [outcome.reason]
        return failures

    def find_regret(self, now: Estimate, sla: SLA, guards: Guards) -> tuple[Action, str, Plan] | None:
        """Return an action, the reason and the plan before it, if latency got worse after it and nothing else was done
        for its executors since; the newest first.

        An action is watched from when it has settled, for a time; it is named until it is `settled`. Those from before a
        change by hand, or before another policy began to decide, are not named.
        """
        if now.invalid is not None or not self._unjudged:
            return None
        watched = self._find_watched(now.at_s, guards.settle_s)
        observed_s = self._typical_s(now.at_s - guards.settle_s / 2) if watched else None
        if observed_s is None:
            return None
        rate_per_s = rate_of(now)
        # Where latency is far under the bound, no action is blamed, whatever the pressure.
        may_blame = math.isfinite(guards.worse_ratio) and observed_s > sla.latency * guards.worse_from_ratio
        pressure = pressure_of(now) if may_blame else None
        for action, age_s, superseded, obscured in watched:
            if action.number in self._unsettled:
                self._unsettled.discard(action.number)
                self._journal.note_observed(action.number, observed_s)
            reason = judge(action, observed_s, rate_per_s, sla.latency, guards, pressure)
            settled = action.at_s <= max(self.used_s, -math.inf if self.manual_s is None else self.manual_s)
            superseded = superseded or settled
            if age_s >= guards.blame_s or settled or (reason is not None and superseded):
                self._unjudged.discard(action.number)
            if reason is not None and not superseded and not obscured:
                try:
                    plan = plan_back(action, self._actuator.current(), now.nodes)
                except Exception:  # nobody can say what is there now: it is asked again at the next turn
                    return None
                if plan is not None:
                    return action, reason, plan
                self._unjudged.discard(action.number)
        return None

    def _find_watched(self, now_s: float, settle_s: float) -> list[_Watched]:
        """Return the actions that have settled and are not judged yet, the newest first."""
        found: list[_Watched] = []
        since: set[str] = set()
        obscured, left = False, len(self._unjudged)
        for action in reversed(self._actions):
            if not left:
                break
            age_s = now_s - (now_s if action.ended_s is None else action.ended_s)
            if action.number in self._unjudged:
                left -= 1
                if age_s >= settle_s:
                    superseded = not since.isdisjoint(action.plan.executors)
                    found.append(_Watched(action, age_s, superseded, obscured))
            since.update(action.plan.executors)
            obscured = obscured or (bool(action.plan.executors) and age_s < settle_s)
        return found

    def settle(self, number: int) -> None:
        """Note that the roll-back of an action was tried: it is not named again."""
        self._unjudged.discard(number)

    def _ask(self, ticket: Ticket) -> Outcome | None:
        try:
            return self._actuator.status(ticket)
        except Exception as error:
            return Outcome(False, describe_error(error))

    def _note_ended(self, number: int, at_s: float, outcome: Outcome) -> None:
        for action in self._actions:
            if action.number == number and outcome.ok:
                self.refusals.forgive(action.plan)
            elif action.number == number:
                self.refusals.note(at_s, action.plan, outcome.reason, begun=True)

    def _chance_s(self, since_s: float) -> float:
        """Return the deviation of latency that is chance, by how much it differs from one turn to the next: a rise that
        lasts, or a burst, shows in few of them. 0 where too few turns were seen."""
        recent = [latency_s for at_s, latency_s in self._observed if at_s >= since_s]
        if len(recent) < LEAST_TURNS:
            recent = [latency_s for _, latency_s in self._observed][-LEAST_TURNS:]
        if len(recent) < LEAST_TURNS:
            return 0.0
        steps = sorted(abs(after - before) for before, after in pairwise(recent))
        return steps[int(WITHIN_ONE * len(steps))] / math.sqrt(2.0)

    def _typical_s(self, since_s: float) -> float | None:
        recent = []
        for at_s, latency_s in reversed(self._observed):
            if at_s < since_s:
                break
            recent.append(latency_s)
        return median(recent) if recent else None

    def _end(self, number: int, at_s: float) -> None:
        self._actions = [replace(one, ended_s=at_s) if one.number == number else one for one in self._actions]

    def _forget(self, at_s: float) -> None:
        if not self._actions or at_s - self._actions[0].at_s < _KEEP_S:
            return
        self._actions = [
            one for one in self._actions if one.number in self._tickets or at_s - one.at_s < _KEEP_S
        ]
        kept = {one.number for one in self._actions}
        self._unsettled &= kept
        self._unjudged &= kept


def describe_error(error: BaseException) -> str:
    """Return an exception as a reason: its kind and what it says, whatever a policy raised."""
    return describe(error)


def rate_of(now: Estimate) -> float:
    """Return the rows a second that all executors together take in."""
    return sum(executor.rate_per_s for executor in now.executors.values())


def pressure_of(now: Estimate) -> Pressure:
    """Return how hard the executors are pressed: the busiest task, the longest wait, what all of them complete, and whether
    a shard is beyond any core."""
    executors, hot = now.executors.values(), find_hot_shard(now, now.executors)
    return Pressure(
        max((float(one.task_loads().max(initial=0.0)) for one in executors), default=0.0),
        max((_waiting_s(one) for one in executors), default=0.0),
        sum(_done_per_s(one) for one in executors),
        sum(_chance_per_s(one) for one in executors),
        hot is not None and not hot.is_served,
    )


def _done_per_s(one: ExecutorEstimate) -> float:
    if one.done_per_s is not None:
        return one.done_per_s
    return sum(task.service_per_s * task.useful_ratio for task in one.tasks)


def _chance_per_s(one: ExecutorEstimate) -> float:
    """What chance alone makes of the rows done: of n within t seconds, √n / t, and those of an epoch more or less, since
    they are counted by epochs. The same rows pass several executors, so that these add up, not their squares."""
    if not one.done_per_s or not one.done_over_s:
        return 0.0
    epoch_s = (one.processing_s or 0.0) + (one.commit_s or 0.0)
    rows = one.done_per_s * one.done_over_s
    return math.hypot(math.sqrt(rows), one.done_per_s * epoch_s * EPOCH_CHANCE) / one.done_over_s


def _waiting_s(one: ExecutorEstimate) -> float:
    return float(one.backlog_rows.sum()) / max(sum(task.service_per_s for task in one.tasks), 1e-9)
