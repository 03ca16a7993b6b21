"""A running query is given cores, loses them, has shards moved, is paused and steered; rows keep flowing and none is
lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock import SLA, PlanError
from penstock.cli.main import app
from penstock.errors import QueryError

ROWS = 30_000
KEYS = 200


def numbers(offset: int, count: int) -> pa.RecordBatch:
    rows = range(offset, offset + count)
    return pa.record_batch({"k": [row % KEYS for row in rows], "v": list(rows)})


def total(key: Any, rows: Any, state: Any) -> list[tuple[int, int]]:
    state.sum.update((state.sum.get() or 0) + sum(row.v for row in rows))
    return [(key.k, state.sum.get())]


def start(spark: Any, folder: Path, **more: Any) -> Any:
    source = ps.generate(numbers, schema="k long, v long", rate=6_000.0, limit=more.pop("limit", ROWS))
    totals = source.groupBy("k").apply_rows(
        total,
        schema="k long, sum long",
        state={"sum": ps.ValueState("long")},
        name="total",
        cores=1,
        shards=32,
    )
    writer = totals.writeStream.format("memory").option("checkpointLocation", str(folder / "cp"))
    for name, value in more.items():
        writer = writer.option(name, value) if name != "sla" else writer.sla(*value)
    return writer.start(spark)


def expected(rows: int = ROWS) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in range(rows):
        found[row % KEYS] = found.get(row % KEYS, 0) + row
    return found


def last_values(query: Any) -> dict[int, int]:
    table = query.table().to_pydict()
    return dict(zip(table["k"], table["sum"], strict=True))


def until(what: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def settled(query: Any) -> bool:
    return bool(query._ask(lambda shell: shell.engine.placing.is_settled("total")))


def tasks(query: Any) -> int:
    return int(query._ask(lambda shell: len(shell.engine.runs["total"].slots)))


def test_cores_and_shards_change_while_rows_flow(spark: Any, tmp_path: Path) -> None:
    query = start(spark, tmp_path)
    try:
        until(lambda: settled(query))
        assert "from 1 to 2 cores" in query.rescale("total", 2)
        until(lambda: settled(query) and tasks(query) == 2)
        assert "3 shards" in query.move("total", [0, 1, 2], 1)
        until(lambda: settled(query))
        owners = query._ask(lambda shell: shell.engine.runs["total"].task_of[:3].tolist())
        assert owners == [1, 1, 1]
        told = CliRunner().invoke(app, ["query", "rescale", str(tmp_path / "cp"), "total", "--cores", "1"])
        assert told.exit_code == 0 and "from 2 to 1 core;" in told.output
        until(lambda: settled(query) and tasks(query) == 1)
        query.processAllAvailable()
        assert last_values(query) == expected()
        query.rescale("total", 3)
        until(lambda: settled(query) and tasks(query) == 3)
        owners = query._ask(lambda shell: shell.engine.runs["total"].task_of.tolist())
        query.stop()
        query = start(spark, tmp_path)
        assert query._ask(lambda shell: shell.engine.runs["total"].task_of.tolist()) == owners
        until(lambda: settled(query) and tasks(query) == 3)
    finally:
        query.stop()


def test_a_plan_that_cannot_be_is_refused_and_the_query_goes_on(spark: Any, tmp_path: Path) -> None:
    query = start(spark, tmp_path, limit=3_000)
    try:
        until(lambda: settled(query))
        for ask, says in (
            (lambda: query.rescale("total", 0), "at least one core"),
            (lambda: query.rescale("total", 999), "cannot have 999 cores"),
            (lambda: query.move("total", 99, 0), "no shard 99"),
            (lambda: query.move("total", 1, 7), "no task 7"),
            (lambda: query.drain("mars"), "no node mars"),
            (lambda: query.drain("driver"), "the only one"),
        ):
            with pytest.raises(PlanError, match=says):
                ask()
        query.processAllAvailable()
        assert last_values(query) == expected(3_000)
    finally:
        query.stop()


def test_a_paused_query_takes_nothing_in_and_goes_on_where_it_was(spark: Any, tmp_path: Path) -> None:
    query = start(spark, tmp_path, limit=12_000)
    try:
        until(lambda: settled(query))
        query.pause()
        time.sleep(0.3)
        before = query._ask(lambda shell: shell.engine.chains["total"].epoch)
        time.sleep(0.5)
        assert query._ask(lambda shell: shell.engine.chains["total"].epoch) == before
        assert query.status["message"] == "Paused"
        with pytest.raises(QueryError, match=r"is paused, and what has arrived waits; call resume\(\) first"):
            query.processAllAvailable()
        query.resume()
        assert query.status["message"] != "Paused"
        query.processAllAvailable()
        assert last_values(query) == expected(12_000)
    finally:
        query.stop()


def test_a_policy_that_advises_says_what_it_sees_and_touches_nothing(spark: Any, tmp_path: Path) -> None:
    sla = (SLA(latency=2.0), "advise:elasticutor")
    query = start(spark, tmp_path, limit=18_000, controlSeconds=0.2, sla=sla)
    try:
        until(lambda: settled(query))
        query.processAllAvailable()
        until(lambda: len(query.decisions()) > 0)
        assert not any(decision.acted for decision in query.decisions())
        assert all(str(decision) for decision in query.decisions())
        assert tasks(query) == 1
        assert last_values(query) == expected(18_000)
    finally:
        query.stop()


def test_an_unknown_policy_is_refused_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ps.DeclarationError, match="elasticutor"):
        start(spark, tmp_path, sla=(SLA(latency=1.0), "elastikutor"))
    assert not (tmp_path / "cp").exists()


def test_a_policy_is_swapped_while_the_query_runs_and_each_says_what_it_predicted(
    spark: Any, tmp_path: Path
) -> None:
    journal = tmp_path / "decisions.jsonl"
    query = start(
        spark,
        tmp_path,
        limit=24_000,
        controlSeconds=0.2,
        journal=str(journal),
        sla=(SLA(latency=2.0), "drs"),
    )
    try:
        until(lambda: any(one.observed_s is not None for one in query.decisions()))
        query.elasticity.hold(SLA(latency=2.0, window=0.5), "streamswitch")
        until(lambda: query.decisions()[-1].policy == "streamswitch")
        before = query.lastProgress["operators"]["total"]["rowsIn"]
        until(lambda: query.lastProgress["operators"]["total"]["rowsIn"] > before, 10.0)
        report = query.lastProgress
        assert report["control"]["policy"] == "streamswitch"
        assert report["control"]["modelErrors"]["mmk"]["predictions"] > 0
        query.processAllAvailable()
        until(lambda: query.elasticity.success()["total"].judged >= 32)
        assert query.lastProgress["operators"]["total"]["slaSuccessRatio"] is not None
        assert any("(shard, window) pairs" in line for line in query.elasticity.describe())
        assert last_values(query) == expected(24_000)
    finally:
        query.stop()
    replayed = CliRunner().invoke(app, ["replay", str(journal), "--policy", "drs"])
    assert replayed.exit_code in (0, 1) and "decided again" in replayed.output
