"""Both smoothings of DRS IV-A, by their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.smoothing import Smoothing, Weighted, Windowed
from penstock.errors import DeclarationError

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=20)


@given(values=values, alpha=st.floats(0, 0.99))
def test_weighted_is_its_recursion(values: list[float], alpha: float) -> None:
    smoother, expected = Weighted(alpha).start(), values[0]
    for at, value in enumerate(values):
        expected = value if at == 0 else alpha * expected + (1 - alpha) * value
        assert float(smoother.add(np.asarray(value), 1.0)) == pytest.approx(expected)


@given(values=values, w=st.integers(1, 8))
def test_windowed_is_the_mean_of_the_last_w(values: list[float], w: int) -> None:
    smoother = Windowed(w).start()
    for at, value in enumerate(values):
        expected = np.mean(values[max(0, at + 1 - w) : at + 1])
        assert float(smoother.add(np.asarray(value), 1.0)) == pytest.approx(expected)


def test_a_long_interval_counts_for_more_in_a_window() -> None:
    smoother = Windowed(2).start()
    smoother.add(np.asarray(10.0), 3.0)
    assert float(smoother.add(np.asarray(20.0), 1.0)) == pytest.approx(12.5)


@pytest.mark.parametrize("smoothing", [Weighted(0.3), Windowed(3)])
def test_a_number_is_smoothed_like_an_array_of_one(smoothing: Smoothing) -> None:
    numbers, arrays = smoothing.start(), smoothing.start()
    for value, length_s in [(3.0, 1.0), (8.0, 0.5), (0.0, 2.0), (1.0, 0.1), (7.0, 1.0)]:
        assert numbers.add_number(value, length_s) == float(arrays.add(np.array([value]), length_s)[0])


@pytest.mark.parametrize("smoothing", [Weighted(0.5), Windowed(3)])
def test_memory_can_be_replaced_in_places(smoothing: Smoothing) -> None:
    smoother = smoothing.start()
    smoother.add(np.array([1.0, 1.0]), 1.0)
    smoother.put(np.array([False, True]), np.array([9.0, 9.0]))
    assert smoother.add(np.array([1.0, 9.0]), 1.0).tolist() == [1.0, 9.0]


@pytest.mark.parametrize("alpha", [-0.1, 1.0, float("nan")])
def test_a_weight_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(DeclarationError, match="alpha"):
        Weighted(alpha)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(DeclarationError, match="window"):
        Windowed(0)
