"""A plain Spark query moves here in the middle of its input, with its state, timers and place in the source."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark import processors as ours
from tests.spark.test_processors import (
    START,
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

pytestmark = pytest.mark.long


MOVED = (ours.RunningCount, ours.LastItems, ours.KindCounts, ours.Session)
FILES = 2


def tagged(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql import functions as f

    names = f.array(*[f.lit(kind.__name__) for kind in MOVED])
    return read(spark, folder).withColumn("which", f.explode(names))


_runs: dict[str, tuple[Path, Counter[tuple[Any, ...]]]] = {}


@pytest.fixture
def plain(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Counter[tuple[Any, ...]]]:
    """A folder with the first input file and the checkpoint of a plain Spark query that has read it, and its output;
    made once, as it takes long."""
    if "run" not in _runs:
        folder = tmp_path_factory.mktemp("plain")
        write_file(folder / "in", 0, make_rows(FILES)[0])
        # One batch and none without rows behind it: that would take as long again.
        with plain_spark(spark, {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
            grouped = tagged(spark, folder / "in").withWatermark("at", "2 seconds").groupBy("which", "user")
            made = grouped.transformWithState(ours.Many(MOVED), ours.OUTPUT, "append", "eventTime")
            _runs["run"] = folder, run_spark(made, folder / "plain")
    return _runs["run"]


def test_what_the_state_reader_gives_is_initial_state_as_it_is(
    spark: SparkSession, tmp_path: Path, plain: tuple[Path, Any]
) -> None:
    reader = spark.read.format("statestore").option("stateVarName", "RunningCount_count")
    state = reader.load(str(plain[0] / "plain"))
    assert {"key", "value"} <= set(state.columns)
    seen = Counter(row["user"] for row in make_rows(FILES)[0])
    rows = [(n, f"u{n}", "x", 1, START, "RunningCount") for n in range(10)]
    known = penstock.from_rows(rows, schema=f"{ours.INPUT}, which string").groupBy("which", "user")

    def counted(initial: Any) -> Any:
        return known.transformWithState(
            ours.Continued(), ours.OUTPUT, "append", "none", initial, name="counts", shards=4
        )

    found = run_ours(spark, counted(state), tmp_path / "ours")
    assert found == Counter(("Continued", f"u{n}", n, seen[f"u{n}"] + 1, "") for n in range(10))
    by_names, by_key = (counted(state.groupBy(*keys)).node for keys in (("key.which", "key.user"), ("key",)))
    assert by_names.right_keys == by_key.right_keys == ("which", "user")
    assert by_names.inputs[1].schema.names == ["which", "user", "count"]
    assert max(seen.values()) > 5


def test_a_query_moves_with_values_lists_maps_and_timers(
    spark: SparkSession,
    tmp_path: Path,
    plain: tuple[Path, Counter[tuple[Any, ...]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, before = plain
    for number, rows in enumerate(make_rows(FILES)[1:], 1):
        write_file(folder / "in", number, rows)
    told = tmp_path / "told.json"
    assert run_import(str(folder / "plain"), str(tmp_path / "ours"), "many", "rows", json=told) == 0
    said = capsys.readouterr().out
    assert "carried: map state 'KindCounts_kinds'" in said and "carried: registered timers" in said
    assert "not carried: the event-time watermark" in said
    assert sum(json.loads(told.read_bytes())["written"]["part_rows"]) > 40

    stream = penstock.from_dataframe(tagged(spark, folder / "in"), name="rows").withWatermark(
        "at", "2 seconds"
    )
    moved = stream.groupBy("which", "user").transformWithState(
        ours.Many(MOVED), ours.OUTPUT, "append", "eventTime", name="many", shards=8
    )
    after = run_ours(spark, moved, tmp_path / "ours")
    assert in_time(before) and in_time(after)
    assert in_time(before + after) == in_time(by_tester(MOVED, FILES))
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


def count_rows(key: Any, frames: Any, state: Any) -> Any:
    import pandas as pd

    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"id": [key[0]], "n": [count]})


def test_a_group_function_without_time_out_moves(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = (count_rows, "id string, n long", "n long", "update", "NoTimeout")
    (tmp_path / "in").mkdir()
    write_ids(tmp_path, 0, "aab")
    frame = spark.readStream.schema("id string").json(str(tmp_path / "in"))
    with plain_spark(spark, {}):
        old = frame.groupBy("id").applyInPandasWithState(*declared).writeStream.outputMode("update")
        old = old.format("noop").option("checkpointLocation", str(tmp_path / "old"))
        old.trigger(availableNow=True).start().awaitTermination()
    assert run_import(str(tmp_path / "old"), str(tmp_path / "ours"), "op", "ids") == 0
    said = capsys.readouterr()
    assert "carried: the state of every group\n" in said.out and "timers" not in said.out and not said.err
    write_ids(tmp_path, 1, "ac")
    moved = (
        penstock.from_dataframe(frame, name="ids").groupBy("id").applyInPandasWithState(*declared, name="op")
    )
    query = moved.writeStream.format("memory").option("checkpointLocation", str(tmp_path / "ours"))
    running = query.trigger(availableNow=True).start(spark)
    running.awaitTermination()
    assert Counter(map(tuple, (row.values() for row in running.table().to_pylist()))) == Counter(
        [("a", 3), ("c", 1)]
    )


def write_ids(folder: Path, number: int, ids: str) -> None:
    lines = "".join(json.dumps({"id": one}) + "\n" for one in ids)
    (folder / "in" / f"{number}.json").write_text(lines, encoding="utf-8")


def test_state_that_cannot_be_read_is_one_sentence_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, plain: tuple[Path, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(plain[0] / "plain", tmp_path / "hurt")
    for file in (tmp_path / "hurt" / "state").rglob("*.zip"):
        file.write_bytes(b"no archive")
    capfd.readouterr()
    assert run_import(str(tmp_path / "hurt"), str(tmp_path / "ours"), "many", "rows") == 1
    said = capfd.readouterr()
    assert said.err.count("\n") == 1 and "hurt cannot be imported: " in said.err, said.err
    assert not (tmp_path / "ours").exists()
