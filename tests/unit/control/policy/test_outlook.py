"""What tasks may be filled to, and how late epochs make rows on more or fewer of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.estimate import EpochCosts
from penstock.control.model.epoch import EpochStation
from penstock.control.policy.outlook import LEAST_FILL, UNREACHED_FILL, Demand, Epochs

SERVICE_PER_S, SHARDS = 50.0, 64


def demand(bound_s: float, margin: float = 0.2) -> Demand:
    return Demand(np.full(SHARDS, 0.1), np.zeros(SHARDS), bound_s, SERVICE_PER_S, margin, bound_s)


def epochs(service_per_s: float = SERVICE_PER_S, scv: float = 1.0) -> Epochs:
    return Epochs(EpochStation(EpochCosts(), np.zeros(1), touched=20.0), 1 / service_per_s, scv, 0.1)


@given(st.floats(0.001, 10.0), st.floats(0.0, 0.5))
def test_whatever_the_bound_tasks_may_be_filled_to_something(bound_s: float, margin: float) -> None:
    one = demand(bound_s, margin)
    assert LEAST_FILL * (1 - margin) <= one.fill <= 1 - margin
    if bound_s <= one.least_s:
        assert one.fill == pytest.approx(UNREACHED_FILL * (1 - margin))


def test_a_longer_bound_lets_tasks_be_filled_to_more_once_any_holds_it() -> None:
    found = [demand(bound_s).fill for bound_s in np.linspace(0.0251, 1.0, 50)]
    assert found == sorted(found)


@pytest.mark.parametrize(("k", "load"), [(1, 0.5), (4, 0.0), (4, 0.5), (16, 0.39)])
def test_chance_makes_epochs_longer_where_several_tasks_have_rows(k: int, load: float) -> None:
    without, with_chance = epochs(1e9).predict_s(k, load), epochs().predict_s(k, load)
    station = replace(epochs().station, largest_load=np.array([load]))
    assert without == pytest.approx(station.latency_s(k), rel=0.01)
    assert with_chance > 1.5 * without if k > 1 and load else with_chance == pytest.approx(without, rel=0.01)


@pytest.mark.parametrize(("k", "load"), [(4, 0.5), (16, 0.39), (32, 0.2), (16, 0.7), (8, 0.1)])
@pytest.mark.parametrize("scv", [0.0, 1.0])
def test_epochs_are_as_long_as_drawing_their_rows_makes_them(k: int, load: float, scv: float) -> None:
    """Epochs that each take the rows that came during the one before: Poisson rows of equal or of exponential times."""
    rng, one = np.random.default_rng(5), epochs(scv=scv)
    costs = one.station.costs
    overhead_s = costs.o0_s + costs.o1_s * k + costs.o2_s * 20.0
    found, last_s = [], 0.1
    for _ in range(4_000):
        rows = rng.poisson(last_s * load * SERVICE_PER_S, k)
        work = rng.gamma(np.maximum(rows, 1e-9)) if scv else rows
        last_s = overhead_s + float(work.max()) / SERVICE_PER_S
        found.append(last_s)
    assert one.predict_s(k, load) == pytest.approx(costs.c * float(np.mean(found[100:])), rel=0.2)


def test_the_curve_says_what_each_number_of_tasks_would() -> None:
    one, loads = epochs(), np.array([0.9, 0.45, 0.3])
    each = [one.predict_s(k, float(load)) for k, load in enumerate(loads, 1)]
    assert one.derive_curve_s(loads).tolist() == pytest.approx(each)
