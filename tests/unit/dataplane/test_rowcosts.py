"""What a row of each shard costs, told from noise."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.dataplane.rowcosts import RowCosts

SHARDS = np.arange(64)


def lumps(rng: np.random.Generator, work_s: np.ndarray, lump_s: float = 0.005) -> np.ndarray:
    """Time as it is seen where work is done in lumps: whoever is at it when one is due gets all of it."""
    due = np.floor(np.cumsum(work_s) / lump_s + rng.random())
    return np.diff(due, prepend=np.floor(rng.random())) * lump_s


def test_the_first_look_is_taken_as_it_is() -> None:
    costs = RowCosts(3)
    costs.look(np.array([0, 2]), np.array([0.01, 0.09]), np.array([10, 10]))
    assert costs.row_s == pytest.approx([0.001, 0.0, 0.009])


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_cost_the_same_are_believed_to(seed: int) -> None:
    rng, costs = np.random.default_rng(seed), RowCosts(64)
    for _ in range(6):
        rows = rng.poisson(6, 64) + 1
        costs.look(SHARDS, lumps(rng, rows * 1e-3), rows)
    assert np.abs(costs.row_s / 1e-3 - 1).mean() < 0.15


@pytest.mark.parametrize("seed", range(3))
def test_a_difference_that_repeats_is_believed(seed: int) -> None:
    rng, costs = np.random.default_rng(seed), RowCosts(64)
    true = np.where(SHARDS < 4, 1e-2, 1e-3)
    for _ in range(6):
        rows = rng.poisson(30, 64) + 1
        costs.look(SHARDS, lumps(rng, rows * true), rows)
    assert costs.row_s[:4] == pytest.approx(1e-2, rel=0.25)
    assert costs.row_s[4:].mean() == pytest.approx(1e-3, rel=0.25)


def test_looks_without_noise_are_exact() -> None:
    costs = RowCosts(4)
    for _ in range(3):
        costs.look(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]), np.array([10, 10, 10, 10]))
    assert costs.row_s == pytest.approx([0.1, 0.2, 0.3, 0.4])
