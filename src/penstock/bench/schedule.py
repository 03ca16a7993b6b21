"""`penstock bench schedule`: how long one decision takes, core counts by the model and then the assignment.

Instances come from a seeded generator: a cluster under a plan that model and assignment have made, then a tenth of the
executors at other rates. No Spark, no rows: only the decision is timed (Elasticutor 5.4, table 3).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock.bench.machine import describe
from penstock.bench.parts import choose
from penstock.bench.result import BenchResult, spread
from penstock.control.measure.sample import F64, I64
from penstock.control.model.many_stations import Stations, min_cores
from penstock.control.plan.assignment import Assignment, CoreDemand, plan_assignment

SERVICE_PER_S: Final = 1000.0
"""Rows a second of one core: 1 ms a row, as in Elasticutor 5.1."""

CHANGED_RATIO: Final = 0.1
BUSY_RATIO: Final = 0.7
"""Load of all executors over all cores. The first plan gives every core away, so that what grows must take from others:
the dearest search there is."""


@dataclass(frozen=True)
class Size:
    """One cluster to decide for, and the time that a decision may take."""

    name: str
    nodes: int
    cores: int
    executors: int
    at_most_ms: float


SIZES: Final = {
    "32": Size("schedule_ms_32_nodes", 32, 8, 64, 5.7),
    "1000": Size("schedule_ms_1000_nodes", 1000, 16, 1000, 50.0),
}


@dataclass(frozen=True)
class Instance:
    """A cluster under a plan, and the rates that the next decision finds."""

    rates_per_s: F64
    now: CoreDemand
    t_max_s: float


def make_instance(size: Size, seed: int) -> Instance:
    """Make a cluster of executors of unlike rates, state and data intensity under a plan that gives all cores away for
    the least latency; then let a tenth of them need at least a core more or less than before."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(size.executors, 2.0))
    busy = 0.3 + shares * (BUSY_RATIO * size.nodes * size.cores - 0.3 * size.executors)
    rates = busy * SERVICE_PER_S
    first = min_cores(_stations(rates), 0.0, size.nodes * size.cores)
    start = _first_demand(size, first.cores, rates, rng)
    now = replace(start, present=plan_assignment(start).cores)
    changed = rng.choice(size.executors, round(CHANGED_RATIO * size.executors), replace=False)
    by = rng.uniform(1.0, 1.0 + 0.4 * busy[changed]) * np.where(rng.random(len(changed)) < 0.5, -1.0, 1.0)
    rates[changed] = (
        np.where(busy[changed] + by < 0.3, busy[changed] - by, busy[changed] + by) * SERVICE_PER_S
    )
    return Instance(rates, now, first.latency_s)


def _first_demand(size: Size, cores: I64, rates_per_s: F64, rng: np.random.Generator) -> CoreDemand:
    """One core for each executor on its home, the nodes taken in turn."""
    home = np.arange(size.executors) % size.nodes
    present = np.zeros((size.executors, size.nodes), dtype=np.int64)
    present[np.arange(size.executors), home] = 1
    row_bytes = rng.lognormal(np.log(256), 1.0, size.executors)
    return CoreDemand(
        tuple(f"executor{one}" for one in range(size.executors)),
        tuple(f"node{one}" for one in range(size.nodes)),
        cores,
        np.full(size.nodes, size.cores),
        present,
        rng.lognormal(np.log(8e6), 1.0, size.executors),
        2 * row_bytes * rates_per_s / cores,
        home,
    )


def _stations(rates_per_s: F64) -> Stations:
    return Stations(rates_per_s, np.full(len(rates_per_s), SERVICE_PER_S), rates_per_s / rates_per_s.sum())


def decide(instance: Instance) -> Assignment:
    """Decide once: core counts for the latency by M/M/k, then the cores of each executor on each node."""
    found = min_cores(_stations(instance.rates_per_s), instance.t_max_s, int(instance.now.capacity.sum()))
    return plan_assignment(replace(instance.now, demand=found.cores))


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Time decisions for each size asked for (all when none is named); return the names that are missing at the end.

    Raises:
        UnknownPart: a size is asked for that does not exist.
    """
    chosen = [SIZES[part] for part in choose(SIZES, only)]
    result.add_figures(**{f"machine_{name}": value for name, value in describe().items()}, quick=quick)
    for size in chosen:
        print(
            f"-- {size.nodes} nodes x {size.cores} cores, {size.executors} executors",
            file=sys.stderr,
            flush=True,
        )
        _measure(result, size, instances=5 if quick else 20, turns=3 if quick else 10)
    return [size.name for size in chosen if result.figures.get(size.name) is None]


def _measure(result: BenchResult, size: Size, instances: int, turns: int) -> None:
    """Add the time of one decision over all instances and turns, and what was decided in the middle one."""
    took_ms: list[float] = []
    found: list[Assignment] = []
    for seed in range(instances):
        instance = make_instance(size, seed)
        decide(instance)
        for _ in range(turns):
            began = time.perf_counter()
            assignment = decide(instance)
            took_ms.append((time.perf_counter() - began) * 1e3)
        found.append(assignment)
    figure = spread(took_ms)
    middle = found[len(found) // 2]
    changed = int((middle.demand.demand != middle.demand.present.sum(axis=1)).sum())
    result.add_figures(
        **{size.name: figure},
        **{f"{size.name}_executors": size.executors, f"{size.name}_at_most": size.at_most_ms},
        **{f"{size.name}_changed": changed, f"{size.name}_moved_cores": middle.moved_cores},
        **{f"{size.name}_met": figure.median <= size.at_most_ms},
    )
