"""The nodes of one plan on Spark: acquired and released in a thread of its own, since Spark takes seconds for it.

Says what came of them. A node that is to go is marked as drained by whoever begins the plan; where it does not go, the mark
is taken off here. Decides nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from penstock.control.apply.actuator import Outcome
from penstock.dataplane.engine import Engine
from penstock.spark.nodes import Negotiator
from penstock.words import listed

if TYPE_CHECKING:
    from penstock.control.plan.plan import Plan
    from penstock.spark.shell import SparkShell

_log = logging.getLogger("penstock")
RELEASE_LOOKS = 600
RELEASE_STEP_S = 0.1
"""How often, and how far apart, it is looked whether a node that is to go is empty, once the cores of its plan are where
they should be: how long state takes to move is nobody's fault."""


class NodeWork:
    """Gets and gives back the nodes that one plan names.

    Args:
        marked: nodes that were marked as drained for this plan; the mark goes if they stay.
        is_settled: whether the cores of the plan are as it wants them, or it was given up. In the hub's thread.
    """

    def __init__(
        self,
        shell: SparkShell,
        negotiator: Negotiator,
        plan: Plan,
        marked: Collection[str] = (),
        is_settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._shell, self._negotiator, self._plan = shell, negotiator, plan
        self._marked = tuple(marked)
        self._is_settled = is_settled
        self._began_s = shell.engine.now()
        self._problems: list[str] = []
        self._thread = threading.Thread(target=self._run, name="penstock-nodes", daemon=True)
        self._thread.start()

    def outcome(self) -> Outcome | None:
        """Return what came of it; None while Spark is at it."""
        if self._thread.is_alive():
            return None
        took_s = self._shell.engine.now() - self._began_s
        return Outcome(not self._problems, "; ".join(self._problems), took_s=took_s)

    def _run(self) -> None:
        try:
            if self._plan.add_nodes:
                change = self._negotiator.acquire(len(self._negotiator.nodes()) + self._plan.add_nodes)
                self._problems += [change.problem] if change.problem else []
                _log.info("%s", change)
            if self._plan.release_nodes:
                problem = self._release(self._plan.release_nodes)
                self._problems += [problem] if problem else []
        except Exception as error:
            self._problems.append(f"{type(error).__name__}: {error}")
        if self._problems and self._marked and not self._shell.over:
            self._shell.hub.post(lambda: use_again(self._shell.engine, self._marked))

    def _release(self, names: tuple[str, ...]) -> str:
        """Give nodes back once nothing of this query is on them any more; return why not, where that is so."""
        pause, held, looks = threading.Event(), "", 0
        while looks < RELEASE_LOOKS:
            held, settled, taken_back = self._shell.hub.ask(lambda: self._look(names))
            if taken_back:
                return f"node {listed(taken_back)} was undrained and is kept"
            looks += settled
            # A lease that the engine let go of, or that has not come up yet, is on its way out of the node.
            if not held:
                change = self._negotiator.release(names)
                if not change.in_use:
                    _log.info("%s", change)
                    return change.problem
                held = change.problem
            pause.wait(RELEASE_STEP_S)
        return f"node {', '.join(names)} was not drained in time and is kept: {held}"

    def _look(self, names: tuple[str, ...]) -> tuple[str, bool, list[str]]:
        """What is on nodes that are to go, whether all that moves has moved, and which may have tasks again."""
        engine = self._shell.engine
        taken_back = sorted(engine.serving.usable_nodes() & {*names})
        return who_holds(engine, names), self._is_settled(), taken_back


def who_holds(engine: Engine, names: Collection[str]) -> str:
    """Return what of a query is on some nodes, in words; nothing where they are empty."""
    leases = {name for name, lease in engine.leases.items() if lease.node in names}
    served = sorted((slot.stage, slot.index) for slot in engine.serving.slots() if slot.lease in leases)
    if served:
        return f"it serves {listed(f'task {index} of {stage!r}' for stage, index in served)}"
    return f"lease {listed(sorted(leases))} is ending" if leases else ""


def use_again(engine: Engine, names: Collection[str]) -> None:
    """Let tasks be on nodes that were drained. In the hub's thread."""
    for name in names:
        engine.serving.use_again(name)
