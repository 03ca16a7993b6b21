"""What is asked of plain Spark, and what stands for it in a comparison; the peer is made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from penstock.bench.machine import CpuUse
from penstock.bench.result import spread
from penstock.bench.spark_baseline import (
    FULL,
    QUICK,
    Baseline,
    measure_held_rate,
    measure_many_keys,
    measure_row_functions,
)
from penstock.bench.spark_figures import (
    BatchRun,
    SteadyRun,
    derive_batch_run,
    derive_held_rate,
    derive_latency,
)
from penstock.bench.spark_process import SparkPeer

COST = {"native": (0.4, 0.06e-6), "with_state": (0.5, 5e-6), "in_pandas": (4.5, 0.5e-6)}


def batch_run(api: str, rows: int, batches: int = 20) -> BatchRun:
    fixed_s, per_row_s = COST[api]
    return derive_batch_run(
        f"{api}, {rows:,} rows a batch", rows, [n * (fixed_s + per_row_s * rows) for n in range(batches)]
    )


class MadeUpPeer:
    """Answers like `SparkPeer`, from costs; remembers what it was asked for."""

    def __init__(self, held_ms: float = 900.0) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._held_ms = held_ms

    def batches(self, rows: int, batches: int) -> BatchRun:
        self.asked.append(("batches", (rows, batches)))
        return batch_run("native", rows, batches)

    def sizes(
        self, sizes: Sequence[tuple[int, int]], api: str, warm: int, timeout_s: float
    ) -> list[BatchRun]:
        self.asked.append((api, (list(sizes), warm)))
        return [batch_run(api, rows, batches) for rows, batches in sizes]

    def batch_size(self, known: list[BatchRun], api: str, *_: object) -> list[BatchRun]:
        self.asked.append(("search", api))
        return [*known, batch_run(api, 3_000_000)]

    def held_rate(self, known: list[BatchRun], bound_ms: float, probes: int, first: float | None) -> Any:
        self.asked.append(("held", (probes, first)))
        fed = SteadyRun(1e6, 20, spread([300.0]), derive_latency([self._held_ms], 1), CpuUse(1.0, 1.0))
        return derive_held_rate(known, [fed], bound_ms)

    def many_keys(self, batches: int) -> BatchRun:
        self.asked.append(("many_keys", batches))
        return batch_run("native", 1_000_000, batches)


def peer_of(made_up: MadeUpPeer) -> SparkPeer:
    return cast(SparkPeer, made_up)


def test_the_better_api_at_a_size_and_the_fastest_within_ten_seconds_may_differ() -> None:
    base = Baseline()
    found = measure_row_functions(peer_of(MadeUpPeer()), base, QUICK)
    assert found.at_size.name.startswith("with_state, 100,000")
    assert found.at_bound.setting.name.endswith("in_pandas, 3,000,000 rows a batch")
    assert found.at_bound.met_bound


def test_a_later_round_runs_the_best_setting_again_without_a_search() -> None:
    base, made_up = Baseline(), MadeUpPeer()
    measure_row_functions(peer_of(made_up), base, FULL)
    made_up.asked.clear()
    again = measure_row_functions(peer_of(made_up), base, FULL)
    assert made_up.asked == [
        ("with_state", ([(100_000, 20)], 0)),
        ("in_pandas", ([(100_000, 20)], 0)),
        ("in_pandas", ([(3_000_000, 20)], 0)),
    ]
    assert again.at_bound.setting.name.endswith("in_pandas, 3,000,000 rows a batch")


def test_every_query_is_warmed_by_at_least_twenty_batches() -> None:
    for effort in (QUICK, FULL):
        made_up = MadeUpPeer()
        base = Baseline()
        measure_held_rate(peer_of(made_up), base, effort)
        measure_row_functions(peer_of(made_up), base, effort)
        measure_many_keys(peer_of(made_up), base, effort)
        assert all(asked[1] >= 20 for name, asked in made_up.asked if name == "batches")
        for name, asked in made_up.asked:
            if name in ("with_state", "in_pandas"):
                assert asked[1] + asked[0][0][1] >= 20
        assert effort.steady_batches >= 20


def test_a_rate_that_was_fed_and_held_stands_for_spark() -> None:
    chosen = measure_held_rate(peer_of(MadeUpPeer(held_ms=480.0)), Baseline(), QUICK)
    assert (chosen.setting.name, chosen.setting.rate_per_s) == ("rows fed at a set rate", 1e6)
    assert chosen.met_bound
    assert chosen.beyond is not None and chosen.beyond.name.endswith("native, 4,000,000 rows a batch")


def test_where_spark_held_no_rate_its_fastest_setting_near_the_lowest_latency_stands_for_it() -> None:
    base = Baseline()
    chosen = measure_held_rate(peer_of(MadeUpPeer()), base, QUICK)
    assert not chosen.met_bound
    assert chosen.setting.name.endswith("native, 1,000,000 rows a batch")
    assert base.figures()["spark_native_at_500ms_per_s"] == 0.0


def test_a_later_search_begins_where_the_first_one_ended() -> None:
    made_up, base = MadeUpPeer(held_ms=480.0), Baseline()
    measure_held_rate(peer_of(made_up), base, QUICK)
    measure_held_rate(peer_of(made_up), base, QUICK)
    assert [asked for name, asked in made_up.asked if name == "held"] == [(3, None), (2, 1e6)]


def test_every_rate_of_spark_stands_beside_its_latency() -> None:
    base, made_up = Baseline(), MadeUpPeer()
    measure_held_rate(peer_of(made_up), base, QUICK)
    measure_row_functions(peer_of(made_up), base, QUICK)
    figures = base.figures()
    rates = [name for name in figures if name.endswith("_per_s") and "_at_500ms_" not in name]
    assert len(rates) == 3 + 5
    assert all(figures[name.replace("_per_s", "_mean_latency_ms")] > 0 for name in rates)
