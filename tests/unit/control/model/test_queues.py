"""The queueing formulas against the printed ones, high precision, a simulated queue, and their known shape."""

from __future__ import annotations

import math
import random
from decimal import Decimal, localcontext
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.brute_allocation import printed_latency_s
from penstock.bench.queue_simulation import simulate_wait_s
from penstock.control.model.queues import (
    ModelError,
    gigk_latency_s,
    gigk_wait_s,
    iterate_mmk_waits_s,
    mm1_latency_s,
    mm1_wait_s,
    mmk_latency_s,
    mmk_min_k,
    mmk_rows,
    mmk_wait_s,
    mmk_waiting_rows,
)
from penstock.control.model.stations import QueueStation, SplitStation, StationModel

rates = st.floats(0.01, 40.0)


def precise_wait_s(rate: float, service: float, k: int) -> Decimal:
    """E[Q](M/M/k) by the sum of equation (3), scaled to its last term so that no factorial is needed, to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        offered = Decimal(rate) / Decimal(service)
        busy = offered / k
        term, below = Decimal(1), Decimal(0)
        for n in range(k, 0, -1):
            term *= n / offered
            below += term
            if term < below * Decimal("1e-60") and n < offered:
                break
        waits = 1 / (1 - busy) / (below + 1 / (1 - busy))
        return waits / (k * Decimal(service) - Decimal(rate))


@pytest.mark.parametrize("k", [1, 2, 3, 10, 50, 120])
@pytest.mark.parametrize("busy", [0.05, 0.5, 0.9, 0.999])
def test_the_recursion_gives_what_the_printed_formula_gives(k: int, busy: float) -> None:
    printed = printed_latency_s(QueueStation(busy * k * 7.0, 7.0), k)
    assert mmk_latency_s(busy * k * 7.0, 7.0, k) == pytest.approx(printed, rel=1e-11)


@pytest.mark.parametrize("rate", [50_000.0, 99_000.0, 99_900.0, 99_999.5])
def test_a_hundred_thousand_servers_are_exact(rate: float) -> None:
    exact = float(precise_wait_s(rate, 1.0, 100_000))
    assert mmk_wait_s(rate, 1.0, 100_000) == pytest.approx(exact, rel=1e-9, abs=1e-300)


def test_the_high_precision_sum_is_the_printed_formula() -> None:
    assert float(precise_wait_s(40.0, 5.0, 9)) + 0.2 == pytest.approx(
        printed_latency_s(QueueStation(40.0, 5.0), 9), rel=1e-12
    )


@pytest.mark.parametrize(("k", "busy"), [(1, 0.7), (2, 0.9), (5, 0.8), (40, 0.95)])
def test_a_simulated_queue_waits_as_long(k: int, busy: float) -> None:
    seen = simulate_wait_s(busy * k, 1.0, k, rows=12_000, seed=11)
    assert seen.holds(mmk_wait_s(busy * k, 1.0, k)), seen
    assert not seen.holds(2 * mmk_wait_s(busy * k, 1.0, k))


@pytest.mark.parametrize("scv", [0.0, 0.25, 4.0])
def test_a_simulated_queue_of_one_server_waits_as_long_whatever_its_service_times(scv: float) -> None:
    seen = simulate_wait_s(0.7, 1.0, 1, rows=20_000, seed=12, scv_service=scv)
    assert seen.holds(gigk_wait_s(0.7, 1.0, 1, 1.0, scv)), seen


@pytest.mark.parametrize(("scv_arrival", "scv_service"), [(0.5, 0.5), (1.0, 3.0), (2.0, 1.0)])
def test_the_approximation_of_gigk_is_near_a_simulated_queue(scv_arrival: float, scv_service: float) -> None:
    seen = simulate_wait_s(
        3.4, 1.0, 4, rows=12_000, seed=13, scv_arrival=scv_arrival, scv_service=scv_service
    )
    assert gigk_wait_s(3.4, 1.0, 4, scv_arrival, scv_service) == pytest.approx(seen.mean, rel=0.25)


def test_simpy_waits_as_long() -> None:
    simpy = pytest.importorskip("simpy")
    random_ = random.Random(3)
    environment = simpy.Environment()
    servers = simpy.Resource(environment, capacity=3)
    waits: list[float] = []

    def row() -> object:
        arrived = environment.now
        with servers.request() as request:
            yield request
            waits.append(environment.now - arrived)
            yield environment.timeout(random_.expovariate(1.0))

    def source() -> object:
        for _ in range(30_000):
            yield environment.timeout(random_.expovariate(2.4))
            environment.process(row())

    environment.process(source())
    environment.run()
    batches = [sum(waits[at : at + 1500]) / 1500 for at in range(1500, 30_000, 1500)]
    mean = sum(batches) / len(batches)
    spread = math.sqrt(sum((one - mean) ** 2 for one in batches) / (len(batches) - 1) / len(batches))
    assert abs(mean - mmk_wait_s(2.4, 1.0, 3)) < 4 * spread


def test_mm1_with_a_margin_is_infinite_from_the_margin_on() -> None:
    assert mm1_latency_s(1799.0, 2000.0, 0.1) == pytest.approx(1.0)  # the example of StreamSwitch 4.2
    assert mm1_latency_s(1800.0, 2000.0, 0.1) == math.inf
    assert mm1_latency_s(1900.0, 2000.0, 0.1) == math.inf
    assert mm1_wait_s(1900.0, 2000.0, 0.1) == math.inf
    assert mm1_latency_s(1799.0, 2000.0) < 0.01


@given(rate=st.floats(0.0, 9.9), margin=st.floats(0.0, 0.5))
def test_one_server_of_mmk_is_mm1(rate: float, margin: float) -> None:
    assert mmk_latency_s(rate, 10.0, 1, margin) == pytest.approx(mm1_latency_s(rate, 10.0, margin), rel=1e-9)
    assert mmk_wait_s(rate, 10.0, 1, margin) == pytest.approx(
        mm1_wait_s(rate, 10.0, margin), rel=1e-9, abs=1e-15
    )


def test_too_few_servers_wait_for_ever() -> None:
    assert mmk_latency_s(20.0, 10.0, 2) == math.inf
    assert mmk_min_k(20.0, 10.0) == 3
    assert gigk_latency_s(20.0, 10.0, 2, 0.0, 0.0) == math.inf
    assert math.isfinite(mmk_latency_s(20.0, 10.0, 3))
    assert mmk_latency_s(20.0, 10.0, 3, margin=0.4) == math.inf


def test_an_idle_station_waits_for_nothing() -> None:
    assert mmk_wait_s(0.0, 5.0, 1) == 0.0
    assert mmk_rows(0.0, 5.0, 1) == 0.0
    assert next(iterate_mmk_waits_s(0.0, 5.0)) == (1, 0.0)


@given(rate=rates, service=st.floats(0.5, 20.0))
def test_each_further_server_shortens_the_wait_by_less(rate: float, service: float) -> None:
    walk = iterate_mmk_waits_s(rate, service)
    waits = [wait_s for _, (_, wait_s) in zip(range(40), walk, strict=False)]
    gains = [one - two for one, two in pairwise(waits)]
    assert all(gain >= 0 for gain in gains)
    assert all(two <= one * (1 + 1e-9) + 1e-300 for one, two in pairwise(gains))


@given(rate=rates, service=st.floats(0.5, 20.0))
def test_walking_from_k_to_k_plus_1_gives_what_each_k_alone_gives(rate: float, service: float) -> None:
    for (k, wait_s), _ in zip(iterate_mmk_waits_s(rate, service), range(10), strict=False):
        assert wait_s == mmk_wait_s(rate, service, k)


@given(rate=rates, more=st.floats(0.0, 10.0), k=st.integers(1, 60))
def test_more_rows_never_wait_less(rate: float, more: float, k: int) -> None:
    assert mmk_wait_s(rate + more, 1.0, k) >= mmk_wait_s(rate, 1.0, k) * (1 - 1e-9)


@given(rate=rates, scv=st.tuples(st.floats(0, 5), st.floats(0, 5)))
def test_variability_scales_the_wait_and_not_the_service(rate: float, scv: tuple[float, float]) -> None:
    k = mmk_min_k(rate, 2.0)
    wait_s = gigk_wait_s(rate, 2.0, k, *scv)
    assert wait_s == pytest.approx(sum(scv) / 2 * mmk_wait_s(rate, 2.0, k))
    assert gigk_latency_s(rate, 2.0, k, *scv) == pytest.approx(wait_s + 0.5)


def test_rows_in_the_station_are_those_waiting_and_those_in_work() -> None:
    # Es-Stream, equations 17 and 18, for k = 1: Q = ρ / (1 - ρ).
    assert mmk_rows(8.0, 10.0, 1) == pytest.approx(0.8 / 0.2)
    assert mmk_waiting_rows(8.0, 10.0, 1) == pytest.approx(0.8**2 / 0.2)


@pytest.mark.parametrize(
    "model",
    [
        QueueStation(33.0, 10.0),
        QueueStation(33.0, 10.0, 0.2, 3.0, 0.1),
        SplitStation(33.0, 10.0, 0.1),
        SplitStation(921.7023258621315, 23.042558146553286, 0.2),
    ],  # 50 cores full but for the last bit
)
def test_a_station_walks_through_its_own_latencies_less_its_floor(model: StationModel) -> None:
    ks = []
    for (k, above_s), _ in zip(model.hull(), range(12), strict=False):
        assert above_s + model.floor_s == pytest.approx(model.latency_s(k))
        ks.append(k)
    assert ks == list(range(model.min_k, model.min_k + 12))
    assert model.latency_s(model.min_k - 1) == math.inf


@pytest.mark.parametrize(
    ("rate", "service", "margin"), [(-1.0, 1.0, 0.0), (math.nan, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 1.0)]
)
def test_what_cannot_be_meant_is_refused(rate: float, service: float, margin: float) -> None:
    with pytest.raises(ModelError):
        mm1_latency_s(rate, service, margin)
    with pytest.raises(ModelError):
        mmk_latency_s(rate, service, 2, margin)
