"""`penstock bench keyed-count`: ours against plain Spark, in one run, the sides alternating round by round.

Same rows (10,000 keys, Zipf 0.5, neither sorted nor sharded), two cores, everything durable, updated keys to
a no-op sink on both sides. Every rate stands beside the latency it was measured at. Results are written after
each step; what a failed part still owes is named at the end.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from penstock.bench import ours, spark_baseline
from penstock.bench.driver_load import TASKS_EACH, measure_executors
from penstock.bench.ingest import through_ingest
from penstock.bench.machine import describe, hold_to_cores
from penstock.bench.matching import bare_loop
from penstock.bench.matching_ours import MAX_EPOCH_S, match_rate
from penstock.bench.ours import Held
from penstock.bench.parts import choose
from penstock.bench.result import BenchResult
from penstock.bench.spark_baseline import BATCH_ROWS, STEADY_PER_S, Baseline, Effort, short
from penstock.bench.spark_figures import Chosen, of_batches
from penstock.bench.spark_process import SparkPeer, check_installed
from penstock.bench.targets import missing_names
from penstock.bench.turns import Turns

BOUND_MS = 500.0
TIGHT_MS = 100.0
WHOLE_EPOCH_S = 5.0
MANY_KEYS = 10_000_000
CORES = 2
QUICK_CLIMB = (0.2, 0.4, 0.6, 0.75, 0.9)
FULL_CLIMB = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
LONG_EPOCH_S = 10.0
"""Longest epoch where its rows are set: the number of rows is to be the bound, not the time."""


@dataclass(frozen=True)
class Plan:
    """How much is run: the same names and sizes in a quick run, fewer repeats."""

    effort: Effort
    seconds: float
    climb: tuple[float, ...]
    """Shares of the highest rate that are offered in turn to find the one that is held at a latency."""
    climb_s: float
    rounds: int
    heavy_rounds: int
    """Rounds of what takes minutes a round: the Python APIs of Spark, and 10 million keys."""
    ingest_batches: int
    driver_trials: int
    whole: bool
    """Whether what is dear and has no target is run too."""

    @staticmethod
    def of(quick: bool) -> Plan:
        if quick:
            return Plan(spark_baseline.QUICK, 5.0, QUICK_CLIMB, 3.0, 1, 1, 8, 2, False)
        return Plan(spark_baseline.FULL, 8.0, FULL_CLIMB, 5.0, 3, 2, 20, 3, True)


@dataclass(frozen=True)
class AggregateRound:
    """Our side of one round of count and sum."""

    sized: dict[int, Held]
    wide: Held
    met_bound: bool
    tight: Held | None
    lowest_ms: float


@dataclass
class Bench:
    """One run of the whole bench."""

    result: BenchResult
    peer: SparkPeer
    plan: Plan
    base: Baseline = field(default_factory=Baseline)
    turns: Turns = field(default_factory=Turns)

    # -- latency ------------------------------------------------------------------------------------------------------

    def latency(self) -> None:
        """Mean latency at a steady 20,000 rows/s, through one operator and through two."""
        mine, theirs = self.turns.alternate(
            self.plan.rounds,
            self._steady_round,
            lambda: spark_baseline.measure_steady(self.peer, self.base, self.plan.effort).latency.mean_ms,
        )
        one, two = [pair[0] for pair in mine], [pair[1] for pair in mine]
        self.result.add_ratio("latency_one_operator_vs_spark_native", [run.mean_ms for run in one], theirs)
        self.result.add_ratio("latency_two_operators_vs_spark_native", [run.mean_ms for run in two], theirs)
        self.result.add_ratio(
            "latency_p99_over_mean", [run.p99_ms for run in one], [run.mean_ms for run in one]
        )
        middle, second = _middle_latency(one), _middle_latency(two)
        self.result.add_figures(
            ours_latency_20k_mean_ms=middle.mean_ms,
            ours_latency_20k_p99_ms=middle.p99_ms,
            ours_latency_20k_epoch_ms=middle.epoch_ms,
            ours_latency_two_operators_20k_mean_ms=second.mean_ms,
            ours_latency_two_operators_20k_p99_ms=second.p99_ms,
            driver_ms_per_epoch=middle.driver_ms_per_epoch,
            start_s=median(run.start_s for run in one),
            ours_cpu_20k_cores=middle.cpu_cores,
        )

    def _steady_round(self) -> tuple[Held, Held]:
        seconds = 1.5 * self.plan.seconds
        one = ours.run_at(ours.count_and_sum, STEADY_PER_S, seconds, apart_from=[self.peer.pid])
        return one, ours.run_at(ours.two_operators, STEADY_PER_S, seconds, operator="second")

    # -- count and sum ------------------------------------------------------------------------------------------------

    def aggregate(self) -> None:
        """Count and sum: the highest rate held at 500 ms, at 100 ms, and at any latency."""
        mine, theirs = self.turns.alternate(self.plan.rounds, self._aggregate_round, self._spark_round)
        wide = ours.middle([one.wide for one in mine])
        self._compare("aggregate_vs_spark_native", [one.wide for one in mine], theirs, wide.mean_ms)
        for rows in BATCH_ROWS:
            theirs_at = median(run.rate_per_s.median for run in self.base.native[rows])
            ratio = wide.rate_per_s / theirs_at
            self.result.add_figures(**{f"aggregate_at_500ms_vs_spark_native_{short(rows)}": ratio})
            self._add_rate(f"ours_aggregate_{short(rows)}", [one.sized[rows] for one in mine])
        best = [max(one.sized.values(), key=lambda run: run.rate_per_s) for one in mine]
        self._add_rate("ours_aggregate_any_latency", best)
        met = all(one.met_bound for one in mine)
        self.result.add_figures(
            aggregate_vs_spark_native_ours_met_the_bound=met,
            ours_aggregate_at_500ms_per_s=wide.rate_per_s if met else 0.0,
            ours_aggregate_at_500ms_mean_ms=wide.mean_ms,
            **self._tight_figures(mine),
        )

    def _tight_figures(self, rounds: Sequence[AggregateRound]) -> dict[str, float]:
        held = [one.tight for one in rounds if one.tight is not None]
        if len(held) < len(rounds):  # a rate that is not held every time is not held
            lowest_ms = min(one.lowest_ms for one in rounds)
            return {"ours_aggregate_at_100ms_per_s": 0.0, "ours_aggregate_at_100ms_mean_ms": lowest_ms}
        tight = ours.middle(held)
        return {
            "ours_aggregate_at_100ms_per_s": tight.rate_per_s,
            "ours_aggregate_at_100ms_mean_ms": tight.mean_ms,
        }

    def _spark_round(self) -> Chosen:
        spark_baseline.measure_native(self.peer, self.base, self.plan.effort)
        return spark_baseline.measure_held_rate(self.peer, self.base, self.plan.effort)

    def _aggregate_round(self) -> AggregateRound:
        sized = {
            rows: ours.run_saturated(
                ours.count_and_sum, self.plan.seconds, maxEpochRows=rows, maxEpochSeconds=LONG_EPOCH_S
            )
            for rows in BATCH_ROWS
        }
        top = max(run.rate_per_s for run in sized.values())
        runs = ours.climb(ours.count_and_sum, [share * top for share in self.plan.climb], self.plan.climb_s)
        held = ours.best_held(runs, BOUND_MS)
        lowest = min(runs, key=lambda run: run.mean_ms)
        return AggregateRound(
            sized, held or lowest, held is not None, ours.best_held(runs, TIGHT_MS), lowest.mean_ms
        )

    # -- row function -------------------------------------------------------------------------------------------------

    def row_function(self) -> None:
        """A Python function per key, against the better of Spark's two Python APIs."""
        check_installed("with_state")
        mine, theirs = self.turns.alternate(
            self.plan.heavy_rounds,
            self._row_round,
            lambda: spark_baseline.measure_row_functions(self.peer, self.base, self.plan.effort),
        )
        small, free = [pair[0] for pair in mine], [pair[1] for pair in mine]
        at_size = [Chosen(of_batches(one.at_size), True, None) for one in theirs]
        at_bound = [one.at_bound for one in theirs]
        self._compare("row_function_vs_best_pyspark", small, at_size, ours.middle(small).derived_ms)
        self._compare("row_function_vs_pyspark_at_10s", free, at_bound, ours.middle(free).derived_ms)
        self._add_rate("ours_row_function_100k", small)
        self._add_rate("ours_row_function_best", free)

    def _row_round(self) -> tuple[Held, Held]:
        rows = spark_baseline.ROW_BATCH_ROWS
        small = ours.run_saturated(ours.row_count, self.plan.seconds, maxEpochRows=rows)
        return small, ours.run_saturated(ours.row_count, self.plan.seconds, maxEpochSeconds=1.0)

    # -- stateful processor -------------------------------------------------------------------------------------------

    def stateful_processor(self) -> None:
        """One `StatefulProcessor` class, unchanged, here and on plain Spark; its pandas flavour is reported."""
        check_installed("with_state")
        mine, theirs = self.turns.alternate(
            self.plan.heavy_rounds,
            self._processor_round,
            lambda: spark_baseline.measure_processor(self.peer, self.base, self.plan.effort),
        )
        rows, frames = [pair[0] for pair in mine], [pair[1] for pair in mine]
        chosen = [Chosen(of_batches(one), True, None) for one in theirs]
        self._compare("stateful_processor_vs_spark", rows, chosen, ours.middle(rows).derived_ms)
        self._add_rate("ours_processor_100k", rows)
        self._add_rate("ours_processor_in_pandas_100k", frames)

    def _processor_round(self) -> tuple[Held, Held]:
        size = spark_baseline.ROW_BATCH_ROWS
        # Epochs as large as Spark's batches: bounded in rows, and not by the time they take.
        epochs = {"maxEpochRows": size, "maxEpochSeconds": WHOLE_EPOCH_S}
        rows = ours.run_saturated(ours.processor_count, self.plan.seconds, **epochs)
        frames = ours.run_saturated(ours.processor_count_in_pandas, self.plan.seconds, **epochs)
        return rows, frames

    # -- the rest -----------------------------------------------------------------------------------------------------

    def many_keys(self) -> None:
        """Ten million distinct keys, uniform, state prefilled on both sides."""
        source = ours.KeyedSource(MANY_KEYS, 0.0, prefill=MANY_KEYS)
        mine, theirs = self.turns.alternate(
            self.plan.heavy_rounds,
            lambda: ours.run_saturated(
                ours.count_and_sum, self.plan.seconds, source=source, apart_from=[self.peer.pid]
            ),
            lambda: spark_baseline.measure_many_keys(self.peer, self.base, self.plan.effort),
        )
        self.result.add_ratio(
            "aggregate_10m_keys_vs_spark_native",
            [run.rate_per_s for run in mine],
            [run.rate_per_s.median for run in theirs],
        )
        self._add_rate("ours_10m_keys", mine)
        self.result.add_figures(
            ours_10m_keys_python_resident_mib=max(run.resident_bytes for run in mine) / 2**20,
            ours_10m_keys_state_mib=max(run.state_bytes for run in mine) / 2**20,
        )

    def matching(self) -> None:
        """Order matching at the demo's depth of book, against a bare loop in two processes."""
        mine, theirs = self.turns.alternate(
            self.plan.rounds, lambda: match_rate(2 * self.plan.seconds), bare_loop
        )
        self.result.add_ratio("matching_vs_bare_loop", [run.rate_per_s for run in mine], theirs)
        middle = sorted(mine, key=lambda run: run.rate_per_s)[len(mine) // 2]
        self.result.add_figures(
            ours_matching_per_s=middle.rate_per_s,
            ours_matching_mean_latency_ms=middle.derived_ms,
            ours_matching_max_epoch_s=MAX_EPOCH_S,
            bare_loop_matching_per_s=median(theirs),
        )

    def idle(self) -> None:
        """CPU of all processes with no input."""
        mine, _ = self.turns.alternate(
            1,
            lambda: ours.idle_cores(self.plan.effort.idle_s, [self.peer.pid]),
            lambda: spark_baseline.measure_idle(self.peer, self.base, self.plan.effort),
        )
        self.result.add_figures(ours_cpu_idle_cores=mine[0])

    def driver(self) -> None:
        """What an epoch costs when it carries next to nothing, and how many executors one driver carries."""
        overhead = ours.epoch_overhead(self.plan.seconds)
        self.result.add_figures(
            epoch_overhead_ms=overhead.epoch_ms,
            epoch_overhead_work_ms=overhead.work_ms,
            epoch_overhead_sync_ms=overhead.sync_ms,
            epoch_overhead_log_ms=overhead.log_ms,
            epoch_overhead_rest_ms=overhead.rest_ms,
            epoch_overhead_rows_per_epoch=overhead.rows_per_epoch,
        )
        carried, nearest = measure_executors(self.plan.driver_trials)
        self.result.add_figures(
            executors_one_driver_carries_at_100ms=carried,
            executors_one_driver_carries_note=(
                f"executors of {TASKS_EACH} tasks at half a core of the driver's threads; measured with real engine, "
                f"hub and log, leases without work: {nearest.executors} took {nearest.cores:.2f} cores at epochs of "
                f"{nearest.epoch_s * 1e3:.0f} ms"
            ),
        )

    def ingest(self) -> None:
        """The same through ingest of the streaming DataFrame that Spark reads; reported, no target."""
        for figures in through_ingest(self.plan.climb_s, self.plan.ingest_batches, self.plan.whole):
            self.result.add_figures(**figures)

    # -- figures ------------------------------------------------------------------------------------------------------

    def _add_rate(self, name: str, runs: Sequence[Held]) -> None:
        """Add what a saturated run let through, with the latency of rows that come at that rate."""
        run = ours.middle(list(runs))
        self.result.add_figures(
            **{
                f"{name}_per_s": run.rate_per_s,
                f"{name}_mean_latency_ms": run.derived_ms,
                f"{name}_epoch_ms": run.epoch_ms,
                f"{name}_rows_per_epoch": run.rows_per_epoch,
            }
        )

    def _compare(self, name: str, mine: Sequence[Held], theirs: Sequence[Chosen], ours_ms: float) -> None:
        """Add a ratio of rates, and say which setting of Spark's it was taken against, at which latencies.

        Args:
            ours_ms: mean latency of our run of median rate.
        """
        self.result.add_ratio(
            name, [run.rate_per_s for run in mine], [one.setting.rate_per_s for one in theirs]
        )
        chosen = sorted(theirs, key=lambda one: one.setting.rate_per_s)[len(theirs) // 2]
        near = "; it met the bound with no setting"
        figures: dict[str, float | str | bool] = {
            f"{name}_compares_with": f"{chosen.setting}{'' if chosen.met_bound else near}; ours at {ours_ms:,.0f} ms",
            f"{name}_spark_per_s": chosen.setting.rate_per_s,
            f"{name}_spark_mean_ms": chosen.setting.mean_ms,
            f"{name}_ours_mean_ms": ours_ms,
            f"{name}_spark_met_the_bound": chosen.met_bound,
            f"{name}_just_beyond": "none" if chosen.beyond is None else str(chosen.beyond),
        }
        if chosen.beyond is not None:
            ratio = ours.middle(list(mine)).rate_per_s / chosen.beyond.rate_per_s
            figures[f"{name}_just_beyond_ratio"] = ratio
        self.result.add_figures(**figures)


def _middle_latency(runs: Sequence[Held]) -> Held:
    return sorted(runs, key=lambda run: run.mean_ms)[len(runs) // 2]


PARTS: dict[str, Callable[[Bench], None]] = {
    "latency": Bench.latency,
    "aggregate": Bench.aggregate,
    "row-function": Bench.row_function,
    "stateful-processor": Bench.stateful_processor,
    "many-keys": Bench.many_keys,
    "matching": Bench.matching,
    "idle": Bench.idle,
    "driver": Bench.driver,
    "ingest": Bench.ingest,
}


WITHOUT_SPARK = {"matching", "driver", "ingest"}
"""Parts that run nothing on plain Spark."""


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the parts asked for (all when none is named); return the names that are missing at the end.

    A part that fails says so and lets the others go on.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    chosen = choose(PARTS, only)
    import penstock

    result.add_figures(**{f"machine_{name}": value for name, value in describe().items()}, quick=quick)
    result.add_figures(bench_cores=hold_to_cores(CORES))
    penstock.session("penstock-bench", cores=CORES)
    with SparkPeer() as peer:
        bench = Bench(result, peer, Plan.of(quick))
        if not WITHOUT_SPARK.issuperset(chosen):
            spark_baseline.warm_up(peer)
        for name in chosen:
            _run_part(bench, name)
    return missing_names(chosen, result.ratios, result.figures, whole=bench.plan.whole)


def _run_part(bench: Bench, name: str) -> None:
    began = time.monotonic()
    print(f"-- {name}", file=sys.stderr, flush=True)
    try:
        PARTS[name](bench)
    except Exception:
        traceback.print_exc()
        bench.result.failed.append(name)
    spent_s = time.monotonic() - began
    bench.result.add_figures(**bench.base.figures(), **{f"part_{name.replace('-', '_')}_took_s": spent_s})
    print(f"-- {name} took {spent_s:.0f} s", file=sys.stderr, flush=True)
