"""How many cores each executor should have for a latency target, and what then is predicted (Elasticutor 4.1).

Greedy by the model until the target holds or cores run out; where nothing reaches it, all cores that help are given by
the same rule and the prediction says so. Numbers only: `plan.assignment` finds the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.model.allocation import Station, assign_processors, min_processors, spread_processors
from penstock.control.model.queues import ModelError
from penstock.control.policy.demand import Demand, derive_station


@dataclass(frozen=True)
class Stations:
    """Executors as the model sees them, and what the bound is on: each of them, or all on a row's way."""

    all: Sequence[Station]
    loads: Mapping[str, float]
    """Core-seconds a second that each executor needs."""
    is_each: bool

    def predict(self, cores: Mapping[str, int]) -> float:
        """Return the latency that the bound is on: E[T](k) (Elasticutor, equation 1), or that of the slowest executor."""
        latencies = [(one.visits, one.model.latency_s(cores[one.name])) for one in self.all if one.visits > 0]
        if self.is_each:
            return max((latency for _, latency in latencies), default=0.0)
        return math.fsum(visits * latency for visits, latency in latencies)


@dataclass(frozen=True)
class Sizing:
    """Cores per executor."""

    cores: Mapping[str, int]
    predicted_s: float
    reached: bool
    """Whether the bound is predicted to hold."""
    problem: str = ""
    """Why it is not, where it is not."""
    missing: int = 0
    """Cores that would serve the load, beyond those there are."""

    @property
    def total(self) -> int:
        return sum(self.cores.values())


def derive_stations(
    now: Estimate, demand: Demand, model: str, margin: float, k_max: int, is_each: bool
) -> Stations:
    """Return the executors that have tasks; none can use more cores than its hottest shard lets it."""
    found, loads = [], {}
    for name, executor in sorted(now.executors.items()):
        if executor.k:
            station = derive_station(executor, demand, model, margin, k_max)
            found.append(replace(station, at_most=_useful_cores(executor, station)))
            loads[name] = demand.rate_per_s[name] / (demand.service_per_s[name] * (1 - margin))
    return Stations(found, loads, is_each)


def _useful_cores(executor: ExecutorEstimate, station: Station) -> int:
    """Return the cores after which the busiest task has one shard, and no core more can relieve it."""
    total, hottest = float(executor.load.sum()), float(executor.load.max(initial=0.0))
    shards = max(int(np.count_nonzero(executor.load > 0)), 1)
    useful = math.ceil(total / hottest) + 1 if hottest > 0 else 1
    try:
        least = station.model.min_k
    except ModelError:
        least = 1
    return min(max(useful, least), shards)


def size_cores(stations: Stations, bound_s: float, usable: int) -> Sizing:
    """Return the fewest cores for the bound; all that help where it cannot be had; by load where it is not served."""
    try:
        if not stations.is_each:
            return _size_together(stations, bound_s, usable)
        return _size_each(stations, bound_s, usable)
    except ModelError as error:
        return _spread(stations, usable, str(error).rstrip("."))


def _size_together(stations: Stations, bound_s: float, usable: int) -> Sizing:
    try:
        found = min_processors(stations.all, bound_s, usable)
    except ModelError as error:
        # Raises again where the load is not served; else the bound is out of reach for any number of cores.
        found = assign_processors(stations.all, usable)
        return Sizing(found.cores, found.latency_s, False, str(error).rstrip("."))
    if found.reached:
        return Sizing(found.cores, found.latency_s, True)
    missing = _missing(stations, bound_s, usable)
    problem = f"{usable + missing} cores are needed and {usable} can be had"
    return Sizing(found.cores, found.latency_s, False, problem, missing)


def _missing(stations: Stations, bound_s: float, usable: int) -> int:
    try:
        return max(min_processors(stations.all, bound_s).total - usable, 1)
    except ModelError:
        return 1


def _size_each(stations: Stations, bound_s: float, usable: int) -> Sizing:
    """Every executor under the bound on its own; those that cannot be share what the others leave."""
    cores: dict[str, int] = {}
    hard, problem = [], ""
    for station in stations.all:
        alone = replace(station, visits=1.0)
        try:
            cores[station.name] = min_processors([alone], bound_s).cores[station.name]
        except ModelError as error:
            hard.append(alone)
            problem = f"{station.name}: {error}"
    rest = usable - sum(cores.values())
    if hard and rest >= sum(one.min_k for one in hard):
        cores |= assign_processors(hard, rest).cores
    elif hard or rest < 0:
        wanted = sum(cores.values()) + sum(one.min_k for one in hard)
        dealt = assign_processors(stations.all, usable)
        problem = problem or f"{wanted} cores are needed and {usable} can be had"
        return Sizing(dealt.cores, stations.predict(dealt.cores), False, problem, max(wanted - usable, 0))
    return Sizing(cores, stations.predict(cores), not problem, problem)


def _spread(stations: Stations, usable: int, problem: str) -> Sizing:
    """Deal cores by load, where they do not serve it or a shard is too hot for any core."""
    most = {one.name: one.at_most or usable for one in stations.all}
    cores = spread_processors(stations.loads, max(min(usable, sum(most.values())), len(most)))
    cores = {name: min(k, most[name]) for name, k in cores.items()}
    needed = sum(math.floor(load) + 1 for load in stations.loads.values())
    return Sizing(cores, math.inf, False, problem, max(needed - usable, 0))
