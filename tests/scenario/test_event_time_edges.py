"""Corners of state, timers and event time that a run must get right whatever the epochs, each once found wrong."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.dataplane.sourcing import Arrivals
from penstock.errors import CheckpointError, DeclarationError, OperatorError
from penstock.sim.inprocess import Driver
from penstock.sim.loop import Loop
from penstock.sim.timing import SMALL, quick
from penstock.testing import Crash, ManualClock, Pause, run, script

T = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EVENTS = "id long, ts timestamp"


def minutes(count: int) -> list[tuple[int, dt.datetime]]:
    return [(number, T + dt.timedelta(minutes=number)) for number in range(count)]


def same(key: Any, rows: list[Any], state: Any) -> list[tuple[int, dt.datetime]]:
    return [(row.id, row.ts) for row in rows]


def by_five_minutes(stream: penstock.Stream, delay: str = "10 minutes") -> penstock.Stream:
    timed = stream.withWatermark("ts", delay)
    return timed.groupBy(penstock.window("ts", "5 minutes")).agg(penstock.count().alias("n"), name="win")


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_key_appended_is_there_for_its_timer_in_the_same_epoch(seed: int, crash: bool) -> None:
    def fill(key: Any, rows: list[Any], state: Any) -> None:
        for row in rows:
            state.buffer.appendValue(row.v)
        state.set_timer(state.now, processing=True)

    def look(key: Any, when: dt.datetime, state: Any) -> list[tuple[int, int, int]]:
        return [(key.k, len(state.buffer), sum(state.buffer))]

    pause = Pause("1 second")
    items: list[Any] = [(1, 10), pause, (2, 20), pause, (2, 30), pause]
    items += [*([Crash(), pause] if crash else []), (2, 40), pause]
    stream = script(items, schema="k long, v long").groupBy("k").apply_rows(
        fill, on_timer=look, schema="k long, n long, total long", name="op",
        state={"buffer": penstock.ListState("long")}, shards=1,
    )  # fmt: skip
    found = [tuple(row.values()) for row in run(stream, seed=seed).to_pylist()]
    assert found == [(1, 1, 10), (2, 1, 20), (2, 2, 50), (2, 3, 90)]


@pytest.mark.parametrize("seed", range(4))
def test_a_broadcast_list_is_whole_for_the_keys_of_the_same_epoch(seed: int) -> None:
    def keep(rows: list[Any], shared: Any) -> None:
        for row in rows:
            shared.rules.appendValue(row.x)

    def show(key: Any, rows: list[Any], state: Any, shared: Any) -> list[tuple[int, list[int]]]:
        return [(row.v, sorted(shared.rules)) for row in rows]

    pause = Pause("2 seconds")
    rules = script([*((n,) for n in range(5)), pause, (99,), pause, pause], schema="x long", name="rules")
    rows = script(
        [*((7, n) for n in range(5)), pause, Crash(), (7, 100), pause, (7, 101)], schema="k long, v long"
    )
    stream = rows.groupBy("k").with_broadcast(rules).apply_rows(
        show, on_broadcast=keep, shared={"rules": penstock.ListState("long")},
        schema="v long, rules array<long>", name="op", shards=1,
    )  # fmt: skip
    last = {row["v"]: row["rules"] for row in run(stream, seed=seed).to_pylist()}
    assert last[101] == [0, 1, 2, 3, 4, 99]


def test_a_function_that_changes_shared_state_is_told_so() -> None:
    def change(key: Any, rows: list[Any], state: Any, shared: Any) -> None:
        shared.n.update(1)

    rows = script([(1,)], schema="k long")
    stream = rows.groupBy("k").with_broadcast(script([(1,)], schema="x long", name="rules")).apply_rows(
        change, on_broadcast=lambda rows, shared: None, shared={"n": penstock.ValueState("long")},
        schema="k long", name="op",
    )  # fmt: skip
    with pytest.raises(OperatorError, match="'op': its function changed shared state"):
        run(stream)


@pytest.mark.parametrize("way", ["direct", "operator", "station"])
def test_the_end_of_a_bounded_source_passes_every_stage_before_the_watermark(way: str) -> None:
    stream = penstock.from_rows(minutes(20), schema=EVENTS)
    if way == "operator":
        stream = stream.groupBy("id").apply_rows(same, schema=EVENTS, name="mid", shards=2)
    if way == "station":
        stream = stream.station("mid")
    assert [row["n"] for row in run(by_five_minutes(stream)).to_pylist()] == [5, 5, 5, 5]


@pytest.mark.parametrize("way", ["direct", "operator", "station"])
def test_an_idle_source_holds_nobody_up_whatever_stands_behind_it(way: str) -> None:
    quiet = script([(0, T), Pause("100 seconds"), (0, T)], schema=EVENTS, name="quiet")
    if way == "station":
        quiet = quiet.station("mid")
    quiet = quiet.withWatermark("ts", "1 minute", idle_after="5 seconds")
    if way == "operator":
        quiet = quiet.groupBy("id").apply_rows(same, schema=EVENTS, name="mid", shards=2)
    busy = script(
        [item for row in minutes(30)[1:] for item in (row, Pause("1 second"))], schema=EVENTS, name="busy"
    ).withWatermark("ts", "1 minute")
    windows = quiet.union(busy).groupBy(penstock.window("ts", "5 minutes")).agg(penstock.count(), name="win")

    def stamp(key: Any, rows: list[Any], state: Any) -> list[tuple[dt.datetime, dt.datetime]]:
        return [(key.start, state.now) for _ in rows]

    seen = windows.select(penstock.col("window").getField("start").alias("start")).groupBy("start").apply_rows(
        stamp, on_timer=lambda key, when, state: None, schema="start timestamp, at timestamp", name="seen"
    )  # fmt: skip
    clock = ManualClock(T)
    closed = {row["start"]: (row["at"] - T).total_seconds() for row in run(seen, clock=clock).to_pylist()}
    assert closed[T + dt.timedelta(minutes=15)] < 60, "held up until the quiet source spoke again"


def test_windows_behind_a_loop_are_refused() -> None:
    ring = penstock.loop("again", schema="id long, ts timestamp")
    rows = penstock.from_rows(minutes(3), schema=EVENTS)
    round_ = rows.union(ring).groupBy("id").apply_rows(same, schema=EVENTS, name="round")
    ring.feed(round_.filter(penstock.col("id") < 0))
    with pytest.raises(DeclarationError, match="'win' has windows or timers and takes rows that go round"):
        run(by_five_minutes(round_))


def test_a_source_that_had_ended_is_refused_with_more_rows(tmp_path: Path) -> None:
    for count in (10, 10):
        run(by_five_minutes(penstock.from_rows(minutes(count), schema=EVENTS)), checkpoint=str(tmp_path))
    with pytest.raises(CheckpointError, match="'source' had ended after 10 rows"):
        run(by_five_minutes(penstock.from_rows(minutes(20), schema=EVENTS)), checkpoint=str(tmp_path))


@pytest.mark.parametrize("seed", range(3))
def test_a_task_that_moves_while_its_timer_is_due_does_not_hang(tmp_path: Path, seed: int) -> None:
    from tests.faults.runs import fast_disk

    from penstock.dataplane.compile import compile_program

    later = dt.timedelta(milliseconds=20)

    def begin(key: Any, rows: list[Any], state: Any) -> None:
        state.set_timer(state.now + later, processing=True)

    def again(key: Any, when: dt.datetime, state: Any) -> list[tuple[int]]:
        state.set_timer(state.now + later, processing=True)
        return [(key.k,)]

    rows = penstock.from_rows([(n,) for n in range(40)], schema="k long")
    stream = rows.groupBy("k").apply_rows(
        begin, on_timer=again, schema="k long", name="op", shards=8, cores=2
    )
    program = compile_program(stream.node, tasks=2, memory_bytes=1 << 20)
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), program, quick(SMALL), node_dir=str(tmp_path / "node"),
        loop=Loop(seed, 1.7e9), capacity=1, arrivals=lambda stage: Arrivals([(0.0, 1e6)], 40),
    )  # fmt: skip
    driver.run_until(1.0)
    driver.set_capacity(2)
    driver.run_until(1.5)
    before = driver.engine.chains["op"].epoch
    driver.run_until(1.5)
    assert driver.engine.chains["op"].epoch > before + 5, driver.engine.runs["op"].waiting_for
    driver.stop()


def test_epoch_time_does_not_go_back_when_the_next_driver_has_a_slow_clock(tmp_path: Path) -> None:
    def now(key: Any, rows: list[Any], state: Any) -> list[tuple[dt.datetime]]:
        return [(state.now,)]

    def stream(count: int) -> penstock.Stream:
        rows = penstock.generate(_numbers, schema="k long", rate=1000, limit=count)
        return rows.groupBy("k").apply_rows(
            now, on_timer=lambda key, when, state: None, schema="at timestamp", name="op"
        )

    first = run(stream(1), checkpoint=str(tmp_path), clock=ManualClock("2026-06-01 00:00:00"))
    second = run(stream(2), checkpoint=str(tmp_path), clock=ManualClock("2026-05-01 00:00:00"))
    times = [row["at"] for table in (first, second) for row in table.to_pylist()]
    assert len(times) == 2 and times == sorted(times)


def _numbers(offset: int, count: int) -> Any:
    import pyarrow as pa

    return pa.record_batch({"k": pa.array([0] * count, pa.int64())})


def test_a_letter_is_written_whatever_is_in_the_row_and_the_error() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fail(key: Any, rows: list[Any], state: Any) -> None:
        raise Odd

    rows = penstock.from_rows([(1, {T.date(): 3})], schema="k long, m map<date,long>")
    stream = rows.groupBy("k").apply_rows(fail, schema="k long", name="op", on_error="dead_letter")
    (letter,) = run(stream.dead_letters).to_pylist()
    assert letter["error"].startswith("Odd") and "2026-01-01" in letter["rows"][0]
