from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataplane.keys.hashing import group_rows_by_shard, hash_keys, shards_of
from penstock.dataplane.logic import rows as rows_module
from penstock.dataplane.logic.grouping import group_by_key
from penstock.dataplane.logic.protocol import DEAD, EpochInput, ShardedRows
from penstock.dataplane.logic.rows import RowLogic, RowLogicSpec
from penstock.errors import CorruptFileError, OperatorError
from penstock.topology.schema import parse_schema
from penstock.topology.states import ListState, MapState, ValueState

INPUT = parse_schema("user string, amount long")
OUTPUT = parse_schema("user string, total long")
SHARDS = 4


def sharded(table: pa.Table, keys: list[str], shards: int = SHARDS) -> ShardedRows:
    """Sort rows by shard, as a channel does."""
    place = shards_of(hash_keys([table.column(key) for key in keys], keys, "test"), shards)
    order, counts = group_rows_by_shard(place, shards)
    used = np.flatnonzero(counts).astype(np.uint16)
    offsets = np.zeros(len(used) + 1, np.int64)
    np.cumsum(counts[used], out=offsets[1:])
    return ShardedRows(used, offsets, table if order is None else table.take(pa.array(order)))


def users(*rows: tuple[str, int]) -> ShardedRows:
    table = pa.Table.from_pylist([{"user": user, "amount": amount} for user, amount in rows], schema=INPUT)
    return sharded(table, ["user"])


def opened(logic: Any, path: Path) -> Any:
    for shard in range(SHARDS):
        logic.state.open(shard, str(path / str(shard)), None)
        assert logic.state.seal(shard, 0, bytes(16))
    return logic


def total(key: Any, rows: list[Any], state: Any) -> Iterable[Any] | None:
    state.total.update((state.total.get() or 0) + sum(row.amount for row in rows))
    return [(key.user, state.total.get())]


def build(fn: Any, path: Path, output: pa.Schema = OUTPUT, **states: Any) -> RowLogic:
    states = states or {"total": ValueState("long")}
    return opened(RowLogicSpec(fn, output, states).build("sums", ["user"], INPUT, SHARDS, 1 << 20), path)


def run(logic: RowLogic, epoch: int, rows: ShardedRows) -> list[dict[str, Any]]:
    out = logic.run(EpochInput(epoch, 0, [rows]))
    logic.state.stage(epoch)
    logic.state.commit()
    found: list[dict[str, Any]] = out.to_pylist()
    return found


def test_a_function_is_called_once_per_key_with_the_rows_in_order(tmp_path: Path) -> None:
    calls = []

    def note(key: Any, rows: list[Any], state: Any) -> None:
        calls.append((key, [tuple(row) for row in rows]))

    given_ = users(("a", 3), ("b", 1), ("a", 1), ("c", 9), ("a", 2), ("b", 0))
    assert run(build(note, tmp_path), 1, given_) == []
    assert dict(calls) == {
        ("a",): [("a", 3), ("a", 1), ("a", 2)],
        ("b",): [("b", 1), ("b", 0)],
        ("c",): [("c", 9)],
    }
    assert len(calls) == 3 and calls[0][0].user == calls[0][0][0]


def test_state_lives_from_epoch_to_epoch(tmp_path: Path) -> None:
    logic = build(total, tmp_path)
    run(logic, 1, users(("a", 1), ("b", 2)))
    assert run(logic, 2, users(("a", 5))) == [{"user": "a", "total": 6}]
    assert run(logic, 3, users()) == []


def test_output_may_be_tuples_dicts_named_tuples_or_a_generator(tmp_path: Path) -> None:
    def mixed(key: Any, rows: list[Any], state: Any) -> Any:
        state.total.update(7)
        yield (key.user, 1)
        yield {"user": key.user}
        yield rows[0]

    logic = build(mixed, tmp_path)
    assert run(logic, 1, users(("a", 3))) == [
        {"user": "a", "total": 1},
        {"user": "a", "total": None},
        {"user": "a", "total": 3},
    ]
    assert logic.state.touch(int(users(("a", 1)).shards[0]), [b"a"])[0].total.get() == 7


