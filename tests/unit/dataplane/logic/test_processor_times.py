"""Times that a processor gets and gives are in the session's zone, in rows and in frames, as PySpark's are."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.unit.dataplane.logic.test_processors import Base, PlainKit

from penstock.dataplane.logic.processor_flavours import Frames, Rows
from penstock.dataplane.logic.processor_times import Zone, times_in, zone_named
from penstock.errors import SessionError
from penstock.topology.processors import Processor
from penstock.topology.schema import parse_any_type, parse_schema

SCHEMA = parse_schema(
    "at timestamp, ntz timestamp_ntz, s struct<t:timestamp>, l array<timestamp>, m map<string,timestamp>"
)
NOON = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
WALL = dt.datetime(2024, 7, 1, 8)
NEW_YORK = zoneinfo.ZoneInfo("America/New_York")
TABLE = pa.Table.from_pylist(
    [
        {"at": NOON, "ntz": WALL, "s": {"t": NOON}, "l": [NOON, None], "m": [("k", NOON)]},
        dict.fromkeys(SCHEMA.names),
    ],
    schema=SCHEMA,
)


def flavour(kind: Any, zone: str | None, output: pa.Schema = SCHEMA) -> Any:
    declared = Processor(Base(), "rows", "none", (), PlainKit(), zone=zone)
    return kind(declared, SCHEMA, output, "op", [pa.timestamp("us", "UTC"), pa.int64()])


@pytest.mark.parametrize(
    ("zone", "there"), [("America/New_York", NEW_YORK), ("UTC", dt.UTC), ("-04:00", None)]
)
def test_rows_and_their_keys_hold_times_of_the_sessions_zone(zone: str, there: Any) -> None:
    made = flavour(Rows, zone)
    (first, second), *_ = [list(rows) for rows in made.split(TABLE, [0, 2])]
    found = [first.at, first.s["t"], first.l[0], dict(first.m)["k"], made.key((NOON, 1))[0]]
    wanted = NOON.astimezone(there or dt.timezone(-dt.timedelta(hours=4)))
    assert found == [wanted] * 5 and {time.hour for time in found} == {wanted.hour}
    if there is not dt.UTC:
        assert {str(time.utcoffset()) for time in found} == {"-1 day, 20:00:00"}
    assert first.ntz == WALL and first.l[1] is None and tuple(second) == (None,) * 5


def test_frames_hold_wall_times_of_the_sessions_zone_and_are_read_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = flavour(Frames, "America/New_York")
    ((frame,),) = [list(frames) for frames in made.split(TABLE, [0, 2])]
    assert frame["at"].iloc[0] == pd.Timestamp(WALL) and pd.isna(frame["at"].iloc[1])
    assert made.key((NOON, 1)) == (pd.Timestamp(WALL), 1) and made.timer_key((NOON, 1)) == (WALL, 1)
    nested: dict[str, list[Any]] = {
        "s": [{"t": WALL}, None],
        "l": [[WALL, None], None],
        "m": [{"k": WALL}, None],
    }
    for column in ([WALL, None], pd.to_datetime(pd.Series([WALL, None])), [NOON, None]):
        given = pd.DataFrame({"at": column, "ntz": [WALL, None], **nested})
        out = made.batch([given]).to_pylist()
        assert out[0] == {"at": NOON, "ntz": WALL, "s": {"t": NOON}, "l": [NOON, None], "m": [("k", NOON)]}
        assert out[1] == dict.fromkeys(SCHEMA.names)


def test_times_go_in_and_out_of_frames_unchanged_but_in_the_hour_that_comes_twice() -> None:
    hours = [dt.datetime(2024, 11, 3, hour, tzinfo=dt.UTC) for hour in (3, 4, 8, 9)]
    schema = parse_schema("at timestamp")
    made = Frames(
        Processor(Base(), "frames", "none", (), PlainKit(), zone="America/New_York"), schema, schema, "op"
    )
    ((frame,),) = [list(frames) for frames in made.split(pa.table({"at": hours}, schema=schema), [0, 4])]
    assert made.batch([frame]).to_pydict() == {"at": hours}


def test_the_machines_zone_is_taken_where_no_session_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        ((row,), _) = [list(rows) for rows in flavour(Rows, None).split(TABLE, [0, 1, 2])]
        assert row.at == NOON and row.at.hour == 17
        assert flavour(Rows, "UTC").timer_key((NOON, 1)) == (dt.datetime(2024, 7, 1, 17, 30), 1)
        assert Zone(None).from_wall(dt.datetime(2024, 7, 1, 17, 30)) == NOON
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("name", "hours"),
    [("UTC", 0), ("Z", 0), ("GMT+8", 8), ("+05:30", 5.5), ("UTC-3", -3), ("Asia/Kolkata", 5.5)],
)
def test_zones_are_known_by_the_names_that_spark_takes(name: str, hours: float) -> None:
    assert zone_named(name).utcoffset(WALL) == dt.timedelta(hours=hours)


def test_a_zone_that_python_does_not_know_is_refused_with_the_fix() -> None:
    with pytest.raises(
        SessionError, match=r"timeZone is 'PST', which Python does not know; set a name such as"
    ):
        zone_named("PST")


def test_values_without_times_cost_nothing() -> None:
    for ddl in ("array<int>", "struct<a:map<string,timestamp_ntz>>", "string"):
        assert times_in(parse_any_type(ddl, "type"), lambda value: value) is None
    assert np.all([times_in(SCHEMA.field(name).type, str) for name in ("at", "s", "l", "m")])
