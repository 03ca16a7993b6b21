"""Arrivals depend on the rate profile and the clock alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane.sourcing import Arrivals
from penstock.errors import DeclarationError

STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=1, max_size=5)


@given(STEPS, st.floats(0, 30), st.one_of(st.none(), st.integers(0, 200)))
def test_rows_due_are_the_area_under_the_rate(
    steps: list[tuple[int, int]], elapsed: float, limit: int | None
) -> None:
    arrivals = Arrivals(steps, limit)
    arrivals.resume(0, 1000.0)
    area, left = 0.0, elapsed
    for number, (seconds, rate) in enumerate(steps):
        spent = left if number == len(steps) - 1 else min(left, seconds)
        area, left = area + spent * rate, left - spent
    due = arrivals.due(1000.0 + elapsed)
    expected = area if limit is None else min(area, limit)
    assert abs(due - expected) <= 1.001
    assert limit is None or due <= limit


@given(STEPS.filter(lambda steps: steps[-1][1] > 0), st.integers(1, 100), st.integers(1, 50))
def test_a_stamp_says_when_its_rows_are_due(steps: list[tuple[int, int]], start: int, count: int) -> None:
    arrivals = Arrivals(steps)
    arrivals.resume(0, 1000.0)
    stamp = arrivals.stamp(start, start + count)
    assert stamp.rows == count and stamp.first_us - 1 <= stamp.mean_us <= stamp.last_us + 1
    assert arrivals.due(stamp.last_us / 1e6 + 1e-3) >= start + count
    assert arrivals.due(stamp.first_us / 1e6 - 1e-3) <= start + 1


@given(STEPS.filter(lambda steps: steps[-1][1] > 0), st.integers(0, 200))
def test_after_a_restart_the_schedule_goes_on_from_the_committed_row(
    steps: list[tuple[int, int]], offset: int
) -> None:
    arrivals = Arrivals(steps)
    arrivals.resume(offset, 5000.0)
    assert abs(arrivals.due(5000.0) - offset) <= 1
    assert arrivals.next_due_in(offset, 5000.0, 0.004) >= 0.004


def test_a_profile_that_begins_with_a_pause_pauses() -> None:
    arrivals = Arrivals([(2.0, 0.0), (1.0, 100.0)])
    arrivals.resume(0, 0.0)
    assert arrivals.due(1.9) == 0
    assert arrivals.due(2.5) == 50


def test_nothing_is_due_before_the_schedule_begins() -> None:
    arrivals = Arrivals([(1.0, 100.0)])
    assert arrivals.due(1e9) == 0 and not arrivals.running
    assert arrivals.next_due_in(0, 1e9, 0.1) == 1.0


def test_a_source_at_its_limit_waits() -> None:
    arrivals = Arrivals([(1.0, 100.0)], limit=10)
    arrivals.resume(10, 0.0)
    assert arrivals.due(50.0) == 10
    assert arrivals.next_due_in(10, 50.0, 0.1) == 1.0


@pytest.mark.parametrize("steps", [[], [(-1.0, 5.0), (1.0, 1.0)], [(1.0, -5.0)]])
def test_a_negative_or_empty_profile_is_refused(steps: list[tuple[float, float]]) -> None:
    with pytest.raises(DeclarationError, match="rate"):
        Arrivals(steps)
