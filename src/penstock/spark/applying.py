"""Carries out plans on Spark: tasks and shards through the engine, nodes through `negotiating`. Decides nothing.

A plan is checked whole and handed to the engine in one piece, in the hub's thread, so that one that is refused leaves no
trace. What came of it is read from what the engine has done since.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.plan.plan import ExecutorPlan, Pass, Plan
from penstock.control.plan.shards import Shards
from penstock.dataplane.engine import Engine
from penstock.dataplane.placement import Placement
from penstock.dataplane.program import operator_of
from penstock.dataplane.shards import NOBODY
from penstock.dataplane.state.protocol import U16
from penstock.errors import PlanError
from penstock.spark.negotiating import NodeWork
from penstock.spark.nodes import Negotiator
from penstock.spark.shell import SparkShell

PAUSED_S = 30.0
PAUSED_STEP_S = 0.005
"""How long rows stand still at most for a plan that asks for it, and the time between two looks whether it can go on."""
KEPT = 200
"""Plans whose outcome can be asked for."""
Deal = tuple[str, str, U16, int]
"""Giver, taker, shards and tasks of one pass."""


@dataclass
class Begun:
    """A plan that is being carried out, or the part of it that a ticket stands for."""

    at_s: float
    stages: tuple[str, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    """Of the plan of each stage, as the engine counts them."""
    moves_before: int = 0
    nodes: NodeWork | None = None
    problems: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    paused: str = ""
    """In whose name stages stand still while it is carried out."""
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

    def apply(self, plan: Plan, marked: Collection[str] = ()) -> Ticket:
        """Begin to carry out a plan. Where it asks for cores and for nodes, the nodes have a ticket of their own.

        Args:
            marked: nodes that were marked as drained for it; the mark goes if they are to be given back and stay.

        Raises:
            PlanError: it cannot be carried out; nothing has changed.
        """
        if (plan.add_nodes or plan.release_nodes) and self._negotiator is None:
            raise PlanError("this session has no nodes to add or to release; use a cluster.")
        placements = [_placement(name, wanted) for name, wanted in plan.executors.items()]
        with self._guard:
            number = self._count = self._count + 1
        begun, fresh = self._begin_informed(placements, plan, f"plan {number}")
        nodes = self._begin_nodes(plan, {*marked, *fresh}, begun)
        if plan.global_pause:
            threading.Thread(
                target=self._carry_paused, args=(begun,), name="penstock-paused", daemon=True
            ).start()
        with self._guard:
            self._begun = {one: kept for one, kept in self._begun.items() if one > number - KEPT}
            self._begun[number] = begun
        return Ticket(number, nodes)

    def _begin_nodes(self, plan: Plan, marked: Collection[str], begun: Begun) -> Ticket | None:
        """Begin with the nodes of a plan; on its own ticket where they are all that it asks for."""
        if not plan.add_nodes and not plan.release_nodes:
            return None
        assert self._negotiator is not None
        if not begun.stages and not begun.dealt:
            begun.nodes = NodeWork(self._shell, self._negotiator, plan, marked)
            return None
        work = NodeWork(self._shell, self._negotiator, plan, marked, lambda: self._stand_still(begun))
        with self._guard:
            number = self._count = self._count + 1
            self._begun[number] = Begun(begun.at_s, nodes=work)
        return Ticket(number)

    def _begin_informed(
        self, placements: list[Placement], plan: Plan, name: str
    ) -> tuple[Begun, Collection[str]]:
        """Begin; what is refused is tried once more after a look at what Spark has now: a node may just have come."""
        try:
            return self._shell.hub.ask(lambda: self._begin(placements, plan, name))
        except PlanError:
            self._shell.chores.check_capacity()
            return self._shell.hub.ask(lambda: self._begin(placements, plan, name))

    def _begin(self, placements: list[Placement], plan: Plan, name: str) -> tuple[Begun, Collection[str]]:
        """Check all of a plan, then begin with all of it; return the nodes that were marked as drained for it, too."""
        engine = self._shell.engine
        deals = [_deal(engine, one) for one in plan.passes]
        _check_apart(placements, deals)
        engine.redealing.check(deals)
        engine.serving.check(placements)
        marked = _check_release(engine, plan.release_nodes)
        stages = tuple(one.stage for one in placements)
        begun = Begun(engine.now(), stages, moves_before=engine.placing.moves.made)
        begun.dealt = tuple(operator_of(giver) for giver, _, _, _ in deals)
        engine.serving.avoid |= marked
        if not plan.global_pause:
            engine.place(placements)
            begun.numbers = engine.placing.plans.numbers_of(stages)
        else:
            begun.placements = tuple(placements)
            begun.paused = name
            engine.pause(_upstream(engine, begun.stages), name)
        for giver, taker, shards, tasks in deals:
            engine.redeal(giver, taker, shards, tasks)
        return begun, marked

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
                begun.numbers = engine.placing.plans.numbers_of(begun.stages)
                begun.placements = ()
            return False
        return all(engine.placing.is_over(*one) for one in begun.numbers.items())

    def _go_on(self, begun: Begun) -> None:
        begun.placements = ()
        self._shell.engine.resume(list(self._shell.engine.runs), begun.paused)
        begun.paused = ""

    def moves_in_flight(self) -> int:
        """Return how many shards are on their way to another task now, whatever plan wants it."""
        return self._shell.hub.ask(
            lambda: sum(len(run.shards.displaced()) for run in self._shell.engine.runs.values())
        )

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

    def _stand_still(self, begun: Begun) -> bool:
        """Whether a plan is over, and no shard of what it concerned is on its way any more, for whatever plan."""
        runs = [run for name, run in self._shell.engine.runs.items() if name in begun.stages]
        return self._look(begun) is not None and not any(len(run.shards.displaced()) for run in runs)

    def _look(self, begun: Begun) -> Outcome | None:
        engine = self._shell.engine
        if begun.paused:
            return None
        if any(map(engine.redealing.is_under_way, begun.dealt)):
            return None
        refused = [
            why for one in begun.numbers.items() if (why := engine.placing.plans.why_not(*one)) is not None
        ]
        if not refused and not all(engine.placing.is_over(*one) for one in begun.numbers.items()):
            return None
        nodes = begun.nodes.outcome() if begun.nodes is not None else Outcome(True)
        if nodes is None:
            return None
        made = engine.placing.moves.made - begun.moves_before
        moves = (
            [one for one in list(engine.placing.moves.last)[-made:] if one.stage in begun.stages]
            if made
            else []
        )
        reasons = [*refused, *begun.problems, *([nodes.reason] if not nodes.ok else [])]
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


def shards_of(engine: Engine, executor: str) -> Shards:
    """Return what a plan for an executor is made from: its tasks and the load, task and size of each shard."""
    run, plan = engine.runs[executor], current_plans(engine)[executor]
    sizes = (run.chain.snapshot_bytes + run.chain.delta_bytes).astype(np.int64)
    return Shards(executor, run.counts.busy_s.copy(), plan.task_of, plan.tasks, sizes)


def _placement(name: str, wanted: ExecutorPlan) -> Placement:
    tasks: dict[int, str | None] = {index: node or None for index, node in wanted.tasks.items()}
    return Placement(name, tasks, np.where(wanted.task_of < 0, NOBODY, wanted.task_of).astype(np.uint16))


def _deal(engine: Engine, one: Pass) -> Deal:
    """What a pass asks of the engine; the taker of a new executor has a name by now."""
    wrong = [shard for shard in one.shards if not 0 <= shard < NOBODY]
    if wrong:
        raise PlanError(f"'{one.giver}' has no shard {wrong[0]} to pass on.")
    shards = np.array(one.shards, np.uint16)
    run = engine.runs.get(one.giver)
    goal = run.shards.goal if run is not None else shards
    tasks = len({*goal[shards[shards < len(goal)]].tolist()})
    return one.giver, one.taker or engine.redealing.next_name(operator_of(one.giver)), shards, tasks


def _check_apart(placements: Sequence[Placement], deals: Sequence[Deal]) -> None:
    """Refuse a plan that both places an executor and deals its shards: which of the two comes first would matter."""
    dealt = {name for giver, taker, _, _ in deals for name in (giver, taker)}
    for one in placements:
        if one.stage in dealt:
            raise PlanError(
                f"'{one.stage}' cannot be given tasks and pass on or get shards in one plan; ask for one after the other."
            )


def _check_release(engine: Engine, names: Collection[str]) -> set[str]:
    """Refuse to give back all nodes that tasks may be on; return those that are not marked as drained yet."""
    usable = engine.serving.usable_nodes()
    if names and not usable - set(names):
        raise PlanError(
            f"node {', '.join(names)} cannot be given back: no other node is there that is not drained; add or "
            "undrain one before."
        )
    return set(names) & usable


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
    # Rows for a stage that is paused wait until it goes on: there is nothing to wait for.
    flowing = [name for name in stages if not engine.runs[name].paused]
    waiting = any(any(engine.chains.waiting(engine.chains[name]).values()) for name in flowing)
    return not waiting and all(engine.runs[name].phase == "idle" for name in (*upstream, *stages))
