"""AssignProcessors and MinProcessors: optimal where the model is convex, honest about bounds everywhere."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.brute_allocation import draw_problem, is_best_split, is_fewest_cores
from penstock.control.measure.estimate import EpochCosts
from penstock.control.model.allocation import (
    Station,
    assign_processors,
    lowest_latency_s,
    min_processors,
    spread_processors,
    stable_minimum,
)
from penstock.control.model.epoch import EpochStation, largest_load_curve
from penstock.control.model.queues import ModelError
from penstock.control.model.stations import QueueStation, SplitStation


def chain(*loads: float, service: float = 10.0) -> list[Station]:
    """Stations a, b, ... with one visit each and loads in cores."""
    return [
        Station(chr(ord("a") + at), 1.0, QueueStation(load * service, service))
        for at, load in enumerate(loads)
    ]


def epoch_stations(rng: np.random.Generator, size: int) -> list[Station]:
    """Few equal shards, so that the hull has steps of several cores, or unlike ones, of which the hottest binds."""
    found = []
    for at in range(size):
        loads = np.ones(int(rng.integers(6, 21))) if rng.random() < 0.7 else rng.pareto(3.0, 60)
        loads = np.minimum(loads * rng.uniform(0.5, 4.0) / loads.sum(), 0.9)
        costs = EpochCosts(0.004, float(rng.uniform(0, 0.001)), 0.00005, 1.5)
        model = EpochStation(costs, largest_load_curve(loads, 20), touched=20.0)
        found.append(Station(f"operator{at}", float(rng.uniform(0.2, 3.0)), model))
    return found


def test_assigning_and_minimising_are_optimal_on_300_random_problems() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        problem = draw_problem(rng)
        assert is_best_split(problem, assign_processors(problem.stations, problem.k_max).cores), problem
        assert is_fewest_cores(problem, min_processors(problem.stations, problem.t_max_s).cores), problem


def test_the_oracle_refuses_a_split_that_is_one_core_off() -> None:
    rng = np.random.default_rng(6)
    refused = 0
    for _ in range(50):
        problem = draw_problem(rng)
        cores = dict(assign_processors(problem.stations, problem.k_max).cores)
        giver = max(cores, key=lambda name: cores[name] - stable_minimum(problem.stations)[name])
        if cores[giver] == stable_minimum(problem.stations)[giver]:
            continue
        taker = next(name for name in cores if name != giver)
        moved = {**cores, giver: cores[giver] - 1, taker: cores[taker] + 1}
        refused += not is_best_split(problem, moved)
    assert refused > 30


def test_all_cores_are_given_while_each_still_helps() -> None:
    found = assign_processors(chain(2.5, 3.1, 0.4), 12)
    assert found.total == 12
    assert found.latency_s == pytest.approx(sum(found.latency_by_station_s.values()))
    for station in chain(2.5, 3.1, 0.4):
        assert found.latency_by_station_s[station.name] == pytest.approx(
            station.model.latency_s(found.cores[station.name])
        )


def test_a_station_visited_more_often_gets_more() -> None:
    often = Station("often", 10.0, QueueStation(20.0, 10.0))
    seldom = Station("seldom", 0.1, QueueStation(20.0, 10.0))
    found = assign_processors([often, seldom], 12).cores
    assert found["often"] > found["seldom"] >= 3


def test_too_few_cores_are_refused_with_the_stable_minimum() -> None:
    with pytest.raises(ModelError, match=r"5 cores cannot serve the load: give at least 6 \(a 3, b 3\)"):
        assign_processors(chain(2.0, 2.9), 5)
    with pytest.raises(ModelError, match=r"give at least 6"):
        min_processors(chain(2.0, 2.9), 10.0, k_max=5)
    assert assign_processors(chain(2.0, 2.9), 6).cores == {"a": 3, "b": 3}


def test_a_bound_below_the_visit_weighted_service_times_is_refused_with_that_bound() -> None:
    stations = [
        Station("a", 1.0, QueueStation(20.0, 10.0)),
        Station("looped", 3.0, QueueStation(60.0, 100.0)),
    ]
    assert lowest_latency_s(stations) == pytest.approx(0.1 + 3 * 0.01)
    with pytest.raises(ModelError, match=r"120 ms cannot be reached .* lies above 130 ms"):
        min_processors(stations, 0.12)
    assert min_processors(stations, 0.131).latency_s <= 0.131


def test_a_bound_of_exactly_the_service_times_ends() -> None:
    stations = chain(2.0, 5.0)
    found = min_processors(stations, lowest_latency_s(stations))
    assert found.latency_s == pytest.approx(lowest_latency_s(stations))


def test_where_cores_run_out_all_are_given_by_the_same_rule() -> None:
    stations = chain(4.5, 2.7, 1.2)
    found = min_processors(stations, lowest_latency_s(stations) * 1.001, k_max=13)
    assert not found.reached
    assert found.cores == assign_processors(stations, 13).cores
    assert found.total == 13


def test_minimising_stops_at_the_first_count_that_holds_the_bound() -> None:
    stations = chain(4.5, 2.7, 1.2)
    found = min_processors(stations, 0.35, k_max=100)
    assert found.reached and found.latency_s <= 0.35
    assert assign_processors(stations, found.total - 1).latency_s > 0.35


def test_limits_of_a_station_are_kept() -> None:
    model = QueueStation(45.0, 10.0)
    stations = [Station("capped", 5.0, model, at_most=6), Station("floored", 0.01, model, at_least=8)]
    found = assign_processors(stations, 30).cores
    assert found["capped"] == 6
    assert found["floored"] >= 8
    with pytest.raises(ModelError, match="capped needs at least 5 cores for its load and can use at most 4"):
        assign_processors([Station("capped", 1.0, model, at_most=4)], 30)


def test_a_bound_that_a_capped_station_cannot_hold_is_refused_by_name_of_the_bound() -> None:
    model = QueueStation(45.0, 10.0)
    with pytest.raises(ModelError, match=f"lies above {model.latency_s(5) * 1e3:.4g} ms"):
        min_processors([Station("capped", 1.0, model, at_most=5)], model.latency_s(6))


def test_two_stations_of_one_name_are_refused() -> None:
    with pytest.raises(ModelError, match="names of their own"):
        assign_processors([*chain(1.0), *chain(2.0)], 10)


def test_an_idle_station_keeps_one_core() -> None:
    found = assign_processors(chain(0.0, 3.0), 10)
    assert found.cores["a"] == 1
    assert found.cores["b"] == 9


def test_cores_that_would_only_lengthen_epochs_stay_free() -> None:
    loads = np.array([0.5, 0.1, 0.1])
    model = EpochStation(EpochCosts(), largest_load_curve(loads, 16), touched=3)
    found = assign_processors([Station("hot", 1.0, model)], 16)
    assert found.total == 2
    assert found.latency_s == pytest.approx(min(model.latency_s(k) for k in range(1, 17)))


def test_the_hull_of_the_epoch_model_comes_close_to_the_best_split() -> None:
    rng = np.random.default_rng(7)
    losses = []
    for _ in range(40):
        stations = epoch_stations(rng, 3)
        k_max = sum(stable_minimum(stations).values()) + int(rng.integers(0, 8))
        found = assign_processors(stations, k_max)
        assert found.total <= k_max
        ranges = [range(station.model.min_k, 21) for station in stations]
        best = min(
            sum(s.visits * s.model.latency_s(k) for s, k in zip(stations, split, strict=True))
            for split in itertools.product(*ranges)
            if sum(split) <= k_max
        )
        losses.append(found.latency_s / best - 1)
    assert max(losses) < 0.15
    assert np.mean(losses) < 0.01


def test_minimising_over_the_epoch_model_gives_no_core_beyond_need() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        stations = epoch_stations(rng, 3)
        bound_s = lowest_latency_s(stations) * float(rng.uniform(1.01, 1.6))
        found = min_processors(stations, bound_s)
        assert found.reached and found.latency_s <= bound_s * (1 + 1e-9)
        for station in stations:
            fewer = {**found.cores, station.name: found.cores[station.name] - 1}
            total_s = sum(s.visits * s.model.latency_s(fewer[s.name]) for s in stations)
            assert total_s > bound_s or fewer[station.name] < station.model.min_k


def test_queues_of_their_own_need_at_least_the_cores_of_a_shared_one() -> None:
    shared = [Station("a", 1.0, QueueStation(37.0, 10.0))]
    apart = [Station("a", 1.0, SplitStation(37.0, 10.0))]
    assert min_processors(apart, 0.2).total >= min_processors(shared, 0.2).total


@given(
    loads=st.lists(st.floats(0.01, 20.0), min_size=1, max_size=5),
    extra=st.integers(0, 60),
)
def test_one_more_core_never_lengthens_the_prediction(loads: list[float], extra: int) -> None:
    stations = [Station(str(at), 1.0, QueueStation(load, 1.0)) for at, load in enumerate(loads)]
    least = sum(stable_minimum(stations).values())
    now, then = assign_processors(stations, least + extra), assign_processors(stations, least + extra + 1)
    assert then.latency_s <= now.latency_s
    assert all(then.cores[name] >= k for name, k in now.cores.items())


def test_a_load_that_cannot_be_served_is_spread_by_load_per_core() -> None:
    assert spread_processors({"a": 8.0, "b": 4.0, "c": 0.1}, 7) == {"a": 4, "b": 2, "c": 1}
    with pytest.raises(ModelError, match="give at least 3"):
        spread_processors({"a": 1.0, "b": 1.0, "c": 1.0}, 2)


def test_ten_thousand_cores_are_dealt_in_far_less_than_a_turn_of_the_loop() -> None:
    stations = chain(2500.0, 3500.0, 900.0)
    began = time.perf_counter()
    found = assign_processors(stations, 10_000)
    assert time.perf_counter() - began < 0.5
    assert found.total == 10_000
    assert math.isfinite(found.latency_s)


def drawn(name: str, *latencies_s: float) -> Station:
    """A station whose latency on 1, 2, ... cores is as given: D = 1 / (1 - load)."""
    loads = np.array([1.0 - 1.0 / latency_s for latency_s in latencies_s])
    return Station(name, 1.0, EpochStation(EpochCosts(1.0, 0.0, 0.0, 1.0), loads))


def test_a_step_of_several_cores_competes_by_its_gain_per_core() -> None:
    # Four cores take 4 s from a, one core 2 s from b: each core is worth more to b.
    a, b = drawn("a", 10, 10, 10, 10, 6), drawn("b", 10, 8, 6.5, 5.2, 4.1)
    assert assign_processors([a, b], 6).cores == {"a": 1, "b": 5}


def test_cores_too_few_for_a_whole_step_are_spent_where_they_still_help() -> None:
    a = drawn("a", 10, 9.5, 9, 8.5, 2)
    assert list(a.model.hull())[1][0] == 5
    assert assign_processors([a], 3).cores == {"a": 3}
    assert min_processors([a], 3.0, k_max=4).cores == {"a": 4}
    assert not min_processors([a], 3.0, k_max=4).reached


def test_a_step_of_several_cores_is_taken_back_as_far_as_the_bound_allows() -> None:
    a = drawn("a", 10, 9.5, 9, 8.5, 2)
    assert min_processors([a], 9.2).cores == {"a": 3}
    # b's core came first; once a has taken its step, the bound holds without it.
    a, b = drawn("a", 10, 9.9, 9.8, 6.4), drawn("b", 10, 8.7)
    assert min_processors([a, b], 16.5).cores == {"a": 4, "b": 1}
