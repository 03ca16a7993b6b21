"""Loads to deal shards by: what few rows came to lately says little of a shard."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.estimating import Measurer
from penstock.control.measure.lasting import FEW_ROWS, LastingRates
from penstock.control.measure.sample import ExecutorSample, NodeSample, Sample, TaskSample
from penstock.control.model.stations import StationModel
from penstock.control.plan.dealing import deal_shards
from penstock.control.plan.shards import derive_shards
from penstock.control.policy.demand import EPOCH, derive_demand, derive_station

SHARDS, IN_TURN_PER_S, ROW_S = 240, 6, 0.2


def measure_in_turn(seconds: int, busy_per_s: int = 0) -> Measurer:
    """Return a measurer after rows that go to one shard after the other, beside a busy shard 0; each takes 0.2 s."""
    measurer, rows = Measurer(), np.zeros(SHARDS, np.int64)
    for at in range(seconds + 1):
        look(measurer, float(at), rows)
        rows[(at * IN_TURN_PER_S + np.arange(IN_TURN_PER_S)) % SHARDS] += 1
        rows[0] += busy_per_s
    return measurer


def look(measurer: Measurer, at_s: float, rows: np.ndarray) -> None:
    tasks = tuple(
        TaskSample(task, "n0", float(rows[task::2].sum()) * ROW_S, int(rows[task::2].sum()))
        for task in range(2)
    )
    one = ExecutorSample(
        "extract", (np.arange(SHARDS) % 2).astype(np.int32), rows.copy(), rows.copy(), rows * ROW_S,
        np.zeros(SHARDS, np.int64), tasks,
    )  # fmt: skip
    measurer.measure(Sample(at_s, {"extract": one}, {"n0": NodeSample("n0", 16)}))


def estimate(measurer: Measurer) -> ExecutorEstimate:
    assert measurer._estimate is not None
    return measurer._estimate.executors["extract"]


def test_shards_without_a_row_in_the_last_seconds_are_dealt_evenly_too() -> None:
    executor = estimate(measure_in_turn(120))
    assert np.count_nonzero(executor.load) == 3 * IN_TURN_PER_S
    dealt = deal_shards(derive_shards(executor), dict.fromkeys(range(5), "n0"))
    assert min(np.bincount(dealt.task_of)) >= 38 and max(np.bincount(dealt.task_of)) <= 58


def test_shards_are_dealt_evenly_after_a_few_seconds_already() -> None:
    dealt = deal_shards(derive_shards(estimate(measure_in_turn(3))), dict.fromkeys(range(5), "n0"))
    assert max(np.bincount(dealt.task_of)) <= 80


def test_loads_of_busy_shards_and_of_all_together_stay_as_they_are() -> None:
    executor = estimate(measure_in_turn(120, busy_per_s=30))
    assert executor.dealt_load[0] == executor.load[0] > 5
    assert np.isclose(executor.dealt_load.sum(), executor.load.sum())
    assert (executor.dealt_load[1:] < executor.load[1:].max()).all() and (executor.dealt_load > 0).all()


def test_the_epoch_model_sees_the_same_executor_whichever_shards_had_rows_lately() -> None:
    def model(seconds: int) -> StationModel:
        measurer = measure_in_turn(seconds)
        assert measurer._estimate is not None
        now = measurer._estimate
        return derive_station(now.executors["extract"], derive_demand(now), EPOCH, 0.0, 16).model

    for k in (2, 4, 8):
        seen = [model(seconds).latency_s(k) for seconds in (120, 123, 130)]
        assert max(seen) < 1.1 * min(seen)


@given(
    rows=st.lists(st.integers(0, 40), min_size=2, max_size=30),
    before=st.lists(st.floats(0, 20), min_size=30, max_size=30),
    seed=st.integers(0, 99),
)
def test_no_load_is_lost_and_none_is_made(rows: list[int], before: list[float], seed: int) -> None:
    random = np.random.default_rng(seed)
    per_s = np.array(rows) / 3.0
    row_s, held = random.uniform(0.001, 1.0, len(rows)), random.random(len(rows)) < 0.8
    load = np.where(held, per_s * row_s, 0.0)
    rates = LastingRates(len(rows))
    rates.add(np.array(before[: len(rows)]), 60.0)
    found = rates.derive_load(per_s, load, row_s, held, 3.0)
    few = held & (per_s * 3.0 < FEW_ROWS)
    if found is None:
        assert load[few].sum() == 0
        return
    assert np.isclose(found.sum(), load.sum()) and (found >= 0).all()
    assert (found[~few] == load[~few]).all() and (found[few] > 0).all()


def test_a_shard_that_had_many_rows_until_now_does_not_take_all_of_what_few_have() -> None:
    rates = LastingRates(3)
    rates.add(np.array([1000.0, 0.5, 0.5]), 100.0)
    load = np.array([0.0, 0.1, 0.1])
    found = rates.derive_load(np.array([0.0, 0.5, 0.5]), load, np.full(3, 0.2), np.ones(3, bool), 3.0)
    assert found is not None and found[0] < 0.75 * load.sum()
