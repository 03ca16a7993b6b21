from __future__ import annotations

import numpy as np
import pytest

from penstock.dataplane.state.protocol import EMPTY_DIGEST
from penstock.errors import CorruptFileError
from penstock.sim.memory_state import MemoryState, digest_of


def opened(shards: range = range(2)) -> MemoryState:
    state = MemoryState({})
    for shard in shards:
        state.open(shard, f"/node/{shard}", None)
        assert state.seal(shard, 0, EMPTY_DIGEST)
    return state


def test_a_delta_has_only_what_changed_and_the_digest_of_the_whole_shard() -> None:
    state = opened()
    state.put(1, b"\x01a", b"1")
    state.put(1, b"\x01b", b"2")
    state.stage(1)
    state.commit()
    state.put(1, b"\x01b", b"3")
    state.put(1, b"\x01a", b"1")
    delta = state.stage(2)
    assert delta.entries.column("key").to_pylist() == [b"\x01b"]
    assert delta.shards.tolist() == [1]
    assert np.ascontiguousarray(delta.digests, "<u8").tobytes() == digest_of({b"\x01a": b"1", b"\x01b": b"3"})


def test_a_shard_comes_back_from_its_snapshot_and_later_deltas() -> None:
    state = opened()
    state.put(0, b"\x01a", b"1")
    state.stage(1)
    state.commit()
    snapshot = state.snapshot(0)
    state.put(0, b"\x01a", None)
    state.put(0, b"\x01c", b"3")
    delta = state.stage(2)
    other = MemoryState({})
    other.open(0, "/other/0", None)
    other.apply(0, 1, snapshot.column("key"), snapshot.column("value"))
    other.apply(0, 2, delta.entries.column("key"), delta.entries.column("value"))
    assert other.seal(0, 2, digest_of({b"\x01c": b"3"}))
    assert other.owned() == [0]


def test_another_version_or_digest_is_not_accepted() -> None:
    for version, digest in ((1, EMPTY_DIGEST), (0, b"x" * 16)):
        state = MemoryState({})
        state.open(0, "/node/0", None)
        assert not state.seal(0, version, digest)
        assert state.owned() == []


def test_a_released_shard_is_taken_over_once_and_only_with_its_version() -> None:
    node: dict = {}
    state = MemoryState(node)
    state.open(0, "/node/0", None)
    state.seal(0, 0, EMPTY_DIGEST)
    state.put(0, b"\x01a", b"1")
    state.stage(4)
    state.commit()
    state.release(0)
    assert not MemoryState(dict(node)).open(0, "/node/0", 3)
    heir = MemoryState(node)
    assert heir.open(0, "/node/0", 4)
    assert heir.seal(0, 4, digest_of({b"\x01a": b"1"}))
    assert not MemoryState(node).open(0, "/node/0", 4)


def test_misuse_is_refused() -> None:
    state = opened()
    state.put(0, b"\x01a", b"1")
    state.stage(1)
    with pytest.raises(AssertionError, match="between stage and commit"):
        state.put(0, b"\x01a", b"2")
    state.commit()
    with pytest.raises(AssertionError, match="nothing is staged"):
        state.commit()
    with pytest.raises(AssertionError, match="not owned"):
        state.get(7, b"\x01a")


def test_a_snapshot_that_does_not_give_its_digest_is_refused() -> None:
    state = opened()
    state.put(0, b"\x01a", b"1")
    state.stage(1)
    state.commit()
    state._shards[0].entries[b"\x01a"] = b"other"
    with pytest.raises(CorruptFileError, match="/node/0"):
        state.snapshot(0)
