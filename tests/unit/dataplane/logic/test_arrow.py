from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.dataplane.keys.hashing import group_rows_by_shard, hash_keys, shards_of
from penstock.dataplane.logic.arrow import ArrowLogic, ArrowLogicSpec
from penstock.dataplane.logic.protocol import EpochInput, ShardedRows
from penstock.errors import OperatorError
from penstock.topology.schema import parse_schema
from penstock.topology.states import MapState, ValueState

INPUT = parse_schema("stock int, amount long")
OUTPUT = parse_schema("stock int, total long")
STATES = {"total": ValueState("long"), "seen": MapState("long", "boolean")}
SHARDS = 4


def given(*rows: tuple[int, int]) -> ShardedRows:
    table = pa.Table.from_pylist([{"stock": stock, "amount": amount} for stock, amount in rows], schema=INPUT)
    place = shards_of(hash_keys([table.column("stock")], ["stock"], "test"), SHARDS)
    order, counts = group_rows_by_shard(place, SHARDS)
    used = np.flatnonzero(counts).astype(np.uint16)
    offsets = np.concatenate([[0], np.cumsum(counts[used])]).astype(np.int64)
    return ShardedRows(used, offsets, table if order is None else table.take(pa.array(order)))


def build(fn: Any, path: Path) -> ArrowLogic:
    logic = ArrowLogicSpec(fn, OUTPUT, STATES).build("sums", ["stock"], INPUT, SHARDS, 1 << 20)
    for shard in range(SHARDS):
        logic.state.open(shard, str(path / str(shard)), None)
        assert logic.state.seal(shard, 0, bytes(16))
    return logic


def run(logic: ArrowLogic, epoch: int, rows: ShardedRows) -> dict[int, int]:
    out = logic.run(EpochInput(epoch, 0, [rows]))
    assert out.schema == OUTPUT
    logic.state.stage(epoch)
    logic.state.commit()
    return dict(zip(out.column("stock").to_pylist(), out.column("total").to_pylist(), strict=True))


def sums(table: pa.Table, state: Any) -> pa.Table:
    new = table.group_by("stock", use_threads=False).aggregate([("amount", "sum")])
    before = pc.fill_null(state.total.lookup(new), 0)
    total = pc.add(before, new.column("amount_sum"))
    state.total.update(new, total)
    return pa.table({"total": total, "stock": new.column("stock")})


def test_value_states_are_read_and_written_by_column(tmp_path: Path) -> None:
    logic = build(sums, tmp_path)
    assert run(logic, 1, given((1, 5), (2, 7), (1, 1))) == {1: 6, 2: 7}
    assert run(logic, 2, given((1, 4), (3, 1))) == {1: 10, 3: 1}
    assert run(logic, 3, given()) == {}


def test_the_function_runs_once_per_shard(tmp_path: Path) -> None:
    tables = []

    def note(table: pa.Table, state: Any) -> pa.Table:
        tables.append(table)
        return sums(table, state)

    rows = given(*((stock, 1) for stock in range(50)))
    run(build(note, tmp_path), 1, rows)
    assert [table.num_rows for table in tables] == np.diff(rows.offsets).tolist()


def test_keys_may_be_columns_and_a_null_clears(tmp_path: Path) -> None:
    def clear(table: pa.Table, state: Any) -> None:
        keys = table.column("stock").cast(pa.int64())
        assert state.total.lookup([keys]).to_pylist() == [6, 6]
        state.total.update(keys, pa.array([1, None], pa.int32()))
        assert state.total.lookup(keys).to_pylist() == [None, None]

    logic = build(sums, tmp_path)
    run(logic, 1, given((1, 6)))
    cleared = ArrowLogicSpec(clear, OUTPUT, STATES).build("sums", ["stock"], INPUT, SHARDS, 1 << 20)
    cleared.state = logic.state
    assert run(cleared, 2, given((1, 0), (1, 0))) == {}


def test_other_states_are_reached_key_by_key(tmp_path: Path) -> None:
    def count_new(table: pa.Table, state: Any) -> pa.Table:
        for stock, amount in zip(
            table.column("stock").to_pylist(), table.column("amount").to_pylist(), strict=True
        ):
            state.key(stock).seen[amount] = True
        stocks = pc.unique(table.column("stock"))
        return pa.table({"stock": stocks, "total": [len(state.key(s).seen) for s in stocks.to_pylist()]})

    logic = build(count_new, tmp_path)
    assert run(logic, 1, given((1, 5), (1, 5), (2, 6))) == {1: 1, 2: 1}
    assert run(logic, 2, given((1, 5), (1, 9))) == {1: 2}


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda table, state: table, "operator 'sums' returned columns 'stock', 'amount' where"),
        (lambda table, state: pa.table({"stock": [1], "total": ["x"]}), "column 'total' as string"),
        (lambda table, state: [1], "returned a list; return a pyarrow.Table"),
        (lambda table, state: 1 // 0, "operator 'sums' failed: ZeroDivisionError"),
        (lambda table, state: state.seen.lookup(table), r"state\.key\(\.\.\.\)\.seen"),
        (lambda table, state: state.total.lookup([]), "0 key column"),
        (lambda table, state: state.total.update(table, pa.array([])), "0 values"),
        (lambda table, state: state.key("x"), "is no key of"),
        (lambda table, state: state.key(2), r"key \(2,\) has no row in this table"),
        (lambda table, state: state.total.lookup(pa.array([1, 3])), r"key \(3,\) has no row in this table"),
    ],
)
def test_mistakes_are_reported_with_the_operator(
    tmp_path: Path, fn: Callable[..., Any], message: str
) -> None:
    with pytest.raises(OperatorError, match=message) as raised:
        run(build(fn, tmp_path), 1, given((1, 1)))
    assert "'sums'" in str(raised.value)
