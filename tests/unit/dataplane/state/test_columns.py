"""Columnar state: its hashes and bytes, what it writes when, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.keys.hashing import hash_keys, shards_of
from penstock.dataplane.state.column_changes import KeyBatch
from penstock.dataplane.state.column_entries import (
    EntryFormat,
    entry_hash,
    entry_hashes,
    entry_keys,
    pack_values,
    strip_entry_keys,
    unpack_values,
)
from penstock.dataplane.state.columns import ColumnState
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.protocol import EMPTY_DIGEST, Delta, digest_bytes
from penstock.dataplane.state.slots import SlotStore
from penstock.errors import CorruptFileError

SHARDS = 8
FORM = EntryFormat(words=1, bits=1)
WORD = st.integers(0, 2**64 - 1)
relaxed = settings(deadline=None)


def column_state(memory_bytes: int = 1 << 20, key_type: pa.DataType | None = None) -> ColumnState:
    return ColumnState(FORM, [key_type or pa.int64()], ["k"], "op", SHARDS, memory_bytes, owner="me")


def opened(directory: Path, memory_bytes: int = 1 << 20) -> ColumnState:
    state = column_state(memory_bytes)
    for shard in range(SHARDS):
        assert state.open(shard, str(directory / str(shard)), None)
        assert state.seal(shard, 0, EMPTY_DIGEST)
    return state


def batch_of(numbers: Sequence[int]) -> KeyBatch:
    column = pa.array(numbers, pa.int64())
    hashes = hash_keys([column], ["k"], "op")
    order = np.argsort(hashes)
    encoded = encode_keys([column.take(pa.array(order))], ["k"], "op")
    return KeyBatch(hashes[order], shards_of(hashes[order], SHARDS), encoded)


def add_one(rows: Any) -> None:
    rows[:, 2] += np.uint64(1)
    rows[:, 1] |= np.uint64(1)


def write(state: ColumnState, epoch: int, numbers: Sequence[int]) -> Delta:
    state.update(epoch, batch_of(numbers), np.zeros(1, np.uint64), add_one)
    return state.stage(epoch)


def stored_entries(directory: Path) -> int:
    found = 0
    for shard in range(SHARDS):
        with lmdb.open(str(directory / str(shard)), readonly=True, lock=False) as environment:
            found += environment.stat()["entries"] - 1
    return found


# ---------------------------------------------------------------------------------------------- format


@relaxed
@given(st.lists(st.lists(WORD, min_size=4, max_size=4), min_size=1, max_size=9))
def test_the_vectorised_entry_hash_equals_its_scalar_reference(rows: list[list[int]]) -> None:
    assert entry_hashes(np.array(rows, np.uint64)).tolist() == [list(entry_hash(row)) for row in rows]


def test_the_entry_hash_is_fixed_by_the_format() -> None:
    assert entry_hash([1, 1, 3, 2**64 - 1]) == (0x062430E3A23A241D, 0x855FFDE1689AA41B)


@relaxed
@given(st.lists(WORD, min_size=4, max_size=4), st.integers(0, 3), st.integers(0, 63))
def test_any_flipped_bit_changes_both_lanes(row: list[int], at: int, bit: int) -> None:
    flipped = row.copy()
    flipped[at] ^= 1 << bit
    before, after = entry_hash(row), entry_hash(flipped)
    assert before[0] != after[0] and before[1] != after[1]


@relaxed
@given(st.lists(st.binary(max_size=300), max_size=9))
def test_entry_keys_are_taken_apart_again(keys: list[bytes]) -> None:
    packed = entry_keys(pa.array(keys, pa.binary()), None)
    assert packed.to_pylist() == [b"\x01" + len(key).to_bytes(2, "big") + key for key in keys]
    stripped = strip_entry_keys(pa.concat_arrays([pa.array([b"x"], pa.binary()), packed]).slice(1))
    assert stripped is not None and stripped.to_pylist() == keys


@pytest.mark.parametrize("entry", [b"", b"\x01", b"\x02\x00\x01a", b"\x01\x00\x02a", b"\x01\x01\x01a"])
def test_foreign_entry_keys_are_told_apart(entry: bytes) -> None:
    assert strip_entry_keys(pa.array([b"\x01\x00\x01a", entry], pa.binary())) is None


@relaxed
@given(st.lists(st.tuples(WORD, st.integers(0, 2**9 - 1), WORD, WORD), max_size=5), st.booleans())
def test_values_are_unpacked_as_they_were_packed(rows: list[tuple[int, ...]], checked: bool) -> None:
    form = EntryFormat(words=2, bits=9)
    given_rows = np.array(rows, np.uint64).reshape(-1, 4)
    checks = entry_hashes(given_rows)[:, 0] if checked else None
    packed = pack_values(given_rows, form, checks)
    assert all(len(value) == 18 + 8 * checked for value in packed.to_pylist())
    unpacked = unpack_values(packed, given_rows[:, 0], form, checked)
    assert unpacked is not None
    assert unpacked[0].tolist() == given_rows.tolist()
    assert checks is None or unpacked[1].tolist() == checks.tolist()


def test_values_of_another_shape_are_told_apart() -> None:
    hashes = np.zeros(1, np.uint64)
    for value in (b"", bytes(8), bytes(10), bytes(8) + b"\x02", None):
        assert unpack_values(pa.array([value], pa.binary()), hashes, FORM, False) is None


# ---------------------------------------------------------------------------------------------- slots


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.sets(st.text("abcd", max_size=4), max_size=30)), max_size=12),
    st.integers(0, 64),
)
def test_slots_are_found_while_keys_come_and_go(steps: list[tuple[bool, set[str]]], hash_bits: int) -> None:
    store = SlotStore(3, None, False, 0)
    present: dict[str, int] = {}
    number = 0

    def asked(texts: list[str]) -> tuple[Any, pa.BinaryArray]:
        columns = [pa.array(texts, pa.string())]
        hashes = hash_keys(columns, ["k"], "op") & np.uint64((1 << hash_bits) - 1)
        return hashes, encode_keys(columns, ["k"], "op")

    for adds, some in steps:
        texts = sorted(some)
        hashes, keys = asked(texts)
        found = store.find(hashes, keys)
        assert [texts[at] for at in found.missing] == [text for text in texts if text not in present]
        assert all(found.rows[at, 2] == present[text] for at, text in enumerate(texts) if text in present)
        if adds and len(found.missing):
            rows = np.zeros((len(found.missing), 3), np.uint64)
            rows[:, 0] = hashes[found.missing]
            rows[:, 2] = np.arange(number, number + len(rows))
            present.update({texts[at]: number + order for order, at in enumerate(found.missing)})
            number += len(rows)
            shards = np.zeros(len(rows), np.uint16)
            store.append(keys.take(pa.array(found.missing)), shards, rows, False)
        elif not adds:
            store.remove(np.sort(found.slots[found.slots >= 0]))
            present = {text: value for text, value in present.items() if text not in some}
            if len(some) % 2:
                store.compact(store.live_slots())
    hashes, keys = asked(sorted(present))
    assert store.find(hashes, keys).rows[:, 2].tolist() == [present[text] for text in sorted(present)]


def test_the_index_grows_with_its_keys() -> None:
    store = SlotStore(3, 8, True, 0)
    for start in range(0, 60_000, 7_000):
        batch = batch_of(range(start, start + 7_000))
        assert len(store.find(batch.hashes, batch.keys).missing) == 7_000
        rows = np.stack([batch.hashes, np.zeros(7_000, np.uint64), batch.hashes], axis=1)
        store.append(batch.keys, batch.shards, rows, False)
    batch = batch_of(range(63_000))
    found = store.find(batch.hashes, batch.keys)
    assert not len(found.missing)
    assert (found.rows[:, 2] == batch.hashes).all()
    assert store.take_keys(found.slots).equals(batch.keys)


# ---------------------------------------------------------------------------------------------- commits


def test_nothing_reaches_the_environments_before_commit(tmp_path: Path) -> None:
    state = opened(tmp_path)
    write(state, 1, range(40))
    for forbidden in (lambda: state.flush(1.0), lambda: state.release(0), lambda: state.snapshot(0)):
        with pytest.raises(RuntimeError, match="not committed"):
            forbidden()
    state.close()
    assert stored_entries(tmp_path) == 0


def test_an_epoch_is_one_update_of_sealed_shards_and_is_staged_before_commit(tmp_path: Path) -> None:
    state = opened(tmp_path)
    state.drop(3)
    with pytest.raises(RuntimeError, match="not sealed"):
        write(state, 1, range(100))
    assert state.open(3, str(tmp_path / "3"), None) and state.seal(3, 0, EMPTY_DIGEST)
    state.update(1, batch_of([1]), np.zeros(1, np.uint64), add_one)
    with pytest.raises(RuntimeError, match="second update"):
        write(state, 1, [2])
    with pytest.raises(RuntimeError, match="commit before stage"):
        state.commit()
    state.close()


def test_flush_writes_committed_entries_oldest_shard_first(tmp_path: Path) -> None:
    state = opened(tmp_path)
    first = write(state, 1, [1])
    state.commit()
    write(state, 2, range(200))
    state.commit()
    writes: list[str] = []
    for local in state._locals.values():
        real = local.write
        local.write = lambda *args, path=local.path, real=real: (writes.append(path), real(*args))  # type: ignore
    state.flush(0.0)
    assert not writes
    state.flush(10.0)
    assert Path(writes[0]).name == str(first.shards[0])
    assert len(writes) == SHARDS
    state.flush(10.0)
    assert len(writes) == SHARDS
    state.close()
    assert stored_entries(tmp_path) == 200


def test_memory_stays_bounded_and_evicted_keys_come_back(tmp_path: Path) -> None:
    state = opened(tmp_path, memory_bytes=100_000)
    for epoch in range(1, 21):
        write(state, epoch, range(500 * epoch, 500 * epoch + 500))
        state.commit()
        state.flush(0.0)
        assert state._store.used_bytes() <= 100_000
    rows = state.update(21, batch_of([600, 10_400, 99_999]), np.zeros(1, np.uint64), add_one)
    assert sorted(rows[:, 2].tolist()) == [1, 2, 2]
    state.stage(21)
    state.commit()
    assert sum(len(state.snapshot(shard)) for shard in range(SHARDS)) == 10_001
    assert state.state_bytes() == 10_001 * (11 + 9)
    state.close()


def test_complete_shards_are_never_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = opened(tmp_path)
    write(state, 1, range(100))
    state.commit()
    state.flush(1.0)
    monkeypatch.setattr(LocalShard, "get_many", lambda *_: pytest.fail("looked up"))
    write(state, 2, range(200))
    state.close()


# ---------------------------------------------------------------------------------------------- bringing


def brought(delta: Delta, shard: int) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    mine = delta.entries.filter(pa.array(delta.entries.column("shard").to_numpy() == shard))
    return mine.column("key"), mine.column("value")


def test_seal_refuses_another_version_or_digest_and_leaves_nothing(tmp_path: Path) -> None:
    source = opened(tmp_path / "source")
    delta = write(source, 3, range(100))
    source.close()
    keys, values = brought(delta, 5)
    digest = digest_bytes(delta.digests[5])
    target = column_state()
    for version, claimed, shown in (
        (4, digest, values),
        (3, EMPTY_DIGEST, values),
        (3, digest, values.slice(1)),
    ):
        assert target.open(5, str(tmp_path / "target"), None)
        target.apply(5, 3, keys.slice(len(keys) - len(shown)), shown)
        assert not target.seal(5, version, claimed)
        assert target.owned() == [] and target._store.live_slots().tolist() == []
        assert not (tmp_path / "target").exists()
    assert target.open(5, str(tmp_path / "target"), None)
    target.apply(5, 3, keys, values)
    assert target.seal(5, 3, digest)
    assert target.owned() == [5]
    target.close()


@pytest.mark.parametrize("damage", ["foreign key", "short value", "deleted"])
def test_entries_that_are_not_of_columnar_state_are_refused(tmp_path: Path, damage: str) -> None:
    source = opened(tmp_path / "source")
    delta = write(source, 3, range(100))
    source.close()
    keys, values = (list(column.to_pylist()) for column in brought(delta, 5))
    if damage == "foreign key":
        keys[0] = b"\x02" + keys[0][1:]
    else:
        values[0] = None if damage == "deleted" else values[0][:-1]
    target = column_state()
    target.open(5, str(tmp_path / "target"), None)
    target.apply(5, 3, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    assert not target.seal(5, 3, digest_bytes(delta.digests[5]))


def test_a_damaged_value_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    state = opened(tmp_path)
    delta = write(state, 1, [7])
    state.commit()
    shard, digest = int(delta.shards[0]), digest_bytes(delta.digests[0])
    state.release(shard)
    key = delta.entries.column("key")[0].as_py()
    assert state.open(shard, str(tmp_path / str(shard)), 1) and state.seal(shard, 1, digest)
    with state._locals[shard]._environment.begin(write=True) as transaction:
        value = bytearray(transaction.get(key))
        value[9] ^= 4
        transaction.put(key, bytes(value))
    with pytest.raises(CorruptFileError, match=str(tmp_path)):
        state.snapshot(shard)
    with pytest.raises(CorruptFileError, match=str(tmp_path)):
        write(state, 2, [7])
    state.close()


def test_a_lost_entry_is_found_by_the_snapshot(tmp_path: Path) -> None:
    state = opened(tmp_path)
    delta = write(state, 1, range(64))
    state.commit()
    state.release(2)
    key = brought(delta, 2)[0][0].as_py()
    assert state.open(2, str(tmp_path / "2"), 1) and state.seal(2, 1, digest_bytes(delta.digests[2]))
    with state._locals[2]._environment.begin(write=True) as transaction:
        assert transaction.delete(key)
    with pytest.raises(CorruptFileError, match="digest"):
        state.snapshot(2)
    state.close()


@pytest.mark.parametrize("damage", ["lost entry", "flipped bit"])
def test_a_copy_whose_entries_do_not_give_its_digest_is_not_taken_over(tmp_path: Path, damage: str) -> None:
    state = opened(tmp_path)
    delta = write(state, 1, range(64))
    state.commit()
    state.release(2)
    key = brought(delta, 2)[0][0].as_py()
    with lmdb.open(str(tmp_path / "2")) as environment, environment.begin(write=True) as transaction:
        if damage == "lost entry":
            assert transaction.delete(key)
        else:
            value = bytearray(transaction.get(key))
            value[9] ^= 4
            transaction.put(key, bytes(value))
    assert not state.open(2, str(tmp_path / "2"), 1)
    assert state.open(2, str(tmp_path / "2"), None), "a new one can be made in its place"
    state.close()


def test_steps_out_of_turn_are_refused(tmp_path: Path) -> None:
    state = column_state()
    with pytest.raises(RuntimeError, match="shard 1 is absent, not being brought"):
        state.seal(1, 0, EMPTY_DIGEST)
    state.open(1, str(tmp_path / "1"), None)
    with pytest.raises(RuntimeError, match="shard 1 is being brought, not absent"):
        state.open(1, str(tmp_path / "2"), None)
    with pytest.raises(RuntimeError, match="shard 1 is being brought, not sealed"):
        state.release(1)
    state.seal(1, 0, EMPTY_DIGEST)
    with pytest.raises(RuntimeError, match="shard 1 is sealed, not being brought"):
        state.apply(1, 1, pa.array([], pa.binary()), pa.array([], pa.binary()))
    state.close()


def test_a_shard_dropped_between_stage_and_commit_stays_away(tmp_path: Path) -> None:
    state = opened(tmp_path)
    write(state, 1, range(100))
    state.drop(3)
    state.commit()
    state.flush(1.0)
    assert 3 not in state.owned()
    assert state.open(3, str(tmp_path / "3"), None) and state.seal(3, 0, EMPTY_DIGEST)
    assert len(state.snapshot(3)) == 0
    state.close()


def test_released_slots_give_their_memory_back(tmp_path: Path) -> None:
    state = opened(tmp_path)
    write(state, 1, range(20_000))
    state.commit()
    for shard in range(SHARDS - 1):
        state.release(shard)
    assert state._store.count < 6_000
    assert len(state.snapshot(SHARDS - 1)) == state._store.count - state._store.removed
    state.close()