def test_an_exception_names_operator_and_key_and_carries_the_traceback(tmp_path: Path) -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> None:
        if key.user == "b":
            raise ValueError("no such price")

    with pytest.raises(
        OperatorError, match=r"operator 'sums' failed for key \('b',\): ValueError: no such price"
    ) as e:
        run(build(broken, tmp_path), 1, users(("a", 1), ("b", 1), ("c", 1)))
    assert isinstance(e.value.__cause__, ValueError)
    assert "in broken" in str(e.value)
    assert gc.isenabled()


def test_an_exception_in_a_generator_is_reported_too(tmp_path: Path) -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> Any:
        yield (key.user, 1)
        raise KeyError("later")

    with pytest.raises(OperatorError, match="KeyError: 'later'"):
        run(build(broken, tmp_path), 1, users(("a", 1)))


def test_damaged_state_is_not_blamed_on_the_function(tmp_path: Path) -> None:
    def unlucky(key: Any, rows: list[Any], state: Any) -> None:
        raise CorruptFileError("local state x is damaged")

    with pytest.raises(CorruptFileError, match="local state x"):
        run(build(unlucky, tmp_path), 1, users(("a", 1)))


def test_a_row_that_does_not_fit_names_operator_column_and_key(tmp_path: Path) -> None:
    def wrong(key: Any, rows: list[Any], state: Any) -> list[Any]:
        return [(key.user, "many" if key.user == "b" else 1)]

    with pytest.raises(OperatorError, match=r"operator 'sums' .*'total'.*\(key \('b',\)\)"):
        run(build(wrong, tmp_path), 1, users(("a", 1), ("b", 1), ("c", 1)))


def test_a_null_key_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"user": None, "amount": 1}], schema=INPUT)
    given_ = ShardedRows(np.zeros(1, np.uint16), np.array([0, 1]), table)
    with pytest.raises(OperatorError, match="key column 'user' holds 1 null"):
        run(build(total, tmp_path), 1, given_)


def test_blocks_do_not_change_what_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"u{n * n % 37}", n) for n in range(500)]
    outputs = []
    for size in (1, 7, 64, 100_000):
        monkeypatch.setattr(rows_module, "_BLOCK_ROWS", size)
        logic = build(total, tmp_path / str(size))
        outputs.append((run(logic, 1, users(*rows)), run(logic, 2, users(*rows[::-1]))))
    assert all(output == outputs[0] for output in outputs)


def test_identity_has_kind_schema_and_states() -> None:
    states = {"m": MapState("long", "double"), "l": ListState("string")}
    assert RowLogicSpec(total, OUTPUT, states).identity() == {
        "kind": "rows",
        "schema": "user string, total bigint",
        "states": [
            ["m", {"kind": "map", "key": "bigint", "value": "double"}],
            ["l", {"kind": "list", "value": "string"}],
        ],
    }


# ------------------------------------------------------------------------------------------------ grouping

