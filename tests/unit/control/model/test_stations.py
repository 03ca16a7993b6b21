"""Queueing models as allocation asks for them."""

from __future__ import annotations

from itertools import islice

import pytest

from penstock.control.model.queues import mmk_wait_s
from penstock.control.model.stations import QueueStation


@pytest.mark.parametrize(("scv_arrival", "scv_service"), [(1.0, 1.0), (5.0, 1.0), (1.0, 5.0), (3.0, 0.0)])
def test_what_waits_grows_with_the_mean_of_both_variabilities(scv_arrival: float, scv_service: float) -> None:
    """DRS, equation 5: of the latency and of the hull that cores are dealt by."""
    station = QueueStation(90.0, 20.0, scv_arrival, scv_service)
    factor = (scv_arrival + scv_service) / 2
    waits = {k: factor * mmk_wait_s(90.0, 20.0, k) for k in range(5, 9)}
    assert {k: station.wait_s(k) for k in waits} == pytest.approx(waits)
    assert {k: station.latency_s(k) for k in waits} == pytest.approx({k: w + 0.05 for k, w in waits.items()})
    assert dict(islice(station.hull(), 4)) == pytest.approx(waits)
