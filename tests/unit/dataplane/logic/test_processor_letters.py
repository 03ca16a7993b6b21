"""Dead letters of processors: a call that raises leaves its key, timers included, as it was; the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.unit.dataplane.logic.test_processors import (
    INPUT,
    OUTPUT,
    SECOND,
    SHARDS,
    Base,
    PlainKit,
    run,
    sharded,
)

from penstock.dataplane.logic.processor import ProcessorLogic, ProcessorSpec
from penstock.dataplane.logic.protocol import DEAD, LATE, EpochInput, ShardClock
from penstock.topology.processors import Processor, learn_states


def build(processor: Any, path: Path, mode: Any = "none", initial: bool = False) -> ProcessorLogic:
    states = learn_states(processor, "op", mode)
    declared = Processor(processor, "rows", mode, states, PlainKit(), "at" if mode == "event" else None)
    spec = ProcessorSpec(declared, OUTPUT, ("user",) if initial else (), dead_letters=True)
    logic = spec.build("op", ["user"], INPUT, SHARDS, 1 << 20)
    for shard in range(SHARDS):
        logic.state.open(shard, str(path / str(shard)), None)
        assert logic.state.seal(shard, 0, bytes(16))
    return logic


def letters(logic: ProcessorLogic) -> list[tuple[str, str]]:
    found = logic.sides[DEAD].to_pylist() if DEAD in logic.sides else []
    return [(letter["key"], letter["error"]) for letter in found]


class Sum(Base):
    """Changes its states and sets a timer before it looks, and puts a row out before it raises."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.log = handle.getListState("log", "n long")
        self.by = handle.getMapState("by", "n long", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.total.update((initialState.amount,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.total.update(((self.total.get() or (0,))[0] + row.amount,))
            self.log.appendValue((row.amount,))
            self.by.updateValue((row.amount,), (1,))
            if timerValues.processing_ms != -1:
                self.handle.registerTimer(row.amount)
            yield (key[0], "no number" if row.amount == 13 else self.total.get()[0])
            if row.amount < 0:
                raise ValueError(f"no {row.amount}")
        assert len(list(self.log.get())) == len(list(self.by.keys()))


def test_rows_of_a_call_that_raises_change_nothing_and_become_a_letter(tmp_path: Path) -> None:
    logic = build(Sum(), tmp_path)
    run(logic, 1, ("a", 1, 0), ("b", 2, 0))
    assert not logic.sides
    assert sorted(run(logic, 2, ("a", 5, 0), ("a", -1, 0), ("a", 7, 0), ("b", 3, 0))) == [("b", 5)]
    assert letters(logic) == [('["a"]', "ValueError: no -1")]
    (letter,) = logic.sides[DEAD].to_pylist()
    assert '"amount": 5' in letter["rows"][0] and len(letter["rows"]) == 3
    assert letter["operator"] == "op" and letter["traceback"].endswith("ValueError: no -1")
    assert run(logic, 3, ("a", 2, 0)) == [("a", 3)]
    assert not logic.sides


def test_rows_that_do_not_fit_the_output_are_a_letter_too(tmp_path: Path) -> None:
    logic = build(Sum(), tmp_path)
    assert run(logic, 1, ("a", 13, 0), ("b", 2, 0)) == [("b", 2)]
    ((key, error),) = letters(logic)
    assert key == '["a"]' and "column 'total'" in error
    assert run(logic, 2, ("a", 1, 0)) == [("a", 1)]


def test_a_timer_that_a_call_set_before_it_raised_never_fires(tmp_path: Path) -> None:
    logic = build(Sum(), tmp_path, "processing")
    run(logic, 1, ("a", 5, 0), ("a", -1, 0), ("b", 7, 0), time_ms=1)
    assert logic.state.next_timer_us() == 7000


class Alarm(Base):
    """A timer for every amount; one of a thousand raises after it has changed the state, one of 2000 takes back 3000."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getListState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        for row in rows:
            self.handle.registerTimer(row.amount)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        self.fired.appendValue((expiredTimerInfo,))
        yield (key.user, sum(n for (n,) in self.fired.get()))
        if expiredTimerInfo % 1000 == 0:
            raise KeyError(expiredTimerInfo)


def test_a_timer_whose_call_raises_is_gone_and_the_others_of_its_key_count_once(tmp_path: Path) -> None:
    logic = build(Alarm(), tmp_path, "processing")
    run(logic, 1, ("a", 10, 0), ("a", 1000, 0), ("a", 1010, 0), ("a", 2000, 0), ("b", 20, 0), time_ms=1)
    out = run(logic, 2, time_ms=5000)
    assert [row for row in out if row[0] == "a"] == [("a", 10), ("a", 1020)]
    assert [row for row in out if row[0] == "b"] == [("b", 20)]
    assert letters(logic) == [('["a"]', "KeyError: 1000"), ('["a"]', "KeyError: 2000")]
    assert logic.sides[DEAD].column("rows").to_pylist()[0] == ['{"timer_ms": 1000}']
    assert logic.state.next_timer_us() is None
    run(logic, 3, ("a", 30, 0), time_ms=5001)
    assert logic.state.next_timer_us() is None and not logic.sides


def test_a_timer_that_raises_behind_rows_of_its_key_leaves_what_those_changed(tmp_path: Path) -> None:
    class Both(Alarm):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
            super().handleInputRows(key, rows, timerValues)
            self.fired.appendValue((-1,))

    logic = build(Both(), tmp_path, "processing")
    assert run(logic, 1, ("a", 1000, 0), ("a", 1001, 0), time_ms=5000) == [("a", 1000)]
    assert letters(logic) == [('["a"]', "KeyError: 1000")] and logic.state.next_timer_us() is None
    assert run(logic, 2, ("a", 1, 0), time_ms=5001) == [("a", 1000)]


def test_rows_that_raise_behind_initial_state_of_the_same_epoch_leave_that(tmp_path: Path) -> None:
    logic = build(Sum(), tmp_path, initial=True)
    assert run(logic, 1, ("a", -1, 0), initial=sharded([("a", 10, 0)])) == []
    assert len(letters(logic)) == 1
    assert run(logic, 2, ("a", 5, 0), initial=sharded([])) == [("a", 15)]


def test_a_timer_that_raised_leaves_the_same_state_as_one_that_never_was(tmp_path: Path) -> None:
    def left(path: Path, *amounts: int) -> Any:
        logic = build(Alarm(), path, "processing")
        run(logic, 1, *[("a", amount, 0) for amount in amounts], ("b", 7, 0), time_ms=1)
        given = EpochInput(
            2, 5_000_000, [sharded([])], [ShardClock(np.arange(SHARDS, dtype=np.uint16), None)]
        )
        logic.run(given)
        delta = logic.state.stage(2)
        logic.state.commit()
        shards = [logic.state.snapshot(shard).to_pydict() for shard in range(SHARDS)]
        return shards, delta.digests.tolist()

    assert left(tmp_path / "1", 10, 1000, 1010, 2000) == left(tmp_path / "2", 10, 1010)


def test_letters_and_late_rows_leave_side_by_side(tmp_path: Path) -> None:
    logic = build(Sum(), tmp_path, "event")
    run(logic, 1, ("a", -1, 9 * SECOND), ("b", 1, 0), watermark_us=9 * SECOND, late_us=4 * SECOND)
    assert logic.sides[LATE].num_rows == 1 and len(letters(logic)) == 1


def test_the_same_input_gives_the_same_bytes_with_letters_as_without_those_rows(tmp_path: Path) -> None:
    def digest(path: Path, amounts: list[int]) -> Any:
        logic = build(Sum(), path)
        run(logic, 1, ("a", 1, 0), ("b", 1, 0))
        run(logic, 2, *[("a", amount, 0) for amount in amounts], ("b", 5, 0))
        return [logic.state.snapshot(shard).to_pydict() for shard in np.arange(SHARDS).tolist()]

    assert digest(tmp_path / "1", [3, -1]) == digest(tmp_path / "2", [])


def test_a_time_to_live_that_a_call_gave_before_it_raised_is_taken_back_too(tmp_path: Path) -> None:
    class Cache(Base):
        def init(self, handle: Any) -> None:
            self.value = handle.getValueState("value", "n long", ttlDurationMs=100)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            yield (key[0], (self.value.get() or (0,))[0])
            for row in rows:
                self.value.update((row.amount,))
                assert row.amount > 0

    logic = build(Cache(), tmp_path, "processing")
    run(logic, 1, ("a", 5, 0), ("b", -1, 0), time_ms=1000)
    assert len(letters(logic)) == 1 and logic.state.next_timer_us() == 1_100_001
    assert run(logic, 2, ("a", -1, 0), time_ms=1050) == [] and len(letters(logic)) == 1
    assert run(logic, 3, ("a", 1, 0), time_ms=1099) == [("a", 5)]
    run(logic, 4, time_ms=1101)
    assert logic.state.next_timer_us() == 1_199_001
