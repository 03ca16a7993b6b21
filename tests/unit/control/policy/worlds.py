"""A small world for policies: executors with rates and tasks, turns of one second, plans carried out at once.

Latency is what M/M/1 gives each task plus what its backlog takes; rates may be noisy. Every plan is checked as a whole
before it is carried out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.control.measure.estimate import (
    EpochCosts,
    Estimate,
    ExecutorEstimate,
    NodeEstimate,
    TaskEstimate,
)
from penstock.control.plan import checking
from penstock.control.plan.plan import Plan
from penstock.control.policy.protocol import Limits, Policy, Proposal
from penstock.control.sla import SLA


@dataclass
class Station:
    """One executor: the true rate of each shard, the true service rate, who has what."""

    rates: np.ndarray
    service_per_s: float
    tasks: dict[int, str]
    task_of: np.ndarray
    operator: str = ""
    scv_arrival: float = 1.0
    scv_service: float = 1.0
    backlog: np.ndarray = field(default_factory=lambda: np.zeros(0))
    epoch: EpochCosts = field(default_factory=EpochCosts)


def make_station(
    rates: list[float] | np.ndarray, service_per_s: float, k: int, node: str = "n0", **more: object
) -> Station:
    """Deal shards to k tasks by turns."""
    values = np.asarray(rates, dtype=np.float64)
    task_of = np.arange(len(values), dtype=np.int32) % k
    station = Station(values, service_per_s, dict.fromkeys(range(k), node), task_of.astype(np.int32), **more)  # type: ignore[arg-type]
    station.backlog = np.zeros(len(values))
    return station


@dataclass
class World:
    stations: dict[str, Station]
    nodes: dict[str, NodeEstimate] = field(default_factory=lambda: {"n0": NodeEstimate("n0", 64)})
    limits: Limits = field(default_factory=lambda: Limits(max_cores=64))
    sla: SLA = field(default_factory=lambda: SLA(1.0, scope="operator"))
    edges: dict[tuple[str, str], float] = field(default_factory=dict)
    sources: dict[str, float] = field(default_factory=dict)
    at_s: float = 0.0
    noise: float = 0.0
    turn_s: float = 1.0
    seed: int = 0
    proposals: list[Proposal] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def estimate(self, **more: object) -> Estimate:
        executors = {name: self._look(name, station) for name, station in self.stations.items()}
        sojourns = [e.measured_s * e.rate_per_s for e in executors.values() if e.measured_s is not None]
        entering = sum(self.sources.values()) or max((e.rate_per_s for e in executors.values()), default=1.0)
        found = Estimate(
            self.at_s,
            executors,
            self._loaded(),
            self.edges,
            self.sources or {"in": entering},
            latency_s=sum(sojourns) / entering if entering else None,
        )
        return replace(found, **more)  # type: ignore[arg-type]

    def _busy(self, station: Station, index: int, node: str) -> float:
        mine = station.task_of == index
        service = station.service_per_s * self.nodes[node].speed
        waits = float(station.backlog[mine].sum()) > 0
        return 1.0 if waits else min(float(station.rates[mine].sum()) / service, 1.0)

    def _loaded(self) -> dict[str, NodeEstimate]:
        busy = dict.fromkeys(self.nodes, 0.0)
        for station in self.stations.values():
            for index, node in station.tasks.items():
                busy[node] += self._busy(station, index, node)
        return {n: replace(node, cpu_ratio=busy[n] / max(node.cores, 1)) for n, node in self.nodes.items()}

    def _look(self, name: str, station: Station) -> ExecutorEstimate:
        seen = station.rates * np.maximum(
            1 + self.noise * self.random.standard_normal(len(station.rates)), 0.05
        )
        latency = np.full(len(seen), np.nan)
        for index, node in station.tasks.items():
            mine = station.task_of == index
            service = station.service_per_s * self.nodes[node].speed
            rate = float(station.rates[mine].sum())
            steady = 1 / (service - rate) if rate < service else 1 / service
            latency[mine] = steady + float(station.backlog[mine].sum()) / service
        known = np.isfinite(latency)
        mean = float((latency[known] * station.rates[known]).sum() / max(station.rates[known].sum(), 1e-12))
        tasks = tuple(
            TaskEstimate(
                index,
                node,
                station.service_per_s * self.nodes[node].speed,
                self._busy(station, index, node),
                cpu_ratio=self._busy(station, index, node) / self.nodes[node].cores,
            )
            for index, node in sorted(station.tasks.items())
        )
        return ExecutorEstimate(
            name,
            station.operator or name,
            station.task_of,
            tasks,
            seen,
            seen / station.service_per_s,
            station.backlog,
            latency,
            np.full(len(seen), 1000, dtype=np.int64),
            station.service_per_s,
            station.scv_arrival,
            station.scv_service,
            measured_s=mean,
            epoch=station.epoch,
        )

    def turn(self, policy: Policy, **more: object) -> Proposal:
        """Let one second pass, ask the policy, carry its plan out."""
        self.at_s += self.turn_s
        for station in self.stations.values():
            for index, node in station.tasks.items():
                mine = station.task_of == index
                left = float(station.rates[mine].sum()) - station.service_per_s * self.nodes[node].speed
                change = left * self.turn_s
                total = float(station.backlog[mine].sum())
                then = max(total + change, 0.0)
                weight = np.where(station.rates[mine] > 0, station.rates[mine], 1e-9)
                station.backlog[mine] = then * weight / weight.sum() if mine.any() else 0.0
        found = policy.propose(self.estimate(**more), self.sla, self.limits)
        self.proposals.append(found)
        if found.plan is not None:
            check_plan(self, found.plan)
            self.carry_out(found.plan)
        return found

    def run(self, policy: Policy, turns: int) -> list[Proposal]:
        return [self.turn(policy) for _ in range(turns)]

    def carry_out(self, plan: Plan) -> None:
        self.plans.append(plan)
        for name, executor in plan.executors.items():
            self.stations[name].tasks = dict(executor.tasks)
            self.stations[name].task_of = executor.task_of.astype(np.int32)
        for _ in range(plan.add_nodes):
            name = f"n{len(self.nodes)}"
            self.nodes = {**self.nodes, name: NodeEstimate(name, self.limits.cores_per_node)}
        self.nodes = {name: node for name, node in self.nodes.items() if name not in plan.release_nodes}

    def k(self, name: str) -> int:
        return len(self.stations[name].tasks)


def check_plan(world: World, plan: Plan) -> None:
    """Hold what every plan must: shards conserved, each with a task of the plan, cores within limits and nodes."""
    assert not plan.changes_nothing
    checking.check_plan(plan, world.estimate(), world.limits)
    held: dict[str, int] = dict.fromkeys(world.nodes, 0)
    for name, station in world.stations.items():
        tasks = plan.executors[name].tasks if name in plan.executors else station.tasks
        for node in tasks.values():
            held[node] += 1
        if name in plan.executors:
            task_of = plan.executors[name].task_of
            assert task_of.shape == station.task_of.shape and task_of.dtype == np.int32
            assert np.array_equal(task_of >= 0, station.task_of >= 0), "shards came or went"
            assert set(task_of[task_of >= 0].tolist()) <= set(tasks), (
                "a shard has a task that is not in the plan"
            )
            assert len(tasks) >= 1 and min(tasks) >= 0
    assert sum(held.values()) <= max(
        world.limits.max_cores, sum(len(s.tasks) for s in world.stations.values())
    )
    for node, cores in held.items():
        assert cores <= world.nodes[node].cores, f"{cores} tasks on {node}"
        assert node not in plan.release_nodes or cores == 0
    assert len(world.nodes) + plan.add_nodes <= max(world.limits.max_nodes, len(world.nodes))
    assert len(world.nodes) - len(plan.release_nodes) >= min(world.limits.min_nodes, len(world.nodes))
    assert all(math.isfinite(share) and 0 < share <= 1 for share in plan.sla_shares.values())
