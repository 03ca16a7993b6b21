"""Decide a recorded run again, from its journal, and say where decisions differ. Pure; nothing is carried out.

Every turn is decided on its own recorded estimate, so later ones show the run as it was, not as it would have become
under the other policy. All of them are gone through, those of a run of equal decisions too: policies remember. Who
decided may change in the middle of a run: each stretch is decided by its own policy unless another one is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields

import numpy as np

from penstock.control.apply.journal import Decision, Entry
from penstock.control.apply.turns import Turn
from penstock.control.plan.plan import Plan
from penstock.control.policy.protocol import Policy, Proposal
from penstock.control.sla import SLA


@dataclass(frozen=True)
class Difference:
    """A decision with a turn at which the policy wants something else than was recorded: the first such turn."""

    number: int
    at_s: float
    recorded: str
    """As it was proposed then, whether or not it was carried out."""
    decided: str
    recorded_predicted_s: float | None = None
    decided_predicted_s: float | None = None
    run: str = ""
    """Which run of the journal it is of, where there are several."""
    policy: str = ""
    """Which decided again, with its options where they are known."""
    unix_s: float | None = None
    """When it was recorded, in seconds since 1970; None where the journal does not tell. `at_s` has a clock of its own."""


@dataclass(frozen=True)
class Tally:
    """What came of all decisions that one policy, with the same options, decided again."""

    policy: str
    decided: int
    differing: int
    skipped: int
    actions_recorded: int
    actions_decided: int


@dataclass(frozen=True)
class Replay:
    """What came of deciding again. Equal decisions in a row count as one, as in the journal."""

    policy: str
    """Several are separated by commas."""
    decided: int
    skipped: int
    """Entries on which no policy was asked: invalid measurements, roll-backs, and those without inputs."""
    actions_recorded: int
    actions_decided: int
    differences: tuple[Difference, ...]
    missing_turns: int = 0
    """Turns of which the journal tells no more than that they were: older journals wrote the first of equal ones only. A
    policy that remembers earlier turns may decide otherwise without them."""
    by_policy: tuple[Tally, ...] = ()
    """In the order in which each was first asked."""
    unregistered: Mapping[str, int] = field(default_factory=dict)
    """Policies that are not there, and how many turns each decided; nobody was asked at those."""


def replay(entries: Iterable[Entry], policy: Policy) -> Replay:
    """Ask a policy again at every recorded turn, in order; each run begins with the policy as it is given.

    The same policy with the same options decides the same again.
    """
    found = _Replaying(lambda entry, sla: (entry.run, policy.name), lambda decision: deepcopy(policy))
    return found.take_all(entries, lambda decision: policy.name)


def replay_as_recorded(
    entries: Iterable[Entry],
    make: Callable[[str], Policy],
    is_there: Callable[[str], bool] = lambda name: True,
) -> Replay:
    """Ask the recorded policies again, each at its own turns. One begins anew, as on the query, where another one or
    another bound begins to be held.

    Args:
        make: makes a policy of its name, with its options behind it.
        is_there: whether it can; turns of other policies are counted and left out.
    """
    found = _Replaying(
        lambda entry, sla: (entry.run, name_policy(entry.decision), sla),
        lambda decision: make(name_policy(decision)),
        is_there,
    )
    return found.take_all(entries, name_policy)


def name_policy(decision: Decision) -> str:
    """Return who decided, with its options where the journal has them."""
    return decision.stated or decision.policy


class _Replaying:
    """Asks policy after policy.

    Args:
        key_of: what is the same at two turns in a row that one policy decided with all that it remembered.
        make: makes a policy that remembers nothing.
        is_there: whether there is a policy of a name.
    """

    def __init__(
        self,
        key_of: Callable[[Entry, SLA], tuple[object, ...]],
        make: Callable[[Decision], Policy],
        is_there: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._key_of, self._make, self._is_there = key_of, make, is_there
        self._key: tuple[object, ...] | None = None
        self._policy: Policy | None = None

    def take_all(self, entries: Iterable[Entry], name_of: Callable[[Decision], str]) -> Replay:
        told: dict[str, _Told] = {}
        differences: list[Difference] = []
        unregistered: Counter[str] = Counter()
        for entry in entries:
            name = name_of(entry.decision)
            if not self._is_there(name):
                unregistered[name] += entry.decision.count
                self._key = None  # whoever is held after this stretch begins anew
                continue
            found = told.setdefault(name, _Told(name)).take(entry, self._policy_for)
            differences += [found] if found is not None else []
        return Replay(
            ", ".join(told),
            sum(one.decided for one in told.values()),
            sum(one.skipped for one in told.values()),
            sum(one.actions_recorded for one in told.values()),
            sum(one.actions_decided for one in told.values()),
            tuple(differences),
            sum(one.missing_turns for one in told.values()),
            tuple(one.derive_tally() for one in told.values()),
            unregistered,
        )

    def _policy_for(self, entry: Entry, sla: SLA) -> Policy:
        key = self._key_of(entry, sla)
        if self._policy is None or key != self._key:
            self._key, self._policy = key, self._make(entry.decision)
        return self._policy


class _Told:
    """Counts what comes of entry after entry that one policy is asked about."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.decided = self.differing = self.skipped = self.missing_turns = 0
        self.actions_recorded = self.actions_decided = 0

    def take(self, entry: Entry, policy_for: Callable[[Entry, SLA], Policy]) -> Difference | None:
        """Decide an entry again; return the first turn at which something else is wanted."""
        differs: Difference | None = None
        asked = acted = False
        turns = 0
        for turn in entry.all_turns():
            turns += 1
            proposal = _ask(entry, turn, policy_for(entry, turn.inputs.sla))
            if proposal is None:
                continue
            asked, acted = True, acted or not _is_idle(proposal.plan)
            if differs is None and not same_plan(turn.inputs.plan, proposal.plan):
                differs = _describe(entry, turn, proposal, self.policy)
        self.missing_turns += max(entry.decision.count - turns, 0)
        self.decided += asked
        self.skipped += not asked
        if asked and entry.inputs is not None:
            self.actions_recorded += not _is_idle(entry.inputs.plan)
        self.actions_decided += acted
        self.differing += differs is not None
        return differs

    def derive_tally(self) -> Tally:
        return Tally(
            self.policy,
            self.decided,
            self.differing,
            self.skipped,
            self.actions_recorded,
            self.actions_decided,
        )


