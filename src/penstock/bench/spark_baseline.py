"""All that `bench keyed-count` wants to know of plain Spark, step by step, for a quick run or a full one.

Each step is a function of a running `SparkPeer`, so that a bench can put our own runs between them. Run as a
program, it prints plain Spark's figures alone: `python -m penstock.bench.spark_baseline [STEP ...] [--full]`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.bench.spark_figures import (
    BatchRun,
    HeldRate,
    SteadyRun,
    fastest_within,
    propose_batch_rows,
)
from penstock.bench.spark_process import Api, SparkPeer

BATCH_ROWS: Final = (100_000, 1_000_000, 4_000_000)
ROW_APIS: Final[tuple[Api, ...]] = ("in_pandas", "with_state")
ROW_BOUND_MS: Final = 10_000.0
STEADY_PER_S: Final = 20_000.0


@dataclass(frozen=True)
class Effort:
    """How often things are run; batch sizes and protocols are the same in a quick run and a full one."""

    native_batches: int = 20
    steady_batches: int = 24
    probes: int = 4
    row_batches: int = 6
    large_row_batches: int = 4
    row_tries: int = 1
    key_batches: int = 6
    idle_s: float = 4.0


QUICK: Final = Effort()
FULL: Final = Effort(30, 60, 6, 20, 10, 3, 20, 10.0)


@dataclass
class Baseline:
    """Plain Spark's runs, filled in by the steps below."""

    native: dict[int, BatchRun] = field(default_factory=dict)
    steady: SteadyRun | None = None
    idle_cores: float | None = None
    held: HeldRate | None = None
    row_functions: dict[Api, list[BatchRun]] = field(default_factory=dict)
    many_keys: BatchRun | None = None

    def best_row_function(self, rows_per_batch: int = 100_000) -> BatchRun | None:
        """Return the faster of the row APIs at one batch size; None before any was run."""
        runs = [run for known in self.row_functions.values() for run in known]
        same = [run for run in runs if run.rows_per_batch == rows_per_batch]
        return max(same, key=lambda run: run.rate_per_s.median, default=None)

    def best_row_function_within(self, bound_ms: float = ROW_BOUND_MS) -> BatchRun | None:
        """Return the fastest run of a row API, at any batch size, with a mean latency within the bound."""
        return fastest_within([run for known in self.row_functions.values() for run in known], bound_ms)

    def figures(self) -> dict[str, float]:
        """Name every figure there is so far, each rate with the mean latency it was measured at."""
        found: dict[str, float] = {}
        for rows, run in self.native.items():
            found |= _batch_figures(f"spark_native_{_short(rows)}", run)
        for api, runs in self.row_functions.items():
            for run in runs:
                found |= _batch_figures(f"spark_{api}_{_short(run.rows_per_batch)}", run)
        if self.many_keys:
            found |= _batch_figures("spark_native_10m_keys", self.many_keys)
        if self.steady:
            found["spark_latency_20k_mean_ms"] = self.steady.latency.mean_ms
            found["spark_latency_20k_p99_ms"] = self.steady.latency.p99_ms
            found["spark_cpu_20k_cores"] = self.steady.cpu.cores
        if self.idle_cores is not None:
            found["spark_cpu_idle_cores"] = self.idle_cores
        if self.held:
            found["spark_native_at_500ms_per_s"] = self.held.rate_per_s
            found["spark_native_at_500ms_mean_ms"] = self.held.mean_latency_ms
            found["spark_native_at_500ms_open_loop_per_s"] = self.held.open_loop_per_s
            found["spark_native_at_500ms_closed_loop_per_s"] = self.held.closed_loop_per_s
        return found


def measure_native(peer: SparkPeer, base: Baseline, effort: Effort) -> None:
    for rows in BATCH_ROWS:
        base.native[rows] = peer.batches(rows, batches=effort.native_batches)


def measure_held_rate(peer: SparkPeer, base: Baseline, effort: Effort) -> None:
    known = list(base.native.values()) or [peer.batches(rows) for rows in BATCH_ROWS]
    base.held = peer.held_rate(known, 500.0, effort.probes)


def measure_steady(peer: SparkPeer, base: Baseline, effort: Effort) -> None:
    base.steady = peer.steady(STEADY_PER_S, batches=effort.steady_batches)


def measure_idle(peer: SparkPeer, base: Baseline, effort: Effort) -> None:
    base.idle_cores = peer.idle_cpu(effort.idle_s).cores


def measure_row_functions(peer: SparkPeer, base: Baseline, effort: Effort) -> None:
    """Run both row APIs at 100,000 and 1 million rows a batch, then look where the faster is fastest in 10 s.

    One of them costs by the key and the other by the row, so neither size alone says which one is faster.
    """
    for api in ROW_APIS:
        base.row_functions[api] = [
            peer.batches(100_000, api, effort.row_batches),
            peer.batches(1_000_000, api, effort.large_row_batches),
        ]
    best = max(ROW_APIS, key=lambda api: propose_batch_rows(base.row_functions[api], ROW_BOUND_MS))
    base.row_functions[best] = peer.batch_size(
        base.row_functions[best], best, ROW_BOUND_MS, effort.large_row_batches, effort.row_tries
    )


def measure_many_keys(peer: SparkPeer, base: Baseline, effort: Effort) -> None:
    base.many_keys = peer.many_keys(batches=effort.key_batches)


STEPS: Final[dict[str, Callable[[SparkPeer, Baseline, Effort], None]]] = {
    "native": measure_native,
    "held-rate": measure_held_rate,
    "steady": measure_steady,
    "idle": measure_idle,
    "row-functions": measure_row_functions,
    "many-keys": measure_many_keys,
}


def _batch_figures(name: str, run: BatchRun) -> dict[str, float]:
    return {
        f"{name}_per_s": run.rate_per_s.median,
        f"{name}_per_s_low": run.rate_per_s.low,
        f"{name}_per_s_high": run.rate_per_s.high,
        f"{name}_mean_latency_ms": run.mean_latency_ms,
    }


def _short(rows: int) -> str:
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
        for name in options.steps or STEPS:
            STEPS[name](peer, base, effort)
            print(f"# {name} done at {time.monotonic() - start_s:.0f} s", flush=True)
    print(json.dumps({name: round(figure, 3) for name, figure in base.figures().items()}, indent=2))


if __name__ == "__main__":
    main()
