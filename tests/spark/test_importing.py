"""A plain Spark query moves here in the middle of its input, with its state, timers and place in the source."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark import processors as ours
from tests.spark.test_processors import (
    by_tester,
    make_rows,
    plain_spark,
    read,
    run_ours,
    run_spark,
    write_file,
)

import penstock
from penstock.cli.importing import run_import

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOVED = (ours.RunningCount, ours.LastItems, ours.KindCounts, ours.Deduplicate, ours.Session)


def tagged(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql import functions as f

    names = f.array(*[f.lit(kind.__name__) for kind in MOVED])
    return read(spark, folder).withColumn("which", f.explode(names))


def test_a_query_moves_with_values_lists_maps_and_timers(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = make_rows()
    for number, rows in enumerate(batches[:2]):
        write_file(tmp_path / "in", number, rows)
    with plain_spark(spark):
        frame = tagged(spark, tmp_path / "in").withWatermark("at", "2 seconds").groupBy("which", "user")
        before = run_spark(
            frame.transformWithState(ours.Many(MOVED), ours.OUTPUT, "append", "eventTime"), tmp_path / "plain"
        )
    for number, rows in enumerate(batches[2:], 2):
        write_file(tmp_path / "in", number, rows)
    told = tmp_path / "told.json"
    assert run_import(str(tmp_path / "plain"), str(tmp_path / "ours"), "many", "rows", json=told) == 0
    said = capsys.readouterr().out
    assert "carried: map state 'Deduplicate_seen'" in said and "carried: registered timers" in said
    assert "not carried: the event-time watermark" in said
    assert sum(json.loads(told.read_bytes())["written"]["part_rows"]) > 50

    stream = penstock.from_dataframe(tagged(spark, tmp_path / "in"), name="rows").withWatermark(
        "at", "2 seconds"
    )
    moved = stream.groupBy("which", "user").transformWithState(
        ours.Many(MOVED), ours.OUTPUT, "append", "eventTime", name="many", shards=8
    )
    after = run_ours(spark, moved, tmp_path / "ours")
    assert in_time(before) and in_time(after)
    assert in_time(before + after) == in_time(by_tester(MOVED))
    # Started again, it goes on behind both: nothing is imported or read a second time.
    assert not run_ours(spark, moved, tmp_path / "ours")


def in_time(found: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Without rows that only the watermark, which begins anew, would have left out."""
    return Counter({row: count for row, count in found.items() if row[1] != "late"})


def test_what_is_no_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, capsys: Any) -> None:
    assert run_import(str(tmp_path), str(tmp_path / "ours"), "many", "rows") == 1
    assert (
        "is no checkpoint of a Structured Streaming query with a committed batch" in capsys.readouterr().err
    )
