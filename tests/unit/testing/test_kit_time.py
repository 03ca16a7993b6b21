"""Time in the kit: windows, watermarks and timers, of one operator and of whole runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Stream
from penstock.errors import PenstockError
from penstock.testing import Crash, LoseLease, Pause, assert_frames_equal, operator, outputs_of, run, script

VISITS = "user string"
SALES = "ts timestamp, user string, amount long"


def at(second: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


def per_minute(sales: Stream) -> Stream:
    timed = sales.withWatermark("ts", "10 seconds")
    totals = timed.groupBy(penstock.window("ts", "1 minute"), "user").agg(
        penstock.sum("amount"), name="totals"
    )
    return totals.select("user", penstock.col("sum(amount)").alias("total"))


def seen(key: Any, rows: list[Any], state: Any) -> None:
    state.visits.update((state.visits.get() or 0) + len(rows))
    for when in state.timers(processing=True):
        state.delete_timer(when, processing=True)
    state.set_timer(state.now + dt.timedelta(minutes=30), processing=True)


def left(key: Any, when: dt.datetime, state: Any) -> Iterator[Any]:
    yield key.user, state.visits.get()
    state.visits.clear()


def stays(visits: Stream) -> Stream:
    return visits.groupBy("user").apply_rows(
        seen,
        on_timer=left,
        schema="user string, visits long",
        state={"visits": penstock.ValueState("long")},
        name="stays",
    )


def test_windows_close_when_the_watermark_passes_them() -> None:
    with operator(per_minute(script([], schema=SALES))) as op:
        assert op.send([(at(5), "ann", 1), (at(50), "ann", 2)]) == []
        assert op.watermark("2026-01-01 00:00:59") == []
        assert op.watermark(at(60)) == [{"user": "ann", "total": 3}]
        assert op.watermark("2026-01-01 00:00:30") == [], "a watermark never goes back"
        assert op.send([(at(70), "bob", 4)]) == []
        assert op.end() == [{"user": "bob", "total": 4}]


def test_the_declared_watermark_follows_the_rows_and_late_rows_are_counted() -> None:
    with operator(per_minute(script([], schema=SALES))) as op:
        op.send([(at(5), "ann", 1)])
        assert op.send([(at(71), "ann", 2), (at(6), "ann", 10)]) == [{"user": "ann", "total": 11}]
        assert op.late_rows == 0
        assert op.send([(at(7), "ann", 100)]) == []
        assert op.late_rows == 1


def test_all_windows_of_given_rows_in_one_line() -> None:
    rows = [(at(5), "ann", 1), (at(50), "ann", 2), (at(300), "bob", 3)]
    assert_frames_equal(outputs_of(per_minute(script([], schema=SALES)), rows), [("ann", 3), ("bob", 3)])


def test_timers_fire_each_at_its_own_time_when_the_clock_is_advanced() -> None:
    with operator(stays(script([], schema=VISITS))) as op:
        assert op.send([("ann",), ("bob",), ("ann",)]) == []
        assert op.advance("20 minutes") == []
        assert op.send([("ann",)]) == []
        assert op.advance("15 minutes") == [{"user": "bob", "visits": 1}]
        assert op.state("ann") == {"visits": 3} and op.state("bob") == {"visits": None}
        assert op.advance("1 day") == [{"user": "ann", "visits": 3}]
        assert f"{op.clock.now:%d %H:%M}" == "02 00:35"


def test_a_timer_that_sets_itself_again_fires_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(key: Any, rows: list[Any], state: Any) -> None:
        state.set_timer(state.now + dt.timedelta(minutes=1), processing=True)

    def tick(key: Any, when: dt.datetime, state: Any) -> Iterator[Any]:
        state.set_timer(when + dt.timedelta(minutes=1), processing=True)
        yield (key.user,)

    stream = (
        script([], schema=VISITS)
        .groupBy("user")
        .apply_rows(begin, on_timer=tick, schema=VISITS, name="ticks")
    )
    with operator(stream) as op:
        op.send([("ann",)])
        assert len(op.advance("10 minutes")) == 10
        monkeypatch.setattr("penstock.testing.harness._MAX_FIRINGS", 20)
        with pytest.raises(PenstockError, match=r"'ticks': timers were due 20 times within 1 week"):
            op.advance("1 week")


@pytest.mark.parametrize("seed", range(3))
def test_timers_fire_in_pauses_whatever_dies(seed: int) -> None:
    ann, bob = ("ann",), ("bob",)
    quiet = [ann, bob, ann, Pause("20 minutes"), ann, Pause("1 hour"), bob, Pause("1 hour")]
    story = [
        ann, bob, Crash(), ann, Pause("20 minutes"), LoseLease(), ann, Pause("25 minutes"), Crash(),
        Pause("35 minutes"), bob, Crash(), Pause("1 hour"),
    ]  # fmt: skip
    expected = [("bob", 1), ("ann", 3), ("bob", 1)]
    assert_frames_equal(run(stays(script(quiet, schema=VISITS)), seed=seed), expected)
    assert_frames_equal(run(stays(script(story, schema=VISITS)), seed=seed), expected)


def test_a_run_ends_with_its_script_and_not_with_its_timers() -> None:
    assert run(stays(script([("ann",), Pause("10 minutes")], schema=VISITS))).num_rows == 0


@pytest.mark.parametrize("seed", range(3))
def test_windows_close_and_rows_are_late_alike_whatever_dies(seed: int) -> None:
    first, second, late = (at(5), "ann", 1), (at(75), "ann", 2), (at(6), "ann", 100)
    quiet = [first, Pause("1 second"), second, Pause("1 second"), late]
    story = [
        first,
        Crash(),
        Pause("1 second"),
        second,
        LoseLease(),
        Pause("1 second"),
        Crash(),
        late,
        Crash(),
    ]
    expected = [("ann", 1), ("ann", 2)]
    assert_frames_equal(run(per_minute(script(quiet, schema=SALES)), seed=seed), expected)
    assert_frames_equal(run(per_minute(script(story, schema=SALES)), seed=seed), expected)


def test_a_source_that_falls_idle_lets_the_others_go_on() -> None:
    def timed(source: Stream) -> Stream:
        return source.withWatermark("ts", "10 seconds", idle_after="5 minutes")

    busy = script(
        [(at(5), "ann", 1), Pause("1 hour"), (at(80), "ann", 2), Pause("1 hour"), (at(6), "ann", 9)],
        schema=SALES,
        name="busy",
    )
    still = script([(at(1), "bob", 1), Pause("9 hours"), (at(2), "bob", 1)], schema=SALES, name="still")
    both = timed(busy).union(timed(still))
    grouped = both.groupBy(penstock.window("ts", "1 minute"), "user")
    totals = grouped.agg(penstock.sum("amount").alias("total"), name="totals").select("user", "total")
    assert_frames_equal(run(totals), [("ann", 1), ("bob", 1), ("ann", 2)])
