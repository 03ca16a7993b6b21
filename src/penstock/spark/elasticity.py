"""The elastic side of a running query: its control loop, what that may use, and what it has done; and a user's requests.

Makes the loop and gives it samples and limits. Decides nothing, and carries out no plan: policies and `applying` do.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.control.apply.journal import Decision, Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import NodeSample, Sample
from penstock.control.measure.smoothing import Adapting
from penstock.control.model.fitting import EpochFits
from penstock.control.plan.capacity import OperatorRate, derive_rates
from penstock.control.plan.guards import Guards
from penstock.control.policy.protocol import Limits, Policy
from penstock.control.policy.registry import DEFAULT, make_policy_for, state_policy
from penstock.dataplane.metrics import read_all, success_of
from penstock.dataplane.sojourns import Success
from penstock.errors import PlanError
from penstock.spark.applying import SparkActuator, current_plans
from penstock.spark.arguments import check_bound, check_seconds
from penstock.spark.by_hand import ByHand
from penstock.spark.control_metrics import CONTROL
from penstock.spark.core_shares import WithinShare, share_of
from penstock.spark.hub import HubOver
from penstock.spark.journal_file import JournalFile
from penstock.spark.measuring import judge_by, take_sample
from penstock.spark.nodes import negotiator
from penstock.spark.slots import LOCAL_NODE, is_local, nodes, real_cores
from penstock.spark.steering import Steering
from penstock.topology.sla import SLA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.shell import SparkShell

T = TypeVar("T")

RATE_LOOKS = 4
"""Samples over which rates are measured when a person asks."""


class Elasticity:
    """The elastic side of one running query."""

    def __init__(self, shell: SparkShell, spark: SparkSession, query: str) -> None:
        self._shell = shell
        self._spark = spark
        self._query = query
        self._actuator = SparkActuator(shell, None if is_local(spark) else negotiator(spark))
        self.by_hand = ByHand(shell, spark, self._actuator, self._note)
        """What a user asks for."""
        self._steering: Steering | None = None
        self._holding = threading.Lock()
        """For whoever makes the loop or changes it. What ends the query takes none: the hub may be asked under this one."""
        self.journal = ""
        """File that decisions are appended to; none where it is empty."""
        self.every_s = 1.0
        """Time between two turns of the control loop."""
        self.max_nodes = 0
        """Nodes that a policy may bring the application to; 0: as many as were there at once."""
        self._most_nodes = 1
        self._file: JournalFile | None = None
        self._sampled_s = 0.0
        self._asked: tuple[str, SLA] | None = None
        """Policy and bound that were asked for last: the loop holds them from its next turn on."""
        self._quantile: float | None = None
        """Of latency, where the SLA bounds one."""
        self._cores = real_cores(spark) if is_local(spark) else 0

    def hold(
        self, sla: SLA | float, policy: str = DEFAULT, every_s: float | None = None, **options: Any
    ) -> None:
        """Begin to hold a bound, or hold another one, or by another policy, from the next turn on.

        Args:
            sla: the bound; a number is one of seconds on the mean latency, end to end.
            policy: its name; options may stand behind it, as in `drs:k_max=8`.
            every_s: time between two turns of the control loop, where this is the first bound to be held.
            options: of the policy.

        Raises:
            DeclarationError: a bound, a policy or an option that there cannot be.
            PlanError: the query has ended.
        """
        sla = check_bound(sla)
        if every_s is not None:
            every_s = check_seconds("every_s", every_s)
        chosen = make_policy_for(sla, policy, **options)
        with self._holding:
            self._hold(sla, chosen, state_policy(policy, **options), every_s)

    def _hold(self, sla: SLA, chosen: Policy, stated: str, every_s: float | None) -> None:
        write = self._open_journal() if self._steering is None else None
        self._quantile = None if sla.is_mean else float(sla.quantile)
        self._ask("hold", lambda: judge_by(self._shell.engine, sla))
        if self._steering is not None:
            if stated and (stated, sla) == self._asked:
                return  # what is held already goes on, with all that its policy remembers
            self._asked = stated, sla
            self._steering.loop.hold(sla, chosen, stated, guards_of(chosen))
            return
        loop = ControlLoop(
            Measurer(Measuring(smoothing=Adapting()), fit=EpochFits()),
            chosen,
            sla,
            self._limits(),
            guards_of(chosen),
            WithinShare(self._actuator, self._share) if self._cores else self._actuator,
            Journal(write=write, run=uuid.uuid4().hex, clock=time.time),
        )
        loop.use(chosen, stated)
        self._asked = stated, sla
        self._steering = Steering(loop, self._take, every_s or self.every_s, self._refresh)

    def _open_journal(self) -> Callable[[bytes], None] | None:
        if not self.journal:
            return None
        if self._file is None:
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
        found = derive_rates(now)
        if any(one.rate_per_s > 0 and not one.visits > 0 for one in found):
            raise PlanError(
                f"no rates yet: operators are at work on earlier rows, and none came in for {seconds:g} s; try again later."
            )
        return found, f"rates of the last {seconds:g} s; {self._errors()}"

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
        """Return, by operator that is judged, the (shard, window) pairs that met the SLA since it is held.

        Raises:
            PlanError: the query has ended.
        """

        def look() -> dict[str, Success]:
            engine = self._shell.engine
            found = {name: success_of(engine, name, engine.now()) for name in engine.program.stages}
            return {name: one for name, one in found.items() if one is not None}

        return self._ask("success", look)

    def _ask(self, verb: str, look: Callable[[], T]) -> T:
        """Ask the engine in its own thread, for what a person wants.

        Raises:
            PlanError: the query has ended.
        """
        try:
            return self._shell.hub.ask(look)
        except HubOver:
            raise self._ended(verb) from None

    def _ended(self, verb: str) -> PlanError:
        return PlanError(f"{verb}: the query has ended; start {self._query} again first.")

    def control(self) -> dict[str, Any] | None:
        """Return the metrics of the control loop; None where no bound is held."""
        return read_all(CONTROL, self._steering.loop) if self._steering is not None else None

    def describe(self) -> list[str]:
        """Return a line for every task (operator, index, node, shards and rows so far), one for every operator that an SLA
        is held for, the errors of models, and where leases came up.

        Raises:
            PlanError: the query has ended.
        """

        def look() -> list[str]:
            engine = self._shell.engine
            return [
                f"{name} task {index} on node {node or 'none yet'}: {int((plan.task_of == index).sum())} of "
                f"{int((plan.task_of >= 0).sum())} shards, {engine.runs[name].counts.task_rows.get(index, 0):,} rows"
                for name, plan in current_plans(engine).items()
                for index, node in plan.tasks.items()
            ]

        tasks = self._ask("describe", look)
        landed, elsewhere = self._shell.landed
        placed = f"leases asked for on a node: {landed} came up there, {elsewhere} elsewhere"
        held = [
            f"{name}: the SLA was met by {one.met:,} of {one.judged:,} (shard, window) pairs"
            + (f", {one.ratio:.2%}" if one.ratio is not None else "")
            for name, one in self.success().items()
        ]
        errors = [self._errors()] if held else []
        return [*tasks, *held, *errors, *([placed] if landed or elsewhere else [])]

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
        since, quantile = self._sampled_s, self._quantile
        sample: Sample = self._shell.hub.ask(lambda: take_sample(self._shell.engine, there, since, quantile))
        self._sampled_s = sample.at_s
        return sample

    def _refresh(self, loop: ControlLoop) -> None:
        loop.limits = self._limits()

    def _limits(self) -> Limits:
        seen = self._see()
        there = self._nodes(seen)
        self._most_nodes = max(self._most_nodes, len(there) + len(seen.drained))
        # In local mode Spark is told of more slots than there are cores; those are not for a policy to give.
        cores = min(seen.capacity, self._share()) if self._cores else seen.capacity - seen.source_tasks
        return Limits(
            max(1, cores),
            max_nodes=len(there)
            if is_local(self._spark)
            else max((self.max_nodes or self._most_nodes) - len(seen.drained), len(there)),
            cores_per_node=max((self._whole(node, seen) for node in there), default=1),
            redeals=True,
        )

    def _share(self) -> int:
        """Cores of a local session that this query may hold: others of the process work on them too."""
        return share_of(self._shell.engine, self._cores)

    def _see(self) -> _Seen:
        """What the engine has, read in its own thread."""

        def look() -> _Seen:
            engine = self._shell.engine
            sources = sum(len(run.slots) for run in engine.runs.values() if run.spec.kind == "source")
            serving = engine.serving
            beside = serving.leases_beside(lambda stage: engine.runs[stage].spec.kind == "operator")
            slots, avoid = dict(serving.node_slots), frozenset(serving.avoid | serving.silent)
            return _Seen(serving.capacity, sources, avoid, slots, beside)

        return self._shell.hub.ask(look)

    def _nodes(self, seen: _Seen | None = None) -> list[NodeSample]:
        """Nodes that a policy may put tasks on, not those that are drained, and the cores that they have for operators: not
        those that other queries or sources hold."""
        seen, loads = seen or self._see(), self._shell.node_loads
        if is_local(self._spark):
            return [_node(LOCAL_NODE, max(1, min(seen.capacity, self._share())), loads)]
        there = [one for one in nodes(self._spark) if one.executor_id not in seen.drained]
        cores = {one.executor_id: seen.slots.get(one.executor_id, one.cores) for one in there}
        return [_node(name, max(0, count - seen.beside[name]), loads) for name, count in cores.items()]

    def _whole(self, node: NodeSample, seen: _Seen) -> int:
        """Cores that a node like this one has for operators where no source is on it."""
        return node.cores if is_local(self._spark) else max(node.cores, seen.slots.get(node.name, 0))

    def _note(self, sentence: str) -> None:
        """Let the loop, and with it the journal, know what a person asked for."""
        if self._steering is not None:
            self._steering.loop.note_manual(self._shell.engine.now(), sentence)


@dataclass(frozen=True)
class _Seen:
    """What limits are made from."""

    capacity: int
    source_tasks: int
    drained: frozenset[str]
    slots: Mapping[str, int]
    """Of each node, without those that other queries hold."""
    beside: Counter[str]
    """Leases of each node that serve no operator."""


def guards_of(policy: Policy) -> Guards:
    """Return the guards that a policy runs with on a query; one that remembers what it did needs less hysteresis."""
    return Guards(hysteresis_s=float(getattr(policy, "keep_s", Guards().hysteresis_s)))


def _node(name: str, cores: int, loads: Mapping[str, tuple[float, float, float]]) -> NodeSample:
    return NodeSample(name, cores, *loads.get(name, (0.0, 0.0, 0.0)))
