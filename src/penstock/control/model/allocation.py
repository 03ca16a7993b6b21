"""How many cores each station gets: AssignProcessors and MinProcessors of DRS, over any station model.

Both are one greedy run: the next cores go where they take most from the expected total sojourn time, per core. For a
convex model (M/M/k, GI/G/k) that is optimal (DRS, Theorems 1 and 2); for others it is the optimum of the lower convex
hull, mended where a step of several cores does not fit. Knows nothing of nodes or shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from penstock.control.model.queues import ModelError
from penstock.control.model.stations import StationModel

UNBOUNDED = 1 << 20
"""Cores after which a run without a limit gives up."""


@dataclass(frozen=True)
class Station:
    """One operator or elastic executor, as allocation sees it."""

    name: str
    visits: float
    """λ_i / λ0: its weight in the total sojourn time."""
    model: StationModel
    at_least: int = 1
    at_most: int | None = None
    """Cores it can use: never more than it has shards."""

    @property
    def min_k(self) -> int:
        """Fewest cores it may be given and serves its load with."""
        return max(self.at_least, self.model.min_k)


@dataclass(frozen=True)
class Allocation:
    """Cores per station and what is predicted of them."""

    cores: Mapping[str, int]
    latency_s: float
    """E[T]: expected total sojourn time; infinite where a station cannot serve its load."""
    latency_by_station_s: Mapping[str, float]
    reached: bool = True
    """Whether the bound asked for holds; False where cores ran out first."""

    @property
    def total(self) -> int:
        return sum(self.cores.values())


def assign_processors(stations: Sequence[Station], k_max: int) -> Allocation:
    """Split at most k_max cores so that the expected total sojourn time is least (DRS, Algorithm 1).

    Start from the fewest cores that serve each load; while cores are left, give the next to the station with the
    largest λ_i (E[T_i](k_i) - E[T_i](k_i + 1)). Cores that would help nobody (a model may rise with k) stay free.

    Raises:
        ModelError: k_max is below the stable minimum, which the message names, or a station's own limit is.
    """
    run = _Run(stations)
    run.require(k_max)
    run.extend(k_max, -math.inf)
    return run.result()


def min_processors(stations: Sequence[Station], t_max_s: float, k_max: int | None = None) -> Allocation:
    """Find the fewest cores with an expected total sojourn time of at most t_max_s (DRS, Algorithm 2).

    One greedy run, extended until the bound holds, gives what starting AssignProcessors anew for each K would. Where
    k_max runs out first, all k_max are given by the same rule and `reached` is False (Elasticutor 4.1).

    Raises:
        ModelError: no number of cores reaches t_max_s (the message names the least that can be asked for), or k_max is
            below the stable minimum.
    """
    run = _Run(stations)
    bound_s = lowest_latency_s(stations)
    if not t_max_s >= bound_s:
        raise _unreachable(t_max_s, bound_s)
    limit = UNBOUNDED if k_max is None else k_max
    run.require(limit)
    run.extend(limit, t_max_s)
    found = run.result(t_max_s)
    if not found.reached and k_max is None:
        raise _unreachable(t_max_s, bound_s)
    return found


def lowest_latency_s(stations: Iterable[Station]) -> float:
    """Return the latency that no allocation goes below: Σ (λ_i / λ0) times each model's floor, which is 1 / μ_i for
    the queueing models (the visit-weighted form of DRS, Algorithm 2, line 5)."""
    return math.fsum(station.visits * _floor_s(station) for station in stations if station.visits > 0)


def stable_minimum(stations: Iterable[Station]) -> dict[str, int]:
    """Return the fewest cores that serve each load (DRS, Algorithm 1, lines 1-3)."""
    return {station.name: station.min_k for station in stations}


def spread_processors(loads: Mapping[str, float], k_max: int) -> dict[str, int]:
    """Split k_max cores that cannot serve the whole load so that no station lags more than it must.

    One core each, then the next to the station with most load (core-seconds a second) per core.

    Raises:
        ModelError: there are fewer cores than stations.
    """
    if k_max < len(loads):
        raise ModelError(f"{k_max} cores are fewer than stations; give at least {len(loads)}, one each.")
    cores = dict.fromkeys(loads, 1)
    heap = [(-load, name) for name, load in loads.items()]
    heapify(heap)
    for _ in range(k_max - len(loads) if heap else 0):
        name = heap[0][1]
        cores[name] += 1
        heapreplace(heap, (-loads[name] / cores[name], name))
    return cores


@dataclass
class _Walk:
    """One station's way along its hull: where it stands, and the next bend. Latencies are less the model's floor."""

    station: Station
    ahead: Iterator[tuple[int, float]]
    k: int
    above_s: float
    next_k: int = 0
    next_s: float = 0.0

    def look(self) -> float:
        """Find the next bend; return its gain per core, visits counted in, or 0 where none helps."""
        found = next(self.ahead, None)
        if found is None or (self.station.at_most is not None and found[0] > self.station.at_most):
            return 0.0
        self.next_k, self.next_s = found
        return self.station.visits * (self.above_s - self.next_s) / (self.next_k - self.k)

    def above_floor_s(self, k: int) -> float:
        """Return the model's own latency at k, hull or not, less its floor."""
        return self.station.model.latency_s(k) - self.station.model.floor_s

    def stand_at(self, k: int) -> None:
        self.k, self.above_s = k, self.above_floor_s(k)


