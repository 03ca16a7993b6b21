"""What a bound on the mean of short windows asks of the mean over all of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.policy.fewness import CERTAIN, count_independent, derive_mean_s, window_factor


@given(st.floats(1.0, 1e4), st.floats(1.0, 1e4))
def test_the_more_looks_a_window_has_the_nearer_its_mean_lies(one: float, other: float) -> None:
    few, many = sorted((one, other))
    assert window_factor(few) >= window_factor(many) * (1 - 1e-12) and window_factor(many) >= 1.0


@pytest.mark.parametrize("looks", [4, 20, 100])
def test_99_means_of_100_lie_within_the_factor(looks: int) -> None:
    means = np.random.default_rng(3).exponential(1.0, (20_000, looks)).mean(axis=1)
    assert CERTAIN == 2.33 and (means <= window_factor(looks)).mean() == pytest.approx(0.99, abs=0.003)


@given(st.integers(1, 100), st.floats(0.1, 1e4), st.floats(0.0, 0.99), st.floats(0.1, 60.0))
def test_each_task_is_one_look_at_least(tasks: int, service: float, load: float, window_s: float) -> None:
    assert count_independent(tasks, service, load, window_s) >= tasks


@given(st.floats(0.01, 10.0), st.floats(0.5, 10.0), st.floats(1.0, 1e4), st.floats(0.0, 30.0))
def test_no_mean_over_the_bound_is_asked_for(
    bound: float, window: float, service: float, load: float
) -> None:
    assert 0 < derive_mean_s(bound, window, service, load, 64, 0.2) <= bound


def tasks_wanted(load: float, service: float, bound: float, margin: float) -> int:
    """Return how many tasks a bound on the mean asks for, by the load that a task may then be filled to."""
    mean_s = derive_mean_s(bound, 1.0, service, load, 64, margin)
    return math.ceil(load / (1.0 - margin - 1.0 / (service * mean_s)) - 1e-6)


@pytest.mark.parametrize(
    ("service", "bound"), [(3.0, 2.0), (5.0, 1.0), (10.0, 1.0), (20.0, 0.5), (200.0, 1.0)]
)
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_more_load_asks_for_no_fewer_tasks(service: float, bound: float, margin: float) -> None:
    wanted = [tasks_wanted(load, service, bound, margin) for load in np.linspace(0.1, 8.0, 400)]
    assert all(many >= few for few, many in itertools.pairwise(wanted))


def test_where_rows_are_quick_the_bound_is_the_mean() -> None:
    for load in np.linspace(0.1, 19.0, 50):
        assert derive_mean_s(1.0, 1.0, 200.0, float(load), 64, 0.2) == 1.0


def test_where_few_slow_rows_make_a_window_the_mean_must_lie_lower() -> None:
    slow = derive_mean_s(1.0, 1.0, 3.7, 1.6, 240, 0.2)
    assert slow < 0.7
    assert derive_mean_s(1.0, 60.0, 3.7, 1.6, 240, 0.2) > slow
