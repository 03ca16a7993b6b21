"""Whoever carries plans out: the `Actuator` protocol, and what came of a plan. Spark and the simulator implement it.

The loop calls it and decides nothing here; an actuator carries out and decides nothing either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.control.plan.plan import ExecutorPlan, Plan


@dataclass(frozen=True)
class Ticket:
    """Stands for one plan that is being carried out."""

    number: int
    nodes: Ticket | None = None
    """Stands for the nodes of the plan, where they come and go on their own; None where this one stands for all."""


@dataclass(frozen=True)
class Outcome:
    """What came of a plan."""

    ok: bool
    reason: str = ""
    """Why it was not carried out, or not wholly; empty where it was."""
    moved_shards: int = 0
    moved_bytes: int = 0
    """State that was copied between nodes."""
    held_up_s: float = 0.0
    """The longest time for which rows of a shard had to wait because of it."""
    took_s: float = 0.0
    """From `apply` until the last change had taken effect."""


class Actuator(Protocol):
    """Carries out plans on a data plane."""

    def apply(self, plan: Plan) -> Ticket:
        """Begin to carry out a plan and return at once.

        Raises:
            PlanError: it cannot be carried out, and why. Nothing was changed; the plan before it goes on.
        """

    def current(self) -> Mapping[str, ExecutorPlan]:
        """Return what every elastic executor looks like now."""

    def status(self, ticket: Ticket) -> Outcome | None:
        """Return what came of a plan; None while it is being carried out."""


@runtime_checkable
class CountsMoves(Protocol):
    """An actuator that knows how many shards are on the move; without it, whole plans under way are counted."""

    def moves_in_flight(self) -> int:
        """Return how many shards are on their way to another task now."""
