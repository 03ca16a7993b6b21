"""Carries out plans on Spark: tasks and shards through the engine, nodes through the negotiator. Decides nothing.

A plan is handed to the engine in one piece, in the hub's thread; nodes are acquired and released in a thread of their
own, since Spark takes seconds for it. What came of a plan is read from what the engine has done since.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.dataplane.engine import Engine
from penstock.dataplane.placement import Placement
from penstock.dataplane.program import operator_of
from penstock.dataplane.shards import NOBODY
from penstock.errors import PlanError
from penstock.spark.nodes import Negotiator
from penstock.spark.shell import SparkShell

_log = logging.getLogger("penstock")
PAUSED_S = 30.0
PAUSED_STEP_S = 0.005
"""How long rows stand still at most for a plan that asks for it, and the time between two looks whether it can go on."""


@dataclass
class Begun:
    """A plan that is being carried out."""

    at_s: float
    stages: tuple[str, ...]
    moves_before: int
    nodes: threading.Thread | None = None
    problems: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    paused: tuple[str, ...] = ()
    """Stages that stand still while it is carried out."""
    placements: tuple[Placement, ...] = ()
    """What is done once they stand still."""
    dealt: tuple[str, ...] = ()
    """Operators whose executors are split or merged."""


class SparkActuator:
    """Carries out plans on one running query. Any thread but the hub's."""

    def __init__(self, shell: SparkShell, negotiator: Negotiator | None = None) -> None:
        self._shell = shell
        self._negotiator = negotiator
        self._begun: dict[int, Begun] = {}
        self._count = 0
        self._guard = threading.Lock()

    def apply(self, plan: Plan) -> Ticket:
        """Begin to carry out a plan.

        Raises:
            PlanError: it cannot be carried out; nothing has changed.
        """
        if (plan.add_nodes or plan.release_nodes) and self._negotiator is None:
            raise PlanError("this session has no nodes to add or to release; use a cluster.")
        placements = [_placement(name, wanted) for name, wanted in plan.executors.items()]
        begun = self._begin_informed(placements, plan)
        if plan.add_nodes or plan.release_nodes:
            begun.nodes = threading.Thread(
                target=self._negotiate, args=(plan, begun), name="penstock-nodes", daemon=True
            )
            begun.nodes.start()
        if plan.global_pause:
            threading.Thread(
                target=self._carry_paused, args=(begun,), name="penstock-paused", daemon=True
            ).start()
        with self._guard:  # the control loop, requests and the user each have a thread
            self._count += 1
            self._begun = {number: one for number, one in self._begun.items() if number > self._count - 100}
            self._begun[self._count] = begun
            return Ticket(self._count)

    def _begin_informed(self, placements: list[Placement], plan: Plan) -> Begun:
        """Begin; what is refused is tried once more after a look at what Spark has now: a node may just have come."""
        try:
            return self._shell.hub.ask(lambda: self._begin(placements, plan))
        except PlanError:
            self._shell.chores.check_capacity()
            return self._shell.hub.ask(lambda: self._begin(placements, plan))

    def _begin(self, placements: list[Placement], plan: Plan) -> Begun:
        engine = self._shell.engine
        begun = Begun(engine.now(), tuple(one.stage for one in placements), engine.placing.moves.made)
        begun.dealt = tuple(operator_of(one.giver) for one in plan.passes)
        for one in plan.passes:
            run = engine.runs[one.giver]
            shards = np.array(one.shards, np.uint16)
            taker = one.taker or engine.redealing.next_name(operator_of(one.giver))
            engine.redeal(one.giver, taker, shards, len({*run.shards.goal[shards].tolist()}))
        if not plan.global_pause:
            engine.place(placements)
        else:
            engine.placing.check(placements)
            begun.placements = tuple(placements)
            begun.paused = _upstream(engine, begun.stages)
            engine.pause(begun.paused)
        return begun

    def _carry_paused(self, begun: Begun) -> None:
        """Do the steps of a plan for which rows stand still as soon as each can be done; go on in any case."""
        pause = threading.Event()
        try:
            for _ in range(round(PAUSED_S / PAUSED_STEP_S)):
                if self._shell.over or self._shell.hub.ask(lambda: self._step_paused(begun)):
                    return
                pause.wait(PAUSED_STEP_S)
            begun.problems.append(f"rows stood still for {PAUSED_S:g} s, and it was not done")
        except Exception as error:
            begun.problems.append(f"{type(error).__name__}: {error}")
        finally:
            if not self._shell.over:
                self._shell.hub.post(lambda: self._go_on(begun))

    def _step_paused(self, begun: Begun) -> bool:
        """One look at a plan for which rows stand still; whether it is done."""
        engine = self._shell.engine
        if begun.placements:
            if _stands_still(engine, begun.stages):
                engine.place(begun.placements)
                begun.placements = ()
            return False
        return all(engine.placing.is_settled(name) for name in begun.stages)

    def _go_on(self, begun: Begun) -> None:
        begun.placements = ()
        self._shell.engine.resume(begun.paused)
        begun.paused = ()

    def _negotiate(self, plan: Plan, begun: Begun) -> None:
        assert self._negotiator is not None
        try:
            if plan.add_nodes:
                change = self._negotiator.acquire(len(self._negotiator.nodes()) + plan.add_nodes)
                begun.problems += [change.problem] if change.problem else []
                _log.info("%s", change)
            if plan.release_nodes:
                self._release(plan.release_nodes, begun)
        except Exception as error:
            begun.problems.append(f"{type(error).__name__}: {error}")

    def _release(self, names: tuple[str, ...], begun: Begun) -> None:
        """Give nodes back once nothing of this query is on them any more."""
        assert self._negotiator is not None
        pause = threading.Event()
        for _ in range(600):
            left = self._shell.hub.ask(lambda: [n for n in names if n in _nodes_in_use(self._shell.engine)])
            # A lease that the engine let go of, or that has not come up yet, is on its way out of the node.
            if not left and not (change := self._negotiator.release(names)).in_use:
                begun.problems += [change.problem] if change.problem else []
                _log.info("%s", change)
                return
            pause.wait(0.1)
        begun.problems.append(f"node {', '.join(names)} was not drained in time and is kept")

    def current(self) -> Mapping[str, ExecutorPlan]:
        """Return what every elastic executor looks like, or is on its way to."""
        return self._shell.hub.ask(lambda: current_plans(self._shell.engine))

    def status(self, ticket: Ticket) -> Outcome | None:
        """Return what came of a plan; None while it is being carried out."""
        begun = self._begun.get(ticket.number)
        if begun is None:
            return Outcome(True, "it was long ago")
        if begun.outcome is None:
            begun.outcome = self._shell.hub.ask(lambda: self._look(begun))
        return begun.outcome

    def _look(self, begun: Begun) -> Outcome | None:
        engine = self._shell.engine
        if begun.paused:
            return None
        if any(map(engine.redealing.is_under_way, begun.dealt)):
            return None
        refused = [why for name in begun.stages if (why := engine.placing.why_not(name)) is not None]
        if not refused and not all(engine.placing.is_settled(name) for name in begun.stages):
            return None
        if begun.nodes is not None and begun.nodes.is_alive():
            return None
        made = engine.placing.moves.made - begun.moves_before
        moves = (
            [one for one in list(engine.placing.moves.last)[-made:] if one.stage in begun.stages]
            if made
            else []
        )
        reasons = [*refused, *begun.problems]
        return Outcome(
            not reasons,
            "; ".join(reasons),
            len(moves),
            sum(one.bytes for one in moves),
            max((one.held_up_s for one in moves), default=0.0),
            engine.now() - begun.at_s,
        )


