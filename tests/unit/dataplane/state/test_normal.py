"""What is written reads back the same: at once, in a later epoch, from LMDB and after a restart, whatever its type."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.dataplane.state.typed import KEYS, changeable, same, spoil, types, values_of

from penstock.dataplane.keys.codec import encode_key
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.maps import map_key_of
from penstock.dataplane.state.normal import Misfit, normal_of
from penstock.dataplane.state.protocol import EMPTY_DIGEST, digest_bytes
from penstock.dataplane.state.values import ValueCodec
from penstock.topology.schema import parse_any_type
from penstock.topology.states import ListState, MapState, ValueState

KEY = encode_key(["ann"], [pa.string()])
typed_values = types.flatmap(
    lambda type_: st.tuples(st.just(type_), st.lists(values_of(type_), min_size=2, max_size=2))
)


def copied(value: Any) -> Any:
    return [copied(one) for one in value] if isinstance(value, list) else copy.copy(value)


@settings(max_examples=300, deadline=None)
@given(typed_values)
def test_the_normal_form_of_a_value_is_what_its_encoding_reads_back_as(
    drawn: tuple[pa.DataType, list[Any]],
) -> None:
    type_, values = drawn
    codec = ValueCodec(type_)
    for value in values:
        made = codec.normal(value)
        (raw,) = codec.encode_all([made])
        back = codec.decode(raw)
        assert same(made, back), (type_, value, made, back)
        assert same(codec.normal(made), made)
        assert codec.encode_all([back]) == [raw]
        pa.array([made], type_)  # and Arrow takes it
        shared = {id(one) for one in changeable(value)} & {id(one) for one in changeable(made)}
        assert not shared
        if codec.copier is None:
            assert not changeable(made)
        else:
            again = codec.copier(made)
            assert same(again, made)
            assert not {id(one) for one in changeable(again)} & {id(one) for one in changeable(made)}


class Task:
    """One shard of a task, which is brought anew when its process dies."""

    def __init__(self, path: str, specs: dict[str, Any]) -> None:
        self.path, self.specs, self.names, self.epoch = path, specs, itertools.count(), 0
        self.deltas: list[tuple[int, pa.RecordBatch]] = []
        self.digest = EMPTY_DIGEST
        self.begin()

    def begin(self) -> None:
        self.state = EntryState("op", [pa.field("user", pa.string())], dict(self.specs), 1 << 20)
        self.state.open(0, f"{self.path}/{next(self.names)}", None)
        for epoch, entries in self.deltas:
            self.state.apply(0, epoch, entries.column(1), entries.column(2))
        assert self.state.seal(0, self.deltas[-1][0] if self.deltas else 0, self.digest)

    @property
    def ann(self) -> Any:
        (state,) = self.state.touch(0, [KEY])
        return state

    def commit(self) -> None:
        self.epoch += 1
        delta = self.state.stage(self.epoch)
        if delta.entries.num_rows:
            self.deltas.append((self.epoch, delta.entries))
            self.digest = digest_bytes(delta.digests[0])
        self.state.commit()

    def forget(self) -> None:
        """Drop what is decoded, so that the next read is from LMDB."""
        self.state.flush(1.0)
        for owned in self.state._shards.values():
            owned.cache.clear()
        self.state._weight = 0

    def die(self) -> None:
        self.state.close()
        self.begin()


def read(state: Any) -> list[Any]:
    return [state.value.get(), list(state.items), state.items[0], state.book.items(), state.book.values()[:1]]


@settings(max_examples=60, deadline=None)
@given(typed_values, st.sampled_from(KEYS).flatmap(lambda type_: st.tuples(st.just(type_), values_of(type_))))
def test_every_kind_of_state_reads_alike_before_and_after_a_commit_and_is_nobodys_alias(
    drawn: tuple[pa.DataType, list[Any]], key: tuple[pa.DataType, Any]
) -> None:
    type_, (first, second) = drawn
    given_ = [copy.deepcopy(first) if not holds_views(first) else first for _ in range(4)]
    specs = {"value": ValueState(type_), "items": ListState(type_), "book": MapState(key[0], type_)}
    with tempfile.TemporaryDirectory() as path:
        task = Task(path, specs)
        ann = task.ann
        ann.value.update(given_[0])
        ann.items.appendValue(given_[1])
        ann.items.appendList([given_[2], second])
        ann.book[key[1]] = given_[3]
        wanted = read(ann)
        for one in given_:
            spoil(one)
        spoil(read(ann)), spoil(ann.book.get(key[1])), spoil(ann.book.setdefault(key[1], second))
        assert same(read(ann), wanted)
        task.commit()
        assert same(read(task.ann), wanted)
        task.forget()
        assert same(read(task.ann), wanted)
        spoil(read(task.ann)), spoil(task.ann.book.pop(key[1]))
        task.ann.book[key[1]] = second
        task.ann.items[0] = second
        wanted = read(task.ann)
        task.commit()  # the digest loses what was there before, whatever became of what was handed out
        task.die()
        assert same(read(task.ann), wanted)
        task.state.snapshot(0)
        task.state.close()


def holds_views(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, memoryview) or any(map(holds_views, inside))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KEYS).flatmap(lambda type_: st.tuples(st.just(type_), values_of(type_))))
def test_a_map_key_is_held_in_the_form_in_which_it_reads_back(drawn: tuple[pa.DataType, Any]) -> None:
    from penstock.dataplane.keys.codec import KeyCodec

    type_, key = drawn
    made = map_key_of(type_, False)(key)
    (back,) = KeyCodec([type_]).decode(KeyCodec([type_]).encode((made,)))
    assert same(back, made)


def test_keys_that_are_not_equal_to_themselves_are_found_and_stand_last(tmp_path: Path) -> None:
    task = Task(str(tmp_path), {"book": MapState("float", "string")})
    book = task.ann.book
    book[float("nan")], book[-0.0], book[0.1], book[np.float32("-inf")] = "nan", "zero", "tenth", "least"
    for _ in range(2):
        assert [repr(key) for key in task.ann.book] == ["-inf", "0.0", "0.10000000149011612", "nan"]
        assert (task.ann.book[np.nan], task.ann.book.get(0.0), 0.1 in task.ann.book) == ("nan", "zero", True)
        task.commit()
        task.forget()
    task.ann.book.pop(float("nan"))
    assert len(task.ann.book) == 3


NO_KEYS: tuple[Any, ...] = (None, "a", "\ud800", "x" * 1000, b"a", 2**70, -1, 1.5, float("nan"), decimal.Decimal("1.5"),
                            1j, (), pd.NaT, dt.date(2024, 1, 1), object())  # fmt: skip
ONES: tuple[Any, ...] = (1, 1.0, True, np.float32(1), np.bool_(True), decimal.Decimal(1), np.int8(1))


@pytest.mark.parametrize(
    "type_", ["int", "double", "string", "binary", "boolean", "decimal(10,2)", "timestamp"]
)
@pytest.mark.parametrize("written", [False, True])
def test_what_is_no_key_of_a_map_is_not_found_in_it_as_in_a_dict(
    tmp_path: Path, type_: str, written: bool
) -> None:
    book = Task(str(tmp_path), {"book": MapState(type_, "int")}).ann.book
    is_number = type_ in ("int", "double", "boolean", "decimal(10,2)")
    plain: dict[Any, int] = {}
    if written:
        key = {"string": "one", "binary": b"one", "timestamp": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}.get(
            type_
        )
        key = normal_of(parse_any_type(type_, "type"))(type_ == "boolean" or 1) if is_number else key
        book[key], plain[key] = 5, 5
    for key in (*NO_KEYS, *ONES):
        asked = (
            key.item() if isinstance(key, np.generic) else key
        )  # numpy's own raise where they meet a decimal
        found = asked in plain
        assert (key in book, book.containsKey(key)) == (found, found), key
        assert (book.get(key, 7), book.getValue(key)) == (plain.get(asked, 7), plain.get(asked)), key
        if found:
            assert book[key] == plain[asked]
            continue
        assert book.pop(key, 7) == 7
        book.removeKey(key)
        for refused in (lambda key: book[key], book.pop, book.__delitem__):
            with pytest.raises(KeyError):
                refused(key)
    assert dict(book.items()) == plain


class Side(enum.Enum):
    BUY = "buy"


@pytest.mark.parametrize(
    ("type_", "value", "held"),
    [
        ("float", 0.1, 0.10000000149011612),
        ("float", 1e300, float("inf")),
        ("double", 7, 7.0),
        ("decimal(10,2)", decimal.Decimal("1.5"), decimal.Decimal("1.50")),
        ("decimal(10,2)", 2, decimal.Decimal("2.00")),
        ("timestamp", dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5))),
         dt.datetime(2024, 1, 1, 7, tzinfo=dt.UTC)),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("array<array<double>>", np.array([[1, 2]]), [[1.0, 2.0]]),
        ("array<timestamp_ntz>", np.array(["2024-01-01"], "M8[ns]"), [dt.datetime(2024, 1, 1)]),
        ("array<date>", [pd.NaT, np.datetime64("NaT")], [None, None]),
        ("map<string,int>", [("a", 1), ("a", 2)], {"a": 2}),
        ("string", Side.BUY, "buy"),
        ("binary", bytearray(b"x"), b"x"),
    ],
)  # fmt: skip
def test_values_take_the_form_of_their_type(type_: str, value: Any, held: Any) -> None:
    assert same(normal_of(parse_any_type(type_, "type"))(value), held)


@pytest.mark.parametrize(
    ("type_", "value", "told", "path"),
    [
        ("long", True, "True (bool) is no bigint", ()),
        ("long", 5.0, "5.0 (float) is no bigint", ()),
        ("tinyint", 128, "it lies outside -128 to 127", ()),
        ("int", np.timedelta64(5), "is no int", ()),
        ("struct<a:bigint,b:string>", (1 << 63, "x"), "it lies outside", ("a",)),
        ("struct<a:bigint,b:string>", (1, "\ud800"), "half of a surrogate pair", ("b",)),
        ("array<bigint>", [1 << 70], "it lies outside", ("element",)),
        ("array<int>", ["\ud800"], "(str) is no int", ("element",)),
        ("struct<a:int,b:int>", (1, "\ud800"), "(str) is no int", ("b",)),
        ("struct<a:int,b:int>", (1, 2, 3), "it has 3 value(s) for the 2 field(s) a, b", ()),
        ("array<struct<a:int,b:int>>", [(1, 2), (1,)], "it has 1 value(s) for", ("element",)),
        ("struct<a:int NOT NULL,b:int>", (None, 2), "it is NOT NULL", ("a",)),
        ("array<boolean>", [True, 1], "1 (int) is no boolean", ("element",)),
        ("array<bigint>", [1, True], "True (bool) is no bigint", ("element",)),
        ("map<string,int>", {"a": 1, "b": True}, "True (bool)", ("value",)),
        ("double", "1.5", "'1.5' (str) is no double", ()),
        ("boolean", 1, "1 (int) is no boolean", ()),
        ("decimal(10,2)", decimal.Decimal("1.005"), "it has more digits than the type", ()),
        ("decimal(10,2)", decimal.Decimal("NaN"), "is no decimal(10,2)", ()),
        ("decimal(10,2)", 10**8, "it has more digits than the type", ()),
        ("decimal(10,2)", 1.5, "give a decimal.Decimal", ()),
        ("string", b"x", "b'x' (bytes) is no string", ()),
        ("string", "a\ud800", "half of a surrogate pair", ()),
        ("binary", "x", "'x' (str) is no binary", ()),
        ("date", dt.datetime(2024, 1, 1), "give its date()", ()),
        ("timestamp", dt.datetime(2024, 1, 1), "it has no zone", ()),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "it has a zone", ()),
        (
            "timestamp",
            dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))),
            "outside the years",
            (),
        ),
        ("struct<a:int,b:struct<c:string>>", (1, {"c": 5}), "5 (int) is no string", ("b", "c")),
        ("struct<a:int>", (1, 2), "it has 2 value(s) for the 1 field(s) a", ()),
        ("struct<a:int>", {"b": 1}, "it has no field 'b'; its fields are a", ()),
        ("struct<a:int NOT NULL>", {}, "it is NOT NULL", ("a",)),
        ("array<map<string,int>>", [{"k": "v"}], "'v' (str) is no int", ("element", "value")),
        ("map<int,int>", {None: 1}, "None (NoneType) is no int", ("key",)),
        ("array<int>", "12", "give a list", ()),
    ],
)
def test_what_is_no_value_is_told_with_its_place(
    type_: str, value: Any, told: str, path: tuple[str, ...]
) -> None:
    with pytest.raises(Misfit) as raised:
        normal_of(parse_any_type(type_, "type"))(value)
    assert told in str(raised.value) and raised.value.path == path


def test_local_times_are_taken_as_pyspark_takes_them() -> None:
    struct = normal_of(parse_any_type("t timestamp, d date", "type"), local_times=True)
    noon = dt.datetime(2024, 1, 1, 12)
    assert struct((noon, noon)) == (noon.astimezone(dt.UTC), noon.date())


def test_what_older_releases_stored_unrounded_is_read_and_replaced_and_digests_hold(tmp_path: Path) -> None:
    specs = {
        "book": MapState("string", "decimal(10,2)"),
        "items": ListState("float"),
        "value": ValueState("float"),
    }
    task = Task(str(tmp_path), specs)
    task.ann.book["a"], task.ann.book["b"] = decimal.Decimal(1), decimal.Decimal(2)
    task.ann.items.put([1.0, 2.0])
    task.ann.value.update(1.0)
    for handle, value in ((task.ann.book._data, decimal.Decimal("1.5")), (task.ann.items._items, 0.1)):
        for at in list(handle) if isinstance(handle, dict) else range(2):
            handle[at] = value  # as no release stores it any more
    task.ann.value._value = 0.1
    task.commit()
    task.die()
    assert (repr(task.ann.book["a"]), list(task.ann.items), task.ann.value.get()) == (
        "Decimal('1.5')",
        [0.1, 0.1],
        0.1,
    )
    task.ann.book["a"] = task.ann.book.pop("b")
    task.ann.items[0] = task.ann.items[1]
    task.ann.value.update(task.ann.value.get())
    task.commit()
    task.die()
    assert repr(task.ann.book.items()) == "[('a', Decimal('1.50'))]"
    assert [*task.ann.items, task.ann.value.get()] == [0.10000000149011612, 0.1, 0.10000000149011612]
    task.state.snapshot(0)
