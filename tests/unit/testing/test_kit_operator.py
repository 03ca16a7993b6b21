"""One operator by itself: rows in, rows out, state and dead letters in the hand of the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock import Stream, col
from penstock.errors import DeclarationError, OperatorError, PenstockError
from penstock.testing import ManualClock, operator, outputs_of, script

SCHEMA = "user string, amount long"
TOTAL = "user string, total long"
STATES = {
    "total": penstock.ValueState("long"),
    "log": penstock.ListState("long"),
    "by_amount": penstock.MapState("long", "long"),
}


def add(key: Any, rows: list[Any], state: Any) -> Iterator[Any]:
    for row in rows:
        if row.amount < 0:
            raise ValueError("negative amount")
        state.total.update((state.total.get() or 0) + row.amount)
        state.log.appendValue(row.amount)
        state.by_amount[row.amount] = state.by_amount.get(row.amount, 0) + 1
    yield key.user, state.total.get()


def source(name: str = "source") -> Stream:
    return script([], schema=SCHEMA, name=name)


def totals(given: Stream, **more: Any) -> Stream:
    return given.groupBy("user").apply_rows(add, schema=TOTAL, state=STATES, name="totals", **more)


def test_every_send_is_an_epoch_with_the_state_of_those_before_it() -> None:
    with operator(totals(source())) as op:
        assert op.send([("ann", 1), ("ann", 2)]) == [{"user": "ann", "total": 3}]
        assert op.send([{"user": "ann", "amount": 4}]) == [{"user": "ann", "total": 7}]
        assert op.send(pa.table({"user": ["bob"], "amount": [1]})) == [{"user": "bob", "total": 1}]
        assert op.send([]) == []


def test_the_state_of_a_key_can_be_looked_at_and_looking_changes_nothing() -> None:
    with operator(totals(source())) as op:
        op.send([("ann", 5), ("ann", 5), ("bob", 1)])
        assert op.state("ann") == {"total": 10, "log": [5, 5], "by_amount": {5: 2}}
        assert op.state(("bob",)) == {"total": 1, "log": [1], "by_amount": {1: 1}}
        assert op.state("cid") == {"total": None, "log": [], "by_amount": {}}
        assert op.send([("ann", 1)]) == [{"user": "ann", "total": 11}]
        with pytest.raises(OperatorError, match=r"operator 'totals': \(3,\) is no key of \(user string\)"):
            op.state(3)


def test_stateless_steps_around_the_operator_are_part_of_it() -> None:
    before = source().filter(col("amount") > 1).withColumn("amount", col("amount") * 10)
    after = totals(before).select("total")
    with operator(after) as op:
        assert op.send([("ann", 1), ("ann", 2)]) == [{"total": 20}]
        assert op.send([("ann", 1)]) == []


def test_a_stream_without_operator_is_its_steps() -> None:
    doubled = source().filter(col("amount") > 1).select((col("amount") * 2).alias("twice"))
    assert outputs_of(doubled, [("ann", 1), ("bob", 2)]) == [{"twice": 4}]


def test_a_vectorised_function_sees_one_table() -> None:
    def shares(table: pa.Table, state: Any) -> pa.Table:
        return pa.table({"user": table["user"], "total": pc.cumulative_sum(table["amount"])})

    stream = source().groupBy("user").apply_arrow(shares, schema=TOTAL)
    assert outputs_of(stream, [("ann", 1), ("ann", 2)]) == [
        {"user": "ann", "total": 1},
        {"user": "ann", "total": 3},
    ]


@pytest.mark.parametrize("more", [(), (penstock.top_n("amount", 2).alias("top"),)])
def test_the_state_of_aggregates_is_their_values(more: tuple[Any, ...]) -> None:
    stream = source().groupBy("user").agg(penstock.count(), penstock.sum("amount").alias("total"), *more)
    with operator(stream) as op:
        op.send([("ann", 1), ("bob", 2)])
        op.send([("ann", 3)])
        found = op.state("ann")
        assert (found["count"], found["total"]) == (2, 4)
        assert op.state("cid") == {}


def test_an_operator_of_two_inputs_is_sent_two_lists() -> None:
    def both(key: Any, left: list[Any], right: list[Any], state: Any) -> Iterator[Any]:
        yield key.user, len(left) * 10 + len(right)

    stream = source("left").groupBy("user").cogroup(source("right").groupBy("user"))
    with operator(stream.apply_rows(both, schema=TOTAL)) as op:
        assert op.send([("ann", 1)], [("ann", 2), ("ann", 3)]) == [{"user": "ann", "total": 12}]
        assert op.send([], [("bob", 1)]) == [{"user": "bob", "total": 1}]
        assert op.send([("ann", 1)]) == [{"user": "ann", "total": 10}]
        with pytest.raises(DeclarationError, match=r"has 2 input\(s\), and send\(\.\.\.\) was given 3 lists"):
            op.send([], [], [])


def test_broadcast_rows_come_first_and_their_state_can_be_looked_at() -> None:
    def keep(rows: list[Any], shared: Any) -> None:
        for row in rows:
            shared.factor.update(row.amount)

    def scale(key: Any, rows: list[Any], state: Any, shared: Any) -> Iterator[Any]:
        yield key.user, sum(row.amount for row in rows) * shared.factor.get()

    keyed = source().groupBy("user").with_broadcast(source("factors"))
    stream = keyed.apply_rows(
        scale, on_broadcast=keep, shared={"factor": penstock.ValueState("long")}, schema=TOTAL, name="scaled"
    )
    with operator(stream) as op:
        assert op.send([("ann", 2)], [("", 3)]) == [{"user": "ann", "total": 6}]
        assert op.send([("ann", 4)]) == [{"user": "ann", "total": 12}]
        assert op.state() == {"factor": 3}
        with pytest.raises(DeclarationError, match="operator 'scaled' has no state by key"):
            op.state("ann")


def test_a_station_has_no_state() -> None:
    with operator(source().filter(col("amount") > 1).station("large")) as op:
        assert op.send([("ann", 1), ("bob", 2)]) == [{"user": "bob", "amount": 2}]
        with pytest.raises(DeclarationError, match="operator 'large' has no state by key"):
            op.state("ann")
        with pytest.raises(DeclarationError, match="operator 'large' has no shared state"):
            op.state()


def test_dead_letters_are_kept_and_can_be_the_output() -> None:
    stream = totals(source(), on_error="dead_letter")
    with operator(stream) as op:
        assert op.send([("ann", 1), ("bob", -1)]) == [{"user": "ann", "total": 1}]
        (letter,) = op.dead_letters()
        assert (letter["operator"], letter["error"]) == ("totals", "ValueError: negative amount")
        assert op.state("bob")["total"] is None
    with operator(stream.dead_letters) as op:
        assert [row["operator"] for row in op.send([("ann", 1), ("bob", -1)])] == ["totals"]


def test_an_operator_that_raised_is_of_no_further_use() -> None:
    with operator(totals(source())) as op:
        with pytest.raises(OperatorError, match=r"operator 'totals' failed for key \('bob',\): ValueError"):
            op.send([("bob", -1)])
        with pytest.raises(PenstockError, match="of no further use: it failed in an earlier call"):
            op.send([("ann", 1)])


def test_a_closed_harness_says_so() -> None:
    op = operator(totals(source()))
    op.close()
    with pytest.raises(PenstockError, match="of no further use: it is closed; make a new one"):
        op.state("ann")


def test_rows_that_do_not_fit_are_refused_and_harm_nothing() -> None:
    with operator(totals(source())) as op:
        with pytest.raises(DeclarationError, match=r"'totals': its rows do not fit its schema.*'amount'"):
            op.send([("ann", "one")])
        assert op.send([("ann", 1)]) == [{"user": "ann", "total": 1}]


def test_after_the_end_of_the_input_there_are_no_rows() -> None:
    with operator(totals(source())) as op:
        assert op.end() == []
        with pytest.raises(PenstockError, match="was told the end of its input"):
            op.send([("ann", 1)])


def test_an_operator_in_the_middle_is_taken_by_name() -> None:
    counted = totals(source()).groupBy("total").agg(penstock.count(), name="counted")
    with operator(counted, name="totals") as op:
        assert op.send([("ann", 1)]) == [{"user": "ann", "total": 1}]
    with operator(counted) as op:
        assert op.send([("ann", 1), ("bob", 1)]) == [{"total": 1, "count": 2}]
    with pytest.raises(
        DeclarationError, match=r"name='sums'\): there is no such operator; there are 'totals', 'co"
    ):
        operator(counted, name="sums")


def test_of_a_union_of_operators_one_has_to_be_named() -> None:
    twice = totals(source()).union(source("other").groupBy("user").agg(penstock.sum("amount"), name="sums"))
    with pytest.raises(
        DeclarationError, match=r"union of 'sums' and 'totals'; say which is meant with name="
    ):
        operator(twice)
    with operator(twice, name="totals") as op:
        assert op.send([("ann", 1)]) == [{"user": "ann", "total": 1}]


def test_a_union_in_front_of_an_operator_is_sent_its_own_rows() -> None:
    other = script([], schema="amount long, who string", name="other").select("who", "amount")
    with operator(totals(source().filter(col("amount") > 1).union(other))) as op:
        assert op.send([("ann", 1)]) == [{"user": "ann", "total": 1}]


def test_the_epoch_time_is_that_of_the_clock() -> None:
    clock = ManualClock("2026-01-01 10:00:00")
    stream = totals(source(), on_error="dead_letter")
    with operator(stream, clock=clock) as op:
        op.send([("ann", -1)])
        clock.advance("1 hour")
        op.send([("ann", -1)])
        assert op.advance("1 hour") == []
        op.send([("ann", -1)])
        assert [f"{letter['time']:%H:%M}" for letter in op.dead_letters()] == ["10:00", "11:00", "12:00"]
    with pytest.raises(DeclarationError, match=r"advance\(\.\.\.\): 'later' is no duration"):
        operator(stream).advance("later")
    with pytest.raises(DeclarationError, match=r"watermark\(\.\.\.\): 7 is no time"):
        operator(stream).watermark(7)


def test_a_function_is_tested_in_one_line() -> None:
    found = outputs_of(
        add, [("ann", 1), ("ann", 2)], groupBy="user", input_schema=SCHEMA, schema=TOTAL, state=STATES
    )
    assert found == [{"user": "ann", "total": 3}]
    with pytest.raises(DeclarationError, match=r"of a function needs groupBy=, input_schema= and schema="):
        outputs_of(add, [("ann", 1)])
    with pytest.raises(DeclarationError, match=r"operator\(\.\.\.\) takes a stream, not 'totals'"):
        operator("totals")  # type: ignore[arg-type]
