"""What `checkpoint show --key` says of aggregates and open windows: what the rows so far come to, by arithmetic."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.faults.runs import fast_disk
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.dataplane.inspecting import look
from penstock.dataplane.key_states import read_key
from penstock.dataplane.rebuilding import input_schema
from penstock.dataplane.sourcing import Arrivals
from penstock.sim.inprocess import Driver
from penstock.sim.loop import Loop
from penstock.testing.declared import compile_stream

ROWS = 40
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Stream = penstock.Stream


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """A row every 10 s: users a and b in turn, an amount that is the number of the row."""
    return [
        {
            "user": "ab"[at % 2],
            "amount": at,
            "word": f"w{at:02d}",
            "at": START + dt.timedelta(seconds=10 * at),
        }
        for at in range(first, first + count)
    ]


SCHEMA = "user string, amount long, word string, at timestamp"


def make(offset: int, count: int) -> pa.RecordBatch:
    types = [
        ("user", pa.string()),
        ("amount", pa.int64()),
        ("word", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_pylist(rows(offset, count), pa.schema(types))


def left_open(tmp_path: Path, declare: Callable[[Stream], Stream]) -> str:
    """A checkpoint whose source has given all rows and has not ended, so that the last windows are open."""
    source = penstock.generate(make, schema=SCHEMA, rate=[(1.0, ROWS), (0.0, 0.0)], name="rows")
    nodes, program = compile_stream(declare(source), "test", None, tasks=2)
    (node,) = [one for one in nodes if not one.inputs]
    driver = Driver(
        fast_disk(), str(tmp_path / "checkpoint"), program, node_dir=str(tmp_path / "nodes"), loop=Loop(1),
        arrivals=lambda stage: Arrivals(node.rate, node.limit),
    )  # fmt: skip
    driver.loop.run_until(lambda: driver.engine.chains["it"].rows_in == ROWS, 30.0)
    driver.loop.run_until(driver.engine.draining.is_quiet, 5.0)
    driver.stop()
    return str(tmp_path / "checkpoint")


def states_of(checkpoint: str, *key: str) -> dict[str, Any]:
    seen = look(fast_disk(), checkpoint)
    chains = seen.chains.of("it")
    found = read_key(fast_disk(), checkpoint, chains, seen.meta.stages["it"], input_schema(chains[0]), key)
    return found.states


A = [row for row in rows(0, ROWS) if row["user"] == "a"]
AMOUNTS = [row["amount"] for row in A]


def test_aggregates_are_shown_by_name(tmp_path: Path) -> None:
    checkpoint = left_open(
        tmp_path,
        lambda given: given.groupBy("user").agg(
            penstock.count(),
            penstock.sum("amount").alias("total"),
            penstock.max("at").alias("last"),
            name="it",
        ),
    )
    assert states_of(checkpoint, "a") == {"count": len(A), "total": sum(AMOUNTS), "last": A[-1]["at"]}
    assert states_of(checkpoint, "nobody") == {}


def test_aggregates_that_fit_no_words_are_too(tmp_path: Path) -> None:
    checkpoint = left_open(
        tmp_path,
        lambda given: given.groupBy("user").agg(
            penstock.max("word").alias("longest"),
            penstock.top_n("amount", 2).alias("top"),
            penstock.count(),
            name="it",
        ),
    )
    found = states_of(checkpoint, "a")
    assert found == {"longest": A[-1]["word"], "top": sorted(AMOUNTS)[-2:][::-1], "count": len(A)}


def shown(first: dt.datetime, last: dt.datetime) -> str:
    return f"[{first:%Y-%m-%d %H:%M:%S}, {last:%Y-%m-%d %H:%M:%S}) UTC"


def expected(
    size: dt.timedelta, slide: dt.timedelta, of: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Rows by window, of those that a watermark of a minute behind the last row leaves open."""
    watermark = rows(ROWS - 1, 1)[0]["at"] - dt.timedelta(minutes=1)
    found = {}
    start = START - size
    while start <= of[-1]["at"]:
        held = [row for row in of if start <= row["at"] < start + size]
        if held and start + size > watermark:
            found[shown(start, start + size)] = held
        start += slide
    return found


MINUTE = dt.timedelta(minutes=1)


@pytest.mark.parametrize("slide", [MINUTE, MINUTE / 2])
@pytest.mark.parametrize("wide", [False, True])
def test_an_open_window_is_shown_by_its_bounds(tmp_path: Path, slide: dt.timedelta, wide: bool) -> None:
    window = penstock.window("at", "1 minute", f"{slide.seconds} seconds")
    more = [penstock.max("word").alias("longest")] if wide else []
    checkpoint = left_open(
        tmp_path,
        lambda given: (
            given.withWatermark("at", "1 minute")
            .groupBy(window, "user")
            .agg(penstock.sum("amount").alias("total"), *more, name="it")
        ),
    )
    by_window = expected(MINUTE, slide, A)
    assert len(by_window) >= 2
    wanted = {
        name: {"total": sum(row["amount"] for row in held), **({"longest": held[-1]["word"]} if wide else {})}
        for name, held in by_window.items()
    }
    assert states_of(checkpoint, "a") == wanted


def test_windows_over_all_rows_are_shown_without_a_key(tmp_path: Path) -> None:
    checkpoint = left_open(
        tmp_path,
        lambda given: (
            given.withWatermark("at", "1 minute").groupBy(penstock.window("at", "1 minute")).count(name="it")
        ),
    )
    wanted = {name: {"count": len(held)} for name, held in expected(MINUTE, MINUTE, rows(0, ROWS)).items()}
    assert states_of(checkpoint) == wanted
    said = CliRunner().invoke(app, ["checkpoint", "show", checkpoint, "--operator", "it"]).stdout
    assert all(f"{name}  {held}" in said for name, held in wanted.items()), said


def test_a_session_is_shown_with_its_end(tmp_path: Path) -> None:
    checkpoint = left_open(
        tmp_path,
        lambda given: (
            given.withWatermark("at", "1 minute")
            .groupBy(penstock.session_window("at", "30 seconds"), "user")
            .agg(penstock.count(), name="it")
        ),
    )
    gap = dt.timedelta(seconds=30)
    assert states_of(checkpoint, "a") == {shown(A[0]["at"], A[-1]["at"] + gap): {"count": len(A)}}


def test_a_window_of_a_function_says_how_many_rows_wait_for_it(tmp_path: Path) -> None:
    checkpoint = left_open(
        tmp_path,
        lambda given: (
            given.withWatermark("at", "1 minute")
            .groupBy(penstock.window("at", "1 minute"), "user")
            .apply_rows(
                lambda key, rows, state: [],
                schema="n long",
                state={"kept": penstock.ValueState("long")},
                name="it",
            )
        ),
    )
    wanted = {name: {"rows": len(held)} for name, held in expected(MINUTE, MINUTE, A).items()}
    assert states_of(checkpoint, "a") == {"kept": None, **wanted}
