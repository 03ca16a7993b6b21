"""Dead letters: a call that raises leaves its key as it was, and says what happened; the other keys go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.dataplane.logic.test_rows import INPUT, OUTPUT, SHARDS, opened, run, users

from penstock.dataplane.logic.protocol import DEAD
from penstock.dataplane.logic.rows import RowLogic, RowLogicSpec
from penstock.errors import OperatorError
from penstock.topology.states import ListState, MapState, ValueState


def add(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[str, int]]:
    """Changes its states before it looks, and puts a row out before it raises."""
    for row in rows:
        state.total.update((state.total.get() or 0) + row.amount)
        state.log.appendValue(row.amount)
        state.by[row.amount] = 1
        yield key.user, state.total.get()
        if row.amount < 0:
            raise ValueError(f"no {row.amount}")


def build(path: Path, fn: Any = add, letters: bool = True) -> RowLogic:
    states = {"total": ValueState("long"), "log": ListState("long"), "by": MapState("long", "long")}
    spec = RowLogicSpec(fn, OUTPUT, states, letters)
    logic: RowLogic = opened(spec.build("sums", ["user"], INPUT, SHARDS, 1 << 20), path)
    return logic


def states_of(logic: RowLogic) -> dict[str, Any]:
    found = {}
    for shard in range(SHARDS):
        for key, state in logic.state._shards[shard].cache.items():
            found[logic.state.key_codec.decode(key)[0]] = (
                state.total.get(),
                list(state.log),
                state.by.items(),
            )
    return found


def test_a_call_that_raises_changes_nothing_and_puts_nothing_out(tmp_path: Path) -> None:
    logic = build(tmp_path)
    run(logic, 1, users(("a", 1), ("b", 2)))
    assert logic.sides == {}
    out = run(logic, 2, users(("a", 5), ("a", -1), ("a", 7), ("b", 3), ("c", 4)))
    assert sorted(tuple(row.values()) for row in out) == [("b", 5), ("c", 4)]
    (letter,) = logic.sides[DEAD].to_pylist()
    assert (letter["operator"], letter["key"], letter["error"]) == ("sums", '["a"]', "ValueError: no -1")
    assert letter["traceback"].endswith("ValueError: no -1")
    assert len(letter["rows"]) == 3
    assert states_of(logic)["a"] == (1, [1], [(1, 1)])
    assert run(logic, 3, users(("a", 2))) == [{"user": "a", "total": 3}]
    assert logic.sides == {}


def test_the_digests_are_those_of_a_run_in_which_the_bad_calls_never_were(tmp_path: Path) -> None:
    disturbed, plain = build(tmp_path / "one"), build(tmp_path / "two")
    for epoch in range(1, 8):
        good = [("a", epoch), ("b", 2 * epoch)]
        bad = [("c", epoch), ("c", -1)] if epoch % 2 else [("d", -epoch)]
        disturbed.run(_input(epoch, [*good, *bad]))
        plain.run(_input(epoch, good))
        mine, theirs = disturbed.state.stage(epoch), plain.state.stage(epoch)
        assert mine.entries.equals(theirs.entries)
        assert (mine.digests == theirs.digests).all()
        disturbed.state.commit()
        plain.state.commit()


def test_rows_that_do_not_fit_are_a_letter_too(tmp_path: Path) -> None:
    def wrong(key: Any, rows: list[Any], state: Any) -> list[Any]:
        state.total.update(1)
        return [(key.user, "three")] if key.user == "a" else [(key.user, 3)]

    logic = build(tmp_path, wrong)
    assert run(logic, 1, users(("a", 1), ("b", 1))) == [{"user": "b", "total": 3}]
    assert logic.sides[DEAD].num_rows == 1
    assert states_of(logic)["a"][0] is None


def test_without_letters_the_first_error_ends_the_epoch(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no -1"):
        run(build(tmp_path, letters=False), 1, users(("a", -1)))


def _input(epoch: int, rows: list[tuple[str, int]]) -> Any:
    from penstock.dataplane.logic.protocol import EpochInput

    return EpochInput(epoch, 0, [users(*rows)])


def test_a_letter_carries_a_schema_that_any_sink_takes() -> None:
    from penstock.topology.nodes import DEAD_LETTERS

    assert DEAD_LETTERS.field("time").type == pa.timestamp("us", "UTC")
