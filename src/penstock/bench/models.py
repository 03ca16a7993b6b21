"""`bench models`: are the allocations optimal, the formulas right, and both fast enough to run every turn?

Owns the parts and the names they owe. Nothing here needs Spark; the parts that do stand in `models_live`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.bench.brute_allocation import draw_problem, is_best_split, is_fewest_cores
from penstock.bench.models_live import parts_of
from penstock.bench.parts import Part, run_parts
from penstock.bench.queue_simulation import simulate_wait_s
from penstock.bench.result import BenchResult, spread
from penstock.control.measure.estimate import EpochCosts
from penstock.control.model.allocation import Station, assign_processors, min_processors, stable_minimum
from penstock.control.model.epoch import EpochStation, largest_load_curve
from penstock.control.model.queues import gigk_wait_s, mmk_wait_s
from penstock.control.model.stations import QueueStation

SEED: Final = 20_150
TABLE_II: Final = (12, 24, 48, 96, 192)
"""K_max of DRS, Table II."""


@dataclass(frozen=True)
class Plan:
    """How much of everything a run does."""

    problems: int
    epoch_problems: int
    batches: int
    rows: int

    @staticmethod
    def of(quick: bool) -> Plan:
        return Plan(500, 50, 10, 10_000) if quick else Plan(2_000, 300, 30, 60_000)


def optimality(result: BenchResult, plan: Plan) -> None:
    """AssignProcessors and MinProcessors against every split there is, latencies by the printed formulas."""
    rng = np.random.default_rng(SEED)
    assigned = minimised = 0
    for _ in range(plan.problems):
        problem = draw_problem(rng)
        assigned += is_best_split(problem, assign_processors(problem.stations, problem.k_max).cores)
        minimised += is_fewest_cores(problem, min_processors(problem.stations, problem.t_max_s).cores)
    result.add_figures(
        assign_problems=plan.problems,
        assign_optimal_share=assigned / plan.problems,
        minimise_optimal_share=minimised / plan.problems,
    )


def epoch_hull(result: BenchResult, plan: Plan) -> None:
    """The greedy step on the hull of the epoch model against every split: how often best, how far off at worst."""
    rng = np.random.default_rng(SEED)
    losses = [_epoch_loss(rng) for _ in range(plan.epoch_problems)]
    result.add_figures(
        epoch_hull_problems=plan.epoch_problems,
        epoch_hull_optimal_share=sum(loss < 1e-9 for loss in losses) / len(losses),
        epoch_hull_mean_loss_ratio=float(np.mean(losses)),
        epoch_hull_worst_loss_ratio=max(losses),
    )


def _epoch_loss(rng: np.random.Generator) -> float:
    """Return by what share the hull's split is slower than the best one."""
    stations = [_draw_epoch_station(rng, f"operator{at}") for at in range(3)]
    k_max = sum(stable_minimum(stations).values()) + int(rng.integers(0, 12))
    ranges = [range(station.model.min_k, 21) for station in stations]
    best_s = min(
        math.fsum(s.visits * s.model.latency_s(k) for s, k in zip(stations, split, strict=True))
        for split in itertools.product(*ranges)
        if sum(split) <= k_max
    )
    return max(0.0, assign_processors(stations, k_max).latency_s / best_s - 1)


def _draw_epoch_station(rng: np.random.Generator, name: str) -> Station:
    """Few equal shards, which make the longest plateaus, or many unlike ones, of which the hottest binds."""
    is_equal = bool(rng.random() < 0.7)
    loads = np.ones(int(rng.integers(6, 21))) if is_equal else rng.pareto(3.0, 60)
    loads = np.minimum(loads * rng.uniform(0.5, 4.0) / loads.sum(), 0.9)
    costs = EpochCosts(o0_s=float(rng.uniform(0.002, 0.02)), o1_s=float(rng.uniform(0.0, 0.001)))
    model = EpochStation(costs, largest_load_curve(loads, 20), touched=20.0)
    return Station(name, float(rng.uniform(0.2, 3.0)), model)


