from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.dataplane.keys.codec import encode_key
from penstock.dataplane.keys.hashing import hash_key, shard_of
from penstock.dataplane.state import map_handles
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.protocol import EMPTY_DIGEST, ENTRY_SCHEMA, Delta, digest_bytes
from penstock.dataplane.state.sealing import entry_hash, sum_of
from penstock.errors import CorruptFileError, OperatorError
from penstock.topology.states import ListState, MapState, ValueState

KEYS = [pa.field("user", pa.string())]
STATES = {
    "value": ValueState("double"),
    "log": ListState("string"),
    "book": MapState("long", "struct<price:double,volume:int>"),
    "tags": MapState("string", "array<int>"),
}
SHARDS = 3


def shard_of_key(user: str) -> int:
    return shard_of(hash_key([user]), SHARDS)


class World:
    """A task's state, and what a record and the checkpoint would hold of it."""

    def __init__(self, path: str, memory_bytes: int = 1 << 30) -> None:
        self.path = path
        self.memory_bytes = memory_bytes
        self.names = itertools.count()
        self.epoch = 0
        self.versions = dict.fromkeys(range(SHARDS), 0)
        self.digests = dict.fromkeys(range(SHARDS), EMPTY_DIGEST)
        self.snapshots: dict[int, tuple[int, pa.RecordBatch]] = {}
        self.deltas: list[tuple[int, pa.RecordBatch]] = []
        self.paths: dict[int, str] = {}
        self.state = self.new_state()
        for shard in range(SHARDS):
            self.bring(shard)

    def new_state(self) -> EntryState:
        return EntryState("op", KEYS, dict(STATES), self.memory_bytes)

    def key(self, user: str) -> KeyState:
        (state,) = self.state.touch(shard_of_key(user), [encode_key([user], [pa.string()])])
        return state

    def step(self) -> Delta:
        """Stage and commit an epoch, and keep what it would log."""
        self.epoch += 1
        delta = self.state.stage(self.epoch)
        self.deltas.append((self.epoch, delta.entries))
        for shard, lanes in zip(delta.shards.tolist(), delta.digests, strict=True):
            self.versions[shard], self.digests[shard] = self.epoch, digest_bytes(lanes)
        self.state.commit()
        return delta

    def bring(self, shard: int) -> None:
        """Rebuild a shard from its snapshot and the later deltas."""
        self.paths[shard] = f"{self.path}/{next(self.names)}"
        assert self.state.open(shard, self.paths[shard], None)
        since = 0
        if shard in self.snapshots:
            since, batch = self.snapshots[shard]
            self.state.apply(shard, since, batch.column(1), batch.column(2))
        for epoch, batch in self.deltas:
            mine = batch.filter(pa.compute.equal(batch.column(0), pa.scalar(shard, pa.uint16())))
            if epoch > since and mine.num_rows:
                self.state.apply(shard, epoch, mine.column(1), mine.column(2))
        assert self.state.seal(shard, self.versions[shard], self.digests[shard])

    def take_snapshot(self, shard: int) -> None:
        self.snapshots[shard] = (self.versions[shard], self.state.snapshot(shard))

    def hand_over(self, shard: int) -> None:
        self.state.release(shard)
        assert shard not in self.state.owned()
        assert self.state.open(shard, self.paths[shard], self.versions[shard])
        assert self.state.seal(shard, self.versions[shard], self.digests[shard])

    def crash(self) -> None:
        """Lose the process and what it had not flushed; rebuild everything elsewhere."""
        self.state.close()
        self.state = self.new_state()
        for shard in range(SHARDS):
            self.bring(shard)

    def check_digests(self) -> None:
        for shard in range(SHARDS):
            batch = self.state.snapshot(shard)
            assert batch.schema == ENTRY_SCHEMA
            pairs = zip(batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True)
            lanes = sum_of([entry_hash(key, value) for key, value in pairs])
            assert digest_bytes(lanes) == self.digests[shard]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(str(tmp_path))
    yield made
    made.check_digests()
    made.state.close()


# -------------------------------------------------------------------------------------------- against a plain model

