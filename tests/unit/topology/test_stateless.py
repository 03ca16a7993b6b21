"""Stateless steps: declared between stages, fused into the one that makes the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.faults.runs import KEPT, fast_disk

import penstock
from penstock import col
from penstock.dataplane.compile import compile_program
from penstock.sim.inprocess import Driver
from penstock.sim.programs import key_of, make_rows
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

ROWS = 300


def source() -> penstock.Stream:
    return penstock.generate(make_rows, schema="id long, k long", rate=1000, name="source", limit=ROWS)


def through(stream: penstock.Stream, table: pa.Table) -> list[dict[str, Any]]:
    (feed,) = stream.node.feeds()
    for step in feed.steps:
        table = step.apply(table)
    return table.to_pylist()


ROW = pa.table({"id": [1, 2, 3], "k": [5, 6, 7]})


def test_columns_are_computed_renamed_and_dropped_as_in_spark() -> None:
    assert source().select("*", (col("id") * 2).alias("twice")).columns == ["id", "k", "twice"]
    assert source().withColumn("k", col("k") + 1).columns == ["id", "k"]
    assert source().withColumnRenamed("k", "key").columns == ["id", "key"]
    assert source().withColumnRenamed("none", "key").columns == ["id", "k"]
    assert source().drop("k", "none").columns == ["id"]
    assert through(source().withColumn("k", col("k") + 1), ROW)[0] == {"id": 1, "k": 6}


def test_rows_are_filtered_mapped_and_multiplied() -> None:
    assert through(source().filter(col("id") > 1).where(col("k") < 7), ROW) == [{"id": 2, "k": 6}]
    mapped = source().map(lambda row: (row.id + row.k,), schema="total long")
    assert through(mapped, ROW) == [{"total": 6}, {"total": 8}, {"total": 10}]
    many = source().flat_map(
        lambda row: [(row.id, n) for n in range(row.id - 1)] or None, schema="id long, n long"
    )
    assert [row["id"] for row in through(many, ROW)] == [2, 3, 3]
    arrow = source().map_arrow(
        lambda table: table.append_column("one", pa.array([1] * len(table))), schema="one long"
    )
    assert through(arrow, ROW) == [{"one": 1}] * 3


def test_a_function_that_fails_names_step_and_row() -> None:
    with pytest.raises(
        penstock.OperatorError, match=r"map\(\.\.\.\) after 'source' failed for .*id=1.*ZeroDivisionError"
    ):
        through(source().map(lambda row: (1 / 0,), schema="x double"), ROW)
    with pytest.raises(penstock.OperatorError, match="returned int"):
        through(source().map_arrow(lambda table: 3, schema="x double"), ROW)  # type: ignore[arg-type, return-value]
    with pytest.raises(penstock.OperatorError, match="x divides by zero"):
        through(source().select((col("id") / (col("k") - 5)).alias("x")), ROW)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda s: s.select(), "at least one column"),
        (lambda s: s.select("idd"), "did you mean 'id'"),
        (lambda s: s.select("id", "id"), "appears twice"),
        (lambda s: s.filter(col("id")), "takes a condition"),
        (lambda s: s.filter(3), "takes column names and penstock.col"),
        (lambda s: s.map(3, schema="x long"), "takes a function"),
        (lambda s: s.select("id").groupBy("k"), "k"),
    ],
)
def test_mistakes_fail_where_they_are_written(declare: Any, said: str) -> None:
    with pytest.raises(penstock.DeclarationError, match=said):
        declare(source())


def test_steps_run_in_the_stage_that_makes_the_rows_and_a_run_of_them_replays(tmp_path: Path) -> None:
    even = source().filter(col("k") % 2 == 0).select("id", (col("k") % 5).alias("g"))
    counted = even.groupBy("g").agg(penstock.count(), penstock.last("id"), name="counted", shards=4, cores=2)
    shown = (
        counted.filter(col("count") > 3)
        .withColumn("tenfold", col("count") * 10)
        .select("g", "count", "tenfold")
    )
    program = compile_program(shown.node, tasks=2, memory_bytes=1 << 20)
    assert list(program.stages) == ["source", "counted", "sink"], "no stage of their own"
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), program, KEPT, 1, str(tmp_path / "node"), rows=ROWS, rate=4_000.0
    )
    driver.run_until(lambda: driver.engine.chains["counted"].epoch > 3)
    driver.kill(driver.live_leases()[0])
    assert driver.run_until("drained", 30.0), driver.failed
    rows = driver.sink.rows()
    last = {row["g"]: row["count"] for row in rows}
    model: dict[int, int] = {}
    for number in range(ROWS):
        if key_of(number) % 2 == 0:
            model[key_of(number) % 5] = model.get(key_of(number) % 5, 0) + 1
    assert last == model
    assert all(row["tenfold"] == 10 * int(str(row["count"])) and int(str(row["count"])) > 3 for row in rows)
    driver.stop()
    check_schedule(driver.checkpoint, program, complete=True)
    assert replay(driver.checkpoint, program).rows > 0


def test_two_steps_of_one_source_feed_two_operators_in_a_row() -> None:
    first = source().filter(col("id") > 5).groupBy("k").count(name="first")
    second = first.withColumn("parity", col("count") % 2).groupBy("parity").count(name="second")
    program = compile_program(second.node, tasks=1, memory_bytes=1 << 20)
    assert program.stages["second"].inputs[0].schema.names == ["k", "count", "parity"]
    assert program.stages["first"].edges[0].keys == ("parity",)


def test_a_union_takes_the_rows_of_both_and_a_run_of_it_replays(tmp_path: Path) -> None:
    rows = source()
    low, high = rows.filter(col("k") < 10), rows.filter(col("k") >= 20).select("id", col("k").alias("key"))
    both = low.union(high).withColumn("g", col("k") % 3)
    counted = both.groupBy("g").agg(penstock.count(), penstock.last("id"), name="counted", shards=4, cores=2)
    program = compile_program(counted.node, tasks=2, memory_bytes=1 << 20)
    assert [given.producer for given in program.stages["counted"].inputs] == ["source", "source"]
    assert program.stages["counted"].slots == 1
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), program, KEPT, 1, str(tmp_path / "node"), rows=ROWS, rate=4_000.0
    )
    driver.run_until(lambda: driver.engine.chains["counted"].epoch > 3)
    driver.kill(driver.live_leases()[0])
    assert driver.run_until("drained", 30.0), driver.failed
    model: dict[int, int] = {}
    for number in range(ROWS):
        if key_of(number) < 10 or key_of(number) >= 20:
            model[key_of(number) % 3] = model.get(key_of(number) % 3, 0) + 1
    assert {row["g"]: row["count"] for row in driver.sink.rows()} == model
    driver.stop()
    check_schedule(driver.checkpoint, program, complete=True)
    assert replay(driver.checkpoint, program).rows > 0


def test_streams_that_do_not_fit_are_not_put_together() -> None:
    with pytest.raises(penstock.DeclarationError, match="different columns"):
        source().union(source().select("id"))
    with pytest.raises(penstock.DeclarationError, match="same names and types"):
        source().unionByName(source().withColumnRenamed("k", "key"))
    with pytest.raises(penstock.DeclarationError, match="takes a stream"):
        source().union(3)  # type: ignore[arg-type]
    assert source().unionByName(source().select("k", "id")).columns == ["id", "k"]


def test_rows_that_are_there_make_a_bounded_source(tmp_path: Path) -> None:
    rows = penstock.from_rows(
        [("a", 1), {"user": "b", "n": 2}, ("a", 3)], schema="user string, n long", name="given"
    )
    totals = rows.groupBy("user").agg(penstock.sum("n").alias("total"), name="totals", shards=4)
    assert totals.node.inputs[0].bounded
    program = compile_program(totals.node, tasks=1, memory_bytes=1 << 20)
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), program, KEPT, 1, str(tmp_path / "node"), rows=3, rate=1e12
    )
    assert driver.run_until("drained", 10.0), driver.failed
    assert {row["user"]: row["total"] for row in driver.sink.rows()} == {"a": 4, "b": 2}


@pytest.mark.parametrize(
    ("rows", "schema", "said"),
    [
        ([(1,)], None, "needs schema="),
        ([("x",)], "n long", "do not fit its schema"),
        (3, "n long", "a list of rows or a table"),
        (pa.table({"m": [1]}), "n long", "do not fit its schema"),
    ],
)
def test_rows_that_do_not_fit_are_refused_at_once(rows: object, schema: object, said: str) -> None:
    with pytest.raises(penstock.DeclarationError, match=said):
        penstock.from_rows(rows, schema=schema)
