"""What the handle of a query and its start refuse before anything runs; no session is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.dataplane.parquet_folder import ParquetFolder
from penstock.errors import CheckpointError, DeclarationError, PenstockError, PlanError
from penstock.spark import elasticity, running
from penstock.spark.hub import HubOver
from penstock.spark.query import Query
from penstock.spark.sinks import check_sink


def handle() -> Query:
    query = Query("counts")
    kinds = {"clicks": "source", "per_user": "operator", "per_day": "operator", "sink": "sink"}
    stages = {name: SimpleNamespace(kind=kind) for name, kind in kinds.items()}
    query._shell = SimpleNamespace(engine=SimpleNamespace(program=SimpleNamespace(stages=stages)))  # type: ignore[assignment]
    return query


@pytest.mark.parametrize("ask", [Query.latency, Query.digests])
def test_an_operator_that_is_not_there_is_named_with_those_that_are(ask: Any) -> None:
    said = (
        r"query counts has no operator 'per_usr' \(did you mean 'per_user'\?\); it has per_user, per_day\.$"
    )
    with pytest.raises(DeclarationError, match=said):
        ask(handle(), "per_usr")


@pytest.mark.parametrize("since", ["x", True, float("nan"), [1]])
def test_latency_is_asked_since_a_moment_of_the_monotonic_clock(since: Any) -> None:
    with pytest.raises(DeclarationError, match=r"takes a value of time\.monotonic\(\)"):
        handle().latency("per_user", since)


@pytest.mark.parametrize(
    ("paused", "slow", "says"),
    [
        (False, {}, "Waiting for data to arrive"),
        (True, {}, "Paused"),
        (
            False,
            {"a": (7, 5.2), "b": (9, 6.0)},
            "'a' has been at epoch 7 for 5 s; 'b' has been at epoch 9 for 6 s",
        ),
        (True, {"a": (7, 5.2)}, "Paused; 'a' has been at epoch 7 for 5 s"),
    ],
)
def test_a_query_that_is_paused_says_so_and_what_is_still_at_work(paused: bool, slow: Any, says: str) -> None:
    engine = SimpleNamespace(
        chains=SimpleNamespace(waiting_bytes=lambda: 0), runs={}, is_paused_by_hand=lambda: paused,
        slow_epochs=lambda: slow,
    )  # fmt: skip
    query = Query("counts")
    hub = SimpleNamespace(ask=lambda question, timeout: question())
    query._shell = SimpleNamespace(engine=engine, hub=hub)  # type: ignore[assignment]
    assert query.status["message"] == says


def test_rows_of_a_sink_that_keeps_none_are_refused_with_what_keeps_them() -> None:
    query = handle()
    query._sinks = {"sink": "noop", "sink.kept": "memory"}
    with pytest.raises(DeclarationError, match=r"its sink is 'noop'; declare it with format\('memory'\)"):
        query.table()
    stages: Any = query._shell.engine.program.stages  # type: ignore[union-attr]
    stages["sink.kept"] = SimpleNamespace(schema=pa.schema([("n", pa.int64())]))
    assert query.table("kept").num_rows == 0


def test_what_is_asked_of_elasticity_after_the_end_is_refused_as_everything_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(look: Any) -> None:
        raise HubOver("the query has ended")

    monkeypatch.setattr(elasticity, "is_local", lambda spark: True)
    monkeypatch.setattr(elasticity, "real_cores", lambda spark: 2)
    shell: Any = SimpleNamespace(hub=SimpleNamespace(ask=ask))
    ended = elasticity.Elasticity(shell, None, "counts")  # type: ignore[arg-type]
    for verb, call in (
        ("hold", lambda: ended.hold(0.5)),
        ("success", ended.success),
        ("describe", ended.describe),
    ):
        with pytest.raises(
            PlanError, match=f"{verb}: the query has ended; start counts again first"
        ) as raised:
            call()
        assert type(raised.value) is PlanError


@pytest.mark.parametrize("timeout", ["5", -1, True, [1]])
def test_a_time_to_wait_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(DeclarationError, match=r"awaitTermination\(timeout\) takes seconds, not"):
        handle().awaitTermination(timeout)
    with pytest.raises(DeclarationError, match=r"awaitAnyTermination\(timeout\) takes seconds, not"):
        penstock.streams.awaitAnyTermination(timeout)


def test_a_folder_of_another_query_is_refused_before_a_checkpoint_is_made(tmp_path: Path) -> None:
    ParquetFolder(str(tmp_path / "out"), "9a1c", 1).add(pa.table({"n": [1]}), 1)
    stream = penstock.from_rows([(1,)], schema="n long")
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    declared = writer.option("checkpointLocation", str(tmp_path / "new")).declare()
    with pytest.raises(CheckpointError, match="holds rows of query 9a1c, and this checkpoint is new"):
        check_sink(declared, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("name", "checkpoint"), [("cell", "/other"), ("other", "/c"), ("cell", "/c")])
def test_a_second_query_of_a_name_or_checkpoint_is_refused_alike(
    name: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = SimpleNamespace(name="cell", id="1", checkpoint="/c", isActive=True)
    monkeypatch.setattr(running, "_started", [runs])
    with pytest.raises(
        CheckpointError, match=r"query 'cell' runs already on the checkpoint /c; .*call .*takeover"
    ):
        running.make_way(name, checkpoint, takeover=False)


def test_a_name_that_is_taken_by_a_query_on_another_checkpoint_is_what_is_said_to_clash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = SimpleNamespace(name="cell", id="1", checkpoint="/c", isActive=True)
    monkeypatch.setattr(running, "_started", [runs])
    with pytest.raises(
        CheckpointError, match="no two queries can have one name: give this one another queryName"
    ):
        running.make_way("cell", "/other", takeover=False)
    with pytest.raises(CheckpointError) as raised:
        running.make_way("cell", "/c", takeover=False)
    assert "queryName" not in str(raised.value)


@pytest.mark.parametrize(
    "raised", [PermissionError(13, "Permission denied", "cp/x"), CheckpointError("it is gone.")]
)
@pytest.mark.parametrize("where", ["ingest", "reports"])
def test_whatever_the_watching_raises_ends_the_query_instead_of_nothing(
    raised: Exception, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, told = Query("counts"), []
    query.id = query.runId
    monkeypatch.setattr("penstock.spark.query.WATCH_INTERVAL_S", 0.001)
    monkeypatch.setattr("penstock.spark.query.REPORT_INTERVAL_S", 0.001)

    def fail() -> Any:
        raise raised

    def end_with(error: Any) -> None:
        told.append(error)
        query._over.set()

    query._shell = SimpleNamespace(end_with=end_with, over=False)  # type: ignore[assignment]
    query._reports = SimpleNamespace(add=fail, end=lambda: None)  # type: ignore[assignment]
    if where == "ingest":
        query._ingests.append(SimpleNamespace(failure=fail))  # type: ignore[arg-type]
    query._watch()
    assert len(told) == 1 and isinstance(told[0], PenstockError)
    assert str(raised) in str(told[0]) and (told[0] is raised or told[0].__cause__ is raised)


def test_what_the_watching_raises_because_the_query_ends_is_no_reason_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, asked = Query("counts"), []
    query.id = query.runId
    monkeypatch.setattr("penstock.spark.query.WATCH_INTERVAL_S", 0.001)
    monkeypatch.setattr("penstock.spark.query.REPORT_INTERVAL_S", 0.001)

    def fail() -> Any:
        asked.append(1)
        if len(asked) == 3:
            query._over.set()
        raise ConnectionError("Spark is gone")

    def refuse(error: Any) -> None:
        raise AssertionError(error)

    query._shell = SimpleNamespace(end_with=refuse, over=True)  # type: ignore[assignment]
    query._reports = SimpleNamespace(add=lambda: None, end=lambda: None)  # type: ignore[assignment]
    query._ingests.append(SimpleNamespace(failure=fail))  # type: ignore[arg-type]
    query._watch()
    assert len(asked) == 3
