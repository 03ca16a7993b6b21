"""The array form of MinProcessors gives what the greedy run gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.model.allocation import Station, min_processors
from penstock.control.model.many_stations import Stations, derive_waits_s, min_cores
from penstock.control.model.queues import ModelError, mmk_wait_s
from penstock.control.model.stations import QueueStation


@st.composite
def networks(draw: st.DrawFn) -> Stations:
    count = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    service = rng.uniform(1, 1000, count)
    rate = service * rng.uniform(0, draw(st.sampled_from([0.9, 4.0, 40.0])), count)
    return Stations(rate, service, rng.uniform(0, 3, count), rng.uniform(0.2, 2.0, count))


@given(networks(), st.integers(0, 60), st.floats(1.0, 3.0))
def test_it_is_the_greedy_run(stations: Stations, room: int, slack: float) -> None:
    factor = np.asarray(stations.variability)
    models = [
        Station(str(at), float(visits), QueueStation(float(rate), float(service), float(v), float(v)))
        for at, (rate, service, visits, v) in enumerate(
            zip(stations.rate_per_s, stations.service_per_s, stations.visits, factor, strict=True)
        )
    ]
    k_max = int(stations.min_k.sum()) + room
    floor_s = float((stations.visits / stations.service_per_s).sum())
    theirs = min_processors(models, floor_s * slack + 1e-9, k_max)
    ours = min_cores(stations, floor_s * slack + 1e-9, k_max)
    assert ours.reached == theirs.reached
    assert ours.latency_s == pytest.approx(theirs.latency_s, rel=1e-6)
    assert ours.cores.sum() == theirs.total


@given(networks())
def test_waits_are_those_of_the_recursion(stations: Stations) -> None:
    waits = derive_waits_s(stations, 5)
    for row, start in enumerate(stations.min_k):
        for more in range(6):
            wait = mmk_wait_s(
                float(stations.rate_per_s[row]), float(stations.service_per_s[row]), int(start) + more
            )
            assert waits[row, more] == pytest.approx(
                wait * np.asarray(stations.variability)[row], rel=1e-9, abs=1e-15
            )


def test_no_station_gets_more_than_it_can_use() -> None:
    stations = Stations(
        np.array([500.0, 500.0]), np.array([100.0, 100.0]), np.ones(2), at_most=np.array([6, 99])
    )
    found = min_cores(stations, 0.0205, 60)
    assert found.cores[0] == 6
    assert found.cores[1] > 8


def test_too_few_cores_are_refused_with_the_number_that_serves() -> None:
    stations = Stations(np.array([500.0, 500.0]), np.array([100.0, 100.0]), np.ones(2))
    with pytest.raises(ModelError, match="11 cores cannot serve the load: give at least 12"):
        min_cores(stations, 1.0, 11)


def test_a_station_that_cannot_use_what_it_needs_is_refused() -> None:
    stations = Stations(np.array([500.0]), np.array([100.0]), np.ones(1), at_most=np.array([5]))
    with pytest.raises(ModelError, match="needs at least 6 cores for its load and can use at most 5"):
        min_cores(stations, 1.0, 20)
