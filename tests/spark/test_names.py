"""The handle, listeners, progress, names and options, as someone who knows PySpark expects them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming import listener as pyspark_listener
from tests.spark.flows import await_rows, numbered, running, sales, two_steps, wait_until

import penstock
from penstock.dataplane import metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Heard(StreamingQueryListener):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(event)

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener = Heard()
    penstock.streams.addListener(listener)
    yield listener
    penstock.streams.removeListener(listener)


def test_a_listener_of_pyspark_is_told_of_start_progress_idleness_and_end_in_order(
    spark: SparkSession, tmp_path: Path, heard: Heard
) -> None:
    with running(two_steps(2000, rate=4000), spark, tmp_path) as query:
        assert type(heard.events[0]) is pyspark_listener.QueryStartedEvent  # before start() has returned
        assert heard.events[0].id == uuid.UUID(query.id) and heard.events[0].runId == uuid.UUID(query.runId)
        await_rows(query, 2000)
        wait_until(lambda: bool(heard.of(pyspark_listener.QueryIdleEvent)), query)
        wait_until(lambda: len(query.recentProgress) >= 2, query)  # by itself
    wait_until(lambda: bool(heard.of(pyspark_listener.QueryTerminatedEvent)))
    reports = [event.progress for event in heard.of(pyspark_listener.QueryProgressEvent)]
    assert sum(report.numInputRows for report in reports) == 2000
    assert sum(report.sink.numOutputRows for report in reports) == query.table().num_rows
    last = heard.events[-1]
    assert type(last) is pyspark_listener.QueryTerminatedEvent
    assert last.exception is None and last.id == uuid.UUID(query.id)


def test_a_report_is_sparks_with_ours_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    with running(two_steps(1000, rate=4000), spark, tmp_path) as query:
        await_rows(query, 1000)
        report = query.lastProgress
        assert isinstance(report, pyspark_listener.StreamingQueryProgress)
        told = json.loads(report.json)
    for part, fields in metrics.SPARK.items():
        found = told if part == "report" else told["sink"] if part == "sink" else told[part][0]
        names = {field.name for field in fields}
        assert names == set(found) if part != "report" else names <= set(found), part
    assert set(told) - {field.name for field in metrics.SPARK["report"]} == {
        *(metric.name for metric in metrics.QUERY), "inputs", "operators", "outputs", "control",
    }  # fmt: skip
    assert told["sources"][0]["endOffset"] == {"sales": 1000} == told["sources"][0]["latestOffset"]
    assert report["operators"]["numbered"]["rowsIn"] == 1000 and report["inputs"]["sales"]["rows"] == 1000
    assert [one.operatorName for one in report.stateOperators] == ["numbered", "regions"]
    assert report.batchId == report["outputs"]["sink"]["epoch"] > 0
    assert report["id"] == query.id and report.sink.description == "memory"


def test_waiting_for_any_query_ends_with_the_first_and_raises_what_ended_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    def fail(key: Any, rows: Any, state: Any) -> Any:
        raise ValueError("no such luck")

    penstock.streams.resetTerminated()
    with running(two_steps(None, rate=500), spark, tmp_path / "a") as good:
        assert penstock.streams.awaitAnyTermination(0.1) is False
        assert penstock.streams.active == [good] and penstock.streams.get(good.id) is good
        failing = sales(None).groupBy("customer").apply_rows(fail, schema="x long", state={}, name="failing")
        with running(failing, spark, tmp_path / "b") as bad:
            with pytest.raises(penstock.QueryError, match="no such luck"):
                penstock.streams.awaitAnyTermination(30)
            assert penstock.streams.active == [good] and penstock.streams.get(bad.id) is None
            assert "failed, operator 'failing'" in repr(bad) and "no such luck" in bad._repr_html_()
        penstock.streams.resetTerminated()
        good.stop()
        assert penstock.streams.awaitAnyTermination(30) is True
    penstock.streams.resetTerminated()
    with pytest.raises(penstock.DeclarationError, match="takes seconds"):
        penstock.streams.awaitAnyTermination(-1)


def test_a_second_query_of_a_name_or_checkpoint_is_refused_and_a_takeover_replaces_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    def start(folder: str, **options: object) -> Any:
        writer = numbered(sales(3000, 2000)).writeStream.queryName("cell").format("memory")
        return writer.option("checkpointLocation", str(tmp_path / folder)).options(**options).start(spark)

    first = start("a")
    try:
        for folder in ("a", "b"):
            with pytest.raises(
                penstock.CheckpointError,
                match=r"query 'cell' runs already .* call penstock.streams.get\(.*takeover",
            ):
                start(folder)
        assert penstock.streams.get("cell") is first
        second = start("a", takeover="true")
        try:
            assert not first.isActive and first.exception() is None
            await_rows(second, 3000)
            ids = [row["id"] for query in (first, second) for row in query.table().to_pylist()]
            assert sorted(ids) == list(range(3000))
        finally:
            second.stop()
    finally:
        first.stop()


def test_options_are_also_settings_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    writer = numbered(sales(100, 2000)).writeStream.queryName("conf").format("memory")
    settings = {"maxEpochRows": "77", "minEpochSeconds": "0.05", "checkpointLocation": str(tmp_path)}
    try:
        for name, value in settings.items():
            spark.conf.set(f"spark.penstock.{name}", value)
        query = writer.option("minEpochSeconds", 0.01).start(spark)
        try:
            used = query._shell.engine.settings
            assert (used.max_epoch_rows, used.min_epoch_s) == (77, 0.01)
            assert query.checkpoint == str(tmp_path / "conf")
        finally:
            query.stop()
        spark.conf.set("spark.penstock.maxEpochRow", "5")
        with pytest.raises(
            penstock.DeclarationError, match=r"'spark.penstock.maxEpochRow' is unknown; did you mean"
        ):
            writer.start(spark)
    finally:
        for name in (*settings, "maxEpochRow"):
            spark.conf.unset(f"spark.penstock.{name}")


def test_a_query_explains_and_shows_itself(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(two_steps(None, rate=1000), spark, tmp_path) as query:
        query.explain()
        told = capsys.readouterr().out
        assert "source 'sales': native" in told
        assert "operator 'regions': keyed by region, 8 shards" in told
        assert "<- 'numbered': hash of region over 8 shards" in told
        wait_until(lambda: len(query.recentProgress) > 1, query)
        assert ": running, " in repr(query) and "rows/s" in repr(query)
        assert "<table>" in query._repr_html_() and "numbered" in query._repr_html_()
    assert ": stopped>" in repr(query)
