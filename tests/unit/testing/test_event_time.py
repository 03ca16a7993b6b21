"""Event time through the whole engine, on a virtual clock: windows with and without keys, late rows as a stream,
timers, and a crash in between."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import penstock
from penstock.testing import Crash, Pause, run, script

ZERO = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
SCHEMA = "ts timestamp, user string, v long"


def at(seconds: int) -> dt.datetime:
    return ZERO + dt.timedelta(seconds=seconds)


def story(*disturbed: Any) -> penstock.Stream:
    rows = [(at(1), "a", 1), (at(2), "b", 2), (at(14), "a", 4), (None, "a", 8)]
    later = [(at(38), "a", 16), Pause("1 second"), (at(3), "b", 32), (at(39), "b", 64)]
    steps = [*rows, Pause("1 second"), *disturbed, *later]
    return script(steps, schema=SCHEMA).withWatermark("ts", "5 seconds")


def test_windows_of_bounded_input_are_all_put_out_and_late_rows_are_not_among_them() -> None:
    for steps in ((), (Crash(),)):
        totals = (
            story(*steps).groupBy(penstock.window("ts", "10 seconds")).agg(penstock.sum("v").alias("sum"))
        )
        found = {(row["window"]["start"], row["sum"]) for row in run(totals).to_pylist()}
        assert found == {(at(0), 3), (at(10), 4), (at(30), 80)}


def test_late_rows_are_a_stream() -> None:
    counts = story().groupBy(penstock.window("ts", "10 seconds"), "user").count()
    assert [row["v"] for row in run(counts.late_rows).to_pylist()] == [32]


def test_sessions_and_functions_over_windows_run_in_the_engine() -> None:
    def listed(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[str, int, int]]:
        yield (
            key.user,
            (key.session_window.end - key.session_window.start).seconds,
            sum(row.v for row in rows),
        )

    sessions = story(Crash()).groupBy("user", penstock.session_window("ts", "15 seconds"))
    made = sessions.apply_rows(listed, schema="user string, seconds long, sum long")
    found = sorted(tuple(row.values()) for row in run(made).to_pylist())
    assert found == [("a", 15, 16), ("a", 28, 5), ("b", 15, 2), ("b", 15, 64)]


def test_timers_fire_by_watermark_and_at_the_end_of_the_input() -> None:
    def watch(key: Any, rows: list[Any], state: Any) -> None:
        for row in rows:
            if row.ts is not None:
                state.set_timer(row.ts + dt.timedelta(seconds=1))

    def tell(key: Any, time: dt.datetime, state: Any) -> Iterator[tuple[str, dt.datetime]]:
        yield key.user, time

    timed = (
        story(Crash()).groupBy("user").apply_rows(watch, on_timer=tell, schema="user string, at timestamp")
    )
    found = sorted(tuple(row.values()) for row in run(timed).to_pylist())
    expected = [("a", 1), ("b", 2), ("a", 14), ("a", 38), ("b", 3), ("b", 39)]
    assert found == sorted((user, at(seconds + 1)) for user, seconds in expected)
