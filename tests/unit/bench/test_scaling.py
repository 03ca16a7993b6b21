"""Arithmetic and parts of `bench scaling`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.emulated import NAME
from penstock.bench.scaling import CASES, Point, deal_by_load, derive_efficiencies, find_break, plan_cores


@given(st.lists(st.floats(0.0, 10.0), min_size=8, max_size=60), st.integers(1, 8))
def test_dealt_loads_differ_by_no_more_than_one_shard(loads: list[float], tasks: int) -> None:
    task_of = deal_by_load(loads, tasks)
    each = np.bincount(task_of, weights=loads, minlength=tasks)
    assert each.max() - each.min() <= max(loads) + 1e-9


def test_a_plan_names_every_task_and_places_every_shard() -> None:
    plan = plan_cores(np.ones(256), 16).executors[NAME]
    assert plan.k == 16
    assert set(plan.task_of.tolist()) == set(plan.tasks)


def test_efficiency_is_against_the_first_point_and_the_break_is_where_it_falls() -> None:
    points = [
        Point(cores, rate, 500.0, 1.0, 1.0) for cores, rate in ((1, 900.0), (4, 3_500.0), (16, 9_000.0))
    ]
    found = derive_efficiencies(points)
    assert found[1] == 1.0
    assert found[16] == pytest.approx(0.625)
    assert find_break(found) == 16
    assert find_break({1: 1.0, 16: 0.91}) is None


def test_every_curve_begins_with_one_core_and_ends_with_sixteen() -> None:
    assert all((case.cores[0], case.cores[-1]) == (1, 16) for case in CASES.values())
