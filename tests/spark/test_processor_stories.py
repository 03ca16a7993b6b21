"""Processors with PySpark's classes and without a session: crashes in the data, initial and imported state, bad input."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark import processors as ours

import penstock
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.imported import ImportedVariable, Manifest, write_imported
from penstock.dataplane.importing import with_imported
from penstock.testing import Crash, LoseLease, run, script

START = datetime(2024, 1, 1, tzinfo=UTC)


def row(n: int, user: str, seconds: float = 0.0, kind: str = "x", amount: int = 1) -> tuple[Any, ...]:
    return (n, user, kind, amount, START + timedelta(seconds=seconds))


def tuples(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter((one["user"], one["n"], one["a"], one["b"]) for one in table.to_pylist())


def test_initial_rows_count_once_whatever_dies_meanwhile() -> None:
    rows: list[Any] = [row(n, f"u{n % 3}") for n in range(30)]
    stream = script([*rows[:10], LoseLease(), *rows[10:20], Crash(), *rows[20:]], schema=ours.INPUT)
    known = penstock.from_rows(
        [(f"u{at}", 100 * at) for at in range(4)], schema="user string, seen long", name="known"
    )
    made = stream.groupBy("user").transformWithState(
        ours.Started(), ours.OUTPUT, "append", "none", known.groupBy("user"), shards=4
    )
    wanted = Counter((f"u{n % 3}", n, 100 * (n % 3) + n // 3 + 1, "") for n in range(30))
    assert tuples(run(made)) == wanted


def test_sessions_close_by_timers_and_at_the_end_of_a_bounded_input() -> None:
    rows: list[Any] = [
        row(1, "a", 0),
        row(2, "a", 5),
        row(3, "b", 20),
        Crash(),
        row(4, "a", 30),
        row(5, "a", 31),
    ]
    stream = script(rows, schema=ours.INPUT).withWatermark("at", "1 second")
    made = stream.groupBy("user").transformWithState(
        ours.Session(), ours.OUTPUT, "append", "eventTime", shards=4
    )
    first = int(START.timestamp() * 1000)
    assert tuples(run(made)) == Counter(
        {
            ("a", first, 2, "session"): 1,
            ("b", first + 20_000, 1, "session"): 1,
            ("a", first + 30_000, 2, "session"): 1,
        }
    )


def test_imported_state_goes_on_with_its_timers(tmp_path: Path) -> None:
    first = int(START.timestamp() * 1000)
    held = pa.struct([("first", pa.int64()), ("last", pa.int64()), ("rows", pa.int32())])
    table = pa.table(
        {
            "k0": pa.array(["a", "b", "a"]),
            "v0": pa.array([(first, first, 7), (first, first, 8), None], held),
            "timer_ms": pa.array([None, first + 8000, first + 8000], pa.int64()),
        }
    )
    variable = ImportedVariable("session", "value", False, "first bigint, last bigint, rows int")
    write_imported(
        PosixDisk(), str(tmp_path), Manifest("sessions", "old", 3, ["user"], [variable], True), table
    )
    stream = script([row(1, "a", 2), row(2, "c", 60)], schema=ours.INPUT).withWatermark("at", "1 second")
    made = stream.groupBy("user").transformWithState(
        ours.Session(), ours.OUTPUT, "append", "eventTime", shards=4, name="sessions"
    )
    begun = penstock.Stream(with_imported(made.node, PosixDisk(), str(tmp_path)))
    assert tuples(run(begun)) == Counter(
        {("a", first, 8, "session"): 1, ("b", first, 8, "session"): 1, ("c", first + 60_000, 1, "session"): 1}
    )
    with pytest.raises(penstock.CheckpointError, match="was imported for this operator before"):
        write_imported(
            PosixDisk(), str(tmp_path), Manifest("sessions", "old", 3, ["user"], [variable], True), table
        )


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        (ImportedVariable("other", "value", False, "n bigint"), "'other' is not declared by init"),
        (ImportedVariable("count", "list", False, "count bigint"), "was a list of .* and is a value"),
        (ImportedVariable("count", "value", True, "count bigint"), "with a time to live"),
    ],
)
def test_imported_state_that_does_not_fit_is_refused(
    tmp_path: Path, variable: ImportedVariable, told: str
) -> None:
    table = pa.table({"k0": ["a"], "v0": [(1,)], "timer_ms": pa.array([None], pa.int64())})
    write_imported(
        PosixDisk(), str(tmp_path), Manifest("counts", "old", 3, ["user"], [variable], False), table
    )
    stream = script([row(1, "a")], schema=ours.INPUT).groupBy("user")
    made = stream.transformWithState(ours.RunningCount(), ours.OUTPUT, "append", "none", name="counts")
    with pytest.raises(penstock.DeclarationError, match=told):
        with_imported(made.node, PosixDisk(), str(tmp_path))
    other = stream.transformWithState(ours.RunningCount(), ours.OUTPUT, "append", "none", name="others")
    with pytest.raises(penstock.CheckpointError, match="give the processor name='counts'"):
        with_imported(other.node, PosixDisk(), str(tmp_path))


class Broken(ours.Named):
    def init(self, handle: Any) -> None:
        raise OSError("no such file")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(())


class Ending(Broken):
    def init(self, handle: Any) -> None:
        handle.getValueState("v", "n long", ttlDurationMs=10)


class Nested(Broken):
    def init(self, handle: Any) -> None:
        handle.getMapState("m", "k array<int>", "n long")


class Twice(Broken):
    def init(self, handle: Any) -> None:
        handle.getValueState("v", "n long")
        handle.getListState("v", "n long")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((ours.RunningCount, ours.OUTPUT, "append", "none"), "takes an instance of"),
        ((ours.RunningCount(), ours.OUTPUT, "complete", "none"), "outputMode 'complete' is not available"),
        ((ours.RunningCount(), ours.OUTPUT, "append", "sometimes"), "is no time mode"),
        ((ours.RunningCount(), ours.OUTPUT, "append", "eventTime"), "needs a watermark; call withWatermark"),
        ((ours.RunningCount(), "nonsense", "append", "none"), "output schema of operator"),
        (
            (Broken(), ours.OUTPUT, "append", "none"),
            "failed on the driver, where it is run.*OSError: no such file",
        ),
        ((Ending(), ours.OUTPUT, "append", "none"), "a time to live needs timeMode 'processingTime'"),
        ((Nested(), ours.OUTPUT, "append", "none"), "its map key has the field 'k' of type array<int>"),
        ((Twice(), ours.OUTPUT, "append", "none"), "give every state a name of its own"),
        ((ours.RunningCount(), ours.OUTPUT, "append", "none", "rows"), "initialState takes df.groupBy"),
        (
            (ours.RunningCount(), ours.OUTPUT, "append", "none", None, "user"),
            "is no timestamp column of its output",
        ),
    ],
)
def test_bad_declarations_are_refused_with_the_fix(given: tuple[Any, ...], told: str) -> None:
    stream = script([row(1, "a")], schema=ours.INPUT).groupBy("user")
    with pytest.raises(penstock.DeclarationError, match=told):
        stream.transformWithState(*given)


def test_rows_are_pysparks_rows() -> None:
    from pyspark.sql import Row

    from penstock.spark.processors import SparkKit

    made = tuple.__new__(SparkKit().row_class(["user", "count"]), ("a", 7))
    assert isinstance(made, Row) and made == Row(user="a", count=7) and repr(made) == "Row(user='a', count=7)"
    assert (made.user, made["count"], made[0], made[-1], made[0:1]) == ("a", 7, "a", 7, ("a",))
    assert callable(made.count) and made.asDict() == {"user": "a", "count": 7} and "user" in made
    with pytest.raises(AttributeError):
        _ = made.nothing


class Strict(ours.RunningCount):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for one in rows:
            self.count.update(((self.count.get() or (0,))[0] + 1,))
            if one.amount < 0:
                raise ValueError(f"row {one.n} has {one.amount}")
            yield self.out(key, one.n, self.count.get()[0])


def test_a_call_that_raises_becomes_one_dead_letter_whatever_dies_meanwhile() -> None:
    rows: list[Any] = [row(n, f"u{n}", amount=-1 if n == 7 else 1) for n in range(20)]
    stream = script([*rows[:5], LoseLease(), *rows[5:12], Crash(), *rows[12:]], schema=ours.INPUT)
    made = stream.groupBy("user").transformWithState(
        Strict(), ours.OUTPUT, "append", "none", name="strict", shards=4, on_error="dead_letter"
    )
    assert sorted(one["n"] for one in run(made).to_pylist()) == [n for n in range(20) if n != 7]
    (letter,) = run(made.dead_letters).to_pylist()
    assert (letter["operator"], letter["key"]) == ("strict", '["u7"]')
    assert letter["error"] == "ValueError: row 7 has -1" and '"n": 7' in letter["rows"][0]


def test_a_wrong_on_error_is_refused() -> None:
    grouped = script([row(1, "a")], schema=ours.INPUT).groupBy("user")
    with pytest.raises(
        penstock.DeclarationError, match=r"transformWithState\(\.\.\.\): on_error is 'fail' or"
    ):
        grouped.transformWithState(ours.RunningCount(), ours.OUTPUT, "append", "none", on_error="skip")