@dataclass
class _Run:
    """One greedy run over all stations."""

    stations: Sequence[Station]
    walks: list[_Walk] = field(init=False)
    floor_s: float = field(init=False)

    def __post_init__(self) -> None:
        names = [station.name for station in self.stations]
        if not names or len(set(names)) < len(names):
            raise ModelError(f"allocation needs stations with names of their own, not {names}.")
        self.walks = [_begin(station) for station in self.stations]
        self.floor_s = math.fsum(station.visits * station.model.floor_s for station in self.stations)

    @property
    def total(self) -> int:
        return sum(walk.k for walk in self.walks)

    def require(self, k_max: int) -> None:
        if self.total > k_max:
            needs = ", ".join(f"{walk.station.name} {walk.k}" for walk in self.walks)
            raise ModelError(f"{k_max} cores cannot serve the load: give at least {self.total} ({needs}).")

    def extend(self, k_max: int, t_max_s: float) -> None:
        """Give cores by the largest gain until k_max are given, the latency is at most t_max_s, or none helps."""
        heap = [(-walk.look(), at) for at, walk in enumerate(self.walks)]
        heapify(heap)
        walks, left, has_jumped = self.walks, k_max - self.total, False
        above_s, wanted_s = self._above_s(), t_max_s - self.floor_s
        while left > 0 and heap and heap[0][0] < 0.0:
            # The running sum drifts by rounding, so it is only a hint to look.
            if above_s <= wanted_s and (above_s := self._above_s()) <= wanted_s:
                break
            gain, at = heap[0]
            walk = walks[at]
            step = walk.next_k - walk.k
            if step > 1:
                has_jumped = True
                if step > left:
                    heappop(heap)
                    continue
            above_s += gain * step
            walk.k, walk.above_s = walk.next_k, walk.next_s
            left -= step
            heapreplace(heap, (-walk.look(), at))
        if has_jumped:
            self._fill(left, wanted_s)
            self._trim(wanted_s)

    def result(self, t_max_s: float = math.inf) -> Allocation:
        latency_s = self.floor_s + self._above_s()
        return Allocation(
            {walk.station.name: walk.k for walk in self.walks},
            latency_s,
            {walk.station.name: walk.station.model.floor_s + walk.above_s for walk in self.walks},
            reached=latency_s <= t_max_s * (1 + 1e-12),
        )

    def _above_s(self) -> float:
        return math.fsum(walk.station.visits * walk.above_s for walk in self.walks)

    def _fill(self, left: int, wanted_s: float) -> None:
        """Spend what no whole step of a hull fits into, by the models' own latencies."""
        while left > 0 and self._above_s() > wanted_s:
            options = [
                (walk.station.visits * (walk.above_s - walk.above_floor_s(k)) / (k - walk.k), at, k)
                for at, walk in enumerate(self.walks)
                for k in range(walk.k + 1, min(walk.k + left, walk.station.at_most or UNBOUNDED) + 1)
            ]
            gain, at, k = max(options, default=(0.0, 0, 0))
            if gain <= 0.0:
                break
            left -= k - self.walks[at].k
            self.walks[at].stand_at(k)

    def _trim(self, wanted_s: float) -> None:
        """Take back cores that a step of several gave beyond need: the one that costs least, while the bound holds."""
        while (above_s := self._above_s()) <= wanted_s:
            options = [
                (walk.station.visits * (walk.above_floor_s(walk.k - 1) - walk.above_s), at)
                for at, walk in enumerate(self.walks)
                if walk.k > walk.station.min_k
            ]
            cost, at = min(options, default=(math.inf, 0))
            if above_s + cost > wanted_s:
                break
            self.walks[at].stand_at(self.walks[at].k - 1)


def _begin(station: Station) -> _Walk:
    """Stand at the fewest cores the station may have, with the hull ahead."""
    if not 0.0 <= station.visits < math.inf:
        raise ModelError(f"operator {station.name} has {station.visits!r} visits a row; give zero or more.")
    if station.at_most is not None and station.at_most < station.min_k:
        raise ModelError(
            f"operator {station.name} needs at least {station.min_k} cores for its load and can use at most "
            f"{station.at_most}; give it more shards, or spread its hottest."
        )
    ahead = station.model.hull()
    k, above_s = next(ahead)
    walk = _Walk(station, ahead, k, above_s)
    if k < station.at_least:
        walk.stand_at(station.at_least)
        walk.ahead = (bend for bend in ahead if bend[0] > station.at_least)
    return walk


def _floor_s(station: Station) -> float:
    """Return the hull's height at the most cores the station can use: no k up to there lies below it."""
    floor_s = station.model.floor_s
    if station.at_most is None:
        return floor_s
    before_k, before_s = 0, math.inf
    for k, above_s in station.model.hull():
        if k > station.at_most:
            share = (station.at_most - before_k) / (k - before_k)
            return floor_s + before_s + share * (above_s - before_s) if before_k else math.inf
        before_k, before_s = k, above_s
    return floor_s + before_s


def _unreachable(t_max_s: float, bound_s: float) -> ModelError:
    return ModelError(
        f"a latency of {t_max_s * 1e3:.4g} ms cannot be reached with any number of cores: the least that can be asked for "
        f"lies above {bound_s * 1e3:.4g} ms; raise the bound past it, or make the operators faster."
    )
