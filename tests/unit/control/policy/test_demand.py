"""The model that stands behind an executor's station, and what it is told of the executor."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import Estimate
from penstock.control.model.epoch import EpochStation
from penstock.control.model.queues import gigk_latency_s, mmk_latency_s
from penstock.control.model.stations import QueueStation
from penstock.control.policy.demand import derive_demand, derive_station


def varied() -> Estimate:
    station = make_station(np.full(16, 10.0), 50.0, 4, scv_arrival=5.0, scv_service=0.5)
    return World({"match": station}).estimate()


@pytest.mark.parametrize(
    ("model", "kind"), [("mmk", QueueStation), ("gigk", QueueStation), ("epoch", EpochStation)]
)
def test_the_model_that_was_asked_for_is_the_one_inside(model: str, kind: type) -> None:
    now = varied()
    assert type(derive_station(now.executors["match"], derive_demand(now), model, 0.1, 16).model) is kind


def test_the_general_model_knows_how_arrivals_and_service_vary_and_the_markov_one_does_not() -> None:
    now = varied()
    found = {
        m: derive_station(now.executors["match"], derive_demand(now), m, 0.1, 16).model
        for m in ("mmk", "gigk")
    }
    assert found["gigk"].latency_s(5) == gigk_latency_s(160.0, 50.0, 5, 5.0, 0.5, 0.1)
    assert found["mmk"].latency_s(5) == mmk_latency_s(160.0, 50.0, 5, 0.1)


def test_a_station_uses_no_more_cores_than_it_has_shards_with_rows() -> None:
    rates = np.array([10.0] * 3 + [0.0] * 13)
    now = World({"match": make_station(rates, 50.0, 1)}).estimate()
    assert derive_station(now.executors["match"], derive_demand(now), "mmk", 0.1, 16).at_most == 3
