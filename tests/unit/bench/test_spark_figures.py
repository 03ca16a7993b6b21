"""Rates and latencies of plain Spark from the times of its commits, and the search for a rate or a size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.machine import CpuUse
from penstock.bench.result import spread
from penstock.bench.spark_figures import (
    BatchRun,
    Chosen,
    Setting,
    SteadyRun,
    choose_setting,
    derive_batch_run,
    derive_held_rate,
    derive_latency,
    estimate_held_rate,
    fastest_within,
    propose_batch_rows,
    propose_rate,
)


def linear_run(rows: int, fixed_s: float = 0.2, per_row_s: float = 0.1e-6) -> BatchRun:
    interval_s = fixed_s + per_row_s * rows
    return derive_batch_run("run", rows, [n * interval_s for n in range(21)])


def test_only_the_last_half_of_the_batches_counts() -> None:
    slow_then_fast = [float(n) for n in range(11)] + [10 + 0.5 * n for n in range(1, 11)]
    run = derive_batch_run("run", 1000, slow_then_fast)
    assert (run.batches, run.interval_ms.samples) == (21, 10)
    assert run.rate_per_s.median == run.rate_per_s.low == 2000.0


def test_a_row_waits_half_an_interval_and_then_the_whole_batch() -> None:
    assert derive_batch_run("run", 1000, [0.0, 0.4, 0.8, 1.2]).mean_latency_ms == pytest.approx(600.0)


def test_latency_is_over_rows_and_p99_is_a_wait_that_happened() -> None:
    latency = derive_latency([float(n) for n in range(1, 201)], 50)
    assert (latency.mean_ms, latency.p99_ms, latency.worst_ms, latency.rows) == (100.5, 198.0, 200.0, 10_000)
    assert derive_latency([5.0], 1).p99_ms == 5.0


def test_a_latency_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        derive_latency([], 50)


def test_the_first_rate_tried_is_where_one_and_a_half_intervals_reach_the_bound() -> None:
    known = [linear_run(100_000), linear_run(4_000_000)]
    rows = (0.5 / 1.5 - 0.2) / 0.1e-6
    assert estimate_held_rate(known, 500.0) == pytest.approx(rows / (0.5 / 1.5), rel=1e-6)


def test_a_bound_that_small_batches_miss_still_gives_a_rate_to_try() -> None:
    known = [linear_run(100_000, 1.0), linear_run(4_000_000, 1.0)]
    assert estimate_held_rate(known, 500.0) == 500_000.0


def steady_run(rate_per_s: float, mean_ms: float) -> SteadyRun:
    return SteadyRun(rate_per_s, 20, spread([300.0]), derive_latency([mean_ms], 1), CpuUse(1.0, 1.0))


def test_a_rate_that_was_fed_and_held_goes_before_one_that_was_derived() -> None:
    known = [linear_run(1_000_000, 0.2)]
    fed = derive_held_rate(known, [steady_run(1e6, 480.0), steady_run(2e7, 900.0)], 500.0)
    assert (fed.rate_per_s, fed.mean_latency_ms, fed.too_fast_per_s) == (1e6, 480.0, 2e7)
    assert fed.closed_loop_per_s == pytest.approx(1e6 / 0.3)


def test_the_highest_of_several_held_rates_counts() -> None:
    runs = [steady_run(1e6, 400.0), steady_run(3e6, 490.0), steady_run(2e6, 480.0)]
    assert derive_held_rate([], runs, 500.0).rate_per_s == 3e6


def test_prepared_batches_stand_in_where_no_fed_rate_was_held() -> None:
    derived = derive_held_rate([linear_run(1_000_000, 0.2)], [steady_run(1e6, 501.0)], 500.0)
    assert derived.open_loop_per_s == 0.0
    assert derived.rate_per_s == pytest.approx(1e6 / 0.3)
    assert derived.mean_latency_ms == pytest.approx(450.0)


def test_a_bound_that_nothing_met_holds_no_rate() -> None:
    nothing = derive_held_rate([linear_run(100_000, 1.0)], [steady_run(1e5, 501.0)], 500.0)
    assert (nothing.rate_per_s, nothing.mean_latency_ms, nothing.too_fast_per_s) == (0.0, 0.0, 1e5)


def test_the_first_rate_tried_is_never_above_the_best_that_was_seen() -> None:
    known = [linear_run(100_000, 0.2, 0.0), linear_run(4_000_000, 0.2, 0.0)]
    assert estimate_held_rate(known, 500.0) == pytest.approx(20_000_000.0)


@given(limit=st.floats(1e4, 1e8), first=st.floats(1e4, 1e8))
def test_the_search_closes_in_on_the_limit_from_both_sides(limit: float, first: float) -> None:
    held: float | None = None
    too_fast: float | None = None
    rate = first
    for _ in range(60):
        if rate <= limit:
            held = max(held or rate, rate)
        else:
            too_fast = min(too_fast or rate, rate)
        rate = propose_rate(held, too_fast)
    assert held is not None and too_fast is not None
    assert held <= limit < too_fast
    assert too_fast / held < 1.01


def test_the_proposed_batch_size_stays_within_the_bound() -> None:
    known = [linear_run(100_000, 4.0, 1e-6), linear_run(1_000_000, 4.0, 1e-6)]
    rows = propose_batch_rows(known, 10_000.0)
    assert rows == 2_000_000
    assert linear_run(rows, 4.0, 1e-6).mean_latency_ms <= 10_000.0


def test_a_batch_size_beyond_the_bound_leads_to_a_smaller_one() -> None:
    assert propose_batch_rows([linear_run(100_000, 2.0, 2e-5)], 6_000.0) == 90_000


def test_the_fastest_run_beyond_the_bound_does_not_count() -> None:
    small, large = linear_run(100_000, 4.0, 1e-6), linear_run(4_000_000, 4.0, 1e-6)
    assert fastest_within([small, large], 10_000.0) is small
    assert fastest_within([large], 10_000.0) is None


def test_the_fastest_setting_within_the_bound_is_compared_with() -> None:
    settings = [Setting("a", 1e5, 300.0), Setting("b", 1e6, 499.0), Setting("c", 6e6, 1900.0)]
    assert choose_setting(settings, 500.0) == Chosen(settings[1], True, None)


def test_where_none_met_the_bound_the_fastest_near_the_lowest_latency_is_compared_with() -> None:
    settings = [Setting("a", 1e5, 520.0), Setting("b", 2e6, 640.0), Setting("c", 6e6, 900.0)]
    assert choose_setting(settings, 500.0) == Chosen(settings[1], False, settings[2])


def test_a_faster_setting_that_just_missed_the_bound_is_made_known() -> None:
    settings = [Setting("a", 1e5, 400.0), Setting("b", 1e6, 900.0), Setting("c", 6e6, 1100.0)]
    assert choose_setting(settings, 500.0) == Chosen(settings[0], True, settings[1])
    assert choose_setting([settings[0], Setting("d", 9e4, 700.0)], 500.0).beyond is None


def test_a_comparison_with_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no run"):
        choose_setting([], 500.0)


def test_a_setting_is_named_with_its_rate_and_its_latency() -> None:
    assert str(Setting("batches", 2_400_000.0, 640.4)) == (
        "batches: 2,400,000 rows/s at a mean latency of 640 ms"
    )


def test_a_setting_named_beforehand_stands_in_only_where_none_met_the_bound() -> None:
    slow, named = Setting("slow", 3e4, 520.0), Setting("named", 2e6, 990.0)
    assert choose_setting([slow, named], 500.0, named) == Chosen(named, False, None)
    quick = Setting("quick", 3e4, 480.0)
    assert choose_setting([quick, named], 500.0, named) == Chosen(quick, True, named)
