"""Scripted sources, as they are declared and as a schedule."""

from __future__ import annotations

import datetime as dt

import pytest

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.sourcing import Arrivals
from penstock.errors import DeclarationError
from penstock.testing import Crash, LoseLease, ManualClock, Pause, run, script
from penstock.testing.scripts import Script, ScriptArrivals

SCHEMA = "user string, amount long"


def declared(*items: object) -> Script:
    made = script(list(items), schema=SCHEMA).node.function
    assert isinstance(made, Script)
    return made


def test_a_script_is_a_bounded_source_of_its_rows() -> None:
    node = script([("a", 1), {"user": "b", "amount": 2}], schema=SCHEMA, name="visits").node
    assert (node.name, node.bounded, node.limit, node.faults) == ("visits", True, 2, False)
    assert node.function is not None
    assert node.function(1, 1).to_pylist() == [{"user": "b", "amount": 2}]
    assert node.function(2, 0).num_rows == 0


def test_pauses_move_what_follows_them() -> None:
    made = declared(("a", 1), Pause("10 seconds"), ("b", 2), ("c", 3), Pause(dt.timedelta(minutes=1)))
    assert made.times_s == (0.0, 10.0, 10.0)
    assert made.length_s == 70.0


def test_deaths_stand_between_rows_and_at_their_time() -> None:
    made = declared(Crash(), ("a", 1), Pause("1 second"), LoseLease(), Crash(), ("b", 2))
    assert [(fault.row, fault.at_s, type(fault.what)) for fault in made.faults] == [
        (0, 0.0, Crash),
        (1, 1.0, LoseLease),
        (1, 1.0, Crash),
    ]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("a", "one")], r"source 'source': its rows do not fit its schema: .*'amount'"),
        ([("a", 1), Crash], r"source 'source': Crash in a script is a class; write Crash\(\.\.\.\)"),
        ("rows", r"source 'source': script\(\.\.\.\) takes a list, not str"),
    ],
)
def test_what_is_no_script_is_refused(items: list[object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        script(items, schema=SCHEMA)


def test_a_pause_is_a_duration_that_does_not_go_back() -> None:
    with pytest.raises(DeclarationError, match=r"Pause\(\.\.\.\): 'soon' is no duration"):
        Pause("soon")
    with pytest.raises(DeclarationError, match=r"Pause\(\.\.\.\): time does not go back; '-1 seconds'"):
        Pause("-1 seconds")


def test_a_query_that_is_started_refuses_deaths_by_name() -> None:
    stream = script([("a", 1), Crash()], schema=SCHEMA, name="visits").groupBy("user").count()
    with pytest.raises(
        DeclarationError, match=r"source 'visits' has Crash\(\) or LoseLease\(\).*testing\.run"
    ):
        compile_program(stream.node, tasks=1, memory_bytes=1 << 20)


def test_on_a_real_clock_the_rows_come_at_the_times_of_the_script() -> None:
    made = declared(("a", 1), ("b", 2), ("c", 3), Pause("10 seconds"), ("d", 4), Pause("5 seconds"), ("e", 5))
    arrivals = Arrivals(made.rates(), 5)
    arrivals.resume(0, 100.0)
    assert [arrivals.due(now) for now in (100.1, 109.9, 110.1, 114.9, 115.1, 1e6)] == [3, 3, 4, 4, 5, 5]
    arrivals.resume(3, 200.0)
    assert [arrivals.due(now) for now in (200.1, 209.9, 210.1)] == [3, 3, 4]
    waits = Arrivals(declared(Pause("2 seconds"), ("a", 1)).rates(), 1)
    waits.resume(0, 0.0)
    assert [waits.due(now) for now in (1.9, 2.1)] == [0, 1]


def test_on_a_virtual_clock_rows_wait_for_the_death_before_them() -> None:
    arrivals = ScriptArrivals(declared(("a", 1), Crash(), ("b", 2), Pause("10 seconds"), ("c", 3)))
    assert arrivals.due(5.0) == 0 and not arrivals.running
    arrivals.resume(0, 5.0)
    assert arrivals.due(9.0) == 1
    arrivals.stand(9.0)
    arrivals.pass_fault()
    arrivals.resume(1, 100.0)
    assert [arrivals.due(now) for now in (100.0, 105.9, 106.1)] == [2, 2, 3]
    assert arrivals.next_in_s(100.0) == 6.0


def test_a_script_of_nothing_ends_at_once() -> None:
    assert run(script([], schema=SCHEMA)).num_rows == 0
    assert run(script([Crash(), Crash()], schema=SCHEMA)).num_rows == 0


def test_a_manual_clock_stands_until_it_is_advanced() -> None:
    clock = ManualClock("2026-03-01 12:00:00")
    assert clock.now == dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    assert clock.advance("90 minutes") == dt.datetime(2026, 3, 1, 13, 30, tzinfo=dt.UTC)
    assert ManualClock(dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))).time_us == 0
    assert repr(clock) == "ManualClock(2026-03-01 13:30:00.000000)"
    with pytest.raises(DeclarationError, match=r"ManualClock\(\.\.\.\): 'noon' is no time"):
        ManualClock("noon")
    with pytest.raises(DeclarationError, match="time does not go back"):
        clock.advance("-1 hour")


def test_a_script_can_be_transformed_like_any_stream() -> None:
    large = script([("a", 1), ("b", 20)], schema=SCHEMA).filter(penstock.col("amount") > 10)
    assert run(large).to_pylist() == [{"user": "b", "amount": 20}]
