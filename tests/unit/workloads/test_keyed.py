"""The rows every engine is measured on: the same for all, drawn as declared, in no order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.workloads.keyed import KEYED_SCHEMA, MAX_SKEWED_KEYS, keyed_rows


@settings(max_examples=30, deadline=None)
@given(
    offset=st.integers(0, 2**40),
    counts=st.lists(st.integers(0, 70_000), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    zipf=st.sampled_from([0.0, 0.5]),
)
def test_a_range_is_the_same_rows_however_it_is_cut(
    offset: int, counts: list[int], seed: int, zipf: float
) -> None:
    whole = keyed_rows(offset, sum(counts), 1000, zipf, seed)
    starts = np.cumsum([0, *counts])[:-1]
    parts = [
        keyed_rows(offset + int(start), count, 1000, zipf, seed)
        for start, count in zip(starts, counts, strict=True)
    ]
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([whole])


def test_the_first_rows_are_held_by_golden_values() -> None:
    rows = keyed_rows(0, 4)
    assert rows.schema == KEYED_SCHEMA
    assert rows["key"].to_pylist() == [7817, 1897, 10, 9430]
    assert rows["value"].to_pylist() == [431, 500, 335, 492]


def test_skewed_keys_follow_their_law_and_every_key_occurs() -> None:
    keys, count = 10_000, 2_000_000
    seen = np.bincount(keyed_rows(0, count, keys, 0.5)["key"].to_numpy(), minlength=keys)
    weights = np.arange(1, keys + 1) ** -0.5
    expected = weights / weights.sum() * count
    assert seen.min() > 0
    assert np.allclose(seen[:100], expected[:100], rtol=0.12)
    assert np.allclose(seen[5000:].sum(), expected[5000:].sum(), rtol=0.01)


def test_uniform_keys_are_spread_evenly() -> None:
    seen = np.bincount(keyed_rows(0, 1_000_000, 1000, 0.0)["key"].to_numpy(), minlength=1000)
    assert seen.min() > 850
    assert seen.max() < 1150


def test_seeds_give_different_rows_and_no_shifted_copy() -> None:
    one, two = (keyed_rows(0, 10_000, 10_000, 0.0, seed)["key"].to_numpy() for seed in (0, 1))
    for shift in range(4):
        assert (one[shift:] == two[: len(two) - shift]).mean() < 0.01


def test_rows_come_neither_sorted_nor_in_runs() -> None:
    key = keyed_rows(0, 10_000)["key"].to_numpy()
    rising = (np.diff(key) > 0).mean()
    assert 0.45 < rising < 0.55


def test_value_does_not_follow_the_key() -> None:
    rows = keyed_rows(0, 200_000)
    assert abs(np.corrcoef(rows["key"].to_numpy(), rows["value"].to_numpy())[0, 1]) < 0.01


def test_stamps_are_the_callers() -> None:
    assert keyed_rows(0, 2, stamps_us=7)["stamp"].to_pylist() == [7, 7]
    assert keyed_rows(0, 2, stamps_us=np.array([1, 2]))["stamp"].to_pylist() == [1, 2]


def test_more_skewed_keys_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="zipf=0"):
        keyed_rows(0, 1, MAX_SKEWED_KEYS + 1, 0.5)


@pytest.mark.parametrize(("offset", "count", "keys"), [(-1, 1, 1), (0, -1, 1), (0, 1, 0)])
def test_a_range_that_makes_no_sense_is_refused(offset: int, count: int, keys: int) -> None:
    with pytest.raises(ValueError, match="keyed rows need"):
        keyed_rows(offset, count, keys)
