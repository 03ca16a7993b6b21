"""The online fit: finds the coefficients, stays inside bounds, follows changes, says how sure it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.estimate import EpochCosts
from penstock.control.measure.sample import ExecutorSample, TaskSample
from penstock.control.model.epoch import epoch_duration_s
from penstock.control.model.epoch_fit import (
    UPPER,
    EpochFit,
    EpochObservation,
    _bounded_minimum,
    derive_observation,
)

TRUE = EpochCosts(o0_s=0.011, o1_s=0.0023, o2_s=0.00002, c=1.8)


def see(
    costs: EpochCosts, k: int, touched: float, load: float, *, noise: float = 1.0, c_noise: float = 1.0
) -> EpochObservation:
    duration_s = epoch_duration_s(costs, k, touched, load) * noise
    return EpochObservation(k, touched, load, duration_s, costs.c * duration_s * c_noise)


def train(fit: EpochFit, costs: EpochCosts, turns: int, seed: int, noise: float = 0.05) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(turns):
        k, touched, load = int(rng.integers(1, 9)), float(rng.integers(1, 256)), float(rng.uniform(0, 0.9))
        fit.observe(
            see(
                costs,
                k,
                touched,
                load,
                noise=float(np.exp(rng.normal(0, noise))),
                c_noise=float(np.exp(rng.normal(0, noise))),
            )
        )


def test_coefficients_are_found_from_noisy_epochs() -> None:
    fit = EpochFit()
    train(fit, TRUE, 150, seed=1)
    for k, touched in [(1, 10), (4, 100), (8, 256), (16, 256)]:
        mine, true = (epoch_duration_s(costs, k, touched, 0.5) for costs in (fit.costs, TRUE))
        assert mine == pytest.approx(true, rel=0.08)
    assert fit.costs.c == pytest.approx(TRUE.c, rel=0.05)


def test_with_one_k_seen_the_prediction_there_is_right_and_elsewhere_uncertain() -> None:
    fit = EpochFit()
    for turn in range(60):
        fit.observe(see(TRUE, 4, 100, 0.3, noise=1 + 0.02 * (-1) ** turn))
    assert epoch_duration_s(fit.costs, 4, 100, 0.3) == pytest.approx(
        epoch_duration_s(TRUE, 4, 100, 0.3), rel=0.03
    )
    assert fit.uncertainty_ratio(4, 100) < 0.03
    assert fit.uncertainty_ratio(16, 100) > 3 * fit.uncertainty_ratio(4, 100)
    assert (fit.least_k, fit.most_k) == (4, 4)


def test_a_change_of_the_machine_is_followed() -> None:
    fit = EpochFit()
    train(fit, TRUE, 100, seed=2)
    slower = replace(TRUE, o0_s=TRUE.o0_s * 3, o1_s=TRUE.o1_s * 2)
    train(fit, slower, 250, seed=3)
    assert epoch_duration_s(fit.costs, 4, 100, 0.5) == pytest.approx(
        epoch_duration_s(slower, 4, 100, 0.5), rel=0.1
    )


def test_a_few_pauses_move_little() -> None:
    fit, other = EpochFit(), EpochFit()
    for one, pauses in ((fit, 0), (other, 3)):
        train(one, TRUE, 100, seed=4)
        for _ in range(pauses):
            one.observe(see(TRUE, 4, 100, 0.5, noise=30.0))
    assert epoch_duration_s(other.costs, 4, 100, 0.5) == pytest.approx(
        epoch_duration_s(fit.costs, 4, 100, 0.5), rel=0.15
    )


def test_confidence_grows_with_what_was_seen_and_predicted() -> None:
    fit = EpochFit()
    assert fit.confidence == 0.0
    train(fit, TRUE, 5, seed=5)
    early = fit.confidence
    train(fit, TRUE, 100, seed=6)
    assert early < fit.confidence < 1.0
    assert fit.confidence > 0.6
    assert fit.observations == 105
    assert fit.weight < 50.01
    assert fit.error_ratio < 0.15


def test_confidence_falls_when_epochs_cannot_be_predicted() -> None:
    calm, wild = EpochFit(), EpochFit()
    train(calm, TRUE, 100, seed=7)
    train(wild, TRUE, 100, seed=7, noise=0.8)
    assert wild.confidence < calm.confidence / 1.5


@pytest.mark.parametrize(
    "seen",
    [
        EpochObservation(4, 10, 1.0, 0.01),
        EpochObservation(0, 10, 0.5, 0.01),
        EpochObservation(4, 10, 0.5, 0.0),
        EpochObservation(4, 10, 0.5, math.inf),
        EpochObservation(4, math.nan, 0.5, 0.01),
        EpochObservation(4, 10, math.nan, 0.01),
    ],
)
def test_what_says_nothing_is_left_out(seen: EpochObservation) -> None:
    fit = EpochFit()
    assert not fit.observe(seen)
    assert fit.costs == EpochCosts()
    assert fit.observations == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0, 1000), st.floats(0, 0.99), st.floats(1e-5, 20), st.floats(0, 50)),
        max_size=25,
    )
)  # fmt: skip
def test_whatever_is_seen_coefficients_stay_inside_their_bounds(
    rows: list[tuple[int, float, float, float, float]],
) -> None:
    fit = EpochFit()
    for row in rows:
        fit.observe(EpochObservation(*row))
    assert 0 <= fit.costs.o0_s <= UPPER.o0_s
    assert 0 <= fit.costs.o1_s <= UPPER.o1_s
    assert 0 <= fit.costs.o2_s <= UPPER.o2_s
    assert 0.5 <= fit.costs.c <= UPPER.c
    assert 0 <= fit.confidence <= 1


@given(st.integers(0, 10_000))
def test_the_minimum_inside_bounds_is_no_worse_than_any_point_of_a_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3))
    gram, moment, upper = root @ root.T + 0.01 * np.eye(3), rng.normal(size=3) * 2, rng.uniform(0.2, 2, 3)

    def height(x: np.ndarray) -> float:
        return float(0.5 * x @ gram @ x - moment @ x)

    found = _bounded_minimum(gram, moment, upper)
    assert (found >= 0).all() and (found <= upper + 1e-12).all()
    grid = np.stack(np.meshgrid(*(np.linspace(0, top, 7) for top in upper)), axis=-1).reshape(-1, 3)
    assert height(found) <= min(height(point) for point in grid) + 1e-9


def sample(epochs: int, epochs_s: float, longest_s: float, touched: int, tasks: int = 2) -> ExecutorSample:
    zeros = np.zeros(4, dtype=np.int64)
    return ExecutorSample(
        "match",
        np.zeros(4, dtype=np.int32),
        zeros,
        zeros,
        np.zeros(4),
        zeros,
        tuple(TaskSample(at, "node", 0.0, 0) for at in range(tasks)),
        epochs=epochs,
        epochs_s=epochs_s,
        longest_task_s=longest_s,
        touched_shards=touched,
    )


def test_two_samples_make_one_observation() -> None:
    seen = derive_observation(sample(10, 1.0, 0.2, 30), sample(30, 2.0, 0.7, 110), 0.09)
    assert seen == EpochObservation(2, 4.0, pytest.approx(0.5), pytest.approx(0.05), 0.09)


def test_no_epoch_or_another_number_of_tasks_makes_none() -> None:
    assert derive_observation(sample(10, 1.0, 0.2, 30), sample(10, 1.0, 0.2, 30)) is None
    assert derive_observation(sample(10, 1.0, 0.2, 30), sample(20, 2.0, 0.4, 60, tasks=3)) is None
