"""Both smoothings of DRS IV-A, by their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.smoothing import Adapting, Smoothing, Weighted, Windowed
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


@pytest.mark.parametrize("smoothing", [Weighted(0.5), Windowed(3), Adapting()])
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


def counts(rng: np.random.Generator, shares: np.ndarray, rows: int) -> np.ndarray:
    return rng.multinomial(rows, shares).astype(np.float64)


def some_shares(rng: np.random.Generator) -> np.ndarray:
    found = 1 / np.arange(1, 257) ** 0.5
    return rng.permutation(found / found.sum())


@pytest.mark.parametrize("seed", range(5))
def test_shares_that_stay_are_learned_from_many_samples_and_their_sum_from_few(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares, smoother, short = some_shares(rng), Adapting().start(), Windowed(3).start()
    for _ in range(20):
        value = counts(rng, shares, 2_000)
        found, other = smoother.add(value, 1.0), short.add(value, 1.0)
    assert found.sum() == pytest.approx(other.sum())
    assert np.abs(found / found.sum() - shares).sum() < 0.8 * np.abs(other / other.sum() - shares).sum()


@pytest.mark.parametrize("seed", range(5))
def test_shares_that_have_changed_are_forgotten_at_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after, smoother = some_shares(rng), some_shares(rng), Adapting().start()
    for _ in range(10):
        smoother.add(counts(rng, before, 2_000), 1.0)
    newest = counts(rng, after, 2_000)
    found = smoother.add(newest, 1.0)
    assert found / found.sum() == pytest.approx(newest / newest.sum())


def test_more_rows_of_the_same_kind_are_no_change_of_shares() -> None:
    rng = np.random.default_rng(1)
    shares, smoother = some_shares(rng), Adapting().start()
    for _ in range(8):
        smoother.add(counts(rng, shares, 1_000), 1.0)
    newest = counts(rng, shares, 10_000)
    found = smoother.add(newest, 1.0)
    assert found / found.sum() != pytest.approx(newest / newest.sum())
    assert found.sum() == pytest.approx((1_000 + 1_000 + 10_000) / 3)


def test_nothing_for_a_while_changes_no_shares() -> None:
    smoother = Adapting().start()
    before = smoother.add(np.arange(1.0, 11.0), 1.0)
    found = smoother.add(np.zeros(10), 1.0)
    assert found / found.sum() == pytest.approx(before / before.sum())


def test_a_window_longer_than_all_that_is_kept_is_refused() -> None:
    with pytest.raises(DeclarationError, match="rate_samples"):
        Adapting(samples=2, rate_samples=3)


@pytest.mark.parametrize("smoothing", [Weighted(0.5), Windowed(3), Adapting()])
def test_a_number_is_smoothed_as_an_array_of_one_would_be(smoothing: Smoothing) -> None:
    numbers, arrays = smoothing.start(), smoothing.start()
    for value, elapsed_s in ((3.0, 1.0), (9.0, 0.5), (0.0, 2.0), (4.0, 1.0)):
        assert numbers.add_number(value, elapsed_s) == pytest.approx(
            float(arrays.add(np.array([value]), elapsed_s)[0])
        )
