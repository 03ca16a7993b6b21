"""Plans that could not be carried out, and how long the next one like it has to wait. Pure memory; asks nobody."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.control.plan.plan import Plan

FIRST_S = 2.0
"""How long a plan that was refused once is not tried again."""
MOST_S = 60.0
"""How long at most, however often it was refused: the wait doubles every time."""


@dataclass(frozen=True)
class _Refused:
    at_s: float
    wait_s: float
    reason: str


class Refusals:
    """Remembers what was refused by those who carry plans out, so that it is not asked for again at every turn.

    Two plans are alike where they give the same cores to the same executors and want the same of nodes; which shard goes
    where may differ, as it does from one noisy measurement to the next. One that failed on the way may have left things
    half done: there another plan, which mends that, is not held back.
    """

    def __init__(self) -> None:
        self._refused: dict[object, _Refused] = {}
        self._tried_s: deque[float] = deque(maxlen=1000)

    def note(self, at_s: float, plan: Plan, reason: str, *, begun: bool = False) -> None:
        """Take in that a plan was refused, or that it failed after it was `begun`."""
        key = _exactly(plan) if begun else _kind(plan)
        before = self._refused.get(key)
        wait_s = FIRST_S if before is None else min(2 * before.wait_s, MOST_S)
        self._refused[key] = _Refused(at_s, wait_s, reason)
        if not begun:  # one that was is counted as an action
            self._tried_s.append(at_s)

    def forgive(self, plan: Plan) -> None:
        """Take in that a plan was carried out after all."""
        for key in (_kind(plan), _exactly(plan)):
            self._refused.pop(key, None)

    def resolve(self, at_s: float, plan: Plan) -> str | None:
        """Return why a plan should not be tried yet, in words; None where it may be. What is long past is forgotten."""
        if not self._refused:
            return None
        self._refused = {
            key: one for key, one in self._refused.items() if at_s - one.at_s <= one.wait_s + MOST_S
        }
        for key in (_kind(plan), _exactly(plan)):
            found = self._refused.get(key)
            left_s = 0.0 if found is None else found.at_s + found.wait_s - at_s
            if found is not None and left_s > 1e-9:
                return f"it failed {at_s - found.at_s:.1f} s ago ({found.reason}), next try in {left_s:.1f} s"
        return None

    def count_since(self, since_s: float) -> int:
        """Return how many attempts came to nothing after a moment."""
        return sum(at_s > since_s for at_s in self._tried_s)


def _kind(plan: Plan) -> object:
    cores = frozenset((name, one.k) for name, one in plan.executors.items())
    passes = frozenset((one.giver, one.taker) for one in plan.passes)
    return cores, plan.add_nodes, plan.release_nodes, frozenset(plan.sla_shares), passes


def _exactly(plan: Plan) -> object:
    shards = frozenset((name, one.task_of.tobytes()) for name, one in plan.executors.items())
    return _kind(plan), shards