def speed(result: BenchResult, plan: Plan) -> None:
    """Time of AssignProcessors: three operators of fixed rates as in DRS, Table II; then 10,000 cores of which
    most are needed."""
    fixed = _three(3.0)
    for k_max in TABLE_II:
        samples = _assign_ms(fixed, k_max, plan.batches, turns=50)
        result.add_figures(**{f"assign_ms_{k_max}": spread(samples)})
    for k_max, name in ((192, "assign_ms_192_loaded"), (10_000, "assign_ms_10000")):
        samples = _assign_ms(_three(0.7 * k_max / 3), k_max, plan.batches, turns=5)
        result.add_figures(**{name: spread(samples)})


def _three(load: float) -> list[Station]:
    """Three operators with a mean load of so many cores, unlike in load, service rate and variability."""
    return [
        Station(name, visits, QueueStation(share * load * service, service, 1.5, scv))
        for name, visits, share, service, scv in (
            ("extract", 1.0, 1.1, 2.0, 0.6),
            ("match", 20.0, 1.3, 30.0, 1.0),
            ("aggregate", 4.0, 0.6, 200.0, 2.0),
        )
    ]


def _assign_ms(stations: Sequence[Station], k_max: int, batches: int, turns: int) -> list[float]:
    """Return the mean time of a call in each batch, once it is known that it dealt all cores."""
    dealt = assign_processors(stations, k_max).total
    if dealt != k_max:
        raise AssertionError(f"{dealt} of {k_max} cores were dealt, so the time would be of another problem")
    found = []
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(turns):
            assign_processors(stations, k_max)
        found.append((time.perf_counter() - began) / turns * 1e3)
    return found


def recursion(result: BenchResult, plan: Plan) -> None:
    """M/M/k by recursion against a simulated queue, within its 99.9 % interval; GI/G/k, an approximation, by its
    error."""
    inside: list[bool] = []
    errors: list[float] = []
    for k, busy in itertools.product((1, 2, 8, 40), (0.5, 0.8, 0.93)):
        wait_s = mmk_wait_s(busy * k, 1.0, k)
        seen = simulate_wait_s(busy * k, 1.0, k, rows=plan.rows, seed=SEED + k)
        inside.append(seen.holds(wait_s))
        if wait_s > 1e-3:
            errors.append(abs(wait_s / seen.mean - 1))
    general = [
        abs(gigk_wait_s(0.85 * k, 1.0, k, arrival, service) / seen.mean - 1)
        for k, (arrival, service) in itertools.product((1, 4, 16), ((0.5, 0.5), (1.0, 3.0), (3.0, 1.0)))
        if (
            seen := simulate_wait_s(
                0.85 * k, 1.0, k, rows=plan.rows, seed=SEED, scv_arrival=arrival, scv_service=service
            )
        )
    ]
    result.add_figures(
        mmk_within_interval_share=sum(inside) / len(inside),
        mmk_settings_simulated=len(inside),
        mmk_simulated_wait_error_ratio=float(np.mean(errors)),
        gigk_simulated_wait_error_ratio=float(np.mean(general)),
        gigk_simulated_wait_worst_error_ratio=max(general),
    )


PARTS: Final[dict[str, Callable[[BenchResult, Plan], None]]] = {
    "optimality": optimality,
    "epoch-hull": epoch_hull,
    "speed": speed,
    "recursion": recursion,
}

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "optimality": ("assign_optimal_share", "minimise_optimal_share"),
    "epoch-hull": ("epoch_hull_optimal_share", "epoch_hull_worst_loss_ratio"),
    "speed": (*(f"assign_ms_{k_max}" for k_max in TABLE_II), "assign_ms_10000"),
    "recursion": ("mmk_within_interval_share", "gigk_simulated_wait_error_ratio"),
}
"""Part -> figures it must have added."""


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the parts asked for (all when none is named); return the names that are missing at the end.

    A part that fails says so and lets the others go on.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    plan = Plan.of(quick)
    parts = {name: Part(_with(plan, part), figures=NAMES[name]) for name, part in PARTS.items()}
    return run_parts(result, parts | parts_of(quick), only, quick)


def _with(plan: Plan, part: Callable[[BenchResult, Plan], None]) -> Callable[[BenchResult], None]:
    return lambda result: part(result, plan)
