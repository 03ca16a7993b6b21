"""Random allocation problems and their optimum by trying every split. The oracle for the greedy algorithms.

Latencies come from the printed formulas of DRS (equations 1-5, factorials and all), not from the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.control.model.allocation import Station
from penstock.control.model.stations import QueueStation

Counts: TypeAlias = npt.NDArray[np.int64]
Totals: TypeAlias = npt.NDArray[np.float64]

MOST_EXTRA = 9
"""Cores beyond the stable minimum that a problem has at most; every split of them is tried."""


@dataclass(frozen=True)
class Problem:
    """Two to four stations, cores to split, and a bound that some number of cores meets."""

    stations: tuple[Station, ...]
    k_max: int
    t_max_s: float


def draw_problem(rng: np.random.Generator) -> Problem:
    """Draw rates, variabilities and visits of several orders of magnitude; half the problems are M/M/k."""
    size = int(rng.integers(2, 5))
    is_mmk = bool(rng.random() < 0.5)
    models = [
        QueueStation(
            service * load,
            service,
            1.0 if is_mmk else float(rng.uniform(0.1, 6.0)),
            1.0 if is_mmk else float(rng.uniform(0.0, 6.0)),
        )
        for service, load in zip(10.0 ** rng.uniform(0, 4, size), rng.uniform(0.05, 12.0, size), strict=True)
    ]
    visits = 10.0 ** rng.uniform(-1, 1, size)
    stations = tuple(Station(f"operator{at}", float(visits[at]), model) for at, model in enumerate(models))
    k_max = sum(_least(station) for station in stations) + int(rng.integers(0, MOST_EXTRA + 1))
    _, total_s = all_splits(stations, k_max)
    # Above the optimum, so that rounding does not decide whether it is met.
    return Problem(stations, k_max, float(total_s.min() * rng.uniform(1.0001, 1.2)))


def printed_latency_s(model: QueueStation, k: int) -> float:
    """Return E[T_i](k) by DRS equations (2), (3) and (5) as they are printed."""
    offered = model.rate_per_s / model.service_per_s
    busy = offered / k
    if busy >= 1.0:
        return math.inf
    last = offered**k / math.factorial(k)
    empty = 1.0 / (sum(offered**n / math.factorial(n) for n in range(k)) + last / (1.0 - busy))
    wait_s = empty * last / ((1.0 - busy) ** 2 * model.service_per_s * k)
    return (model.scv_arrival + model.scv_service) / 2 * wait_s + 1.0 / model.service_per_s


def all_splits(stations: tuple[Station, ...], k_max: int) -> tuple[Counts, Totals]:
    """Return (cores used, total sojourn time) of every split of at most k_max cores that serves the load."""
    extra = k_max - sum(_least(station) for station in stations)
    used, total_s = np.zeros(1, dtype=np.int64), np.zeros(1)
    for station in stations:
        cores = np.arange(_least(station), _least(station) + extra + 1)
        parts = np.array([station.visits * _printed_s(station, int(k)) for k in cores])
        used = np.add.outer(used, cores).ravel()
        total_s = np.add.outer(total_s, parts).ravel()
    fits = used <= k_max
    return used[fits], total_s[fits]


def is_best_split(problem: Problem, cores: Mapping[str, int]) -> bool:
    """Whether no split of at most k_max cores has a lower total sojourn time."""
    _, total_s = all_splits(problem.stations, problem.k_max)
    fits = sum(cores.values()) <= problem.k_max
    return fits and _total_s(problem, cores) <= float(total_s.min()) * (1 + 1e-9)


def is_fewest_cores(problem: Problem, cores: Mapping[str, int]) -> bool:
    """Whether the bound holds and no split of fewer cores meets it."""
    used, total_s = all_splits(problem.stations, problem.k_max)
    fewest = int(used[total_s <= problem.t_max_s].min())
    return sum(cores.values()) == fewest and _total_s(problem, cores) <= problem.t_max_s * (1 + 1e-9)


def _total_s(problem: Problem, cores: Mapping[str, int]) -> float:
    return sum(station.visits * _printed_s(station, cores[station.name]) for station in problem.stations)


def _least(station: Station) -> int:
    model = station.model
    assert isinstance(model, QueueStation)
    return math.floor(model.rate_per_s / model.service_per_s) + 1


def _printed_s(station: Station, k: int) -> float:
    assert isinstance(station.model, QueueStation)
    return printed_latency_s(station.model, k)
