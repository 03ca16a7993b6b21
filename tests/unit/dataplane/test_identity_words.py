"""What changed against a checkpoint is said as it is declared, never as it is stored."""

from __future__ import annotations

import pytest

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.fitting import fit_program
from penstock.dataplane.identity import describe
from penstock.dataplane.program import Program
from penstock.errors import CheckpointError
from penstock.topology.durations import parse_duration, show_duration

ROWS = penstock.from_rows([], schema="user string, n long, price double, ts timestamp", name="rows")
TIMED = ROWS.withWatermark("ts", "1 minute")


def program(stream: penstock.Stream) -> Program:
    return compile_program(stream.node, tasks=1, memory_bytes=1 << 20)


def by(window: object) -> penstock.Stream:
    return TIMED.groupBy(window, "user").agg(penstock.count(), name="op")  # type: ignore[call-overload, no-any-return]


def agg(*aggregates: object) -> penstock.Stream:
    return ROWS.groupBy("user").agg(*aggregates, name="op")  # type: ignore[arg-type]


WINDOW, SESSION = penstock.window, penstock.session_window


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (
            by(WINDOW("ts", "20 seconds")),
            by(WINDOW("ts", "90 minutes")),
            r"was grouped by window\('ts', '20 seconds'\) and is by window\('ts', '1 hour 30 minutes'\); change it back",
        ),
        (
            by(WINDOW("ts", "1 hour")),
            by(WINDOW("ts", "1 hour", "5 minutes")),
            r"window\('ts', '1 hour'\) and is by window\('ts', '1 hour', '5 minutes'\)",
        ),
        (
            by(WINDOW("ts", "1 hour")),
            by(WINDOW("ts", "1 hour", startTime="10 minutes")),
            r"window\('ts', '1 hour', '1 hour', '10 minutes'\)",
        ),
        (
            by(SESSION("ts", "5 minutes")),
            by(WINDOW("ts", "5 minutes")),
            r"session_window\('ts', '5 minutes'\) and is by window\('ts', '5 minutes'\)",
        ),
        (
            agg(penstock.count(), penstock.sum("n")),
            agg(penstock.count(), penstock.max("price")),
            r"its aggregates were count\(\), sum\('n'\) and are count\(\), max\('price'\); declare the same ones",
        ),
        (
            agg(penstock.top_n("n", 3)),
            agg(penstock.top_n("n", 4)),
            r"top_n\('n', 3\) .*and are top_n\('n', 4\)",
        ),
        (
            agg(penstock.sum("n")),
            ROWS.withColumn("n", penstock.col("n").cast("double"))
            .groupBy("user")
            .agg(penstock.sum("n"), name="op"),
            r"sum\('n'\) of int64 and are sum\('n'\) of double",
        ),
        (
            agg(penstock.count()),
            ROWS.groupBy("user").apply_rows(lambda key, rows, state: None, schema="n long", name="op"),
            r"it was aggregates \(agg, count, ...\) and is a row function \(apply_rows\)",
        ),
    ],
)
def test_a_change_is_said_as_it_is_declared(was: penstock.Stream, now: penstock.Stream, said: str) -> None:
    meta = describe(program(was), 2, "q")
    with pytest.raises(CheckpointError, match=said) as raised:
        fit_program("/c", meta, program(now), 1)
    assert "{" not in str(raised.value) and "000000" not in str(raised.value)
    assert "'op'" in str(raised.value) and "new checkpointLocation" in str(raised.value)


@pytest.mark.parametrize(
    ("micros", "text"),
    [(20_000_000, "20 seconds"), (5_400_000_000, "1 hour 30 minutes"), (0, "0 seconds"), (1, "1 microsecond"),
     (-600_000_000, "-10 minutes"), (-5_400_000_000, "-1 hour -30 minutes")],
)  # fmt: skip
def test_a_duration_reads_back(micros: int, text: str) -> None:
    assert show_duration(micros) == text
    assert parse_duration(text, "here") == micros
