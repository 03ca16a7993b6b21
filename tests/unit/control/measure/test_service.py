"""Service rates by useful time: how fast they follow, and what a task is said to use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.measure.sample import ExecutorSample, NodeSample, TaskSample
from penstock.control.measure.service import EWMA, ServiceRates

NODES = {"n0": NodeSample("n0", 4), "slow": NodeSample("slow", 4)}
SPEEDS = {"n0": 1.0, "slow": 0.5}


def total(rows: int, busy_s: float, node: str = "n0", **used: float) -> ExecutorSample:
    counts = np.array([rows], np.int64)
    task = TaskSample(0, node, busy_s, rows, **used)
    return ExecutorSample(
        "match",
        np.zeros(1, np.int32),
        counts,
        counts,
        np.array([busy_s]),
        np.zeros(1, np.int64),
        (task,),
    )


def test_the_operators_rate_is_that_of_rows_and_useful_time_smoothed_with_eta() -> None:
    """100 rows a useful second, then 200: the newest interval weighs 1, the one before 1 - η."""
    rates = ServiceRates()
    assert rates.service_per_s is None
    rates.update(total(0, 0.0), total(100, 1.0), 1.0, SPEEDS)
    assert rates.service_per_s == pytest.approx(100.0)
    rates.update(total(100, 1.0), total(300, 2.0), 1.0, SPEEDS)
    assert rates.service_per_s == pytest.approx((100 * (1 - EWMA) + 200) / (1 - EWMA + 1))
    assert EWMA == 1 / 8


def test_an_idle_interval_changes_no_rate() -> None:
    rates = ServiceRates()
    rates.update(total(0, 0.0), total(100, 1.0), 1.0, SPEEDS)
    rates.update(total(100, 1.0), total(100, 1.0), 1.0, SPEEDS)
    rates.update(total(100, 1.0), total(300, 2.0), 1.0, SPEEDS)
    assert rates.service_per_s == pytest.approx((100 * (1 - EWMA) + 200) / (1 - EWMA + 1))


def test_a_task_uses_the_cpu_memory_and_io_that_were_measured_of_it() -> None:
    rates = ServiceRates()
    after = total(100, 0.5, cpu_ratio=0.4, memory_ratio=0.3, io_ratio=0.2)
    rates.update(total(0, 0.0), after, 1.0, SPEEDS)
    (task,) = rates.estimate_tasks(after, NODES, SPEEDS, 1.0)
    assert (task.cpu_ratio, task.memory_ratio, task.io_ratio) == (0.4, 0.3, 0.2)


def test_where_nothing_was_measured_a_task_uses_the_share_of_its_node_that_it_is_useful() -> None:
    rates = ServiceRates()
    rates.update(total(0, 0.0), total(100, 0.5), 1.0, SPEEDS)
    (task,) = rates.estimate_tasks(total(100, 0.5), NODES, SPEEDS, 1.0)
    assert (task.cpu_ratio, task.memory_ratio, task.io_ratio) == (0.5 / 4, 0.0, 0.0)


def test_the_operators_rate_is_that_of_a_node_of_speed_one_and_a_new_task_has_it_at_the_speed_of_its_own() -> (
    None
):
    rates = ServiceRates()
    rates.update(total(0, 0.0, "slow"), total(100, 2.0, "slow"), 2.0, SPEEDS)
    assert rates.service_per_s == pytest.approx(100.0)
    both = replace(total(100, 2.0), tasks=(TaskSample(1, "n0", 0.0, 0), TaskSample(2, "slow", 0.0, 0)))
    found = rates.estimate_tasks(both, NODES, SPEEDS, 1.0)
    assert [task.service_per_s for task in found] == pytest.approx([100.0, 50.0])


def test_a_rate_that_is_borrowed_from_a_task_on_a_faster_node_is_as_much_lower() -> None:
    rates = ServiceRates()
    before = total(100, 1.0)
    rates.update(total(0, 0.0), before, 1.0, SPEEDS)
    moved = replace(
        before,
        task_of=np.ones(1, np.int32),
        tasks=(TaskSample(0, "n0", 1.0, 100), TaskSample(1, "slow", 0.0, 0)),
    )
    rates.update(before, moved, 1.0, SPEEDS)
    assert [task.service_per_s for task in rates.estimate_tasks(moved, NODES, SPEEDS, 1.0)] == [100.0, 50.0]


def test_how_busy_a_task_is_follows_by_half_of_the_newest_interval() -> None:
    rates = ServiceRates()
    rates.update(total(0, 0.0), total(50, 0.5), 1.0, SPEEDS)
    rates.update(total(50, 0.5), total(150, 1.5), 1.0, SPEEDS)
    (task,) = rates.estimate_tasks(total(150, 1.5), NODES, SPEEDS, 1.0)
    assert task.useful_ratio == pytest.approx(0.75)
