"""Decide a recorded run again, from its journal, and say where decisions differ. Pure; nothing is carried out.

Every entry is decided on its own recorded estimate, so later entries show the run as it was, not as it would have
become under the other policy. Of a run of equal decisions the first is decided again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from penstock.control.apply.journal import Entry
from penstock.control.plan.plan import Plan
from penstock.control.policy.protocol import Policy


@dataclass(frozen=True)
class Difference:
    """A turn at which the policy wants something else than was recorded."""

    number: int
    at_s: float
    recorded: str
    """As it was proposed then, whether or not it was carried out."""
    decided: str
    recorded_predicted_s: float | None = None
    decided_predicted_s: float | None = None


@dataclass(frozen=True)
class Replay:
    """What came of deciding again."""

    policy: str
    decided: int
    skipped: int
    """Entries on which no policy was asked: invalid measurements, roll-backs, and those without inputs."""
    actions_recorded: int
    actions_decided: int
    differences: tuple[Difference, ...]


def replay(entries: Iterable[Entry], policy: Policy) -> Replay:
    """Ask a policy again at every recorded turn, in order."""
    differences: list[Difference] = []
    decided = skipped = recorded_actions = decided_actions = 0
    for entry in entries:
        inputs, decision = entry.inputs, entry.decision
        if inputs is None or inputs.estimate.invalid is not None or inputs.rolls_back is not None:
            skipped += 1
            continue
        proposal = policy.propose(inputs.estimate, inputs.sla, inputs.limits)
        decided += 1
        recorded_actions += inputs.plan is not None
        decided_actions += proposal.plan is not None
        if not same_plan(inputs.plan, proposal.plan):
            differences.append(
                Difference(
                    decision.number, decision.at_s, f"{decision.symptom}; {decision.action}",
                    f"{proposal.symptom}; {proposal.action}", decision.predicted_s, proposal.predicted_s,
                )
            )  # fmt: skip
        if proposal.plan is not None and (decision.refused is not None or inputs.plan is None):
            policy.note_failure(decision.refused or "it was not carried out in the recorded run")
    return Replay(policy.name, decided, skipped, recorded_actions, decided_actions, tuple(differences))


def same_plan(one: Plan | None, other: Plan | None) -> bool:
    """Whether two plans want the same; a plan that changes nothing is none."""
    if one is None or other is None or one.changes_nothing or other.changes_nothing:
        return (one is None or one.changes_nothing) and (other is None or other.changes_nothing)
    plain = [each.name for each in fields(Plan) if each.name != "executors"]
    if any(getattr(one, name) != getattr(other, name) for name in plain) or set(one.executors) != set(
        other.executors
    ):
        return False
    pairs = [(plan, other.executors[name]) for name, plan in one.executors.items()]
    return all(dict(a.tasks) == dict(b.tasks) and np.array_equal(a.task_of, b.task_of) for a, b in pairs)
