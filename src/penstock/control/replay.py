"""Decide a recorded run again, from its journal, and say where decisions differ. Pure; nothing is carried out.

Every turn is decided on its own recorded estimate, so later ones show the run as it was, not as it would have become
under the other policy. All of them are gone through, those of a run of equal decisions too: policies remember.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import groupby

import numpy as np

from penstock.control.apply.journal import Entry
from penstock.control.apply.turns import Turn
from penstock.control.plan.plan import Plan
from penstock.control.policy.protocol import Policy, Proposal


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


@dataclass(frozen=True)
class Replay:
    """What came of deciding again. Equal decisions in a row count as one, as in the journal."""

    policy: str
    decided: int
    skipped: int
    """Entries on which no policy was asked: invalid measurements, roll-backs, and those without inputs."""
    actions_recorded: int
    actions_decided: int
    differences: tuple[Difference, ...]
    missing_turns: int = 0
    """Turns of which the journal tells no more than that they were: older journals wrote the first of equal ones only. A
    policy that remembers earlier turns may decide otherwise without them."""


def replay(entries: Iterable[Entry], policy: Policy) -> Replay:
    """Ask a policy again at every recorded turn, in order; each run begins with the policy as it is given.

    The same policy with the same options decides the same again.
    """
    told = _Told()
    for _, run in groupby(entries, key=lambda entry: entry.run):
        fresh = deepcopy(policy)
        for entry in run:
            told.take(entry, fresh)
    return Replay(
        policy.name,
        told.decided,
        told.skipped,
        told.actions_recorded,
        told.actions_decided,
        tuple(told.differences),
        told.missing_turns,
    )


class _Told:
    """Counts what comes of entry after entry."""

    def __init__(self) -> None:
        self.differences: list[Difference] = []
        self.decided = self.skipped = self.actions_recorded = self.actions_decided = self.missing_turns = 0

    def take(self, entry: Entry, policy: Policy) -> None:
        differs: Difference | None = None
        asked = acted = False
        turns = 0
        for turn in entry.all_turns():
            turns += 1
            proposal = _ask(entry, turn, policy)
            if proposal is None:
                continue
            asked, acted = True, acted or not _is_idle(proposal.plan)
            if differs is None and not same_plan(turn.inputs.plan, proposal.plan):
                differs = _describe(entry, turn, proposal)
        self.missing_turns += max(entry.decision.count - turns, 0)
        self.decided += asked
        self.skipped += not asked
        if asked and entry.inputs is not None:
            self.actions_recorded += not _is_idle(entry.inputs.plan)
        self.actions_decided += acted
        if differs is not None:
            self.differences.append(differs)


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


def _describe(entry: Entry, turn: Turn, proposal: Proposal) -> Difference:
    decision = entry.decision
    return Difference(
        decision.number, turn.inputs.estimate.at_s, f"{decision.symptom}; {decision.action}",
        f"{proposal.symptom}; {proposal.action}", decision.predicted_s, proposal.predicted_s, entry.run,
    )  # fmt: skip


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