# Few keys and elements, so that the things that happen to one of them follow each other in many ways.
users = st.sampled_from(["ann", "", "é" * 200])
floats = st.floats(allow_nan=False) | st.integers(-5, 5)
map_keys = st.integers(-1, 5)
actions = st.one_of(
    st.tuples(st.just("update"), users, floats),
    st.tuples(st.just("clear_value"), users),
    st.tuples(st.just("append"), users, st.lists(st.text(max_size=3), max_size=3)),
    st.tuples(st.just("put_list"), users, st.lists(st.text(max_size=3), max_size=3)),
    st.tuples(st.just("set_item"), users, st.integers(-2, 2), st.text(max_size=3)),
    st.tuples(st.just("len"), users),
    st.tuples(st.just("set"), users, map_keys, floats, st.integers(-9, 9)),
    st.tuples(st.just("delete"), users, map_keys),
    st.tuples(st.just("pop"), users, map_keys),
    st.tuples(st.just("get"), users, map_keys),
    st.tuples(st.just("items"), users),
    st.tuples(st.just("clear_map"), users),
    st.tuples(st.just("tag"), users, st.sampled_from("xyz"), st.lists(st.integers(0, 3), max_size=2)),
    st.tuples(st.just("step")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("snapshot"), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("hand_over"), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("crash")),
)


def act(key: KeyState, model: dict[str, Any], name: str, *given: Any) -> None:
    """Do one thing to the state and to the model, and compare what they answer."""
    log, book = model["log"], model["book"]
    if name == "update":
        key.value.update(given[0])
        model["value"] = given[0]
    elif name == "clear_value":
        key.value.clear()
        model["value"] = None
    elif name == "append":
        key.log.appendList(given[0])
        log.extend(given[0])
    elif name == "put_list":
        key.log.put(given[0])
        log[:] = given[0]
    elif name == "set_item":
        if -len(log) <= given[0] < len(log):
            key.log[given[0]] = given[1]
            log[given[0]] = given[1]
    elif name == "len":
        assert (len(key.log), len(key.book)) == (len(log), len(book))
    elif name == "set":
        key.book[given[0]] = (given[1], given[2])
        book[given[0]] = (given[1], given[2])
    elif name == "delete":
        key.book.removeKey(given[0])
        book.pop(given[0], None)
    elif name == "pop":
        assert key.book.pop(given[0], None) == book.pop(given[0], None)
    elif name == "get":
        assert key.book.get(given[0]) == book.get(given[0])
        assert (given[0] in key.book) == (given[0] in book)
    elif name == "items":
        assert key.book.items() == sorted(book.items())
    elif name == "clear_map":
        key.book.clear()
        book.clear()
    elif name == "tag":
        key.tags[given[0]] = given[1]
        model["tags"][given[0]] = given[1]


