"""Rows with shuffled frequencies: the same whatever range they are made in, and as frequent as promised."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.topology.schema import parse_schema
from penstock.workloads.dynamics import (
    DDL,
    SCHEMA,
    Dynamics,
    derive_ceiling,
    derive_task_loads,
    mean_ceiling,
    shard_of_keys,
)

SMALL = Dynamics(keys=50, zipf=0.8, rows_per_shuffle=97, payload_bytes=3)


@settings(deadline=None)
@given(offset=st.integers(0, 5_000), count=st.integers(0, 400), cut=st.integers(0, 400))
def test_a_range_holds_the_same_rows_however_it_is_cut(offset: int, count: int, cut: int) -> None:
    cut = min(cut, count)
    parts = [SMALL(offset, cut), SMALL(offset + cut, count - cut)]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([SMALL(offset, count)]))


def test_rows_have_the_declared_schema_and_payload() -> None:
    batch = Dynamics(payload_bytes=128)(5, 10)
    assert batch.schema == SCHEMA == parse_schema(DDL, "test")
    assert {len(one) for one in batch.column("payload").to_pylist()} == {128}


@pytest.mark.parametrize("source", [Dynamics(zipf=0.5), Dynamics(zipf=0.8), Dynamics(hot_keys=40)])
def test_keys_are_as_frequent_as_they_should_be(source: Dynamics) -> None:
    rows = 400_000
    seen = np.bincount(source(0, rows).column("key").to_numpy(), minlength=source.keys) / rows
    wanted = source.by_key(0)
    assert wanted.sum() == pytest.approx(1.0)
    assert np.abs(seen - wanted).sum() < 1.2 * np.sqrt(2 / np.pi) * np.sqrt(wanted / rows).sum()


def test_forty_hot_keys_hold_four_fifths() -> None:
    by_rank = Dynamics(hot_keys=40).by_rank()
    assert by_rank[:40].sum() == pytest.approx(0.8)
    assert len(np.unique(by_rank[:40])) == 1


def test_the_hottest_keys_change_with_every_shuffle_and_only_then() -> None:
    source = Dynamics(keys=1_000, hot_keys=10, rows_per_shuffle=5_000)

    def hottest(offset: int) -> set[int]:
        counts = np.bincount(source(offset, 2_500).column("key").to_numpy(), minlength=1_000)
        return set(np.argsort(-counts)[:10].tolist())

    found = [hottest(offset) for offset in range(0, 50_000, 2_500)]
    changes = sum(one != two for one, two in itertools.pairwise(found))
    assert changes == 9
    assert found[0] == found[1] == set(source.key_of_rank(0)[:10].tolist())


def test_so_many_shuffles_a_minute_come_at_the_rate_they_are_made_for() -> None:
    source = Dynamics().shuffling(16, rate_per_s=8_000)
    assert source.shuffle_at(60 * 8_000 - 1) == 15
    assert source.shuffle_at(60 * 8_000) == 16
    assert Dynamics().shuffling(0, 8_000).shuffle_at(10**9) == 0


def test_other_seeds_give_other_rows() -> None:
    assert Dynamics(seed=1)(0, 100) != Dynamics(seed=2)(0, 100)


@settings(deadline=None)
@given(
    keys=st.integers(2, 7),
    k=st.integers(2, 3),
    data=st.data(),
)
def test_no_placement_of_keys_beats_the_ceiling_and_it_is_met_where_one_can_be_perfect(
    keys: int, k: int, data: st.DataObject
) -> None:
    by_key = np.array(data.draw(st.lists(st.integers(1, 9), min_size=keys, max_size=keys)), dtype=float)
    by_key /= by_key.sum()
    shard_of = np.arange(keys)
    task_of = np.arange(keys) % k
    ceiling = derive_ceiling(by_key, shard_of, task_of)
    hashed = derive_task_loads(by_key, shard_of, task_of).max()
    # Every way to place keys, which is finer than shards.
    best = min(
        np.bincount(placed, weights=by_key, minlength=k).max()
        for placed in itertools.product(range(k), repeat=keys)
    )
    assert hashed / best <= ceiling + 1e-9
    tasks_used = min(k, keys)
    if np.isclose(best, max(1 / tasks_used, by_key.max())) and tasks_used == k:
        assert hashed / best == pytest.approx(ceiling)


def test_the_ceiling_of_hot_keys_is_about_two_and_of_zipf_half_about_one() -> None:
    shard_of = shard_of_keys(10_000, 256)
    task_of = np.arange(256) % 16
    hot = mean_ceiling(Dynamics(hot_keys=40), range(50), shard_of, task_of)
    mild = mean_ceiling(Dynamics(zipf=0.5), range(50), shard_of, task_of)
    assert 1.8 < hot < 2.3
    assert 1.0 < mild < 1.3


def test_keys_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(ValueError, match="65536 keys"):
        Dynamics(keys=1 << 17)
