"""Two inputs keyed alike meet by key, once each and in order, whatever happens to the leases."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import KEPT, fast_disk

import penstock
from penstock import col
from penstock.dataplane.compile import compile_program
from penstock.sim.inprocess import Driver
from penstock.sim.programs import key_of, make_rows
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

ROWS = 260


def source() -> penstock.Stream:
    return penstock.generate(make_rows, schema="id long, k long", rate=1000, name="source", limit=ROWS)


def meet(key: Any, left: list[Any], right: list[Any], state: Any) -> list[tuple[int, int, int, int]]:
    seen, paid = (
        (state.seen.get() or 0) + len(left),
        (state.paid.get() or 0) + sum(row.amount for row in right),
    )
    state.seen.update(seen)
    state.paid.update(paid)
    for row in left:
        state.order.appendValue(row.id)
    return [(key.k, seen, paid, len(state.order))]


def joined(cores: int = 2) -> penstock.Stream:
    rows = source()
    right = rows.filter(col("id") % 3 == 0).select(
        col("k").alias("customer"), (col("id") % 10).alias("amount")
    )
    return (
        rows.groupBy("k")
        .cogroup(right.groupBy("customer"))
        .apply_rows(
            meet,
            schema="k long, seen long, paid long, kept long",
            state={
                "seen": penstock.ValueState("long"),
                "paid": penstock.ValueState("long"),
                "order": penstock.ListState("long"),
            },
            name="meet",
            shards=6,
            cores=cores,
        )
    )


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_both_sides_meet_by_key_and_a_run_with_losses_replays(tmp_path: Path, seed: int) -> None:
    program = compile_program(joined().node, tasks=2, memory_bytes=1 << 20)
    driver = Driver(
        fast_disk(),
        str(tmp_path / "cp"),
        program,
        KEPT,
        seed,
        str(tmp_path / "node"),
        rows=ROWS,
        rate=4_000.0,
    )
    driver.run_until(lambda: driver.engine.chains["meet"].epoch > 2)
    driver.kill(driver.live_leases()[0])
    assert driver.run_until("drained", 30.0), driver.failed
    seen: dict[int, int] = defaultdict(int)
    paid: dict[int, int] = defaultdict(int)
    for number in range(ROWS):
        seen[key_of(number)] += 1
        paid[key_of(number)] += number % 10 if number % 3 == 0 else 0
    last = {row["k"]: (row["seen"], row["paid"], row["kept"]) for row in driver.sink.rows()}
    assert last == {key: (seen[key], paid[key], seen[key]) for key in seen}
    driver.stop()
    check_schedule(driver.checkpoint, program, complete=True)
    assert replay(driver.checkpoint, program).digests > 0


def test_keys_of_different_types_or_no_keys_at_all_are_refused() -> None:
    rows = source()
    with pytest.raises(penstock.DeclarationError, match="the keys have different types, bigint and string"):
        rows.groupBy("k").cogroup(rows.select(col("k").cast("string").alias("k")).groupBy("k"))
    with pytest.raises(penstock.DeclarationError, match="takes another groupBy"):
        rows.groupBy("k").cogroup(rows)  # type: ignore[arg-type]


def test_a_function_that_raises_names_operator_and_key(tmp_path: Path) -> None:
    def broken(key: Any, left: Any, right: Any, state: Any) -> Any:
        raise ValueError("no")

    rows = source()
    stream = (
        rows.groupBy("k")
        .cogroup(rows.groupBy("k"))
        .apply_rows(broken, schema="x long", name="broken", shards=4)
    )
    program = compile_program(stream.node, tasks=1, memory_bytes=1 << 20)
    driver = Driver(fast_disk(), str(tmp_path / "cp"), program, KEPT, 1, str(tmp_path / "node"), rows=50)
    driver.run_until("drained", 10.0)
    assert "operator 'broken' failed for key" in str(driver.failed) and "ValueError: no" in str(driver.failed)
