"""Times of day and intervals: carried from rows to state and out again."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import DeclarationError
from penstock.testing import run
from penstock.topology.schema import parse_schema, parse_type
from penstock.topology.types import ddl_of

WAIT, LATER = dt.timedelta(days=-1, microseconds=7), dt.timedelta(hours=3)
NINE, TEN = dt.time(9, 30, 0, 123456), dt.time(10)
ROWS = [(1, WAIT, NINE), (1, LATER, TEN), (2, None, None)]
SCHEMA = "id long, wait interval day to second, at time"


def rows() -> penstock.Stream:
    return penstock.from_rows(ROWS, schema=SCHEMA, name="rows")


@pytest.mark.parametrize(
    "ddl", ["interval day", "INTERVAL HOUR TO MINUTE", "interval second", "interval day to second"]
)
def test_intervals_of_days_to_seconds_are_one_type(ddl: str) -> None:
    assert parse_type(ddl) == pa.duration("us") and ddl_of(parse_type(ddl)) == "interval day to second"


def test_a_time_of_day_may_say_its_digits() -> None:
    assert parse_type("time(6)") == parse_type("time") == pa.time64("ns")
    given = pa.schema([("a", pa.time32("s")), ("b", pa.duration("ns"))])
    assert ddl_of(parse_schema(given)) == "a time, b interval day to second"
    assert penstock.ValueState("interval day to second").value_type == pa.duration("us")


@pytest.mark.parametrize(
    ("ddl", "fix"),
    [
        ("interval year to month", "store an int of months"),
        ("interval month", "months"),
        ("interval", "use interval day"),
    ],
)
def test_other_intervals_are_refused_with_what_to_store(ddl: str, fix: str) -> None:
    with pytest.raises(DeclarationError, match=f"column 'a' has type interval.*{fix}"):
        parse_schema(f"a {ddl}")


def test_they_go_through_aggregates() -> None:
    found = (
        rows().groupBy("id").agg(penstock.min("wait"), penstock.max("at"), penstock.last("wait"), name="agg")
    )
    made = {row["id"]: row for row in run(found).to_pylist()}
    assert made[1] == {"id": 1, "min(wait)": WAIT, "max(at)": TEN, "last(wait)": LATER}
    assert made[2] == {"id": 2, "min(wait)": None, "max(at)": None, "last(wait)": None}


def test_they_go_through_functions_and_state() -> None:
    def keep(key: Any, rows: list[Any], state: Any) -> Any:
        for row in rows:
            if row.wait is not None:
                state.longest.update(max(state.longest.get() or row.wait, row.wait))
                state.times.appendValue(row.at)
                state.by_id[row.id] = (row.wait, row.at)
        yield key.id, state.longest.get(), list(state.times), state.by_id.get(key.id)

    kept = (
        rows()
        .groupBy("id")
        .apply_rows(
            keep,
            schema="id long, longest interval day to second, times array<time>, "
            "both struct<w:interval day to second,t:time>",
            state={
                "longest": penstock.ValueState("interval day to second"),
                "times": penstock.ListState("time"),
                "by_id": penstock.MapState("long", "w interval day to second, t time"),
            },
            name="kept",
        )
    )
    made = {row["id"]: row for row in run(kept).to_pylist()}
    assert made[1] == {"id": 1, "longest": LATER, "times": [NINE, TEN], "both": {"w": LATER, "t": TEN}}
    assert made[2] == {"id": 2, "longest": None, "times": [], "both": None}


def test_the_difference_of_time_stamps_is_an_interval() -> None:
    stamps = penstock.from_rows([(LATER,)], schema="i interval day to second")
    at = penstock.lit(dt.datetime(2024, 1, 2)) - penstock.lit(dt.datetime(2024, 1, 1))
    assert run(stamps.select((at + penstock.col("i")).alias("i"))).to_pylist() == [
        {"i": dt.timedelta(hours=27)}
    ]


def test_what_they_cannot_do_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"'at' of 'rows' has type time, which cannot be a key"):
        rows().groupBy("at")
    with pytest.raises(DeclarationError, match="key of MapState cannot be time"):
        penstock.MapState("time", "long")
    with pytest.raises(DeclarationError, match=r"no cast from interval day to second to bigint"):
        rows().select(penstock.col("wait").cast("long"))
    writer = rows().writeStream.format("parquet").option("path", "/out").option("checkpointLocation", "/c")
    with pytest.raises(
        DeclarationError, match=r"column 'wait' has type interval day to second.*write it with foreachBatch"
    ):
        writer.declare()
