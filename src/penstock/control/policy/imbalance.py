"""When an executor out of balance should be balanced: soon where rows are late, later where they are not, never on one
look at a noisy load."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.control.plan.balancing import THETA, plan_balance
from penstock.control.plan.shards import Balance, derive_shards
from penstock.control.policy.elastic_turn import Turn

NEAR_LIMIT = 0.85
"""Load of a task from which imbalance is answered soon, though rows are not late yet."""

FAR_RATIO = 1.25
"""δ beyond this many θ is answered at once."""

FINE = 1.02
"""δ to balance to by moves inside a node, which copy no state and take milliseconds."""

FINE_THETA = 1.08
"""θ of an executor on one node in which rows are late: what imbalance costs is throughput, and moves are cheap."""

FINE_PATIENCE = 5
"""Turns in a row for which δ must have been above that: shares learned from few rows are no better than that."""

MIN_GAIN = 0.05
"""δ must be lowered by so much to be worth a move."""


@dataclass
class ImbalanceWatch:
    """Remembers for how many turns in a row each executor has been out of balance.

    Args:
        patience: turns to wait while rows are not late and no task is near its limit.
    """

    theta: float = THETA
    patience: int = 3
    max_moves: int | None = None
    cheap: bool = True
    """Whether a plan that moves shards inside a node costs next to nothing: it does not stop all rows."""
    _turns: dict[str, int] = field(default_factory=dict)

    @property
    def goal(self) -> float:
        """δ to balance to, halfway from θ to 1: stopping at θ, noise would call for it again at once."""
        return (1 + self.theta) / 2

    def look(self, turn: Turn) -> None:
        """Take note of every executor's δ. Call once a turn."""
        self._turns = {
            name: self._turns.get(name, 0) + 1
            for name, delta in turn.deltas.items()
            if delta > self._theta_of(turn, name)
        }

    def _theta_of(self, turn: Turn, name: str) -> float:
        """Return from which δ on an executor is balanced."""
        one_node = len({task.node for task in turn.now.executors[name].tasks}) == 1
        return (
            min(self.theta, FINE_THETA) if self.cheap and one_node and turn.is_pressed(name) else self.theta
        )

    def goal_of(self, turn: Turn, name: str) -> float:
        """Return the δ to balance an executor to by any move."""
        return min(self.goal, (1 + self._theta_of(turn, name)) / 2)

    def is_due(self, turn: Turn, name: str) -> bool:
        """Say whether an executor should be balanced now."""
        delta = turn.deltas.get(name, 1.0)
        near_limit = delta * turn.stations.loads.get(name, 0.0) > NEAR_LIMIT * turn.cores.get(name, 1)
        if delta <= self.theta:
            return self._turns.get(name, 0) >= FINE_PATIENCE
        if not (turn.is_pressed(name) or near_limit):
            return self._turns.get(name, 0) >= self.patience
        return self._turns.get(name, 0) >= (1 if delta > FAR_RATIO * self.theta else 2)

    def plan(self, turn: Turn) -> dict[str, Balance]:
        """Return what is worth doing for those that are due."""
        found = {}
        for name, executor in sorted(turn.now.executors.items()):
            if self.is_due(turn, name):
                balance = plan_balance(
                    derive_shards(executor), self.goal_of(turn, name), self.max_moves, FINE
                )
                if is_worth_it(balance):
                    found[name] = balance
        return found

    def forget(self) -> None:
        self._turns.clear()


def is_worth_it(balance: Balance) -> bool:
    return balance.delta_before - balance.delta_after >= MIN_GAIN