@settings(
    max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # shrinking takes minutes
@given(
    script=st.lists(actions, min_size=60, max_size=120),
    memory_bytes=st.sampled_from([1 << 30, 4000, 0]),
    first_load=st.sampled_from([1, 3, 1024]),
)
def test_state_is_what_a_plain_dict_would_be_whatever_happens_between_epochs(
    script: list[tuple[Any, ...]], memory_bytes: int, first_load: int
) -> None:
    model: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as path, mock.patch.object(map_handles, "FIRST_LOAD", first_load):
        world = World(path, memory_bytes)
        for name, *given_ in script:
            if name == "step":
                world.step()
            elif name in ("flush", "snapshot", "hand_over", "crash"):
                world.step()
                world.check_digests()
                if name == "flush":
                    world.state.flush(0.001)
                elif name == "snapshot":
                    world.take_snapshot(given_[0])
                elif name == "hand_over":
                    world.hand_over(given_[0])
                else:
                    world.crash()
            else:
                user = given_[0]
                blank: dict[str, Any] = {"value": None, "log": [], "book": {}, "tags": {}}
                act(world.key(user), model.setdefault(user, blank), name, *given_[1:])
        world.step()
        world.check_digests()
        for _ in range(2):
            for user, expected in model.items():
                key = world.key(user)
                assert key.value.get() == expected["value"]
                assert list(key.log) == expected["log"]
                assert key.book.items() == sorted(expected["book"].items())
                assert all(type(value.price) is float for value in key.book.values())
                assert key.tags.items() == sorted(expected["tags"].items())
            assert world.step().entries.num_rows == 0
            world.crash()
        world.state.close()


# -------------------------------------------------------------------------------------------- deltas and digests


def test_an_epoch_without_changes_has_an_empty_delta(world: World) -> None:
    world.key("ann").value.update(1.0)
    assert world.step().entries.num_rows == 1
    world.key("ann").value.update(1)
    delta = world.step()
    assert delta.entries.num_rows == 0 and len(delta.shards) == 0
    assert len(world.state.stage(9).shards) == 0


def test_only_the_elements_that_changed_are_in_the_delta(world: World) -> None:
    book = world.key("ann").book
    for order in range(100):
        book[order] = (1.0, order)
    assert world.step().entries.num_rows == 100
    book = world.key("ann").book
    book[7] = (2.0, 7)
    book[8] = (1.0, 8)
    del book[9]
    book[500] = (1.0, 1)
    del book[500]
    delta = world.step()
    assert delta.entries.num_rows == 2
    assert delta.entries.column(2).null_count == 1


def test_a_delta_is_sorted_by_shard_and_counts_its_bytes(world: World) -> None:
    for user in ("dee", "ann", "bob", "cy", "eve", "f", "g"):
        world.key(user).value.update(1.0)
        world.key(user).log.appendValue("x")
    delta = world.step()
    shards = delta.entries.column(0).to_numpy()
    assert np.all(shards[1:] >= shards[:-1])
    assert delta.shards.tolist() == sorted(set(shards.tolist()))
    keys, values = delta.entries.column(1).to_pylist(), delta.entries.column(2).to_pylist()
    for shard, size in zip(delta.shards, delta.shard_bytes, strict=True):
        at = np.flatnonzero(shards == shard)
        assert size == sum(len(keys[i]) + len(values[i] or b"") for i in at)


def test_appending_to_a_list_does_not_load_it(world: World) -> None:
    world.key("ann").log.appendList(["a", "b"])
    world.step()
    world.crash()
    log = world.key("ann").log
    log.appendValue("c")
    assert len(log) == 3
    assert world.step().entries.num_rows == 1
    assert world.key("ann").log._items is None
    assert list(world.key("ann").log) == ["a", "b", "c"]


def test_what_is_appended_after_a_clear_takes_the_place_of_what_was_stored(world: World) -> None:
    world.key("ann").log.put(["a", "b", "c"])
    world.step()
    log = world.key("ann").log
    log.clear()
    log.appendList(["a", "x"])
    assert world.step().entries.num_rows == 2
    world.crash()
    assert list(world.key("ann").log) == ["a", "x"]


@pytest.mark.parametrize("seed", range(25))
def test_what_was_settled_is_seen_when_the_epoch_uses_its_key_again(world: World, seed: int) -> None:
    """As timers do after the rows of their key, and functions beside a broadcast."""
    rng = random.Random(seed)
    logs: dict[str, list[str]] = {"ann": [], "bob": []}
    tags: dict[str, dict[str, list[int]]] = {"ann": {}, "bob": {}}
    with mock.patch.object(map_handles, "FIRST_LOAD", 2):
        for _ in range(30):
            for _ in range(rng.randint(1, 3)):
                user = rng.choice(["ann", "bob"])
                state = world.key(user)
                for _ in range(rng.randint(0, 3)):
                    _change(rng, state, logs[user], tags[user])
                if rng.random() < 0.4:
                    assert list(state.log) == logs[user] and len(state.log) == len(logs[user])
                if rng.random() < 0.4:
                    assert dict(state.tags.items()) == tags[user] and len(state.tags) == len(tags[user])
                world.state.settle([state])
            world.step()
            if rng.random() < 0.5:
                world.crash()
    for user in logs:
        assert list(world.key(user).log) == logs[user] and dict(world.key(user).tags.items()) == tags[user]


def _change(rng: random.Random, state: KeyState, log: list[str], tags: dict[str, list[int]]) -> None:
    element = rng.choice("abcdef")
    what = rng.random()
    if what < 0.5:
        state.log.appendValue(element)
        log.append(element)
    elif what < 0.55:
        state.log.put([element])
        log[:] = [element]
    elif what < 0.8:
        state.tags[element] = tags[element] = [rng.randint(0, 9)]
    else:
        state.tags.removeKey(element)
        tags.pop(element, None)


def test_nothing_reaches_the_environment_before_the_commit(world: World) -> None:
    world.key("ann").value.update(1.0)
    shard = shard_of_key("ann")
    world.state.stage(1)
    world.state.flush(1.0)
    assert world.state._shards[shard].local.count == 0
    world.state.commit()
    world.state.flush(1.0)
    assert world.state._shards[shard].local.count == 1
    world.versions[shard] = 1
    world.digests[shard] = world.state._shards[shard].local.digest


# -------------------------------------------------------------------------------------------- bringing


def test_a_shard_with_another_version_or_digest_is_refused_and_dropped(world: World) -> None:
    world.key("ann").value.update(1.0)
    shard = shard_of_key("ann")
    world.step()
    batch = world.state.snapshot(shard)
    world.state.release(shard)
    for version, digest in [(2, world.digests[shard]), (1, bytes(16))]:
        path = f"{world.path}/other"
        assert world.state.open(shard, path, None)
        world.state.apply(shard, 1, batch.column(1), batch.column(2))
        assert not world.state.seal(shard, version, digest)
        assert not Path(path).exists() and shard not in world.state.owned()
    assert not world.state.open(shard, world.paths[shard], 99)
    assert world.state.open(shard, world.paths[shard], 1)
    assert world.state.seal(shard, 1, world.digests[shard])


def test_a_copy_one_epoch_behind_is_completed_by_its_delta(world: World) -> None:
    shard = shard_of_key("ann")
    world.key("ann").book[1] = (1.0, 1)
    world.step()
    world.state.flush(1.0)
    world.key("ann").book[1] = (2.0, 1)
    world.key("ann").book[2] = (2.0, 2)
    delta = world.step()
    world.state.close()
    world.state = world.new_state()
    assert world.state.open(shard, world.paths[shard], 1)
    world.state.apply(shard, 2, delta.entries.column(1), delta.entries.column(2))
    assert world.state.seal(shard, 2, world.digests[shard])
    for other in set(range(SHARDS)) - {shard}:
        world.bring(other)
    assert world.key("ann").book.items() == [(1, (2.0, 1)), (2, (2.0, 2))]


def damage(world: World, shard: int) -> None:
    """Change one stored value behind the state's back."""
    local: LocalShard = world.state._shards[shard].local
    key, value = local.scan()[0]
    local.write([(key, value[:-1] + bytes([value[-1] ^ 1]))], [], local.version, local.digest)


def test_a_damaged_entry_is_found_when_it_is_loaded_snapshotted_or_taken_over(world: World) -> None:
    shard = shard_of_key("ann")
    world.key("ann").value.update(1.0)
    world.step()
    world.state.flush(1.0)
    damage(world, shard)
    world.state._shards[shard].cache.clear()
    with pytest.raises(CorruptFileError, match=world.paths[shard]):
        world.key("ann")
    with pytest.raises(CorruptFileError, match=world.paths[shard]):
        world.state.snapshot(shard)
    world.state.release(shard)
    assert world.state.open(shard, world.paths[shard], 1)
    assert not world.state.seal(shard, 1, world.digests[shard])
    world.bring(shard)
    assert world.key("ann").value.get() == 1.0


def test_a_lost_entry_is_found_by_the_digest(world: World) -> None:
    shard = shard_of_key("ann")
    world.key("ann").value.update(1.0)
    world.step()
    world.state.flush(1.0)
    local = world.state._shards[shard].local
    local.write([], [key for key, _ in local.scan()], local.version, local.digest)
    with pytest.raises(CorruptFileError, match="digest"):
        world.state.snapshot(shard)
    world.crash()


def test_dropping_a_shard_writes_nothing(world: World) -> None:
    shard = shard_of_key("ann")
    world.key("ann").value.update(1.0)
    world.step()
    world.state.drop(shard)
    assert not world.state.open(shard, world.paths[shard], 1)
    assert world.state.open(shard, world.paths[shard], 0)
    world.state.drop(shard)
    world.bring(shard)


# -------------------------------------------------------------------------------------------- memory and values


def test_eviction_keeps_the_most_recently_used_keys(tmp_path: Path) -> None:
    world = World(str(tmp_path), memory_bytes=60_000)
    for number in range(200):
        world.key(f"user{number}").book[number] = (1.0, number)
        world.step()
    kept = {state._key[0] for owned in world.state._shards.values() for state in owned.cache.values()}
    assert "user199" in kept and "user0" not in kept and len(kept) < 100
    assert world.key("user0").book[0] == (1.0, 0)
    world.state.close()


def test_a_cached_object_is_made_once_and_again_after_an_eviction(world: World) -> None:
    made = []

    def build(state: KeyState) -> list[int]:
        made.append(state.value.get())
        return []

    first = world.key("ann").cached(build)
    world.key("ann").value.update(2.0)
    world.step()
    assert world.key("ann").cached(build) is first
    world.step()
    world.crash()
    assert world.key("ann").cached(build) is not first
    assert made == [None, 2.0]


def test_a_value_read_from_state_cannot_change_it_in_place(world: World) -> None:
    world.key("ann").tags["x"] = [1]
    world.step()
    tags = world.key("ann").tags
    tags["x"].append(2)
    tags.get("x").append(3)
    for values in (tags.values(), [value for _, value in tags.items()], [tags.setdefault("x", [])]):
        values[0].append(4)
    assert tags["x"] == [1]
    assert world.step().entries.num_rows == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda key: key.value.update("text"),
            r"state 'value' of key \('ann',\): 'text' \(str\) is no double",
        ),
        (lambda key: key.value.update(True), r"True \(bool\) is no double"),
        (lambda key: key.log.appendValue(None), r"state 'log' .* None \(NoneType\) is no string"),
        (lambda key: key.log.put(["a", b"b"]), r"state 'log' .* b'b' \(bytes\) is no string"),
        (
            lambda key: key.book.updateValue(1, (1.0, 2**31)),
            r"state 'book' .* field 'volume': 2147483648 \(int\) is no int; it lies outside",
        ),
        (
            lambda key: key.book.updateValue(1, (1.0,)),
            r"it has 1 value\(s\) for the 2 field\(s\) price, volume",
        ),
        (lambda key: key.book.updateValue(1, {"price": 1.0, "prize": 2}), "it has no field 'prize'"),
        (lambda key: key.book.updateValue(1, None), r"None \(NoneType\) is no struct"),
        (lambda key: key.book.updateValue(1, 5), "give a tuple or a dict of price, volume"),
        (lambda key: key.book.updateValue("one", (1.0, 1)), r"map key 'one' \(str\) is no bigint"),
        (lambda key: key.book.updateValue(2**63, (1.0, 1)), "map key 9223372036854775808 .* lies outside"),
        (lambda key: key.book.setdefault(None, (1.0, 1)), r"map key None \(NoneType\) is no bigint"),
        (lambda key: key.book.get([1]), r"map key \[1\] \(list\) is no bigint"),
        (lambda key: key.tags.updateValue("x", [1, "two"]), r"field 'element': 'two' \(str\) is no int"),
        (lambda key: key.tags.updateValue("x", {1}), "a set has no order; give a list"),
        (lambda key: key.tags.updateValue("x" * 441, [1]), "it takes 441 bytes, over the limit of 440"),
        (lambda key: key.tags.updateValue("\ud800", [1]), "half of a surrogate pair"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_when_it_is_written_and_changes_nothing(
    world: World, change: Any, message: str
) -> None:
    world.key("ann").value.update(1.0)
    world.key("ann").log.put(["first"])
    with pytest.raises(OperatorError, match=message) as raised:
        change(world.key("ann"))
    assert "operator 'op'" in str(raised.value)
    assert (world.key("ann").value.get(), list(world.key("ann").log)) == (1.0, ["first"])
    assert not world.key("ann").book.items() and not world.key("ann").tags.items()
    world.step()


def test_a_value_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    world.key("ann").log.appendValue("x" * (16 << 20))
    with pytest.raises(OperatorError, match=r"state 'log' of key .* over the limit of 16777216"):
        world.state.stage(1)
    world.state.close()


def test_values_are_kept_in_the_form_in_which_they_read_back(world: World) -> None:
    key = world.key("ann")
    key.value.update(np.int64(3))
    key.book[1] = {"volume": 5, "price": 2}
    key.book[np.int8(1)] = (np.float64(1.5), np.int32(7))
    before = (repr(key.value), repr(key.book.items()))
    assert before == ("ValueState(3.0)", "[(1, Row(price=1.5, volume=7))]")
    world.step()
    assert (repr(world.key("ann").value), repr(world.key("ann").book.items())) == before
    world.crash()
    key = world.key("ann")
    key.book.keys()
    assert (repr(key.value), repr(key.book.items())) == before


@pytest.mark.parametrize("nothing", [None, pd.NaT, pd.NA, np.datetime64("NaT")])
def test_none_is_no_value(world: World, nothing: Any) -> None:
    with pytest.raises(ValueError, match=r"is no value of state 'value'; call clear\(\)"):
        world.key("ann").value.update(nothing)


def test_an_undeclared_state_is_named(world: World) -> None:
    with pytest.raises(AttributeError, match="no state named 'bok'"):
        world.key("ann").bok  # noqa: B018


def test_state_bytes_follow_what_is_stored(world: World) -> None:
    assert world.state.state_bytes() == 0
    world.key("ann").log.appendList(["x" * 1000] * 100)
    world.step()
    world.state.flush(1.0)
    assert 100_000 < world.state.state_bytes() < 300_000
