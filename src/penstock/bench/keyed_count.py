"""`penstock bench keyed-count`: ours against plain Spark, in one run, step by step in alternating order.

Same rows (10,000 keys, Zipf 0.5, neither sorted nor sharded), two cores, everything durable, updated keys to
a no-op sink on both sides. Every rate stands beside the latency it was measured at. Results are written after
each step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.bench import ours, spark_baseline
from penstock.bench.ingest import through_ingest
from penstock.bench.matching import bare_loop
from penstock.bench.matching_ours import match_rate
from penstock.bench.result import BenchResult
from penstock.bench.spark_baseline import Baseline, Effort
from penstock.bench.spark_process import SparkPeer

BOUND_MS = 500.0
TIGHT_MS = 100.0
STEADY_PER_S = 20_000.0
MANY_KEYS = 10_000_000


@dataclass
class Plan:
    """How much is run: the same names and sizes in a quick run, fewer repeats."""

    effort: Effort
    seconds: float
    probes: int
    rounds: int

    @staticmethod
    def of(quick: bool) -> Plan:
        return Plan(spark_baseline.QUICK, 5.0, 4, 1) if quick else Plan(spark_baseline.FULL, 12.0, 6, 3)


@dataclass
class Bench:
    """One run of the whole bench."""

    result: BenchResult
    peer: SparkPeer
    plan: Plan
    base: Baseline = field(default_factory=Baseline)

    def aggregate(self) -> None:
        """Count and sum: the highest rate held at 500 ms, at 100 ms, and at any latency."""
        spark_baseline.measure_native(self.peer, self.base, self.plan.effort)
        spark_baseline.measure_held_rate(self.peer, self.base, self.plan.effort)
        assert self.base.held is not None
        free = [ours.run_saturated(ours.count_and_sum, self.plan.seconds) for _ in range(self.plan.rounds)]
        top = ours.middle(free)
        wide = ours.find_rate(
            ours.count_and_sum,
            BOUND_MS,
            0.8 * top.rate_per_s,
            probes=self.plan.probes,
            seconds=self.plan.seconds,
        )
        tight = ours.find_rate(
            ours.count_and_sum,
            TIGHT_MS,
            0.5 * top.rate_per_s,
            probes=self.plan.probes,
            seconds=self.plan.seconds,
        )
        held, close = ours.best_held(wide + tight, BOUND_MS), ours.best_held(wide + tight, TIGHT_MS)
        self.result.add_figures(
            ours_aggregate_saturated_per_s=top.rate_per_s,
            ours_aggregate_saturated_mean_ms=top.mean_ms,
            ours_aggregate_saturated_epoch_ms=top.epoch_ms,
            ours_aggregate_at_500ms_per_s=held.rate_per_s if held else 0.0,
            ours_aggregate_at_500ms_mean_ms=held.mean_ms if held else None,
            ours_aggregate_at_100ms_per_s=close.rate_per_s if close else 0.0,
            ours_aggregate_at_100ms_mean_ms=close.mean_ms if close else None,
        )
        theirs, how = self._spark_at_bound()
        self.result.add_figures(aggregate_vs_spark_native_compares_with=how)
        self.result.add_ratio("aggregate_vs_spark_native", [held.rate_per_s if held else 0.0], [theirs])

    def _spark_at_bound(self) -> tuple[float, str]:
        """Spark's rate at 500 ms; where it held none, its rate at 1 million rows a batch, whatever the latency."""
        assert self.base.held is not None
        if self.base.held.rate_per_s > 0:
            return self.base.held.rate_per_s, "the highest rate Spark held at a mean latency of 500 ms"
        run = self.base.native[1_000_000]
        return (
            run.rate_per_s.median,
            f"Spark at 1 million rows a batch, mean latency {run.mean_latency_ms:.0f} ms",
        )

    def row_function(self) -> None:
        """A Python function per key, against the better of Spark's two Python APIs."""
        spark_baseline.measure_row_functions(self.peer, self.base, self.plan.effort)
        small = [
            ours.run_saturated(ours.row_count, self.plan.seconds, maxEpochRows=100_000)
            for _ in range(self.plan.rounds)
        ]
        free = [
            ours.run_saturated(ours.row_count, self.plan.seconds, maxEpochSeconds=1.0)
            for _ in range(self.plan.rounds)
        ]
        at_size, at_bound = self.base.best_row_function(), self.base.best_row_function_within()
        self.result.add_figures(
            ours_row_function_100k_per_s=ours.middle(small).rate_per_s,
            ours_row_function_100k_epoch_ms=ours.middle(small).epoch_ms,
            ours_row_function_best_per_s=ours.middle(free).rate_per_s,
            ours_row_function_best_epoch_ms=ours.middle(free).epoch_ms,
        )
        if at_size:
            theirs = at_size.rate_per_s.median
            self.result.add_ratio("row_function_vs_best_pyspark", [run.rate_per_s for run in small], [theirs])
        if at_bound:
            theirs = at_bound.rate_per_s.median
            self.result.add_ratio(
                "row_function_vs_pyspark_at_10s", [run.rate_per_s for run in free], [theirs]
            )

    def latency(self) -> None:
        """Mean latency at a steady 20,000 rows/s, through one operator and through two."""
        spark_baseline.measure_steady(self.peer, self.base, self.plan.effort)
        assert self.base.steady is not None
        one, two = [], []
        for _ in range(self.plan.rounds):
            one.append(ours.run_at(ours.count_and_sum, STEADY_PER_S, 2 * self.plan.seconds))
            two.append(
                ours.run_at(ours.two_operators, STEADY_PER_S, 2 * self.plan.seconds, operator="second")
            )
        theirs = [self.base.steady.latency.mean_ms]
        middle = sorted(one, key=lambda run: run.mean_ms)[len(one) // 2]
        self.result.add_ratio("latency_one_operator_vs_spark_native", [run.mean_ms for run in one], theirs)
        self.result.add_ratio("latency_two_operators_vs_spark_native", [run.mean_ms for run in two], theirs)
        self.result.add_ratio("latency_p99_over_mean", [middle.p99_ms], [middle.mean_ms])
        self.result.add_figures(
            ours_latency_20k_mean_ms=middle.mean_ms,
            ours_latency_20k_p99_ms=middle.p99_ms,
            ours_latency_two_operators_20k_mean_ms=sorted(run.mean_ms for run in two)[len(two) // 2],
            epoch_overhead_ms=middle.epoch_ms,
            driver_ms_per_epoch=middle.driver_ms_per_epoch,
            executors_one_driver_carries_at_100ms=round(50.0 / max(1e-6, middle.driver_ms_per_epoch)),
            start_s=min(run.start_s for run in one),
            ours_cpu_20k_cores=middle.cpu_cores,
        )

    def idle(self) -> None:
        """CPU of all processes with no input."""
        spark_baseline.measure_idle(self.peer, self.base, self.plan.effort)
        self.result.add_figures(ours_cpu_idle_cores=ours.idle_cores(self.plan.effort.idle_s))

    def many_keys(self) -> None:
        """Ten million distinct keys, uniform, state prefilled on both sides."""
        spark_baseline.measure_many_keys(self.peer, self.base, self.plan.effort)
        assert self.base.many_keys is not None
        source = ours.KeyedSource(MANY_KEYS, 0.0, prefill=MANY_KEYS)
        run = ours.run_saturated(ours.count_and_sum, 2 * self.plan.seconds, source=source)
        theirs = self.base.many_keys.rate_per_s.median
        self.result.add_ratio("aggregate_10m_keys_vs_spark_native", [run.rate_per_s], [theirs])
        self.result.add_figures(
            ours_10m_keys_per_s=run.rate_per_s,
            ours_10m_keys_mean_ms=run.mean_ms,
            ours_10m_keys_python_resident_mib=run.resident_bytes / 2**20,
            ours_10m_keys_state_mib=run.state_bytes / 2**20,
        )

    def matching(self) -> None:
        """Order matching at the demo's depth of book, against a bare loop in two processes."""
        theirs, mine = [], []
        for _ in range(self.plan.rounds):
            theirs.append(bare_loop())
            mine.append(match_rate(2 * self.plan.seconds))
        self.result.add_ratio("matching_vs_bare_loop", mine, theirs)
        self.result.add_figures(ours_matching_per_s=max(mine), bare_loop_matching_per_s=max(theirs))

    def ingest(self) -> None:
        """The same through ingest of the streaming DataFrame that Spark reads; reported, no target."""
        self.result.add_figures(**through_ingest(self.plan.seconds))


PARTS: dict[str, Callable[[Bench], None]] = {
    "latency": Bench.latency,
    "aggregate": Bench.aggregate,
    "row-function": Bench.row_function,
    "many-keys": Bench.many_keys,
    "matching": Bench.matching,
    "idle": Bench.idle,
    "ingest": Bench.ingest,
}


def run(result: BenchResult, quick: bool, only: list[str] | None) -> None:
    """Run the parts asked for (all when none is named)."""
    import penstock

    penstock.session("penstock-bench")
    with SparkPeer() as peer:
        bench = Bench(result, peer, Plan.of(quick))
        for name, part in PARTS.items():
            if only and name not in only:
                continue
            began = time.monotonic()
            print(f"-- {name}", file=sys.stderr, flush=True)
            part(bench)
            result.add_figures(**bench.base.figures())
            print(f"-- {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