def _ask(entry: Entry, turn: Turn, policy: Policy) -> Proposal | None:
    """Tell a policy all that it was told at a turn, and ask it; None where it was not asked."""
    inputs = turn.inputs
    for failure in inputs.failures:
        policy.note_failure(failure)
    if inputs.rolls_back is not None:
        policy.note_failure(entry.decision.symptom)
    if inputs.rolls_back is not None or inputs.estimate.invalid is not None:
        if turn.refused is not None:
            policy.note_failure(turn.refused)
        return None
    proposal = policy.propose(inputs.estimate, inputs.sla, inputs.limits)
    if not _is_idle(proposal.plan) and (turn.refused is not None or inputs.plan is None):
        policy.note_failure(turn.refused or "it was not carried out in the recorded run")
    return proposal


def _describe(entry: Entry, turn: Turn, proposal: Proposal, policy: str) -> Difference:
    decision = entry.decision
    return Difference(
        decision.number, turn.inputs.estimate.at_s, f"{decision.symptom}; {decision.action}",
        f"{proposal.symptom}; {proposal.action}", decision.predicted_s, proposal.predicted_s, entry.run, policy,
        _derive_unix_s(decision, turn),
    )  # fmt: skip


def _derive_unix_s(decision: Decision, turn: Turn) -> float | None:
    if decision.unix_s is None:
        return None
    return decision.unix_s + turn.inputs.estimate.at_s - decision.at_s


def same_plan(one: Plan | None, other: Plan | None) -> bool:
    """Whether two plans want the same; a plan that changes nothing is none."""
    if one is None or other is None or _is_idle(one) or _is_idle(other):
        return _is_idle(one) and _is_idle(other)
    plain = [each.name for each in fields(Plan) if each.name != "executors"]
    if any(getattr(one, name) != getattr(other, name) for name in plain) or set(one.executors) != set(
        other.executors
    ):
        return False
    pairs = [(plan, other.executors[name]) for name, plan in one.executors.items()]
    return all(dict(a.tasks) == dict(b.tasks) and np.array_equal(a.task_of, b.task_of) for a, b in pairs)


def _is_idle(plan: Plan | None) -> bool:
    return plan is None or plan.changes_nothing
