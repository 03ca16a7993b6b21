"""Timers of keys: found in order of time, whatever was committed, flushed, staged or taken back."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.protocol import EMPTY_DIGEST
from penstock.dataplane.state.timers import EPOCH_TIMERS, EVENT_TIMERS
from penstock.topology.states import ValueState


def make_state(folder: Path) -> EntryState:
    states = {"seen": ValueState("long")}
    state = EntryState("op", [pa.field("k", pa.int64())], dict(states), 1 << 20, (EVENT_TIMERS, EPOCH_TIMERS))
    for shard in range(2):
        assert state.open(shard, str(folder / f"s{shard}"), None)
        assert state.seal(shard, 0, EMPTY_DIGEST)
    return state


def key_bytes(key: int) -> bytes:
    found: bytes = encode_keys([pa.chunked_array([[key]], pa.int64())], ["k"], "op").to_pylist()[0]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_due_timers_are_those_a_plain_set_would_give(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    state, wanted = make_state(tmp_path), {0: set(), 1: set()}
    now = 0
    for epoch in range(1, 25):
        for _ in range(rng.randrange(6)):
            shard = rng.randrange(2)
            key = rng.randrange(10) * 2 + shard
            (handle,) = state.touch(shard, [key_bytes(key)])
            time_us = now + rng.randrange(-30, 100)
            if rng.random() < 0.7:
                state.timers[EVENT_TIMERS].register(handle, time_us)
                wanted[shard].add((time_us, key))
            elif wanted[shard]:
                time_us, key = rng.choice(sorted(wanted[shard]))
                (handle,) = state.touch(shard, [key_bytes(key)])
                state.timers[EVENT_TIMERS].delete(handle, time_us)
                wanted[shard].discard((time_us, key))
            state.settle([handle])
        now += rng.randrange(40)
        for shard in range(2):
            due = state.due_timers(EVENT_TIMERS, shard, now)
            found = [(one.time_us, state.key_codec.decode(one.key)[0]) for one in due]
            assert sorted(found) == sorted(one for one in wanted[shard] if one[0] <= now)
            assert [one.time_us for one in due] == sorted(one.time_us for one in due)
            for one in due:
                (handle,) = state.touch(shard, [one.key])
                assert one.time_us in state.timers[EVENT_TIMERS].of(handle)
                state.timers[EVENT_TIMERS].delete(handle, one.time_us)
                state.settle([handle])
            wanted[shard] = {one for one in wanted[shard] if one[0] > now}
        state.stage(epoch)
        state.commit()
        if rng.random() < 0.3:
            state.flush(1.0)
        for shard in range(2):
            state.snapshot(shard)  # compares what is there with the digest


def test_an_epoch_timer_says_when_it_is_due_after_a_move_too(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    assert state.next_timer_us() is None
    (handle,) = state.touch(0, [key_bytes(1)])
    state.timers[EPOCH_TIMERS].register(handle, 500)
    delta = state.stage(1)
    assert state.next_timer_us() == 500
    state.commit()
    state.release(0)
    assert state.next_timer_us() is None
    assert state.open(0, str(tmp_path / "s0"), 1)
    assert state.seal(0, 1, delta.digests[0].astype("<u8").tobytes())
    assert state.next_timer_us() == 500


def test_a_rolled_back_key_keeps_neither_values_nor_timers(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    (handle,) = state.touch(0, [key_bytes(1)])
    handle.seen.update(1)
    state.timers[EVENT_TIMERS].register(handle, 10)
    state.stage(1)
    state.commit()
    (handle,) = state.touch(0, [key_bytes(1)])
    handle.seen.update(2)
    state.timers[EVENT_TIMERS].register(handle, 20)
    state.roll_back(handle, key_bytes(1))
    assert handle.seen.get() == 1
    state.settle([handle])
    assert [one.time_us for one in state.due_timers(EVENT_TIMERS, 0, 100)] == [10]
    assert not len(state.stage(2).shards)