def current_plans(engine: Engine) -> dict[str, ExecutorPlan]:
    """Return the tasks of every executor that are to stay, the node of each, and its shards."""
    found = {}
    for name, run in engine.runs.items():
        if run.spec.kind == "operator" and len(run.shards.mine()):
            tasks = {
                slot.index: engine.leases[slot.lease].node if slot.lease in engine.leases else slot.node or ""
                for slot in run.slots.values()
                if not slot.leaving
            }
            goal = run.shards.goal.astype(np.int32)
            found[name] = ExecutorPlan(tasks, np.where(goal == NOBODY, -1, goal).astype(np.int32))
    return found


def _placement(name: str, wanted: ExecutorPlan) -> Placement:
    tasks: dict[int, str | None] = {index: node or None for index, node in wanted.tasks.items()}
    return Placement(name, tasks, np.where(wanted.task_of < 0, NOBODY, wanted.task_of).astype(np.uint16))


def _upstream(engine: Engine, stages: tuple[str, ...]) -> tuple[str, ...]:
    """Return all stages that rows of these come from, sources included."""
    found: set[str] = set()
    todo = list(stages)
    while todo:
        for given in engine.runs[todo.pop()].spec.inputs:
            if given.producer not in found:
                found.add(given.producer)
                todo.append(given.producer)
    return tuple(sorted(found - set(stages)))


def _stands_still(engine: Engine, stages: tuple[str, ...]) -> bool:
    """Whether nothing waits for these stages and nothing upstream of them is at work."""
    upstream = _upstream(engine, stages)
    waiting = any(any(engine.chains.waiting(engine.chains[name]).values()) for name in stages)
    return not waiting and all(engine.runs[name].phase == "idle" for name in (*upstream, *stages))


def _nodes_in_use(engine: Engine) -> set[str]:
    return {lease.node for lease in engine.leases.values()}