key_columns = st.sampled_from(
    [
        ("long", st.integers(-3, 3)),
        ("double", st.sampled_from([0.0, -0.0, 1.5, float("nan"), -float("nan")])),
        ("string", st.sampled_from(["", "a", "ab", "é"])),
        ("boolean", st.booleans()),
        ("decimal(5,2)", st.decimals(-3, 3, places=2, allow_nan=False)),
        ("date", st.dates()),
    ]
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kinds=st.lists(key_columns, min_size=1, max_size=2), shards=st.integers(1, 5))
def test_groups_hold_each_row_once_in_order_under_its_key(data: Any, kinds: list[Any], shards: int) -> None:
    names = [f"k{at}" for at in range(len(kinds))]
    schema = parse_schema(
        ", ".join(f"{n} {ddl}" for n, (ddl, _) in zip(names, kinds, strict=True)) + ", row long"
    )
    drawn = data.draw(st.lists(st.tuples(*(values for _, values in kinds)), max_size=60))
    columns = [pa.array([row[at] for row in drawn], schema.field(at).type) for at in range(len(kinds))]
    table = pa.Table.from_arrays([*columns, pa.array(range(len(drawn)), pa.int64())], schema=schema)
    given_ = sharded(table, names, shards)
    groups = group_by_key(given_, names, "op")
    taken = given_.rows if groups.order is None else given_.rows.take(pa.array(groups.order))
    numbers = taken.column("row").to_pylist()
    assert sorted(numbers) == list(range(len(drawn))) and groups.bounds[-1] == len(drawn)

    expected: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    order_of_shard = given_.rows.column("row").to_pylist()
    for number in order_of_shard:
        row = drawn[number]
        same = tuple(
            "nan" if value != value else str(value + 0 if isinstance(value, float) else value)
            for value in row
        )
        expected[same].append(number)
    found = [numbers[a:b] for a, b in zip(groups.bounds, groups.bounds[1:], strict=False)]
    assert found == list(expected.values())
    for at, (first, last) in enumerate(zip(groups.shard_bounds, groups.shard_bounds[1:], strict=False)):
        in_shard = [number for group in found[first:last] for number in group]
        assert sorted(in_shard) == sorted(order_of_shard[given_.offsets[at] : given_.offsets[at + 1]])


@pytest.mark.parametrize("keys", [50, 70_000])
def test_rows_of_a_key_keep_their_order_however_many_there_are(keys: int) -> None:
    numbers = np.arange(150_000)
    table = pa.table({"k": (numbers * 7919) % keys, "row": numbers})
    given_ = ShardedRows(np.zeros(1, np.uint16), np.array([0, len(numbers)]), table)
    groups = group_by_key(given_, ["k"], "op")
    assert groups.order is not None
    for first, last in list(zip(groups.bounds, groups.bounds[1:], strict=False))[:200]:
        assert np.all(np.diff(groups.order[first:last]) > 0)


def test_of_calls_with_dead_letters_only_those_that_raise_or_do_not_fit_are_taken_back(
    tmp_path: Path,
) -> None:
    def moody(key: Any, rows: list[Any], state: Any) -> list[Any]:
        made = list(total(key, rows, state) or ())
        if rows[-1].amount == 13:
            raise ValueError("thirteen")
        return [(key.user, "much")] if rows[-1].amount == 99 else made

    spec = RowLogicSpec(moody, OUTPUT, {"total": ValueState("long")}, dead_letters=True)
    logic = opened(spec.build("sums", ["user"], INPUT, SHARDS, 1 << 20), tmp_path)
    run(logic, 1, users(("a", 1), ("b", 1), ("c", 1)))
    made = run(logic, 2, users(("a", 13), ("b", 99), ("c", 5)))
    assert made == [{"user": "c", "total": 6}]
    letters = logic.sides["dead"].to_pylist()
    assert sorted(letter["key"] for letter in letters) == ['["a"]', '["b"]']
    after = run(logic, 3, users(("a", 2), ("b", 2), ("c", 2)))
    assert {row["user"]: row["total"] for row in after} == {"a": 3, "b": 3, "c": 8}


def test_a_value_that_does_not_fit_its_state_becomes_a_letter_and_changes_nothing(tmp_path: Path) -> None:
    def keep(key: Any, rows: list[Any], state: Any) -> Iterable[Any]:
        state.seen.appendValue(key.user)
        state.total.update("much" if rows[0].amount < 0 else rows[0].amount)
        return [(key.user, len(state.seen))]

    states = {"total": ValueState("long"), "seen": ListState("string")}
    spec = RowLogicSpec(keep, OUTPUT, states, dead_letters=True)
    logic = opened(spec.build("sums", ["user"], INPUT, SHARDS, 1 << 20), tmp_path)
    assert run(logic, 1, users(("a", 1))) == [{"user": "a", "total": 1}]
    assert run(logic, 2, users(("a", -1), ("b", 1))) == [{"user": "b", "total": 1}]
    (letter,) = logic.sides[DEAD].to_pylist()
    assert "state 'total' of key ('a',): 'much' (str) is no bigint" in letter["error"]
    assert run(logic, 3, users(("a", 2))) == [{"user": "a", "total": 2}]
