"""What a user asks of a running query: cores for an operator, shards for a task, executors split or merged, nodes drained.

Each request becomes a plan by the same rules as those of a policy, and goes the same way. Builds plans, carries out none:
`applying` does, or the engine where executors are dealt anew.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.control.apply.actuator import Ticket
from penstock.control.plan.placing import plan_executor
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.plan.shards import Shards
from penstock.dataplane.asked_plans import is_overtaken
from penstock.dataplane.program import operator_of
from penstock.dataplane.splitting import Pass, executors_of, plan_merge, plan_split
from penstock.errors import PlanError
from penstock.spark.applying import SparkActuator, shards_of
from penstock.spark.node_draining import GoesOn, NodeDraining
from penstock.spark.slots import LOCAL_NODE, is_local, nodes
from penstock.words import counted, listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.dataplane.engine import Engine
    from penstock.spark.shell import SparkShell

_log = logging.getLogger("penstock")


class ByHand:
    """Requests of a person to one running query; each returns what was begun or done, in a sentence.

    Args:
        note: is told in a sentence what a person asked for and what came of it, for the journal.

    Raises:
        PlanError: every method, where it cannot be done, and why; nothing has changed.
    """

    def __init__(
        self,
        shell: SparkShell,
        spark: SparkSession,
        actuator: SparkActuator,
        note: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._shell = shell
        self._spark = spark
        self._actuator = actuator
        self._note = note
        self._draining = NodeDraining(
            shell, actuator, lambda: [one.executor_id for one in nodes(self._spark)]
        )
        self._begun: list[tuple[Ticket, str]] = []
        self._guard = threading.Lock()

    def drain(self, node: str, release: bool, timeout_s: float) -> str:
        """Take everything off a node, wait until it is, and give the node back if that is wanted."""
        try:
            return self._said(self._draining.drain(node, release, timeout_s))
        except GoesOn as late:
            self._await(late.ticket, f"node {node} is drained{' and given back' if release else ''}")
            raise

    def undrain(self, node: str) -> str:
        """Let tasks be put on a node again that was drained."""
        return self._said(self._draining.undrain(node))

    def _begin(self, plan: Plan, sentence: str) -> str:
        self._await(self._actuator.apply(plan), sentence)
        return self._said(sentence)

    def _await(self, ticket: Ticket, sentence: str) -> None:
        with self._guard:
            self._begun.append((ticket, sentence))

    def _said(self, sentence: str) -> str:
        self._note(sentence)
        return sentence

    def follow_up(self) -> None:
        """Look what came of plans that were begun: one that was given up later is logged, and goes to the journal."""
        for one in list(self._begun):
            ticket, sentence = one
            outcome = self._actuator.status(ticket)
            if (
                outcome is not None
                and ticket.nodes is not None
                and (outcome.ok or is_overtaken(outcome.reason))
            ):
                outcome = self._actuator.status(ticket.nodes)
            if outcome is None:
                continue
            with self._guard:
                self._begun.remove(one)
            if not outcome.ok:
                goes_on = "" if is_overtaken(outcome.reason) else "given up, and what ran before goes on: "
                told = f"{goes_on}{sentence}: {outcome.reason}"
                _log.warning("%s", told)
                self._note(told)

    def rescale(self, operator: str, cores: int, wanted: Mapping[str, int] | None) -> str:
        """Plan this many cores for an operator and begin to carry it out."""
        self._refuse_drained(operator, wanted or {})
        shards, room, drained = self._shell.hub.ask(
            lambda: (
                [
                    shards_of(self._shell.engine, run.spec.name)
                    for run in executors_of(self._shell.engine, operator)
                ],
                self._room(operator),
                set(self._shell.engine.serving.avoid),
            )
        )
        if wanted is not None and len(shards) > 1:
            names = ", ".join(one.executor for one in shards)
            raise PlanError(f"'{operator}' has the executors {names}; say the nodes of one of them.")
        check_executors(operator, len(shards), room, drained)
        check_room(operator, cores, room, wanted)
        spread = [dict(wanted)] if wanted is not None else spread_executors(operator, shards, cores, room)
        placed = [plan_executor(one, found) for one, found in zip(shards, spread, strict=True)]
        plans = {one.executor: found.plan for one, found in zip(shards, placed, strict=True)}
        moved = sum(len(found.balance.moves) for found in placed)
        before = sum(len(one.tasks) for one in shards)
        moving = f"{moved} of its shards {'moves' if moved == 1 else 'move'}"
        going = (
            f"goes from {before} to {counted(cores, 'core')}"
            if cores != before
            else f"keeps {counted(cores, 'core')}"
        )
        return self._begin(Plan(plans), f"'{operator}' {going}; {moving}")

    def _refuse_drained(self, operator: str, wanted: Mapping[str, int]) -> None:
        drained = self._shell.hub.ask(lambda: set(self._shell.engine.serving.avoid))
        for node in wanted:
            if node in drained:
                raise PlanError(
                    f"'{operator}' cannot have cores on node {node}, which is drained; name another node, or undrain it: "
                    f"query.undrain('{node}'), or penstock query undrain."
                )

    def split(self, operator: str) -> str:
        """Begin to let an operator have one executor more."""

        def plan(engine: Engine) -> Pass:
            found = plan_split(engine, operator)
            added, cores = cores_of_split(engine, found)
            if added:
                check_split(found, cores, self._most(operator_of(found.giver)))
            return found

        return self._pass(plan)

    def merge(self, operator: str) -> str:
        """Begin to let an operator have one executor less."""
        return self._pass(lambda engine: plan_merge(engine, operator))

    def _pass(self, plan: Callable[[Engine], Pass]) -> str:
        def begin() -> Pass:
            found = plan(self._shell.engine)
            self._shell.engine.redeal(found.giver, found.taker, found.shards, found.tasks)
            return found

        one = self._shell.hub.ask(begin)
        passing = f"{counted(len(one.shards), 'shard')} of '{one.giver}' {'passes' if len(one.shards) == 1 else 'pass'}"
        return self._said(f"{passing} to '{one.taker}' with {counted(one.tasks, 'core')}")

    def move(self, operator: str, shards: Sequence[int], task: int) -> str:
        """Give shards to a task."""
        if not len(shards):
            raise PlanError(f"'{operator}': name at least one shard to move.")
        operator, now = self._executor_with(operator, shards)
        if task not in now.tasks:
            raise PlanError(f"'{operator}' has no task {task}; it has {listed(now.tasks)}.")
        task_of = now.task_of.copy()
        task_of[list(shards)] = task
        number = len({*shards})
        going = f"{counted(number, 'shard')} of '{operator}' {'goes' if number == 1 else 'go'}"
        return self._begin(Plan({operator: ExecutorPlan(now.tasks, task_of)}), f"{going} to task {task}")

    def _executor_with(self, operator: str, shards: Sequence[int]) -> tuple[str, ExecutorPlan]:
        """The executor of an operator that has all of these shards; its only one, where nobody does."""
        current = self._actuator.current()
        mine = {name: plan for name, plan in current.items() if operator in (name, operator_of(name))}
        if not mine:
            raise PlanError(f"'{operator}' is no operator, or an executor that has no shards.")
        there = len(next(iter(mine.values())).task_of)
        wrong = [shard for shard in shards if not 0 <= shard < there]
        if wrong:
            raise PlanError(f"'{operator}' has no shard {wrong[0]}; it has {there}, numbered from 0.")
        for name, plan in mine.items():
            if all(plan.task_of[shard] >= 0 for shard in shards):
                return name, plan
        if len(mine) > 1:
            raise PlanError(
                f"shards {listed(shards)} are not all in one executor of '{operator}', which has "
                f"{', '.join(mine)}; a shard moves between tasks of its executor."
            )
        return next(iter(mine.items()))

    def _most(self, operator: str) -> int:
        """Cores that an operator can have in all, those it has included: a few slots stay free for ingest and sinks, and
        what others were promised is theirs."""
        serving = self._shell.engine.serving
        beside = serving.leases_beside(lambda stage: operator in (stage, operator_of(stage)))
        others = sum(count for node, count in beside.items() if node not in serving.avoid)
        others += self._promised_beside(operator)
        drained = sum(node in serving.avoid for node in serving.nodes_of_leases().values())
        return min(sum(self._room(operator).values()), max(serving.capacity - drained - others, 1))

    def _promised_beside(self, operator: str) -> int:
        """Cores that others than an operator wait for, or will once the splits that are on their way are done."""
        engine = self._shell.engine
        waiting = engine.serving.awaiting_beside(lambda stage: operator in (stage, operator_of(stage)))
        return waiting + engine.redealing.cores_to_come_beside(operator)

    def _room(self, operator: str) -> dict[str, int]:
        """Cores that each node can still give to an operator, those it has there included."""
        serving = self._shell.engine.serving
        held = serving.leases_beside(lambda stage: operator in (stage, operator_of(stage)))
        if is_local(self._spark):
            promised = self._promised_beside(operator)
            return {LOCAL_NODE: max(serving.capacity - held[LOCAL_NODE] - promised, 1)}
        slots = {one.executor_id: one.cores for one in nodes(self._spark)}
        slots.update({node: count for node, count in serving.node_slots.items() if node in slots})
        return {
            node: max(count - held[node], 0)
            for node, count in slots.items()
            if node not in serving.avoid | serving.silent
        }


def check_room(
    operator: str, cores: int, room: Mapping[str, int], wanted: Mapping[str, int] | None = None
) -> None:
    """Refuse more cores than there are, before anything is dealt, and nodes that are not there.

    Raises:
        PlanError: it says what there is.
    """
    unknown = [node for node in wanted or () if node not in room]
    if unknown:
        raise PlanError(
            f"'{operator}': there is no node {unknown[0]}; the nodes there are: {', '.join(sorted(room))}."
        )
    if sum(room.values()) < cores:
        raise PlanError(
            f"'{operator}' cannot have {counted(cores, 'core')}: the nodes have {sum(room.values())} for it; ask for "
            "fewer, or add nodes."
        )


def check_executors(operator: str, executors: int, room: Mapping[str, int], drained: Collection[str]) -> None:
    """Refuse any number of cores where there is none for some executor of an operator.

    Raises:
        PlanError: it says what each needs, what there is, and what would make room.
    """
    there = sum(room.values())
    if executors > max(there, 1):
        more = f"undrain node {listed(sorted(drained))}" if drained else "add nodes"
        raise PlanError(
            f"'{operator}' needs at least {executors} cores for its {executors} executors, and the nodes have room for "
            f"{there}: merge some first, or {more}."
        )


def cores_of_split(engine: Engine, found: Pass) -> tuple[int, int]:
    """Return how many cores more a split takes, and how many its operator has then. An executor of several tasks gives
    some of them away; one that has a single task keeps it, and the new executor needs one of its own."""
    operator = operator_of(found.giver)
    giver = engine.runs[found.giver].shards
    staying = np.setdiff1d(giver.mine(), found.shards)
    added = len({*giver.goal[staying].tolist()}) + found.tasks - len({*giver.goal[giver.mine()].tolist()})
    held = sum(len({*run.shards.goal[run.shards.mine()].tolist()}) for run in executors_of(engine, operator))
    return added, held + engine.redealing.tasks_to_come(operator) + added


def check_split(found: Pass, cores: int, there: int) -> None:
    """Refuse a split that needs more cores than there are.

    Raises:
        PlanError: it says how many there are.
    """
    if cores > there:
        raise PlanError(
            f"'{found.giver}' has one task, and to split it takes one core more, {counted(cores, 'core')} for "
            f"'{operator_of(found.giver)}': the nodes have {there} for it; merge some, give other operators "
            "fewer, or add nodes."
        )


def spread_cores(shards: Shards, cores: int, room: Mapping[str, int]) -> dict[str, int]:
    """Return cores per node: those held stay where they are, new ones go to the nodes that the operator is on already,
    then to those with most room; cores are taken first where it has fewest.

    Raises:
        PlanError: the nodes have fewer.
    """
    check_room(shards.executor, cores, room)
    held = keep_cores(shards, cores)
    while sum(held.values()) < cores:
        free = [node for node in room if room[node] > held[node]]
        held[max(free, key=lambda node: (held[node] > 0, room[node] - held[node]))] += 1
    return {node: count for node, count in held.items() if count}


def spread_executors(
    operator: str, executors: Sequence[Shards], cores: int, room: Mapping[str, int]
) -> list[dict[str, int]]:
    """Return cores per node of each executor of an operator; what one keeps of those it has is not given to another.

    Raises:
        PlanError: the nodes have fewer, or there are more executors.
    """
    shares = share_cores(operator, executors, cores)
    taken = [keep_cores(one, share) for one, share in zip(executors, shares, strict=True)]
    for at, (one, share) in enumerate(zip(executors, shares, strict=True)):
        others = sum((found for number, found in enumerate(taken) if number != at), Counter[str]())
        free = {node: max(0, count - others[node]) for node, count in room.items()}
        taken[at] = Counter(spread_cores(one, share, free))
    return [dict(found) for found in taken]


def keep_cores(shards: Shards, cores: int) -> Counter[str]:
    """Return the cores per node that an executor keeps of those it has; they are taken first where it has fewest."""
    held = Counter(shards.tasks.values())
    while sum(held.values()) > cores:
        held[min((n for n in held if held[n]), key=lambda node: (held[node], node))] -= 1
    return held


def share_cores(operator: str, executors: Sequence[Shards], cores: int) -> list[int]:
    """Return the cores of each executor of an operator: one each, the rest by load, the busiest for its cores first.

    Raises:
        PlanError: there are fewer cores than executors.
    """
    if cores < len(executors):
        raise PlanError(
            f"'{operator}' has {len(executors)} executors and cannot have {counted(cores, 'core')}; merge some first."
        )
    loads = [float(one.load.sum()) + 1e-9 for one in executors]
    share = [1] * len(executors)
    for _ in range(cores - len(executors)):
        share[max(range(len(share)), key=lambda at: loads[at] / share[at])] += 1
    return share
