"""Variability from counts: known processes give their known coefficients."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.measure.dispersion import Dispersion


def index_of(counts: np.ndarray, slot_s: float = 1.0) -> float:
    found = Dispersion()
    for count in counts:
        found.add(count / slot_s, slot_s)
    answer = found.estimate_index()
    assert answer is not None
    return answer


def test_poisson_arrivals_have_an_index_near_one() -> None:
    assert index_of(np.random.default_rng(1).poisson(200, 300)) == pytest.approx(1.0, abs=0.35)


def test_regular_arrivals_have_none() -> None:
    assert index_of(np.full(50, 200)) == 0.0


def test_arrivals_in_batches_of_ten_have_ten() -> None:
    batches = 10 * np.random.default_rng(2).poisson(50, 300)
    assert index_of(batches) == pytest.approx(10.0, rel=0.35)


def test_a_slow_change_of_the_rate_is_not_taken_for_variability() -> None:
    assert index_of(np.linspace(100, 1000, 200)) < 0.1


def test_slots_of_unlike_length_do_not_matter() -> None:
    rng, found = np.random.default_rng(3), Dispersion()
    for _ in range(300):
        slot_s = rng.uniform(0.2, 3.0)
        found.add(rng.poisson(200 * slot_s) / slot_s, slot_s)
    assert found.estimate_index() == pytest.approx(1.0, abs=0.35)


@pytest.mark.parametrize(("shape", "scv"), [(1.0, 1.0), (4.0, 0.25)])
def test_service_times_have_their_coefficient(shape: float, scv: float) -> None:
    rng, found = np.random.default_rng(4), Dispersion()
    for _ in range(300):
        rows = int(rng.integers(5, 60))
        found.add(float(rng.gamma(shape, 0.01 / shape, rows).mean()), rows)
    assert found.estimate_scv() == pytest.approx(scv, rel=0.35)


def test_too_little_says_nothing() -> None:
    found = Dispersion()
    found.add(5.0, 1.0)
    found.add(5.0, 0.0)
    assert found.estimate_index() is None and found.estimate_scv() is None
