"""The measurer: rates that add up, samples that cannot be believed, restarts, unlike nodes, borrowed rates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.fake_plane import FakePlane

from penstock.control.measure.estimate import EpochCosts, Estimate
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.nodes import Need, derive_new_task_need
from penstock.control.measure.sample import ExecutorSample, NodeSample, Sample, TaskSample
from penstock.control.measure.smoothing import Adapting, Smoothing, Weighted, Windowed
from penstock.control.plan.plan import ExecutorPlan


def measured(plane: FakePlane, steps: int, measurer: Measurer | None = None) -> tuple[Measurer, Estimate]:
    measurer = measurer or Measurer()
    measurer.measure(plane.sample())
    for _ in range(steps):
        estimate = measurer.measure(plane.step())
    return measurer, estimate


def change(sample: Sample, **fields: Any) -> Sample:
    return replace(sample, executors={"match": replace(sample.executors["match"], **fields)})


def tasks_of(*tasks: tuple[int, str, float, int]) -> tuple[TaskSample, ...]:
    return tuple(TaskSample(*task) for task in tasks)


def two_nodes(at_s: float, rows: int, slow_s: float) -> Sample:
    """Shard 0 on a fast node at 10 ms a row, shard 1 on another at `slow_s` a row."""
    counts = np.array([rows, rows], np.int64)
    match = ExecutorSample(
        "match", np.array([0, 1], np.int32), counts, counts, np.array([rows * 0.01, rows * slow_s]),
        np.zeros(2, np.int64), tasks_of((0, "n1", rows * 0.01, rows), (1, "n2", rows * slow_s, rows)),
    )  # fmt: skip
    return Sample(at_s, {"match": match}, {"n1": NodeSample("n1", 2), "n2": NodeSample("n2", 2)})


@pytest.mark.parametrize("smoothing", [Windowed(10), Weighted(0.9)])
def test_rates_loads_and_service_are_those_of_the_plane(smoothing: Windowed | Weighted) -> None:
    plane = FakePlane([100.0, 40.0, 10.0, 0.0], row_s=0.005)
    _, estimate = measured(plane, 60, Measurer(Measuring(smoothing=smoothing)))
    match = estimate.executors["match"]
    assert estimate.invalid is None
    assert match.arrival_per_s == pytest.approx([100, 40, 10, 0], rel=0.35)
    assert match.service_per_s == pytest.approx(200.0)
    assert match.load == pytest.approx(match.arrival_per_s * 0.005)
    assert [task.service_per_s for task in match.tasks] == pytest.approx([200.0, 200.0])
    assert match.task_loads() == pytest.approx([match.load[0] + match.load[2], match.load[1]])
    assert match.tasks[0].useful_ratio == pytest.approx(0.55, abs=0.15)
    assert match.scv_arrival == pytest.approx(1.0, abs=0.6)
    assert match.scv_service == pytest.approx(0.0, abs=1e-9)
    assert match.done_per_s == pytest.approx(150.0, rel=0.35)


def test_the_load_of_an_overloaded_task_is_what_arrives_not_what_it_manages() -> None:
    _, estimate = measured(FakePlane([500.0], k=1, row_s=0.005), 10)
    match = estimate.executors["match"]
    assert match.task_loads()[0] == pytest.approx(2.5, rel=0.1)
    assert match.backlog_rows[0] > 2000
    assert match.latency_s[0] > 2.0
    assert match.done_per_s == pytest.approx(200.0)
    assert match.done_over_s == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0.1, 5.0), st.integers(0, 500)), min_size=2, max_size=15),
    missing=st.sets(st.integers(1, 13)),
)
def test_rows_are_conserved_whatever_samples_are_missing(
    steps: list[tuple[float, int]], missing: set[int]
) -> None:
    """The mean rate over everything is the rows over the time, with any of the samples between left out."""
    measurer = Measurer(Measuring(smoothing=Windowed(1000), forget_after=100))
    arrived, at_s = 0, 0.0

    def sample() -> Sample:
        counts = np.array([arrived], np.int64)
        task = TaskSample(0, "n1", arrived * 0.001, arrived)
        match = ExecutorSample(
            "match", np.zeros(1, np.int32), counts, counts, counts * 0.001, np.zeros(1, np.int64), (task,)
        )
        return Sample(at_s, {"match": match}, {"n1": NodeSample("n1", 1)}, sources={"orders": arrived})

    measurer.measure(sample())
    for number, (elapsed_s, rows) in enumerate(steps):
        at_s, arrived = at_s + elapsed_s, arrived + rows
        whole = sample()
        gone = number in missing and number < len(steps) - 1
        estimate = measurer.measure(replace(whole, executors={}) if gone else whole)
        assert (estimate.invalid is not None) == gone or arrived == 0
    assert estimate.executors["match"].rate_per_s == pytest.approx(arrived / at_s)
    assert estimate.sources_per_s["orders"] == pytest.approx(arrived / at_s)
    assert estimate.executors["match"].backlog_rows[0] == 0


def test_a_missing_sample_is_interpolated() -> None:
    """Two slots without a sample count as three with the mean of what came in, not as one long one."""
    measurer = Measurer(Measuring(smoothing=Weighted(0.5)))
    for at, rows in enumerate([0, 10, 20, 30, 120]):
        at_s = at if at < 4 else 6.0
        whole = two_nodes(at_s, rows, 0.01)
        if at == 4:
            for gap_s in (4.0, 5.0):
                estimate = measurer.measure(replace(whole, at_s=gap_s, executors={}))
                assert estimate.invalid == "there is no sample of match"
        estimate = measurer.measure(whole)
    assert estimate.invalid is None
    assert estimate.executors["match"].arrival_per_s[0] == pytest.approx(10 / 8 + 30 * 7 / 8)


SPOILT = {
    "a time that is no number": lambda s: replace(s, at_s=math.nan),
    "a time before the last one": lambda s: replace(s, at_s=s.at_s - 5),
    "the same time again": lambda s: replace(s, at_s=s.at_s - 1),
    "no executor": lambda s: replace(s, executors={}),
    "a shard without a count": lambda s: change(s, arrived=np.array([-1, 5, 5])),
    "useful time that is no number": lambda s: change(s, busy_s=np.array([np.nan, 1, 1])),
    "a task whose time is no number": lambda s: change(s, tasks=tasks_of((0, "n1", math.nan, 3), (1, "n1", 1, 1))),
    "a task that is not there": lambda s: change(s, tasks=()),
    "arrays of unequal length": lambda s: change(s, arrived=np.zeros(2, np.int64)),
    "counters that fell": lambda s: change(s, arrived=np.zeros(3, np.int64), completed=np.zeros(3, np.int64)),
    "a node's load that is no number": lambda s: replace(s, nodes={"n1": NodeSample("n1", 8, math.nan)}),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_what_cannot_be_believed_makes_the_estimate_invalid_and_is_got_over(what: str) -> None:
    plane = FakePlane([100.0, 50.0, 10.0])
    measurer, before = measured(plane, 8)
    spoilt = measurer.measure(SPOILT[what](plane.step()))
    assert spoilt.invalid
    if spoilt.executors and what != "counters that fell":
        assert spoilt.executors["match"].rate_per_s == pytest.approx(
            before.executors["match"].rate_per_s, rel=0.15
        )
    for _ in range(4):
        estimate = measurer.measure(plane.step())
    assert estimate.invalid is None
    assert estimate.executors["match"].rate_per_s == pytest.approx(160, rel=0.35)
    assert estimate.executors["match"].service_per_s == pytest.approx(200)


def test_a_restart_keeps_service_rates_and_makes_no_rate_of_the_fall() -> None:
    plane = FakePlane([100.0, 50.0])
    measurer, _ = measured(plane, 8)
    plane.arrived, plane.completed = np.zeros(2, np.int64), np.zeros(2, np.int64)
    plane.busy_s, plane.done = np.zeros(2), {}
    restarted = measurer.measure(plane.step())
    assert restarted.invalid == "the counters of match began again"
    assert restarted.executors["match"].service_per_s == pytest.approx(200)
    assert (restarted.executors["match"].arrival_per_s >= 0).all()
    after = measurer.measure(plane.step())
    assert after.invalid is None and after.executors["match"].rate_per_s == pytest.approx(150, rel=0.3)


def test_a_clock_that_begins_again_is_recognised_at_the_second_sample() -> None:
    plane = FakePlane([100.0])
    plane.at_s = 1000.0
    measurer, _ = measured(plane, 5)
    plane.at_s = 0.0
    assert "came after" in str(measurer.measure(plane.step()).invalid)
    assert measurer.measure(plane.step()).invalid == "the clock of the samples began again"
    assert measurer.measure(plane.step()).invalid is None


def test_the_first_sample_gives_no_rate() -> None:
    assert Measurer().measure(FakePlane([1.0]).step()).invalid == "match has one sample, and a rate needs two"


@pytest.mark.parametrize(
    ("row_s", "says"),
    [(0.001, "no row of match has come lately"), (1e9, "no row of match has been completed yet")],
)
def test_rows_that_stopped_coming_are_told_from_rows_that_are_not_done(row_s: float, says: str) -> None:
    plane = FakePlane([10.0], row_s=row_s)
    plane.step()
    plane.rates[:] = 0.0
    plane.step()
    assert measured(plane, 3)[1].invalid == says


def test_an_operator_without_rows_is_no_reason_to_stop_deciding() -> None:
    _, estimate = measured(FakePlane([0.0, 0.0]), 3)
    assert estimate.invalid is None and estimate.executors["match"].load.sum() == 0


def test_an_executor_that_stays_away_is_forgotten() -> None:
    plane = FakePlane([10.0])
    measurer, _ = measured(plane, 3)
    seen = [measurer.measure(replace(plane.step(), executors={})) for _ in range(6)]
    assert [one.invalid for one in seen] == ["there is no sample of match"] * 4 + [
        "the sample has no executor"
    ] * 2
    assert "match" not in seen[-1].executors


def test_a_slow_node_is_recognised_by_useful_time() -> None:
    measurer = Measurer()
    for at in range(60):
        estimate = measurer.measure(two_nodes(float(at), at * 10, 0.02))
    match = estimate.executors["match"]
    assert [task.service_per_s for task in match.tasks] == pytest.approx([100, 50])
    assert estimate.nodes["n1"].speed / estimate.nodes["n2"].speed == pytest.approx(2.0)
    # On a node of speed 1 both shards need the same, and each node needs its own time for it.
    assert match.load[0] == pytest.approx(match.load[1], rel=0.05)
    assert match.task_loads() == pytest.approx([0.1, 0.2], rel=0.05)


def test_dear_rows_do_not_make_a_task_slow() -> None:
    measurer = Measurer()
    for at in range(60):
        sample = two_nodes(float(at), at * 10, 0.03)
        tasks = tuple(replace(task, node="n1") for task in sample.executors["match"].tasks)
        estimate = measurer.measure(change(sample, tasks=tasks))
    match = estimate.executors["match"]
    assert match.load == pytest.approx([0.1, 0.3])
    assert match.task_loads() == pytest.approx([0.1, 0.3])


def test_a_new_task_borrows_the_rate_of_the_task_its_shards_came_from_until_it_has_its_own() -> None:
    plane = FakePlane([50.0, 50.0, 50.0, 50.0], k=2)
    measurer, _ = measured(plane, 10)
    plane.plan = ExecutorPlan({0: "n1", 1: "n1", 2: "n2"}, np.array([0, 1, 2, 1], np.int32))
    new = measurer.measure(replace(plane.sample(), at_s=plane.at_s + 0.1)).executors["match"].tasks[2]
    assert (new.index, new.node, new.service_per_s) == (2, "n2", pytest.approx(200.0))
    plane.row_s = 0.01
    plane.at_s += 0.1
    corrected = measurer.measure(plane.step()).executors["match"].tasks
    assert corrected[2].service_per_s == pytest.approx(100.0), (
        "its own measurement replaces what was borrowed"
    )
    assert 180 < corrected[0].service_per_s < 200, "a rate of its own moves by one eighth"


@pytest.mark.parametrize("rows_per_s", [1, 8])
def test_the_service_rate_of_a_task_with_few_rows_is_no_mean_of_ratios(rows_per_s: int) -> None:
    """Rows that take 10 ms on average, exponentially: a mean of rows / useful time has no bound at one row a turn."""
    chance = np.random.default_rng(3)
    measurer, rows, busy_s, seen = Measurer(), 0, 0.0, []
    for at in range(400):
        counts = np.array([rows, rows], np.int64)
        match = ExecutorSample(
            "match", np.array([0, 0], np.int32), counts, counts, np.array([busy_s, 0.0]),
            np.zeros(2, np.int64), tasks_of((0, "n1", busy_s, rows)),
        )  # fmt: skip
        estimate = measurer.measure(Sample(float(at), {"match": match}, {"n1": NodeSample("n1", 2)}))
        seen.append(estimate.executors["match"].tasks[0].service_per_s)
        rows += rows_per_s
        busy_s += float(chance.exponential(0.01, rows_per_s).sum())
    assert np.mean(seen[16:]) == pytest.approx(100, rel=0.15)
    assert max(seen[16:]) < 250


def test_a_task_whose_index_was_used_before_does_not_take_over_its_totals() -> None:
    measurer = Measurer()
    for at in range(6):
        sample = two_nodes(float(at), at * 10, 0.01)
        tasks = list(sample.executors["match"].tasks)
        tasks[1] = TaskSample(1, "n2", 900.0 + at * 0.1, 10**6 + at * 10)
        used = change(
            sample, tasks=tuple(tasks if at >= 4 else tasks[:1]), task_of=np.array([0, int(at >= 4)])
        )
        match = measurer.measure(used).executors["match"]
        if at == 4:
            assert (match.tasks[1].useful_ratio, match.tasks[1].service_per_s) == (0.0, pytest.approx(100.0))
    assert match.service_per_s == pytest.approx(100.0)
    assert match.tasks[1].useful_ratio == pytest.approx(0.1)


def test_a_shard_that_comes_from_another_executor_brings_its_rate_along() -> None:
    def sample(at: int, moved: bool) -> Sample:
        rows = np.array([at * 10, at * 30], np.int64)

        def one(mine: list[bool]) -> ExecutorSample:
            held = np.array(mine)
            counts = np.where(held, rows, 0)
            task = TaskSample(0, "n1", counts.sum() * 0.01, int(counts.sum()))
            return ExecutorSample(
                "match", np.where(held, 0, -1).astype(np.int32), counts, counts, counts * 0.01,
                np.zeros(2, np.int64), (task,),
            )  # fmt: skip

        executors = {"match.0": one([True, moved]), "match.1": one([False, not moved])}
        return Sample(float(at), executors, {"n1": NodeSample("n1", 4)})

    measurer = Measurer()
    for at in range(6):
        measurer.measure(sample(at, moved=False))
    estimate = measurer.measure(sample(6, moved=True))
    assert estimate.invalid is None
    assert estimate.executors["match.0"].arrival_per_s == pytest.approx([10, 30])
    assert estimate.executors["match.0"].load == pytest.approx([0.1, 0.3])
    assert estimate.executors["match.1"].arrival_per_s.tolist() == [0, 0]


@pytest.mark.parametrize("smoothing", [Windowed(), Weighted(), Adapting()])
@pytest.mark.parametrize("missing", [(), (20, 40)])
def test_shards_that_leave_and_come_back_are_no_variability(
    smoothing: Smoothing, missing: tuple[int, ...]
) -> None:
    """Half of the shards are with another executor from sample 20 to 39; their totals go with them."""
    measurer, random = Measurer(Measuring(smoothing=smoothing)), np.random.default_rng(0)
    arrived = np.zeros(16, np.int64)
    for at in range(1, 61):
        arrived = arrived + random.poisson(100, 16)
        held = (np.arange(16) < 8) | (at < 20) | (at >= 40)
        totals, task_of = np.where(held, arrived, 0), np.where(held, 0, -1).astype(np.int32)
        task = TaskSample(0, "n1", float(arrived.sum()) * 0.001, int(arrived.sum()))
        match = ExecutorSample(
            "match", task_of, totals, totals, totals * 0.001, np.zeros(16, np.int64), (task,)
        )
        here = {} if at in missing else {"match": match}
        now = measurer.measure(Sample(float(at), here, {"n1": NodeSample("n1", 2)})).executors
        if at > 10 and at not in missing:
            assert now["match"].scv_arrival < 2.5
            assert (now["match"].arrival_per_s[held] < 150).all() and not now["match"].arrival_per_s[
                ~held
            ].any()
            assert now["match"].rate_per_s == pytest.approx(100 * held.sum(), rel=0.15)


def test_a_shard_on_its_way_between_tasks_keeps_its_rate() -> None:
    plane = FakePlane([100.0, 60.0])
    measurer, _ = measured(plane, 10)
    away = plane.step()
    hidden = change(away, task_of=np.array([0, -1], np.int32))
    assert measurer.measure(hidden).executors["match"].arrival_per_s[1] == 0.0
    back = measurer.measure(plane.step())
    assert back.invalid is None and back.executors["match"].arrival_per_s[1] == pytest.approx(60, rel=0.25)


def test_latency_is_split_by_the_times_of_epochs_where_it_was_not_measured() -> None:
    plane = FakePlane([100.0])
    measurer = Measurer()
    for at in range(4):
        sample = change(
            plane.step(), latency_s=0.05, epochs=at * 10, epochs_s=at * 0.3, longest_task_s=at * 0.2
        )
        match = measurer.measure(sample).executors["match"]
    assert (match.waiting_s, match.processing_s, match.commit_s) == pytest.approx((0.02, 0.02, 0.01))
    assert match.measured_s == pytest.approx(0.05)


def test_epoch_costs_come_from_the_fit() -> None:
    plane, fitted = FakePlane([100.0]), EpochCosts(1, 2, 3, 4)
    measurer = Measurer(fit=lambda name, before, after, latency_s: fitted if after.epochs > 2 else None)
    seen = [measurer.measure(change(plane.step(), epochs=at)).executors["match"].epoch for at in range(4)]
    assert seen == [EpochCosts(), EpochCosts(), EpochCosts(), fitted]


def test_the_fit_is_given_the_latency_at_the_executor_not_the_way_there() -> None:
    def latencies(measured_s: float | None, **graph: Any) -> list[float | None]:
        plane, seen = FakePlane([500.0], k=1), list[float | None]()

        def fit(name: str, before: ExecutorSample, after: ExecutorSample, latency_s: float | None) -> None:
            seen.append(latency_s)

        measurer = Measurer(fit=fit)
        for at in range(1, 5):
            sample = replace(plane.step(), latency_s=99.0, **graph)
            measurer.measure(change(sample, epochs=at, latency_s=measured_s))
        return seen

    graph = {"edges": {("s", "split"): 1, ("split", "match"): 1}, "sources": {"s": 1}}
    assert latencies(0.7) == latencies(0.7, **graph) == [0.7] * 3
    downstream = latencies(None, **graph)
    assert downstream[0] is None, "its rows had arrived before the first sample"
    assert all(one is not None and 0 < one < 5 for one in downstream[1:])


def test_the_load_of_a_node_is_the_greatest_of_three_above_its_idle_base() -> None:
    measurer = Measurer(Measuring(idle=Need(0.05, 0.3, 0.0)))
    sample = replace(FakePlane([1.0]).step(), nodes={"n1": NodeSample("n1", 4, 0.5, 0.4, 0.1)})
    node = measurer.measure(sample).nodes["n1"]
    assert (node.cpu_ratio, node.memory_ratio, node.io_ratio) == pytest.approx((0.55, 0.7, 0.1))
    assert node.load_ratio == pytest.approx(0.7)


def test_a_new_task_needs_the_mean_of_its_siblings() -> None:
    _, estimate = measured(FakePlane([100.0, 50.0], k=2, row_s=0.005), 60)
    tasks = estimate.executors["match"].tasks
    need = derive_new_task_need(tasks)
    assert need.cpu_ratio == pytest.approx((tasks[0].useful_ratio + tasks[1].useful_ratio) / 2 / 8)
    assert derive_new_task_need(()) == Need()
