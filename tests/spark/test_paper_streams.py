"""The papers' applications on real Spark, a few hundred rows each: what comes out is what comes out in process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.testing import run
from penstock.workloads.paper_streams import STREAMS, TOP

KEYS = {"commcount": "category", "top-n": "commodity", "split-count": "word", "frequent-patterns": "pattern",
        "logo-detection": "frame"}  # fmt: skip
LIMIT = 300


def last_by_key(rows: list[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    return {row[key]: row for row in rows}


@pytest.mark.long
@pytest.mark.parametrize("name", STREAMS)
def test_an_application_comes_to_the_same_on_spark_and_in_process(
    name: str, spark: Any, tmp_path: Path
) -> None:
    stream = STREAMS[name](rate=1e6, limit=LIMIT)
    query = (
        stream.writeStream.format("memory").option("checkpointLocation", str(tmp_path / "cp")).start(spark)
    )
    try:
        query.processAllAvailable()
        found = last_by_key(query.table().to_pylist(), KEYS[name])
    finally:
        query.stop()
    expected = last_by_key(run(STREAMS[name](limit=LIMIT)).to_pylist(), KEYS[name])
    if name == "top-n":  # what was among the first for a while depends on what came first
        best = [
            sorted((row["sold"] for row in one.values()), reverse=True)[:TOP] for one in (found, expected)
        ]
        assert best[0] == best[1]
    else:
        assert found and found == expected
