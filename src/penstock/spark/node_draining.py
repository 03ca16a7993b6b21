"""Takes a query off a node: plans, waits, gives the node back if that is wanted, and lets it be used again.

A node is marked as drained before its plan begins, so that nothing new lands there, and stays so until a person takes the
mark off. Where a drain is refused or fails, the mark goes with it. The engine keeps the marks, so they end with the query:
after a restart no node is drained.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.plan.placing import plan_executor
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.dataplane.asked_plans import is_overtaken
from penstock.errors import PenstockError, PlanError
from penstock.spark.applying import SparkActuator, shards_of
from penstock.spark.negotiating import use_again, who_holds
from penstock.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.spark.shell import SparkShell

LOOK_S = 0.02


class NodeDraining:
    """Drains nodes of one running query.

    Args:
        known: returns the nodes that Spark has now.
    """

    def __init__(
        self, shell: SparkShell, actuator: SparkActuator, known: Callable[[], Sequence[str]]
    ) -> None:
        self._shell = shell
        self._actuator = actuator
        self._known = known

    def drain(self, node: str, release: bool, timeout_s: float) -> str:
        """Plan all tasks off a node, wait until they are, and give it back if that is wanted.

        Raises:
            PlanError: it cannot be done, and why, and nothing has changed; or it goes on for longer than `timeout_s`.
        """
        known = self._known()
        if node not in known:
            raise PlanError(f"there is no node {node}; the nodes there are: {', '.join(known)}.")
        if list(known) == [node]:
            raise PlanError(f"node {node} is the only one; add another before you drain it.")
        deadline = time.monotonic() + timeout_s
        self._shell.chores.check_capacity()
        marked, plan = self._shell.hub.ask(lambda: self._mark(node))
        try:
            wanted = Plan(plan, release_nodes=(node,) if release else ())
            ticket = self._actuator.apply(wanted, [node] if marked else [])
            outcome = self._await(ticket, node, deadline, timeout_s)
            # Where another plan came in between, tasks leave the node all the same: none may be there any more.
            if not outcome.ok and not is_overtaken(outcome.reason):
                raise NotDrained(f"node {node} was not drained: {outcome.reason}.")
        except GoesOn:
            raise
        except PenstockError:
            if marked:
                self._shell.hub.ask(lambda: use_again(self._shell.engine, [node]))
            raise
        while held := self._shell.hub.ask(lambda: who_holds(self._shell.engine, [node])):
            if time.monotonic() > deadline:
                raise _goes_on(ticket, node, timeout_s, held)
            time.sleep(LOOK_S)
        given = " and given back" if release else ""
        moved = f"{counted(outcome.moved_shards, 'shard')} moved, {outcome.moved_bytes:,} bytes copied"
        return f"node {node} drained{given}: {moved}"

    def undrain(self, node: str) -> str:
        """Let tasks be put on a node again that was drained.

        Raises:
            PlanError: it is not drained; it says which are.
        """

        def begin() -> None:
            drained = sorted(self._shell.engine.serving.avoid)
            if node not in drained:
                told = f"drained are: {', '.join(drained)}" if drained else "no node is"
                raise PlanError(f"node {node} is not drained; {told}.")
            use_again(self._shell.engine, [node])

        self._shell.hub.ask(begin)
        self._shell.chores.check_capacity()
        self._shell.chores.wake()
        return f"node {node} may have tasks again; ask for cores there, or let a policy do so"

    def _mark(self, node: str) -> tuple[bool, dict[str, ExecutorPlan]]:
        """Plan everything off a node, then mark it; return whether it was not marked before, and the plans."""
        serving = self._shell.engine.serving
        others = serving.usable_nodes() - {node}
        if not others:
            raise PlanError(
                f"node {node} is the only one that is not drained; undrain another, or add one, before you drain it."
            )
        plan = self._off(node)
        fresh = node not in serving.avoid
        serving.avoid.add(node)
        return fresh, plan

    def _off(self, node: str) -> dict[str, ExecutorPlan]:
        """Plans that take all operators off a node; where the others have no slots for all its cores, they have fewer."""
        engine, serving = self._shell.engine, self._shell.engine.serving
        held = Counter(lease.node for lease in engine.leases.values())
        free = {
            one: serving.node_slots.get(one, 0) - held[one] for one in sorted(serving.usable_nodes() - {node})
        }
        # Some slots are kept for ingest and sinks, on whichever node.
        there = held[node] if node in serving.avoid else serving.node_slots.get(node, 0)
        left = serving.capacity - there - (len(engine.leases) - held[node])
        found = {}
        for name, run in engine.runs.items():
            if run.spec.kind != "operator" or not len(run.shards.mine()):
                continue
            shards = shards_of(engine, name)
            if node in shards.tasks.values():
                cores = take_off(Counter(shards.tasks.values()), node, free, left)
                left -= sum(cores.values()) - sum(one != node for one in shards.tasks.values())
                found[name] = plan_executor(shards, cores).plan
        return found

    def _await(self, ticket: Ticket, node: str, deadline: float, timeout_s: float) -> Outcome:
        """Wait for the cores of a plan, then for its nodes; what fails first is what came of it."""
        moved: Outcome | None = None
        while time.monotonic() < deadline:
            moved = moved or self._actuator.status(ticket)
            if moved is not None:
                given = self._actuator.status(ticket.nodes) if ticket.nodes is not None else moved
                if given is not None:
                    failed = not moved.ok and not is_overtaken(moved.reason)
                    return moved if given.ok or failed else given
            time.sleep(LOOK_S)
        held = self._shell.hub.ask(lambda: who_holds(self._shell.engine, [node]))
        raise _goes_on(ticket, node, timeout_s, held)


class NotDrained(PlanError):
    """A drain was begun, and its node is not drained: that is no refusal."""


class GoesOn(NotDrained):
    """A drain takes longer than somebody waits."""

    ticket: Ticket
    """What came of it can be asked for later."""


def _goes_on(ticket: Ticket, node: str, timeout_s: float, held: str) -> GoesOn:
    why = f": {held}" if held else ""
    late = GoesOn(
        f"node {node} was not drained within {timeout_s:g} s{why}; it goes on, and the node stays drained: wait longer, or "
        f"take it back with undrain."
    )
    late.ticket = ticket
    return late


def take_off(cores: Counter[str], node: str, free: dict[str, int], left: int) -> Counter[str]:
    """Return the cores of an operator without a node: those it had there go where slots are free, as far as they are.

    Args:
        free: slots of each other node that nobody holds; those taken are counted off.
        left: leases that may be had besides those on the other nodes. An operator that has no core elsewhere gets one all
            the same: then a lease serves two tasks.
    """
    kept = Counter({one: count for one, count in cores.items() if one != node and count})
    for number in range(cores[node]):
        there = max(free, key=lambda one: (free[one], one))
        if (free[there] > 0 and number < left) or not kept:
            kept[there] += 1
            free[there] -= 1
    return kept
