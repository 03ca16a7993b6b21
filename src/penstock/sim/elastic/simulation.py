"""A whole system on a virtual clock: rows in, samples and the truth out, plans carried out in between.

Seeded and repeatable: the same setting, feeds, seed and plans give the same rows at the same times. It is an `Actuator`;
it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.measure.sample import F64, I64, Sample
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.sla import SLA
from penstock.errors import DeclarationError
from penstock.sim.elastic.arrivals import Arrivals
from penstock.sim.elastic.carrying import Carrier
from penstock.sim.elastic.executor import Done, ExecutorQueues
from penstock.sim.elastic.flow import Flow
from penstock.sim.elastic.placement import Placed, Placement
from penstock.sim.elastic.rows import AT, SHARD
from penstock.sim.elastic.sampling import Sampler
from penstock.sim.elastic.setting import NodeLost, Setting
from penstock.sim.elastic.timeline import Agenda
from penstock.sim.elastic.truth import Truth
from penstock.sim.elastic.usage import Usage


class Simulation:
    """Runs a setting.

    Args:
        setting: what is simulated.
        feeds: operator -> the rows that its source sends.
        sla: what the truth is kept for.
        seconds: about how long it will run.
        seed: of service times and of where rows go between operators.

    Raises:
        DeclarationError: the setting does not fit together.
    """

    def __init__(
        self, setting: Setting, feeds: Mapping[str, Arrivals], sla: SLA, seconds: float, seed: int = 0
    ) -> None:
        _check(setting, feeds)
        self.setting, self.sla, self.now_s = setting, sla, 0.0
        operators = {one.name: one for one in setting.operators}
        speeds = {node.name: node.speed for node in setting.nodes}
        self.placement = Placement(
            setting.nodes,
            {
                name: Placed(
                    name,
                    ExecutorQueues(
                        operators[one.operator],
                        one.plan.task_of,
                        {task: speeds[node] for task, node in one.plan.tasks.items()},
                        setting.epochs,
                    ),
                    dict(one.plan.tasks),
                    one.plan.task_of.copy(),
                    one.plan.task_of.copy(),
                )
                for name, one in setting.executors.items()
            },
        )
        self._agenda = Agenda()
        self._carrier = Carrier(self.placement, setting.costs, setting.new_node, self._agenda)
        self.usage = Usage(self.placement)
        self._carrier.usage_changed = self.usage.note
        for event in setting.disturbances:
            self._plan_disturbance(event)
        self._flow = Flow(operators, setting.edges, feeds, np.random.default_rng([0x51A, seed]))
        self._sampler = Sampler(self.placement, self._flow, None if sla.is_mean else float(sla.quantile))
        self.truth = {name: Truth(one.shards, sla, seconds) for name, one in operators.items()}
        self.end_to_end = Truth(1, sla, seconds)
        """From the arrival of an input row until the last row derived from it; empty for a single operator."""
        self._placed_by_operator = {
            name: [placed for placed in self.placement.executors.values() if placed.operator == name]
            for name in operators
        }

    def _plan_disturbance(self, event: object) -> None:
        if isinstance(event, NodeLost):
            self._agenda.at(event.at_s, lambda at_s: self._carrier.lose_node(event.node, at_s))
        else:
            self._agenda.at(event.at_s, lambda at_s: self._carrier.set_speed(event.node, event.speed, at_s))  # type: ignore[attr-defined]

    # The actuator

    def apply(self, plan: Plan) -> Ticket:
        """Begin to carry out a plan at the present moment.

        Raises:
            PlanError: it cannot be carried out; nothing was changed.
        """
        return self._carrier.apply(plan, self.now_s)

    def current(self) -> Mapping[str, ExecutorPlan]:
        return self.placement.current()

    def status(self, ticket: Ticket) -> Outcome | None:
        return self._carrier.status(ticket)

    # The clock

    def advance(self, to_s: float) -> None:
        """Let time pass."""
        self._agenda.run_due(self.now_s)
        while self.now_s < to_s:
            then = min(self.now_s + self.setting.step_s, self._agenda.next_s())
            then = to_s if then > to_s - 1e-9 else then
            self._step(then)
            self.now_s = then
            self._agenda.run_due(then)
        self.usage.until(to_s)

    def _step(self, to_s: float) -> None:
        for name in self._flow.order:
            rows = self._flow.take(name, to_s)
            placed_here = self._placed_by_operator[name]
            for placed in placed_here:
                mine = rows
                if len(placed_here) > 1:
                    mine = rows[:, placed.task_of[rows[SHARD].astype(np.int64)] >= 0]
                if mine.shape[1]:
                    placed.queues.offer(mine)
                for done in placed.queues.advance(to_s):
                    self._complete(placed, done)

    def _complete(self, placed: Placed, done: Done) -> None:
        name, at_s = placed.operator, done.rows[AT]
        self.truth[name].add(at_s, done.at_s, done.rows[SHARD].astype(np.int64))
        self._sampler.note(placed.name, done.at_s - at_s)
        if self._flow.roots is not None:
            started, ended = self._flow.send(name, done.rows, done.at_s)
            if len(started):
                self.end_to_end.add(started, ended, np.zeros(len(started), np.int64))
                self._sampler.note_end_to_end(ended - started)

    def sample(self) -> Sample:
        """Return what a data plane would have counted by now."""
        return self._sampler.sample(self.now_s, self._carrier.treating)

    # What came of it

    def waiting(self, operator: str) -> tuple[F64, I64]:
        """Return arrival and shard of the rows at an operator that are not completed."""
        rows = np.concatenate(
            [placed.queues.waiting() for placed in self._placed_by_operator[operator]], axis=1
        )
        return rows[AT], rows[SHARD].astype(np.int64)

    def success(self, operator: str, sla: SLA | None = None) -> F64:
        """Return the success rate of each shard of an operator so far."""
        return self.truth[operator].success(self.now_s, self.waiting(operator), sla)

    def end_to_end_success(self, sla: SLA | None = None) -> float:
        """Return the share of windows in which the end-to-end latency met the bound."""
        if self._flow.roots is None:
            return float(self.success(self.setting.operators[0].name, sla).mean())
        waiting = self._flow.roots.unfinished()
        return float(
            self.end_to_end.success(self.now_s, (waiting, np.zeros(len(waiting), np.int64)), sla).mean()
        )


def _check(setting: Setting, feeds: Mapping[str, Arrivals]) -> None:
    operators = {one.name: one for one in setting.operators}
    for name, feed in feeds.items():
        if name not in operators:
            raise DeclarationError(f"A feed names operator {name}, which is not there.")
        if feed.shards != operators[name].shards:
            raise DeclarationError(
                f"Operator {name} has {operators[name].shards} shards, its feed {feed.shards}."
            )
    for edge in setting.edges:
        if missing := {edge.producer, edge.consumer} - set(operators):
            raise DeclarationError(f"An edge names operator {min(missing)}, which is not there.")
    owners = {name: np.zeros(one.shards, np.int64) for name, one in operators.items()}
    for name, executor in setting.executors.items():
        if executor.operator not in operators or len(executor.plan.task_of) != len(owners[executor.operator]):
            raise DeclarationError(
                f"Executor {name} does not fit operator {executor.operator}: give one task per shard."
            )
        owners[executor.operator] += executor.plan.task_of >= 0
        if missing := set(executor.plan.tasks.values()) - {node.name for node in setting.nodes}:
            raise DeclarationError(f"Executor {name} is placed on node {min(missing)}, which is not there.")
    for name, count in owners.items():
        if (count != 1).any():
            raise DeclarationError(f"Operator {name}: every shard needs exactly one executor.")
