"""Scripted sources on Spark: rows and pauses by the real clock, deaths refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import DeclarationError
from penstock.testing import Crash, Pause, assert_frames_equal, script

SCHEMA = "user string, amount long"


def start(stream: penstock.Stream, spark: Any, tmp_path: Path) -> Any:
    return stream.writeStream.format("memory").option("checkpointLocation", str(tmp_path / "cp")).start(spark)


def test_rows_and_pauses_of_a_script_run_on_spark_and_the_query_ends(spark: Any, tmp_path: Path) -> None:
    stream = script([("ann", 1), ("bob", 2), Pause("2 seconds"), ("ann", 3)], schema=SCHEMA)
    query = start(stream.filter(penstock.col("amount") > 0), spark, tmp_path)
    began = time.monotonic()
    while query.table().num_rows < 2 and time.monotonic() < began + 30:
        time.sleep(0.02)
    first = time.monotonic()
    assert query.table().num_rows == 2
    assert query.awaitTermination(30)
    assert time.monotonic() - first > 1.0
    assert_frames_equal(query.table(), [("ann", 1), ("bob", 2), ("ann", 3)])


def test_a_crash_in_a_script_is_refused_when_a_query_starts(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(
        DeclarationError, match=r"source 'source' has Crash\(\) or LoseLease\(\) in its script"
    ):
        start(script([("ann", 1), Crash()], schema=SCHEMA), spark, tmp_path)
    assert not (tmp_path / "cp").exists()
