"""What a user asks of a running query: cores for an operator, shards for a task, executors split or merged, nodes drained.

Each request becomes a plan by the same rules as those of a policy, and goes the same way. Builds plans, carries out none:
`applying` does, or the engine where executors are dealt anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.control.apply.actuator import Outcome
from penstock.control.plan.placing import plan_executor
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.plan.shards import Shards
from penstock.dataplane.program import operator_of
from penstock.dataplane.splitting import Pass, executors_of, plan_merge, plan_split
from penstock.errors import PlanError
from penstock.spark.applying import SparkActuator, current_plans
from penstock.spark.slots import LOCAL_NODE, is_local, nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.dataplane.engine import Engine
    from penstock.spark.shell import SparkShell


class ByHand:
    """Requests of a person to one running query; each returns what was begun or done, in a sentence.

    Raises:
        PlanError: every method, where it cannot be done, and why; nothing has changed.
    """

    def __init__(self, shell: SparkShell, spark: SparkSession, actuator: SparkActuator) -> None:
        self._shell = shell
        self._spark = spark
        self._actuator = actuator

    def rescale(self, operator: str, cores: int, wanted: Mapping[str, int] | None) -> str:
        """Plan this many cores for an operator and begin to carry it out."""
        shards, room = self._shell.hub.ask(
            lambda: (
                [
                    _shards(self._shell.engine, run.spec.name)
                    for run in executors_of(self._shell.engine, operator)
                ],
                self._room(operator),
            )
        )
        if wanted is not None and len(shards) > 1:
            names = ", ".join(one.executor for one in shards)
            raise PlanError(f"'{operator}' has the executors {names}; say the nodes of one of them.")
        check_room(operator, cores, room, wanted)
        plans, moved = {}, 0
        for one, share in zip(shards, share_cores(operator, shards, cores), strict=True):
            placed = plan_executor(
                one, dict(wanted) if wanted is not None else spread_cores(one, share, room)
            )
            plans[one.executor] = placed.plan
            moved += len(placed.balance.moves)
            room = {node: free - placed.plan.cores_by_node().get(node, 0) for node, free in room.items()}
        self._actuator.apply(Plan(plans))
        before = sum(len(one.tasks) for one in shards)
        return f"'{operator}' goes from {before} to {cores} cores; {moved} of its shards move"

    def split(self, operator: str) -> str:
        """Begin to let an operator have one executor more."""
        return self._pass(lambda engine: plan_split(engine, operator))

    def merge(self, operator: str) -> str:
        """Begin to let an operator have one executor less."""
        return self._pass(lambda engine: plan_merge(engine, operator))

    def _pass(self, plan: Callable[[Engine], Pass]) -> str:
        def begin() -> Pass:
            found = plan(self._shell.engine)
            self._shell.engine.redeal(found.giver, found.taker, found.shards, found.tasks)
            return found

        one = self._shell.hub.ask(begin)
        return f"{len(one.shards)} shards of '{one.giver}' pass to '{one.taker}' with {one.tasks} cores"

    def move(self, operator: str, shards: Sequence[int], task: int) -> str:
        """Give shards to a task."""
        operator, now = self._executor_with(operator, shards)
        if task not in now.tasks:
            raise PlanError(f"'{operator}' has no task {task}; it has {', '.join(map(str, now.tasks))}.")
        task_of = now.task_of.copy()
        task_of[list(shards)] = task
        self._actuator.apply(Plan({operator: ExecutorPlan(now.tasks, task_of)}))
        return f"{len(shards)} shards of '{operator}' go to task {task}"

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
                f"shards {', '.join(map(str, shards))} are not all in one executor of '{operator}', which has "
                f"{', '.join(mine)}; a shard moves between tasks of its executor."
            )
        return next(iter(mine.items()))

    def drain(self, node: str, release: bool, timeout_s: float) -> str:
        """Plan all tasks off a node, wait until they are, and give it back if that is wanted."""
        known = [one.executor_id for one in nodes(self._spark)]
        if node not in known:
            raise PlanError(f"there is no node {node}; the nodes there are: {', '.join(known)}.")
        if known == [node]:
            raise PlanError(f"node {node} is the only one; add another before you drain it.")
        self._shell.chores.check_capacity()
        plan = self._shell.hub.ask(lambda: self._off(node))
        try:
            ticket = self._actuator.apply(Plan(plan, release_nodes=(node,) if release else ()))
        except PlanError:
            self._shell.hub.ask(lambda: self._shell.engine.placing.serving.avoid.discard(node))
            raise
        deadline = time.monotonic() + timeout_s
        outcome = self._await(ticket, timeout_s)
        if not outcome.ok:
            self._shell.hub.ask(lambda: self._shell.engine.placing.serving.avoid.discard(node))
            raise PlanError(f"node {node} was not drained: {outcome.reason}.")
        while self._shell.hub.ask(lambda: self._leases_on(node)):
            if time.monotonic() > deadline:
                raise PlanError(
                    f"node {node} still has leases of this query after {timeout_s:g} s; they go as they end."
                )
            time.sleep(0.02)
        given = " and given back" if release else ""
        return f"node {node} drained{given}: {outcome.moved_shards} shards moved, {outcome.moved_bytes:,} bytes copied"

    def _leases_on(self, node: str) -> int:
        return sum(lease.node == node for lease in self._shell.engine.leases.values())

    def _off(self, node: str) -> dict[str, ExecutorPlan]:
        """Plans that take all operators off a node; where the others have no slots for all its cores, they have fewer."""
        engine, serving = self._shell.engine, self._shell.engine.placing.serving
        serving.avoid.add(node)
        held = Counter(lease.node for lease in engine.leases.values())
        free = {
            one: slots - held[one] for one, slots in serving.node_slots.items() if one not in serving.avoid
        }
        # Some slots are kept for ingest and sinks, on whichever node.
        left = serving.capacity - serving.node_slots.get(node, 0) - (len(engine.leases) - held[node])
        found = {}
        for name, run in engine.runs.items():
            shards = None
            if run.spec.kind == "operator" and len(run.shards.mine()):
                shards = _shards(engine, name)
            if shards is not None and node in shards.tasks.values():
                cores = take_off(Counter(shards.tasks.values()), node, free, left)
                left -= sum(cores.values()) - sum(one != node for one in shards.tasks.values())
                found[name] = plan_executor(shards, cores).plan
        return found

    def _await(self, ticket: object, timeout_s: float) -> Outcome:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            outcome = self._actuator.status(ticket)  # type: ignore[arg-type]
            if outcome is not None:
                return outcome
            time.sleep(0.02)
        return Outcome(False, f"it was not done within {timeout_s:g} s and goes on")

    def _room(self, operator: str) -> dict[str, int]:
        """Cores that each node can still give to an operator, those it has there included."""
        engine = self._shell.engine
        held = Counter(
            engine.leases[slot.lease].node
            for slot in engine.placing.slots()
            if slot.lease in engine.leases and operator not in (slot.stage, operator_of(slot.stage))
        )
        if is_local(self._spark):
            return {LOCAL_NODE: max(engine.placing.capacity - held[LOCAL_NODE], 1)}
        return {one.executor_id: max(one.cores - held[one.executor_id], 0) for one in nodes(self._spark)}


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
            f"'{operator}' cannot have {cores} cores: the nodes have {sum(room.values())} for it; ask for fewer, or "
            "add nodes."
        )


def spread_cores(shards: Shards, cores: int, room: Mapping[str, int]) -> dict[str, int]:
    """Return cores per node: those held stay where they are, new ones go to the nodes that the operator is on already,
    then to those with most room; cores are taken first where it has fewest.

    Raises:
        PlanError: the nodes have fewer.
    """
    check_room(shards.executor, cores, room)
    held = Counter(dict.fromkeys(room, 0))
    held.update(shards.tasks.values())
    while sum(held.values()) > cores:
        held[min((n for n in held if held[n]), key=lambda node: (held[node], node))] -= 1
    while sum(held.values()) < cores:
        free = [node for node in room if room[node] > held[node]]
        held[max(free, key=lambda node: (held[node] > 0, room[node] - held[node]))] += 1
    return {node: count for node, count in held.items() if count}


def share_cores(operator: str, executors: Sequence[Shards], cores: int) -> list[int]:
    """Return the cores of each executor of an operator: one each, the rest by load, the busiest for its cores first.

    Raises:
        PlanError: there are fewer cores than executors.
    """
    if cores < len(executors):
        raise PlanError(
            f"'{operator}' has {len(executors)} executors and cannot have {cores} cores; merge some first."
        )
    loads = [float(one.load.sum()) + 1e-9 for one in executors]
    share = [1] * len(executors)
    for _ in range(cores - len(executors)):
        share[max(range(len(share)), key=lambda at: loads[at] / share[at])] += 1
    return share


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


def _shards(engine: Engine, operator: str) -> Shards:
    run, plan = engine.runs[operator], current_plans(engine)[operator]
    sizes = (run.chain.snapshot_bytes + run.chain.delta_bytes).astype(np.int64)
    return Shards(operator, run.counts.busy_s.copy(), plan.task_of, plan.tasks, sizes)
