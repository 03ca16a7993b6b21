"""An operator of a running query is split into several executors and merged again; rows keep flowing and none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_elasticity import expected, last_values, start, until
from typer.testing import CliRunner

from penstock import PlanError
from penstock.cli.main import app
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule


def made(query: Any) -> int:
    return int(query._ask(lambda shell: len(shell.engine.redealing.made)))


def whole(query: Any) -> bool:
    return bool(query._ask(lambda shell: all(run.is_whole for run in shell.engine.runs.values())))


def test_an_operator_is_split_and_merged_under_load(spark: Any, tmp_path: Path) -> None:
    query = start(spark, tmp_path, retainAll="true")
    program = query._shell.engine.program
    try:
        until(lambda: whole(query))
        assert "pass to 'total#2'" in query.split("total")
        until(lambda: made(query) == 1 and whole(query))
        told = CliRunner().invoke(app, ["query", "split", str(tmp_path / "cp"), "total"])
        assert told.exit_code == 0 and "pass to 'total#3'" in told.output
        until(lambda: made(query) == 2 and whole(query))
        shown = "\n".join(query.elasticity.describe())
        assert "total#2 task 0" in shown and "total#3 task 0" in shown
        assert "from 3 to 4 cores" in query.rescale("total", 4)
        until(lambda: query._ask(lambda shell: all(map(shell.engine.placing.is_settled, shell.engine.runs))))
        report = query.lastProgress["operators"]["total"]
        until(lambda: "executors" in query.lastProgress["operators"]["total"])
        report = query.lastProgress["operators"]["total"]
        assert report["shards"] == 32 and len(report["executors"]) == 3
        assert report["rowsIn"] == sum(one["rowsIn"] for one in report["executors"].values())
        sample = query.elasticity._take()
        assert sample is not None and {one.operator for one in sample.executors.values()} == {"total"}
        assert sum(int((one.task_of >= 0).sum()) for one in sample.executors.values()) == 32
        assert "pass to" in query.merge("total")
        until(lambda: made(query) == 3 and whole(query))
        query.merge("total")
        until(lambda: made(query) == 4 and whole(query))
        with pytest.raises(PlanError, match="nothing to merge"):
            query.merge("total")
        query.processAllAvailable()
        assert last_values(query) == expected()
        assert len(query.digests("total")) == 32
    finally:
        query.stop()
    check_schedule(str(tmp_path / "cp"), program, complete=True)
    assert replay(str(tmp_path / "cp"), program).rows > 0


def test_a_query_begins_with_the_executors_that_it_is_told_and_keeps_them(spark: Any, tmp_path: Path) -> None:
    query = start(spark, tmp_path, limit=3_000, executors=2)
    try:
        query.processAllAvailable()
        assert last_values(query) == expected(3_000)
        assert query._ask(lambda shell: len(shell.engine.chains.of("total"))) == 2
    finally:
        query.stop()
    shown = CliRunner().invoke(app, ["checkpoint", "show", str(tmp_path / "cp")])
    assert shown.exit_code == 0 and "total#2" in shown.output
    told = CliRunner().invoke(app, ["checkpoint", "verify", str(tmp_path / "cp")])
    assert told.exit_code == 0, told.output
