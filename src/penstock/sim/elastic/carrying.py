"""Carries plans out on the virtual clock: starts and ends tasks, holds shards up while they move, adds and loses nodes.

A shard that moves is held up for its own migration and no other is; under `Plan.global_pause` everything is, for as long
as it takes to drain and to migrate (the resource-centric baseline of Elasticutor 5). It never chooses where a shard goes,
except after the loss of a node, where the engine leases elsewhere by itself too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.errors import PlanError
from penstock.sim.elastic.executor import HELD
from penstock.sim.elastic.placement import Placed, Placement, Shift
from penstock.sim.elastic.setting import Costs, SimNode
from penstock.sim.elastic.timeline import Agenda


@dataclass(frozen=True)
class _Hold:
    """One shard's way: held up from `start_s`, with its new task from `end_s`."""

    shift: Shift
    start_s: float
    end_s: float


class Carrier:
    """Carries out one plan at a time."""

    def __init__(self, placement: Placement, costs: Costs, new_node: SimNode, agenda: Agenda) -> None:
        self._placement = placement
        self._costs = costs
        self._new_node = new_node
        self._agenda = agenda
        self._outcomes: dict[int, Outcome] = {}
        self._tickets = 0
        self._under_way: dict[str, frozenset[str]] = {}
        """Executors that a plan is being carried out for, and the nodes that it wants their tasks on."""
        self._link_free_s: dict[str, float] = defaultdict(float)
        self._added = 0
        self.usage_changed: Callable[[float], None] = lambda now_s: None
        """Called after tasks or nodes came or went."""

    @property
    def treating(self) -> bool:
        return bool(self._under_way)

    def status(self, ticket: Ticket) -> Outcome | None:
        return self._outcomes.get(ticket.number)

    def apply(self, plan: Plan, now_s: float) -> Ticket:
        """Begin to carry out a plan.

        Raises:
            PlanError: it cannot be carried out, or one is still under way; nothing was changed.
        """
        if self.treating:
            raise PlanError(f"The plan for {', '.join(sorted(self._under_way))} is still being carried out.")
        self._placement.check(plan)
        self._tickets += 1
        ticket = Ticket(self._tickets)
        for _ in range(plan.add_nodes):
            self._agenda.at(now_s + self._costs.node_start_s, self._add_node)
        begin = self._pause_all(now_s) if plan.global_pause and plan.executors else now_s
        ways = {name: self._begin(name, one, begin) for name, one in plan.executors.items()}
        starting = any(self._placement.executors[name].starting for name in plan.executors)
        end = begin + (self._costs.task_start_s if starting else 0.0)
        end = max([end, *(hold.end_s for way in ways.values() for hold in way)])
        if plan.global_pause and plan.executors:
            end += self._costs.sync_s
            ways = {name: [replace(h, start_s=begin, end_s=end) for h in way] for name, way in ways.items()}
            self._agenda.at(begin, lambda at_s: self._stop_all(at_s))
            self._agenda.at(end, lambda at_s: self._resume_all(at_s))
        for name, way in ways.items():
            self._schedule(name, plan.executors[name], way)
        self._under_way = {name: frozenset(plan.executors[name].tasks.values()) for name in ways}
        held = [hold.end_s - hold.start_s for way in ways.values() for hold in way]
        outcome = Outcome(
            True,
            moved_shards=len(held),
            moved_bytes=sum(self._bytes(name, hold.shift) for name, way in ways.items() for hold in way),
            held_up_s=(end - now_s) if plan.global_pause else max(held, default=0.0),
            took_s=end - now_s,
        )
        self._agenda.at(end, lambda at_s: self._finish(ticket, plan, outcome, at_s))
        self.usage_changed(now_s)
        return ticket

    # One executor's part

    def _begin(self, name: str, one: ExecutorPlan, now_s: float) -> list[_Hold]:
        placed = self._placement.executors[name]
        shifts = self._placement.shifts(name, one)
        fresh = {task for task, node in one.tasks.items() if placed.tasks.get(task) != node}
        ready_s = now_s + self._costs.task_start_s
        for task in fresh - set(placed.tasks):
            placed.tasks[task] = one.tasks[task]
            placed.starting.add(task)
        boundary_s = placed.queues.boundary_s(now_s)
        return [
            self._way(name, shift, max(boundary_s, ready_s) if shift.task in fresh else boundary_s)
            for shift in shifts
        ]

    def _way(self, name: str, shift: Shift, start_s: float) -> _Hold:
        if shift.source_node == shift.node:
            return _Hold(shift, start_s, start_s + self._costs.within_node_s)
        link = shift.source_node or "checkpoint"
        start_s = max(start_s, self._link_free_s[link])
        size = int(self._placement.executors[name].queues.operator.shard_bytes()[shift.shard])
        copy_s = size / self._costs.move_bytes_per_s
        self._link_free_s[link] = start_s + copy_s
        return _Hold(shift, start_s, start_s + self._costs.move_fixed_s + copy_s)

    def _bytes(self, name: str, shift: Shift) -> int:
        if shift.source_node == shift.node:
            return 0
        return int(self._placement.executors[name].queues.operator.shard_bytes()[shift.shard])

    def _schedule(self, name: str, one: ExecutorPlan, way: list[_Hold]) -> None:
        placed = self._placement.executors[name]
        placed.target = one.task_of.copy()
        treatment = placed.treatment
        starts: dict[float, list[_Hold]] = defaultdict(list)
        ends: dict[float, list[_Hold]] = defaultdict(list)
        for hold in way:
            starts[hold.start_s].append(hold)
            ends[hold.end_s].append(hold)

        def when_valid(
            action: Callable[[list[_Hold], float], None], holds: list[_Hold]
        ) -> Callable[[float], None]:
            return lambda at_s: action(holds, at_s) if placed.treatment == treatment else None

        def hold_up(holds: list[_Hold], at_s: float) -> None:
            placed.queues.put(_shards(holds), HELD, at_s)

        def let_go(holds: list[_Hold], at_s: float) -> None:
            self._arrive(placed, [hold.shift for hold in holds], at_s)

        for at_s, holds in starts.items():
            self._agenda.at(at_s, when_valid(hold_up, holds))
        for at_s, holds in ends.items():
            self._agenda.at(at_s, when_valid(let_go, holds))

    def _arrive(self, placed: Placed, shifts: list[Shift], at_s: float) -> None:
        for shift in shifts:
            placed.tasks[shift.task] = shift.node
            placed.starting.discard(shift.task)
            placed.queues.open_lane(shift.task, self._placement.nodes[shift.node].speed, at_s)
            placed.brought_bytes += self._bytes(placed.name, shift)
        shards = np.array([shift.shard for shift in shifts], np.int64)
        tasks = np.array([shift.task for shift in shifts], np.int32)
        placed.task_of[shards] = tasks
        placed.queues.put(shards, tasks, at_s)

    def _finish(self, ticket: Ticket, plan: Plan, outcome: Outcome, now_s: float) -> None:
        lost = [name for name in plan.executors if name not in self._under_way]
        for name, one in plan.executors.items():
            if name in lost:
                continue
            placed = self._placement.executors[name]
            for task in set(placed.tasks) - set(one.tasks):
                del placed.tasks[task]
                placed.queues.close_lane(task)
            for task, node in one.tasks.items():
                placed.queues.open_lane(task, self._placement.nodes[node].speed, now_s)
            placed.tasks.update(one.tasks)
            placed.starting.clear()
        for node in plan.release_nodes:
            self._placement.nodes.pop(node, None)
        self._under_way = {}
        if lost:
            outcome = replace(outcome, ok=False, reason=f"a node of {lost[0]} was lost meanwhile")
        self._outcomes[ticket.number] = outcome
        self.usage_changed(now_s)

    # Global pause

    def _pause_all(self, now_s: float) -> float:
        """Let no row in any more; return when the tasks will have finished what they have."""
        drain_s = 0.0
        for placed in self._placement.executors.values():
            placed.queues.closed = True
            drain_s = max(drain_s, float(placed.queues.backlog_s().max()))
        return now_s + min(drain_s, self._costs.drain_max_s) + self._costs.sync_s

    def _stop_all(self, now_s: float) -> None:
        for placed in self._placement.executors.values():
            placed.queues.put(np.flatnonzero(placed.task_of >= 0), HELD, now_s)

    def _resume_all(self, now_s: float) -> None:
        for placed in self._placement.executors.values():
            placed.queues.closed = False
            mine = np.flatnonzero((placed.task_of >= 0) & (placed.task_of == placed.target))
            placed.queues.put(mine, placed.task_of[mine], now_s)

    # Nodes

    def _add_node(self, now_s: float) -> None:
        while True:
            self._added += 1
            name = f"{self._new_node.name}-{self._added}"
            if name not in self._placement.nodes:
                break
        self._placement.nodes[name] = replace(self._new_node, name=name)
        for placed in self._placement.executors.values():
            if not placed.tasks:
                self._recover(placed, [0], now_s)
        self.usage_changed(now_s)

    def set_speed(self, node: str, speed: float, now_s: float) -> None:
        """Make a node faster or slower; one that is gone stays gone."""
        if node not in self._placement.nodes:
            return
        self._placement.nodes[node] = replace(self._placement.nodes[node], speed=speed)
        for placed in self._placement.executors.values():
            for task, where in placed.tasks.items():
                if where == node and task in placed.queues.lanes:
                    placed.queues.open_lane(task, speed, now_s)

    def lose_node(self, node: str, now_s: float) -> None:
        """Take a node away at once. Executors that had tasks there, or were to have some, lease elsewhere once the loss
        is known."""
        self._placement.nodes.pop(node, None)
        for placed in self._placement.executors.values():
            lost = [task for task, where in placed.tasks.items() if where == node]
            if not lost and node not in self._under_way.get(placed.name, ()):
                continue
            placed.treatment += 1
            self._under_way.pop(placed.name, None)
            for task in lost:
                del placed.tasks[task]
                placed.queues.lose_lane(task, now_s)
            self._agenda.at(now_s + self._costs.detect_s, partial(self._recover, placed, lost))
        self.usage_changed(now_s)

    def _recover(self, placed: Placed, lost: list[int], now_s: float) -> None:
        """Put lost tasks on free cores, as far as there are any, and their shards there or on the tasks that are left."""
        for task, node in zip(lost, self._placement.free_cores(), strict=False):
            placed.tasks[task] = node
            placed.starting.add(task)
        self.usage_changed(now_s)
        if not placed.tasks:
            return  # a node that comes later starts it again
        start_s = now_s + (self._costs.task_start_s if placed.starting else 0.0)
        mine = placed.task_of >= 0
        homeless = np.flatnonzero(mine & (placed.queues.lane_of < 0))
        counts = {task: int((placed.task_of == task).sum()) for task in placed.tasks}
        shifts = []
        for shard in homeless:
            task = int(placed.target[shard])
            if task not in placed.tasks:
                task = min(counts, key=lambda one: (counts[one], one))
            counts[task] += 1
            shifts.append(Shift(int(shard), None, task, placed.tasks[task]))
        placed.target[homeless] = [shift.task for shift in shifts]
        for shift in shifts:
            hold = self._way(placed.name, shift, start_s)
            self._agenda.at(hold.end_s, partial(self._arrive, placed, [shift]))


def _shards(holds: list[_Hold]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([hold.shift.shard for hold in holds], np.int64)
