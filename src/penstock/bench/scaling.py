"""`penstock bench scaling`: one executor on 1 to 16 emulated cores, and where more cores stop to help.

Elasticutor 5.2, figures 10 and 11: one query each, cores added while it runs, for rows that cost 1, 0.1 and 0.01 ms and
for large payloads. Epochs of half a second; shards are dealt by the known load of their keys, as a balancer would.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

import penstock
from penstock.bench import emulated
from penstock.bench.changing import apply_plan, await_epochs
from penstock.bench.emulated import NAME, SHARDS, Calculate
from penstock.bench.machine import CpuMeter
from penstock.bench.ours import await_rows, running, watch
from penstock.bench.parts import Part, choose, run_parts
from penstock.bench.result import BenchResult
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.workloads.dynamics import Dynamics, shard_of_keys

EPOCH_S: Final = 0.5
MOST_CORES: Final = 16
GOOD: Final = 0.9
SETTLE_EPOCHS: Final = 6
"""Left out after a change of cores: the first open the shards that have moved, the next learn the new rate."""

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Case:
    """One curve: what a row costs and carries, and the numbers of cores that are tried."""

    row_s: float
    payload_bytes: int
    cores: tuple[int, ...]
    zipf: float = 0.5


@dataclass(frozen=True)
class Point:
    """What one executor did on so many cores."""

    cores: int
    rate_per_s: float
    epoch_ms: float
    real_cores: float
    driver_ms_per_epoch: float


CASES: Final = {
    "1ms": Case(1e-3, 128, (1, 2, 4, 8, 16)),
    "tenth-ms": Case(1e-4, 128, (1, 4, 16)),
    "hundredth-ms": Case(1e-5, 128, (1, 4, 16)),
    "8kb": Case(1e-3, 8192, (1, 4, 16)),
}


def deal_by_load(loads: Sequence[float] | npt.NDArray[np.float64], tasks: int) -> I32:
    """Deal shards to tasks, the heaviest first, each to the task that has least."""
    found = np.zeros(len(loads), np.int32)
    heap = [(0.0, task) for task in range(tasks)]
    for shard in np.argsort(-np.asarray(loads), kind="stable").tolist():
        load, task = heapq.heappop(heap)
        found[shard] = task
        heapq.heappush(heap, (load + float(loads[shard]), task))
    return found


def plan_cores(loads: npt.NDArray[np.float64], cores: int) -> Plan:
    """Return the plan that gives the operator so many cores on any node."""
    return Plan({NAME: ExecutorPlan(dict.fromkeys(range(cores), ""), deal_by_load(loads, cores))})


def derive_efficiencies(points: Sequence[Point]) -> dict[int, float]:
    """Return, by cores, the rate over what as many cores as the first point's would give each."""
    first = points[0]
    each = first.rate_per_s / first.cores
    return {point.cores: point.rate_per_s / (each * point.cores) for point in points}


def find_break(efficiencies: dict[int, float], good: float = GOOD) -> int | None:
    """Return the fewest cores of those tried at which efficiency is not good any more; None where it stays."""
    return next((cores for cores in sorted(efficiencies) if efficiencies[cores] < good), None)


def measure(case: Case, seconds: float) -> list[Point]:
    """Give one executor more and more cores, and read off its rate at each number."""
    rows = Dynamics(zipf=case.zipf, payload_bytes=case.payload_bytes)
    shard_of = shard_of_keys(rows.keys, SHARDS)
    loads = np.bincount(shard_of, rows.by_key(0), SHARDS).astype(np.float64)
    work = Calculate(case.row_s, emulated.key_bytes_for(32 << 10))
    stream = emulated.calculate(emulated.source(rows), work, cores=case.cores[0])
    # Tasks that had fewer rows for a while go ahead of the others: there must be some for them.
    waiting = 6 * int(MOST_CORES / case.row_s * EPOCH_S) * (case.payload_bytes + 32)
    options = {"maxEpochSeconds": EPOCH_S, "maxWaitingBytes": min(waiting, 256 << 20)}
    found = []
    with running(stream, **options) as query:
        await_rows(query, NAME, 0)
        for cores in case.cores:
            apply_plan(query, plan_cores(loads, cores))
            await_epochs(query, NAME, SETTLE_EPOCHS)
            meter = CpuMeter()
            window = watch(query, NAME, seconds)
            was, now = window.of(NAME)
            epochs = max(1, now["epochs"] - was["epochs"])
            rate = (now["rowsIn"] - was["rowsIn"]) / window.seconds
            real, driver_ms = meter.read().cores, float(window.after["driverMsPerEpoch"])
            found.append(Point(cores, rate, window.seconds * 1e3 / epochs, real, driver_ms))
    return found


def _part(name: str, case: Case, seconds: float) -> Part:
    tag = name.replace("-", "_")

    def run(result: BenchResult) -> None:
        points = measure(case, seconds)
        efficiency = derive_efficiencies(points)
        for point in points:
            result.add_figures(
                **{
                    f"{tag}_{point.cores}_cores_per_s": point.rate_per_s,
                    f"{tag}_{point.cores}_cores_efficiency": efficiency[point.cores],
                    f"{tag}_{point.cores}_cores_share_of_emulated": point.rate_per_s
                    * case.row_s
                    / point.cores,
                    f"{tag}_{point.cores}_cores_epoch_ms": point.epoch_ms,
                    f"{tag}_{point.cores}_cores_real_cores": point.real_cores,
                    f"{tag}_{point.cores}_cores_driver_ms_per_epoch": point.driver_ms_per_epoch,
                }
            )
        broke = find_break(efficiency)
        result.add_figures(**{f"{tag}_breaks": _say_break(points, broke)})
        if name == "1ms":
            result.ratios["efficiency_16"] = round(efficiency[MOST_CORES], 4)
            result.write()

    owed = tuple(f"{tag}_{cores}_cores_per_s" for cores in case.cores)
    return Part(run, ("efficiency_16",) if name == "1ms" else (), (*owed, f"{tag}_breaks"))


def _say_break(points: Sequence[Point], broke: int | None) -> str:
    if broke is None:
        return f"not up to {points[-1].cores} cores"
    at = next(point for point in points if point.cores == broke)
    return (
        f"at {broke} cores: {at.rate_per_s:,.0f} rows/s take {at.real_cores:.2f} real cores in all, epochs of "
        f"{at.epoch_ms:.0f} ms"
    )


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the curves asked for (all when none is named); return the names that are missing at the end.

    Raises:
        UnknownPart: a curve is asked for that does not exist.
    """
    parts = {name: _part(name, case, 5.0 if quick else 20.0) for name, case in CASES.items()}
    choose(parts, only)
    result.emulated.append(emulated.EMULATION)
    penstock.session("penstock-bench-scaling", cores=MOST_CORES)
    return run_parts(result, parts, only, quick)
