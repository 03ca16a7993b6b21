"""What the handle of a query and its start refuse before anything runs; no session is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.dataplane.parquet_folder import ParquetFolder
from penstock.errors import CheckpointError, DeclarationError
from penstock.spark import running
from penstock.spark.query import Query
from penstock.spark.sinks import check_sink


def handle() -> Query:
    query = Query("counts")
    stages = {"clicks": None, "per_user": None, "sink": None}
    query._shell = SimpleNamespace(engine=SimpleNamespace(program=SimpleNamespace(stages=stages)))  # type: ignore[assignment]
    return query


@pytest.mark.parametrize("ask", [Query.latency, Query.digests])
def test_an_operator_that_is_not_there_is_named_with_those_that_are(ask: Any) -> None:
    said = (
        r"query counts has no operator 'per_usr' \(did you mean 'per_user'\?\); it has clicks, per_user, sink"
    )
    with pytest.raises(DeclarationError, match=said):
        ask(handle(), "per_usr")


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
        CheckpointError, match=r"query 'cell' runs already on the checkpoint /c; call .*takeover"
    ):
        running.make_way(name, checkpoint, takeover=False)
