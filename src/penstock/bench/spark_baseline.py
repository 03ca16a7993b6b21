"""All that `bench keyed-count` wants to know of plain Spark, step by step, for a quick run or a full one.

Each step is a function of a running `SparkPeer`, so that a bench can put our own runs between them; a step that
is repeated adds a run to those before. Run as a program, it prints plain Spark's figures alone:
`python -m penstock.bench.spark_baseline [STEP ...] [--full]`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from penstock.bench.spark_figures import (
    BatchRun,
    Chosen,
    HeldRate,
    SteadyRun,
    choose_setting,
    of_batches,
    of_feed,
    propose_batch_rows,
)
from penstock.bench.spark_process import Api, SparkPeer

BATCH_ROWS: Final = (100_000, 1_000_000, 4_000_000)
ROW_APIS: Final[tuple[Api, ...]] = ("with_state", "in_pandas")
OTHERWISE_ROWS: Final = 1_000_000
ROW_BATCH_ROWS: Final = 100_000
LARGE_ROWS: Final[dict[Api, int]] = {"with_state": 400_000, "in_pandas": 1_000_000}
"""A second size for each Python API, to see how its cost grows; `transformWithState` takes 14 s for a million."""
ROW_BOUND_MS: Final = 10_000.0
HELD_BOUND_MS: Final = 500.0
STEADY_PER_S: Final = 20_000.0
WARM_BATCHES: Final = 20
SLOWEST_BATCH_S: Final = 25.0
"""What a batch of the slowest API may take on a busy machine before a run is given up."""


@dataclass(frozen=True)
class Effort:
    """How often things are run; sizes are the same in a quick run and a full one.

    The JVM is warmed first, a query always runs 20 batches or more, and the last half of the batches of a size
    counts. Only for the Python APIs, where one batch takes seconds, are a quick run's 20 warming batches small.
    """

    native_batches: int = 20
    steady_batches: int = 30
    probes: int = 3
    later_probes: int = 2
    row_batches: int = 3
    large_row_batches: int = 2
    row_warm_batches: int = 20
    row_tries: int = 1
    key_batches: int = 2
    idle_s: float = 4.0


QUICK: Final = Effort()
FULL: Final = Effort(24, 60, 6, 3, 20, 20, 0, 2, 20, 10.0)


@dataclass
class Baseline:
    """Plain Spark's runs, filled in by the steps below, one more at each repetition."""

    native: dict[int, list[BatchRun]] = field(default_factory=dict)
    steady: list[SteadyRun] = field(default_factory=list)
    idle_cores: float | None = None
    held: list[HeldRate] = field(default_factory=list)
    row_functions: dict[Api, list[BatchRun]] = field(default_factory=dict)
    many_keys: list[BatchRun] = field(default_factory=list)
    processors: list[BatchRun] = field(default_factory=list)
    """`transformWithState` as the peer of the same class with us."""

    def figures(self) -> dict[str, float]:
        """Name every figure there is so far, each rate with the mean latency it was measured at."""
        found: dict[str, float] = {}
        for rows, runs in self.native.items():
            found |= _batch_figures(f"spark_native_{short(rows)}", runs)
        for api, runs in self.row_functions.items():
            for rows in {run.rows_per_batch: None for run in runs}:
                same = [run for run in runs if run.rows_per_batch == rows]
                found |= _batch_figures(f"spark_{api}_{short(rows)}", same)
        for rows in {run.rows_per_batch: None for run in self.processors}:
            same = [run for run in self.processors if run.rows_per_batch == rows]
            found |= _batch_figures(f"spark_processor_{short(rows)}", same)
        if self.many_keys:
            found |= _batch_figures("spark_native_10m_keys", self.many_keys)
        if self.steady:
            found["spark_latency_20k_mean_ms"] = median(run.latency.mean_ms for run in self.steady)
            found["spark_latency_20k_p99_ms"] = median(run.latency.p99_ms for run in self.steady)
            found["spark_latency_20k_batches"] = min(run.batches for run in self.steady)
            found["spark_cpu_20k_cores"] = median(run.cpu.cores for run in self.steady)
        if self.idle_cores is not None:
            found["spark_cpu_idle_cores"] = self.idle_cores
        if self.held:
            held = sorted(self.held, key=lambda one: one.rate_per_s)[len(self.held) // 2]
            found["spark_native_at_500ms_per_s"] = held.rate_per_s
            # Where no rate was held, this is the lowest latency that any rate had.
            lowest_ms = min(run.latency.mean_ms for run in held.runs)
            found["spark_native_at_500ms_mean_ms"] = held.mean_latency_ms or lowest_ms
            found["spark_native_at_500ms_open_loop_per_s"] = held.open_loop_per_s
            found["spark_native_at_500ms_closed_loop_per_s"] = held.closed_loop_per_s
        return found


def warm_up(peer: SparkPeer) -> None:
    """Let a fresh JVM compile what every query runs: its first batches take twice to ten times as long."""
    peer.batches(BATCH_ROWS[0], batches=WARM_BATCHES)


def measure_native(peer: SparkPeer, base: Baseline, effort: Effort) -> list[BatchRun]:
    """Run prepared batches of the three sizes."""
    runs = [peer.batches(rows, batches=effort.native_batches) for rows in BATCH_ROWS]
    for run in runs:
        base.native.setdefault(run.rows_per_batch, []).append(run)
    return runs


def measure_held_rate(peer: SparkPeer, base: Baseline, effort: Effort) -> Chosen:
    """Search the highest rate at 500 ms by feeding it; say which setting stands for Spark there.

    Prepared batches whose derived latency is within the bound count as well, which is generous to Spark: they
    have been seen above what it then held when fed. Where nothing met the bound, batches of a million rows stand
    for Spark, whatever their latency: its latency hardly depends on the rate, so that which run of several
    happens to be the quickest says nothing.
    """
    if not base.native:
        measure_native(peer, base, effort)
    known = [runs[-1] for runs in base.native.values()]
    before = base.held[-1].open_loop_per_s if base.held else 0.0
    probes = effort.later_probes if before else effort.probes
    held = peer.held_rate(known, HELD_BOUND_MS, probes, before or None)
    base.held.append(held)
    settings = [*map(of_feed, held.runs), *map(of_batches, known)]
    return choose_setting(settings, HELD_BOUND_MS, of_batches(base.native[OTHERWISE_ROWS][-1]))


def measure_steady(peer: SparkPeer, base: Baseline, effort: Effort) -> SteadyRun:
    base.steady.append(peer.steady(STEADY_PER_S, batches=effort.steady_batches, timeout_s=120.0))
    return base.steady[-1]


def measure_idle(peer: SparkPeer, base: Baseline, effort: Effort) -> float:
    base.idle_cores = peer.idle_cpu(effort.idle_s).cores
    return base.idle_cores


@dataclass(frozen=True)
class RowRound:
    """The better Python API at 100,000 rows a batch, and the fastest setting of any within 10 s."""

    at_size: BatchRun
    at_bound: Chosen


def measure_row_functions(peer: SparkPeer, base: Baseline, effort: Effort) -> RowRound:
    """Run both row APIs at 100,000 rows a batch and at more, then look where the faster is fastest in 10 s.

    One of them costs by the key and the other by the row, so neither size alone says which one is faster. What
    the first call found to be the fastest setting is run again by later ones, without another search.
    """
    first = not base.row_functions
    this_time: list[BatchRun] = []
    for api in ROW_APIS:
        # The large ones first: what they call often enough to be compiled is then fast for those that count most.
        large = [(LARGE_ROWS[api], effort.large_row_batches)] if first else []
        sizes = [*large, (ROW_BATCH_ROWS, effort.row_batches)]
        runs = _run_rows(peer, api, sizes, effort)
        base.row_functions.setdefault(api, []).extend(runs)
        this_time.extend(runs)
    at_size = max(
        (run for run in this_time if run.rows_per_batch == ROW_BATCH_ROWS),
        key=lambda run: run.rate_per_s.median,
    )
    this_time.extend(_search_size(peer, base, effort) if first else _run_best_again(peer, base, effort))
    return RowRound(at_size, choose_setting([of_batches(run) for run in this_time], ROW_BOUND_MS))


def _run_rows(peer: SparkPeer, api: Api, sizes: Sequence[tuple[int, int]], effort: Effort) -> list[BatchRun]:
    batches = effort.row_warm_batches + sum(count for _, count in sizes)
    return peer.sizes(sizes, api, effort.row_warm_batches, 60 + SLOWEST_BATCH_S * batches)


def _search_size(peer: SparkPeer, base: Baseline, effort: Effort) -> list[BatchRun]:
    best = max(ROW_APIS, key=lambda api: propose_batch_rows(base.row_functions[api], ROW_BOUND_MS))
    known = base.row_functions[best]
    # No further warm-up, as this API has just run twenty batches and more; only the first batch starts cold.
    found = peer.batch_size(known, best, ROW_BOUND_MS, effort.large_row_batches + 1, effort.row_tries)
    base.row_functions[best] = found
    return found[len(known) :]


def _run_best_again(peer: SparkPeer, base: Baseline, effort: Effort) -> list[BatchRun]:
    known = [(of_batches(run), api, run) for api, runs in base.row_functions.items() for run in runs]
    chosen = choose_setting([setting for setting, _, _ in known], ROW_BOUND_MS).setting
    api, rows = next((api, run.rows_per_batch) for setting, api, run in known if setting is chosen)
    if rows == ROW_BATCH_ROWS:
        return []  # it has just been run
    runs = _run_rows(peer, api, [(rows, effort.large_row_batches)], effort)
    base.row_functions[api].extend(runs)
    return runs


def measure_processor(peer: SparkPeer, base: Baseline, effort: Effort) -> BatchRun:
    """Run `transformWithState` at 100,000 rows a batch; the first time at a million too, which is reported beside it."""
    large = [] if base.processors else [(OTHERWISE_ROWS, effort.large_row_batches)]
    runs = _run_rows(peer, "with_state", [*large, (ROW_BATCH_ROWS, effort.row_batches)], effort)
    base.processors.extend(runs)
    return runs[-1]


def measure_many_keys(peer: SparkPeer, base: Baseline, effort: Effort) -> BatchRun:
    base.many_keys.append(peer.many_keys(batches=effort.key_batches))
    return base.many_keys[-1]


STEPS: Final[dict[str, Callable[[SparkPeer, Baseline, Effort], object]]] = {
    "native": measure_native,
    "held-rate": measure_held_rate,
    "steady": measure_steady,
    "idle": measure_idle,
    "row-functions": measure_row_functions,
    "processor": measure_processor,
    "many-keys": measure_many_keys,
}


def _batch_figures(name: str, runs: Sequence[BatchRun]) -> dict[str, float]:
    run = sorted(runs, key=lambda one: one.rate_per_s.median)[len(runs) // 2]
    return {
        f"{name}_per_s": run.rate_per_s.median,
        f"{name}_per_s_low": min(one.rate_per_s.low for one in runs),
        f"{name}_per_s_high": max(one.rate_per_s.high for one in runs),
        f"{name}_mean_latency_ms": run.mean_latency_ms,
        f"{name}_batches": run.batches,
    }


def short(rows: int) -> str:
    """Name a number of rows as figures do: 100k, 4m."""
    return f"{rows // 1_000_000}m" if rows % 1_000_000 == 0 else f"{rows // 1000}k"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure plain Spark alone.")
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all if none is named"
    )
    parser.add_argument("--full", action="store_true", help="run everything more often")
    options = parser.parse_args()
    base, effort, start_s = Baseline(), FULL if options.full else QUICK, time.monotonic()
    with SparkPeer() as peer:
        warm_up(peer)
        for name in options.steps or STEPS:
            STEPS[name](peer, base, effort)
            print(f"# {name} done at {time.monotonic() - start_s:.0f} s", flush=True)
    print(json.dumps({name: round(figure, 3) for name, figure in base.figures().items()}, indent=2))


if __name__ == "__main__":
    main()
