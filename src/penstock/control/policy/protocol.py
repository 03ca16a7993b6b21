"""What a policy is: it is asked at every turn of the loop and proposes, never acts.

A `Proposal` without a plan is a decision too, and says why nothing is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from penstock.control.measure.estimate import Estimate
from penstock.control.plan.plan import Plan
from penstock.control.sla import SLA


@dataclass(frozen=True)
class Option:
    """One thing that could be done, what it is predicted to lead to, and what it costs."""

    action: str
    predicted_s: float
    """Latency predicted after it; infinite where the load would not be served."""
    cost_s: float = 0.0
    """What carrying it out costs, as `Proposal.cost_s` is."""
    feasible: bool = True


@dataclass(frozen=True)
class Proposal:
    """What a policy wants at this turn, and why."""

    plan: Plan | None
    """None: leave everything as it is."""
    symptom: str
    """What was seen: `p99 840 ms over 500 ms: task 3 of match holds 41 % of load`."""
    action: str
    """What is proposed, in words: `moved 5 shards to task 1`, or `no change: …`."""
    options: tuple[Option, ...] = ()
    predicted_s: float | None = None
    """Latency predicted after the plan, of what the SLA bounds."""
    urgent: bool = False
    """Whether the cool-down may be skipped: a severe symptom."""
    details: dict[str, float | int | str] = field(default_factory=dict)
    cost_s: float = 0.0
    """Row-seconds of delay that carrying it out causes, for each row a second: `pricing` derives it from what moves."""


@dataclass(frozen=True)
class Limits:
    """What a policy may use at most."""

    max_cores: int
    """Cores that all executors together may hold on the nodes there are."""
    min_nodes: int = 1
    max_nodes: int = 1
    cores_per_node: int = 1
    """Cores that a new node would bring."""
    node_start_s: float = 10.0
    """How long it takes until a new node can be used."""
    move_bytes_per_s: float = 100e6
    """How fast state is copied to another node."""
    redeals: bool = False
    """Whether executors can be split and merged there."""


class Policy(Protocol):
    """Decides from estimates. May keep a memory of earlier turns; reads nothing else.

    One that has options which do not go with every bound may have `check_sla(sla)`, which raises a DeclarationError; it
    is called before the policy is used. One that is told how many cores it may hold at most has that as `k_max`, and no
    roll-back goes beyond it.
    """

    name: str

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        """Return what to do at this turn. Called once a turn, in order of time."""

    def note_failure(self, reason: str) -> None:
        """The last plan was refused or could not be carried out: forget what depended on it."""
