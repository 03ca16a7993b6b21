"""The time of a driver, with clocks that are set at any moment: a model in whole milliseconds beside it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane.driver_time import STEP_S, DriverTime, describe_step, steady_s

SECONDS = st.integers(0, 5_000_000).map(lambda ms: ms / 1_000)
SET_BY = st.one_of(st.just(0.0), st.integers(-8_000_000, 8_000_000).map(lambda ms: ms / 1_000))
STORY = st.lists(st.tuples(SECONDS, SET_BY), max_size=30)
CLOSE = 1e-5
"""Seconds of 1970 in a float are off by less."""


@dataclass
class Clocks:
    """A wall that can be set and a steady clock that cannot."""

    passed_s: float = 0.0
    set_by_s: float = 0.0
    began_s: float = 1_700_000_000.0
    held_up_s: float = 0.0
    """Time that passes between every two readings."""

    def wall(self) -> float:
        self.passed_s += self.held_up_s
        return self.began_s + self.passed_s + self.set_by_s

    def steady(self) -> float:
        self.passed_s += self.held_up_s
        return 77.0 + self.passed_s


@given(STORY)
def test_no_step_of_the_wall_moves_the_time_of_arrivals(story: list[tuple[float, float]]) -> None:
    clocks = Clocks()
    time = DriverTime(clocks.wall, clocks.steady)
    for passes_s, set_by_s in story:
        clocks.passed_s += passes_s
        clocks.set_by_s += set_by_s
        assert time.now() == pytest.approx(clocks.began_s + clocks.passed_s, abs=CLOSE)


@given(STORY)
def test_epoch_time_is_never_behind_the_wall_and_never_slower_than_time(
    story: list[tuple[float, float]],
) -> None:
    clocks = Clocks()
    time = DriverTime(clocks.wall, clocks.steady)
    model = last = time.epoch_time()
    for passes_s, set_by_s in story:
        clocks.passed_s += passes_s
        clocks.set_by_s += set_by_s
        model = max(model + passes_s, clocks.wall())
        found = time.epoch_time()
        assert found == pytest.approx(model, abs=CLOSE)
        assert found >= last + passes_s - CLOSE and found >= time.now() - CLOSE
        last = found


@given(STORY)
def test_every_step_is_told_once_with_its_size(story: list[tuple[float, float]]) -> None:
    clocks = Clocks()
    time = DriverTime(clocks.wall, clocks.steady)
    for passes_s, set_by_s in story:
        clocks.passed_s += passes_s
        clocks.set_by_s += set_by_s
        told = time.look()
        if abs(set_by_s) >= STEP_S + CLOSE:
            assert told == pytest.approx(set_by_s, abs=CLOSE)
        if abs(set_by_s) < STEP_S - CLOSE:
            assert told is None
        assert time.look() is None


@given(recorded_s=st.floats(-8_000.0, 8_000.0), passes_s=SECONDS)
def test_across_drivers_it_is_the_later_of_the_wall_and_the_last_recorded(
    recorded_s: float, passes_s: float
) -> None:
    clocks = Clocks()
    time = DriverTime(clocks.wall, clocks.steady, clocks.began_s + recorded_s)
    clocks.passed_s += passes_s
    wanted = clocks.began_s + max(0.0, recorded_s) + passes_s
    assert time.now() == pytest.approx(wanted, abs=CLOSE)
    assert time.epoch_time() == pytest.approx(wanted, abs=CLOSE)
    assert time.look() is None, "a driver that begins behind the last one has not seen a step"


def test_a_process_that_is_held_up_between_two_readings_sees_no_step() -> None:
    clocks = Clocks()
    time = DriverTime(clocks.wall, clocks.steady)
    clocks.held_up_s = 90.0
    assert time.look() is None
    assert time.epoch_time() - time.now() < CLOSE
    clocks.held_up_s, clocks.set_by_s = 0.0, 3_600.0
    assert time.look() == pytest.approx(3_600.0)


def test_what_is_said_of_a_step_has_its_size_and_what_follows() -> None:
    assert "set back by 3,600.0 s; arrivals, latencies and timers go on" in describe_step(-3600.0)
    assert "set ahead by 0.8 s" in describe_step(0.8) and "timers by processing time follow" in describe_step(
        0.8
    )


def test_the_steady_clock_goes_on() -> None:
    assert steady_s() < steady_s() + 1e-9 <= steady_s() + 1.0
