"""Changing a running query from outside: hand it a plan, wait for it, and see how long rows were held up meanwhile.

Uses what the control loop uses, so that a figure here is a figure of the loop's actions. Decides nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.control.apply.actuator import Outcome
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.dataplane.latency import Latency
from penstock.dataplane.placement import ShardMove
from penstock.errors import PenstockError


class ChangeError(PenstockError):
    """A plan was not carried out, or took too long; the message says which."""


@dataclass(frozen=True)
class Change:
    """One plan that was carried out. `gap_s` is the longest time from one commit of the operator to its next, from just
    before the change to just after it."""

    outcome: Outcome
    moves: tuple[ShardMove, ...]
    gap_s: float
    latency: Latency | None = None
    """Of all rows committed from the beginning of the change to just after it, from their arrival at the source."""

    @property
    def held_up_s(self) -> float:
        """How long no commit was made at all, or a shard took no part in them, at most."""
        return max([self.gap_s, *(move.held_up_s for move in self.moves)])

    def late_s(self, usual_ms: float) -> float:
        """How much later than usual the slowest row of the change was committed; what the machine adds by chance counts
        as if the change had added it."""
        return max(0.0, (self.latency.max_ms - usual_ms) / 1e3) if self.latency is not None else 0.0


def await_that(
    holds: Callable[[], bool], what: str, timeout_s: float, query: Any, every_s: float = 0.001
) -> None:
    """Wait until something holds; look so often.

    Raises:
        ChangeError: it did not in time, or the query ended.
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > deadline:
            raise ChangeError(f"{what} did not happen within {timeout_s:.0f} s.")
        time.sleep(every_s)


def apply_plan(query: Any, plan: Plan, timeout_s: float = 90.0) -> Outcome:
    """Carry out a plan and wait for it.

    Raises:
        ChangeError: it was refused or not carried out in time.
    """
    actuator = query.elasticity._actuator
    ticket = actuator.apply(plan)
    found: list[Outcome] = []

    def is_done() -> bool:
        outcome = actuator.status(ticket)
        found.extend([outcome] if outcome is not None else [])
        return bool(found)

    await_that(is_done, "the plan", timeout_s, query)
    if not found[0].ok:
        raise ChangeError(f"the plan was not carried out: {found[0].reason}.")
    return found[0]


def await_epochs(query: Any, operator: str, epochs: int, timeout_s: float = 60.0) -> None:
    """Wait until an operator has committed so many more epochs."""
    wanted = query.lastProgress["operators"][operator]["epochs"] + epochs

    def is_there() -> bool:
        time.sleep(0.02)
        return bool(query.lastProgress["operators"][operator]["epochs"] >= wanted)

    await_that(is_there, f"{epochs} epochs of '{operator}'", timeout_s, query)


def engine_of(query: Any) -> Any:
    return query.elasticity._shell.engine


def ask(query: Any, question: Callable[[Any], Any]) -> Any:
    """Ask the engine something, in the thread where nothing changes meanwhile."""
    return query.elasticity._shell.hub.ask(lambda: question(engine_of(query)))


def longest_gap_s(commits: Sequence[float]) -> float:
    """Return the longest time between two commits; 0 where there are fewer."""
    return max((later - earlier for earlier, later in itertools.pairwise(commits)), default=0.0)


def watch_change(query: Any, operator: str, change: Callable[[], Outcome], margin_s: float = 0.5) -> Change:
    """Make a change and look at the commits of an operator from a while before it to a while after."""
    began, made = ask(query, lambda engine: (engine.now(), engine.placing.moves.made))
    outcome = change()
    time.sleep(margin_s)
    return ask(query, lambda engine: _look(engine, operator, outcome, (began, margin_s, made)))  # type: ignore[no-any-return]


def _look(engine: Any, operator: str, outcome: Outcome, before: tuple[float, float, int]) -> Change:
    began, margin_s, moves_before = before
    made = engine.placing.moves.made - moves_before
    moves = list(engine.placing.moves.last)[-made:] if made else []
    log = engine.latency[operator]
    gap_s = longest_gap_s(log.commits(began - margin_s))
    return Change(outcome, tuple(one for one in moves if one.stage == operator), gap_s, log.since(began))


def plan_move(query: Any, operator: str, shard: int, task: int, pause: bool = False) -> Plan:
    """Return the plan that gives one shard to a task and leaves the rest as it is."""
    now = query.elasticity._actuator.current()[operator]
    task_of = now.task_of.copy()
    task_of[shard] = task
    return Plan({operator: ExecutorPlan(now.tasks, task_of)}, global_pause=pause)


def shard_sizes(query: Any, operator: str) -> Any:
    """Return the bytes of state of each shard, as the chain knows them."""

    def look(engine: Any) -> Any:
        chain = engine.runs[operator].chain
        return np.asarray(chain.snapshot_bytes + chain.delta_bytes)

    return ask(query, look)
