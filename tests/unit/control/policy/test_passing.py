"""What operators in front hold back reaches the forecasts of those after them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.policy.forecasting import Forecaster
from penstock.control.policy.passing import MOST_GROWTH, pass_on


def ahead(
    rates: dict[str, float], edges: dict[tuple[str, str], float], service_per_s: float = 100.0
) -> dict[str, float]:
    """Return operator -> the factor by which it is told to expect more; each has one task."""
    stations = {name: make_station(np.full(8, rate / 8), service_per_s, 1) for name, rate in rates.items()}
    now = World(stations, edges=edges, sources={"in": 100.0}).estimate()
    before = {name: Forecaster().take(0.0, one.arrival_per_s) for name, one in now.executors.items()}
    after = pass_on(now, before)
    return {name: one.ahead_per_s / before[name].ahead_per_s for name, one in after.items()}


def test_who_follows_a_task_that_serves_half_of_its_rows_is_told_of_twice_as_many() -> None:
    found = ahead({"b": 200.0, "a": 50.0}, {("in", "b"): 200.0, ("b", "a"): 50.0})
    assert found == pytest.approx({"b": 1.0, "a": 2.0})


def test_what_is_held_back_in_front_adds_to_what_its_follower_holds_back() -> None:
    edges = {("in", "c"): 200.0, ("c", "b"): 150.0, ("b", "a"): 50.0}
    found = ahead({"c": 200.0, "b": 150.0, "a": 50.0}, edges)
    assert found == pytest.approx({"c": 1.0, "b": 2.0, "a": 3.0})


def test_only_the_rows_of_the_producer_that_lags_grow() -> None:
    edges = {("in", "a"): 200.0, ("in", "b"): 50.0, ("a", "c"): 30.0, ("b", "c"): 10.0}
    assert ahead({"a": 200.0, "b": 50.0, "c": 40.0}, edges)["c"] == pytest.approx((2 * 30 + 10) / 40)


def test_producers_that_keep_up_change_nothing_and_no_growth_is_without_end() -> None:
    edges = {("in", "a"): 99.0, ("a", "b"): 50.0}
    assert ahead({"a": 99.0, "b": 50.0}, edges) == {"a": 1.0, "b": 1.0}
    assert ahead({"a": 5000.0, "b": 50.0}, edges)["b"] == pytest.approx(MOST_GROWTH)
