"""What a user and the control loop do about cores, nodes and shards of a running query.

Manual requests become plans by the same rules as those of a policy, and go the same way. Builds plans, carries out
none: `applying` does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.control.apply.actuator import Outcome
from penstock.control.apply.journal import Decision, Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import NodeSample, Sample
from penstock.control.measure.smoothing import Adapting
from penstock.control.model.fitting import EpochFits
from penstock.control.plan.capacity import OperatorRate, derive_rates
from penstock.control.plan.guards import Guards
from penstock.control.plan.placing import plan_executor
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.plan.shards import Shards
from penstock.control.policy.protocol import Limits, Policy
from penstock.control.policy.registry import make_policy
from penstock.dataplane.metrics import read_all, success_of
from penstock.dataplane.program import operator_of
from penstock.dataplane.sojourns import Success
from penstock.dataplane.splitting import Pass, executors_of, plan_merge, plan_split
from penstock.errors import PlanError
from penstock.spark.applying import SparkActuator, current_plans
from penstock.spark.control_metrics import CONTROL
from penstock.spark.journal_file import JournalFile
from penstock.spark.measuring import judge_by, take_sample
from penstock.spark.nodes import negotiator
from penstock.spark.slots import LOCAL_NODE, is_local, nodes, real_cores
from penstock.spark.steering import Steering
from penstock.topology.sla import SLA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.dataplane.engine import Engine
    from penstock.spark.shell import SparkShell

RATE_LOOKS = 4
"""Samples over which rates are measured when a person asks."""


class Elasticity:
    """The elastic side of one running query."""

    def __init__(self, shell: SparkShell, spark: SparkSession, query: str) -> None:
        self._shell = shell
        self._spark = spark
        self._query = query
        self._actuator = SparkActuator(shell, None if is_local(spark) else negotiator(spark))
        self._steering: Steering | None = None
        self.journal = ""
        """File that decisions are appended to; none where it is empty."""
        self.every_s = 1.0
        """Time between two turns of the control loop."""
        self.max_nodes = 0
        """Nodes that a policy may bring the application to; 0: as many as were there at once."""
        self._most_nodes = 1
        self._file: JournalFile | None = None
        self._sampled_s = 0.0
        self._cores = real_cores(spark) if is_local(spark) else 0

    # -- by hand ------------------------------------------------------------------------------------------------------

    def rescale(self, operator: str, cores: int, wanted: Mapping[str, int] | None) -> str:
        """Plan this many cores for an operator and begin to carry it out."""
        if cores < 1:
            raise PlanError(
                f"'{operator}' must keep at least one core, not {cores}; stop or pause the query instead."
            )
        if wanted is not None and sum(wanted.values()) != cores:
            raise PlanError(f"'{operator}': the cores of {dict(wanted)} do not add up to {cores}.")
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
        there = len(now.task_of)
        wrong = [shard for shard in shards if not 0 <= shard < there]
        if wrong:
            raise PlanError(f"'{operator}' has no shard {wrong[0]}; it has {there}, numbered from 0.")
        task_of = now.task_of.copy()
        task_of[list(shards)] = task
        self._actuator.apply(Plan({operator: ExecutorPlan(now.tasks, task_of)}))
        return f"{len(shards)} shards of '{operator}' go to task {task}"

    def _executor_with(self, operator: str, shards: Sequence[int]) -> tuple[str, ExecutorPlan]:
        """The executor of an operator that has all of these shards; its only one, where nobody does."""
        current = self._actuator.current()
        mine = {name: plan for name, plan in current.items() if operator in (name, operator_of(name))}
        for name, plan in mine.items():
            if all(0 <= shard < len(plan.task_of) and plan.task_of[shard] >= 0 for shard in shards):
                return name, plan
        if not mine:
            raise PlanError(f"'{operator}' is no operator, or an executor that has no shards.")
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

    # -- by the loop --------------------------------------------------------------------------------------------------

    def hold(self, sla: SLA, policy: str, every_s: float | None = None) -> None:
        """Begin to hold a bound, or hold another one, or by another policy, from the next turn on."""
        chosen = make_policy(policy)
        self._shell.hub.ask(lambda: judge_by(self._shell.engine, sla))
        if self._steering is not None:
            self._steering.loop.change_sla(sla)
            self._steering.loop.use(chosen)
            self._steering.loop.guards = guards_of(chosen)
            return
        loop = ControlLoop(
            Measurer(Measuring(smoothing=Adapting()), fit=EpochFits()),
            chosen,
            sla,
            self._limits(),
            guards_of(chosen),
            self._actuator,
            Journal(write=self._open_journal()),
        )
        self._steering = Steering(loop, self._take, every_s or self.every_s, self._refresh)

    def _open_journal(self) -> Callable[[bytes], None] | None:
        if not self.journal:
            return None
        self._file = JournalFile(self.journal)
        return self._file.add

    def rates(self, seconds: float = 2.0) -> tuple[list[OperatorRate], str]:
        """Measure for some seconds what arrives at each operator and what one core of it serves.

        Raises:
            PlanError: nothing can be said yet, and why.
        """
        measurer = Measurer()
        now = self._measure(measurer)
        for _ in range(RATE_LOOKS):
            time.sleep(seconds / RATE_LOOKS)
            now = self._measure(measurer)
        if now is None or now.invalid is not None:
            raise PlanError(
                f"no rates yet: {now.invalid if now is not None else 'the query is over'}; try again later."
            )
        return derive_rates(now), f"rates of the last {seconds:g} s; {self._errors()}"

    def _measure(self, measurer: Measurer) -> Estimate | None:
        if self._shell.over:
            return None
        there, since = self._nodes(), time.monotonic() - 1.0
        sample: Sample = self._shell.hub.ask(lambda: take_sample(self._shell.engine, there, since))
        return measurer.measure(sample)

    def _errors(self) -> str:
        """How far predictions were off so far."""
        errors = self._steering.loop.journal.model_errors() if self._steering is not None else {}
        told = [
            f"{name}: {one.count} predictions, off by {one.mean_absolute_ratio:.0%} on average"
            for name, one in errors.items()
        ]
        return ", ".join(told) or "no prediction was checked against a measurement so far"

    def success(self) -> dict[str, Success]:
        """Return, by operator that is judged, the (shard, window) pairs that met the SLA since it is held."""

        def look() -> dict[str, Success]:
            engine = self._shell.engine
            found = {name: success_of(engine, name, engine.now()) for name in engine.program.stages}
            return {name: one for name, one in found.items() if one is not None}

        told: dict[str, Success] = self._shell.hub.ask(look)
        return told

    def control(self) -> dict[str, Any] | None:
        """Return the metrics of the control loop; None where no bound is held."""
        return read_all(CONTROL, self._steering.loop) if self._steering is not None else None

    def describe(self) -> list[str]:
        """Return a line for every task (operator, index, node, shards and rows so far), one for every operator that an SLA
        is held for, the errors of models, and where leases came up."""

        def look() -> list[str]:
            engine = self._shell.engine
            return [
                f"{name} task {index} on node {node or 'none yet'}: {int((plan.task_of == index).sum())} of "
                f"{int((plan.task_of >= 0).sum())} shards, {engine.runs[name].counts.task_rows.get(index, 0):,} rows"
                for name, plan in current_plans(engine).items()
                for index, node in plan.tasks.items()
            ]

        landed, elsewhere = self._shell.landed
        placed = f"leases asked for on a node: {landed} came up there, {elsewhere} elsewhere"
        held = [
            f"{name}: the SLA was met by {one.met:,} of {one.judged:,} (shard, window) pairs"
            + (f", {one.ratio:.2%}" if one.ratio is not None else "")
            for name, one in self.success().items()
        ]
        errors = [self._errors()] if held else []
        return [*self._shell.hub.ask(look), *held, *errors, *([placed] if landed or elsewhere else [])]

    def decisions(self) -> tuple[Decision, ...]:
        """Return what was decided so far."""
        return self._steering.loop.journal.decisions() if self._steering is not None else ()

    def close(self) -> None:
        """End the loop, if there is one."""
        if self._steering is not None:
            self._steering.close()
        if self._file is not None:
            self._file.close()

    def _take(self) -> Sample | None:
        if self._shell.over:
            return None
        there = self._nodes()
        since = self._sampled_s
        sample: Sample = self._shell.hub.ask(lambda: take_sample(self._shell.engine, there, since))
        self._sampled_s = sample.at_s
        return sample

    def _refresh(self, loop: ControlLoop) -> None:
        loop.limits = self._limits()

    def _limits(self) -> Limits:
        engine = self._shell.engine
        sources = sum(len(run.slots) for run in engine.runs.values() if run.spec.kind == "source")
        there = self._nodes()
        self._most_nodes = max(self._most_nodes, len(there))
        # In local mode Spark is told of more slots than there are cores; those are not for a policy to give.
        cores = (
            min(engine.placing.capacity, self._cores) if self._cores else engine.placing.capacity - sources
        )
        return Limits(
            max(1, cores),
            max_nodes=len(there)
            if is_local(self._spark)
            else max(self.max_nodes or self._most_nodes, len(there)),
            cores_per_node=max(node.cores for node in there),
            redeals=True,
        )

    def _nodes(self) -> list[NodeSample]:
        loads = self._shell.node_loads
        if is_local(self._spark):
            return [_node(LOCAL_NODE, max(1, min(self._shell.engine.placing.capacity, self._cores)), loads)]
        return [_node(one.executor_id, one.cores, loads) for one in nodes(self._spark)]


def spread_cores(shards: Shards, cores: int, room: Mapping[str, int]) -> dict[str, int]:
    """Return cores per node: those held stay where they are, new ones go to the nodes that the operator is on already,
    then to those with most room; cores are taken first where it has fewest.

    Raises:
        PlanError: the nodes have fewer.
    """
    if sum(room.values()) < cores:
        raise PlanError(
            f"'{shards.executor}' cannot have {cores} cores: the nodes have {sum(room.values())} for it; ask for fewer, or "
            "add nodes."
        )
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


def guards_of(policy: Policy) -> Guards:
    """Return the guards that a policy runs with on a query; one that remembers what it did needs less hysteresis."""
    return Guards(hysteresis_s=float(getattr(policy, "keep_s", Guards().hysteresis_s)))


def _shards(engine: Engine, operator: str) -> Shards:
    run, plan = engine.runs[operator], current_plans(engine)[operator]
    sizes = (run.chain.snapshot_bytes + run.chain.delta_bytes).astype(np.int64)
    return Shards(operator, run.counts.busy_s.copy(), plan.task_of, plan.tasks, sizes)


def _node(name: str, cores: int, loads: Mapping[str, tuple[float, float, float]]) -> NodeSample:
    return NodeSample(name, cores, *loads.get(name, (0.0, 0.0, 0.0)))
