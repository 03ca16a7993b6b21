"""The cores of this machine that all queries of a local session work on, and how many of them a policy may give to each.

Spark is told of more slots than there are cores, so it keeps no query from those of another. First come, first served:
what a query holds is its own, in the order in which they were started, but for one core for each executor of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.dataplane.engine import Engine
from penstock.errors import PlanError
from penstock.words import counted

if TYPE_CHECKING:
    from penstock.spark.applying import SparkActuator


@dataclass(frozen=True)
class Held:
    """What one query holds: tasks of operators, and the executors that they are of."""

    tasks: int
    executors: int


_engines: list[Engine] = []
"""Of all queries of this process that run, in the order in which they were started."""
_guard = threading.Lock()
_giving = threading.Lock()
"""For whoever gives cores: two queries that grow at the same moment do not both get the last one."""
GIVING_S = 5.0
"""How long a query waits for another that is being given cores; one whose driver thread is stuck holds up no other."""


def join(engine: Engine) -> None:
    """Count a query among those that share the cores."""
    with _guard:
        _engines.append(engine)


def leave(engine: Engine) -> None:
    """Count it no longer; one that was not counted may leave too."""
    with _guard:
        _engines[:] = [one for one in _engines if one is not engine]


def share_of(engine: Engine, cores: int) -> int:
    """Return how many of the session's cores a query may hold. Any thread.

    Args:
        engine: the query's; one that has not joined comes last.
        cores: of the session, all queries together.
    """
    with _guard:
        known = [*_engines] if any(one is engine for one in _engines) else [*_engines, engine]
    at = next(place for place, one in enumerate(known) if one is engine)
    return derive_share([read_held(one) for one in known], at, cores)


def derive_share(held: Sequence[Held], at: int, cores: int) -> int:
    """Return how many cores one of some queries may hold: those granted to it, and all that nobody holds.

    Each is granted what it holds as far as there is, the first before the second, and never less than a core for each
    of its executors; so many are kept for those after it. A query that was started where all cores are held comes down to
    that, and none of those before it gives more than that for it.

    Args:
        held: by query, in the order in which they were started.
        at: which of them is asked for.
    """
    left = cores - sum(one.executors for one in held)
    granted = []
    for one in held:
        more = min(max(one.tasks - one.executors, 0), max(left, 0))
        granted.append(one.executors + more)
        left -= more
    return max(granted[at] + max(left, 0), 1)


def read_held(engine: Engine) -> Held:
    """Read what a query holds, tasks that a plan has just asked for included. Any thread: the hub is not asked."""
    sizes = [len(run.slots) for run in tuple(engine.runs.values()) if run.spec.kind == "operator"]
    return Held(sum(sizes), sum(size > 0 for size in sizes))


class WithinShare:
    """Carries out plans of a policy on one query of a local session, within its share of the cores."""

    def __init__(self, actuator: SparkActuator, share: Callable[[], int]) -> None:
        """`share` returns how many cores the query may hold now."""
        self._actuator, self._share = actuator, share

    def apply(self, plan: Plan) -> Ticket:
        """Begin to carry out a plan.

        Raises:
            PlanError: it cannot be carried out, or another query took the cores since it was made; nothing has changed.
        """
        if not _giving.acquire(timeout=GIVING_S):
            raise PlanError(
                f"plan: another query of the session has been taking cores for {GIVING_S:g} s; tried again later."
            )
        try:
            check_share(plan, self._actuator.current(), self._share())
            return self._actuator.apply(plan)
        finally:
            _giving.release()

    def current(self) -> Mapping[str, ExecutorPlan]:
        return self._actuator.current()

    def status(self, ticket: Ticket) -> Outcome | None:
        return self._actuator.status(ticket)

    def moves_in_flight(self) -> int:
        return self._actuator.moves_in_flight()


def check_share(plan: Plan, current: Mapping[str, ExecutorPlan], share: int) -> None:
    """Refuse a plan by which a query would hold more cores than its share and more than it holds.

    Raises:
        PlanError: how many it would hold, and how many it can.
    """
    held = sum(one.k for one in current.values())
    wanted = sum(one.k for one in {**current, **plan.executors}.values())
    if wanted > max(held, share):
        raise PlanError(
            f"plan: {counted(wanted, 'core')} would be held and other queries of the session leave {share}: "
            "stop one of them, or open a session with more cores."
        )
