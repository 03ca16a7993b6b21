"""The epoch model: its formula, its plateaus, its hull, which may rise, and the load of the busiest task."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.estimate import EpochCosts, ExecutorEstimate
from penstock.control.model.epoch import (
    EpochStation,
    derive_epoch_station,
    epoch_duration_s,
    epoch_latency_s,
    largest_load_curve,
    lower_convex_hull,
)
from penstock.control.model.queues import ModelError

COSTS = EpochCosts(o0_s=0.004, o1_s=0.001, o2_s=0.0001, c=1.5)
loads = st.lists(st.floats(0.0, 0.9), min_size=1, max_size=40).map(np.array)


def executor(load: np.ndarray, arrival: np.ndarray) -> ExecutorEstimate:
    size = len(load)
    return ExecutorEstimate(
        name="match",
        operator="match",
        task_of=np.zeros(size, dtype=np.int32),
        tasks=(),
        arrival_per_s=arrival,
        load=load,
        backlog_rows=np.zeros(size),
        latency_s=np.full(size, math.nan),
        state_bytes=np.zeros(size, dtype=np.int64),
        service_per_s=1000.0,
        epoch=COSTS,
    )


def test_the_formula() -> None:
    assert epoch_duration_s(COSTS, 4, 20, 0.5) == pytest.approx((0.004 + 0.004 + 0.002) / 0.5)
    assert epoch_latency_s(COSTS, 4, 20, 0.5) == pytest.approx(1.5 * 0.02)
    assert epoch_latency_s(COSTS, 4, 20, 1.0) == math.inf


def test_equal_shards_make_plateaus() -> None:
    curve = largest_load_curve(np.full(12, 0.1), 12)
    expected = [math.ceil(12 / k) * 0.1 for k in range(1, 13)]
    assert curve == pytest.approx(expected)


def test_one_hot_shard_bounds_every_split() -> None:
    curve = largest_load_curve(np.array([0.6, 0.1, 0.1, 0.1]), 6)
    assert curve == pytest.approx([0.9, 0.6, 0.6, 0.6, 0.6, 0.6])


def test_the_two_lightest_of_k_plus_1_shards_meet_somewhere() -> None:
    assert largest_load_curve(np.array([0.5, 0.5, 0.4]), 2)[1] == pytest.approx(0.9)


@given(shard_loads=st.lists(st.floats(0.01, 0.9), min_size=1, max_size=6), k=st.integers(1, 4))
def test_no_split_of_whole_shards_beats_the_curve(shard_loads: list[float], k: int) -> None:
    best = min(
        max(
            sum(load for load, task in zip(shard_loads, split, strict=True) if task == one)
            for one in range(k)
        )
        for split in itertools.product(range(k), repeat=len(shard_loads))
    )
    bound = largest_load_curve(np.array(shard_loads), k)[k - 1]
    assert bound <= best + 1e-12
    assert best <= bound * (2 - 1 / k) + 1e-12


@given(shard_loads=loads)
def test_more_tasks_never_make_the_busiest_busier(shard_loads: np.ndarray) -> None:
    curve = largest_load_curve(shard_loads, 50)
    assert (np.diff(curve) <= 1e-12).all()
    assert curve[0] == pytest.approx(shard_loads.sum())


@given(values=st.lists(st.floats(0.0, 100.0) | st.just(math.inf), min_size=1, max_size=40).map(np.array))
def test_a_hull_lies_below_its_points_and_bends_upward_only(values: np.ndarray) -> None:
    bends = lower_convex_hull(values)
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        assert not len(bends)
        return
    assert (bends[0], bends[-1]) == (finite[0], finite[-1])
    heights = np.interp(finite, bends, values[bends])
    assert (heights <= values[finite] + 1e-9).all()
    slopes = np.diff(values[bends]) / np.diff(bends)
    assert (np.diff(slopes) >= -1e-9).all()


@given(shard_loads=loads, o1_ms=st.floats(0.0, 20.0))
def test_the_walk_of_a_station_falls_to_its_lowest_point_by_ever_smaller_gains(
    shard_loads: np.ndarray, o1_ms: float
) -> None:
    model = EpochStation(EpochCosts(0.004, o1_ms / 1e3), largest_load_curve(shard_loads, 30), touched=10)
    walk = list(model.hull())
    finite = [k for k in range(1, 31) if math.isfinite(model.latency_s(k))]
    assert walk[0][0] == model.min_k == finite[0]
    assert model.floor_s == pytest.approx(min(model.latency_s(k) for k in finite))
    assert walk[-1][1] == 0.0
    gains = [(s - t) / (m - k) for (k, s), (m, t) in itertools.pairwise(walk)]
    assert all(gain > 0 for gain in gains)
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in itertools.pairwise(gains))


def test_latency_may_rise_with_cores() -> None:
    model = EpochStation(COSTS, largest_load_curve(np.full(8, 0.05), 32), touched=8)
    assert model.latency_s(32) > model.latency_s(8) > model.floor_s
    assert model.latency_s(64) > model.latency_s(32)
    assert model.latency_s(0) == math.inf


def test_a_shard_that_no_core_can_serve_is_said_to_be_too_hot() -> None:
    model = EpochStation(COSTS, largest_load_curve(np.array([1.3, 0.2]), 8))
    assert model.floor_s == math.inf
    assert model.latency_s(4) == math.inf
    with pytest.raises(ModelError, match=r"130% of the time; a single shard is too hot"):
        model.hull()


def test_longer_epochs_touch_more_shards_until_both_settle() -> None:
    arrival = np.full(200, 20.0)
    load = np.full(200, 0.01)
    model = derive_epoch_station(executor(load, arrival), 8)
    for k in range(3, 9):
        duration_s = model.latency_s(k) / COSTS.c
        touched = 200 * (1 - math.exp(-20.0 * duration_s))
        expected = epoch_duration_s(COSTS, k, touched, float(model.largest_load[k - 1]))
        assert duration_s == pytest.approx(expected, rel=1e-3)
    assert model.latency_s(8) < EpochStation(COSTS, model.largest_load, touched=200).latency_s(8)


def test_grouping_shards_by_rate_changes_little() -> None:
    rng = np.random.default_rng(1)
    arrival = rng.pareto(1.2, 500) * 20
    load = arrival / arrival.sum() * 2.0
    model = derive_epoch_station(executor(load, arrival), 6)
    duration_s = model.latency_s(5) / COSTS.c
    touched = float((1 - np.exp(-arrival * duration_s)).sum())
    assert duration_s == pytest.approx(
        epoch_duration_s(COSTS, 5, touched, float(model.largest_load[4])), rel=0.01
    )


def test_an_executor_is_modelled_up_to_its_shards_with_load_and_the_imbalance_left() -> None:
    load = np.array([0.2, 0.2, 0.2, 0.2, 0.0])
    model = derive_epoch_station(executor(load, load * 100), 64, imbalance=1.2)
    assert model.largest_load == pytest.approx([0.8, 0.48, 0.48, 0.24])
    idle = derive_epoch_station(executor(np.zeros(3), np.zeros(3)), 64)
    assert idle.min_k == 1
    assert idle.latency_s(1) == pytest.approx(1.5 * 0.005)
