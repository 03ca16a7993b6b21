"""What PySpark's own tests of processors exercise, in both flavours: results do not depend on how epochs are cut, and are
those of plain Spark on the same files (`make oracle`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark import processors as ours
from tests.spark import pyspark_processors as theirs
from tests.spark.flows import running
from tests.spark.test_processors import ORACLE, make_rows, plain_spark, read, run_ours, run_spark, write_file

import penstock
from penstock.testing import operator, script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLAVOURS = ("rows", "frames")
GROUPS = {
    "none": theirs.PLAIN,
    "eventTime": theirs.EVENT,
    "processingTime": theirs.ENDING,
}
oracle = pytest.mark.skipif(not ORACLE, reason="compares with plain Spark; make oracle does")


def transform(grouped: Any, flavour: str, processor: Any, *given: Any, **named: Any) -> Any:
    if flavour == "rows":
        return grouped.transformWithState(processor, *given, **named)
    return grouped.transformWithStateInPandas(theirs.InFrames(processor), *given, **named)


def in_process(
    kind: Any, flavour: str, cuts: list[list[tuple[Any, ...]]], output: str = ours.OUTPUT
) -> Counter[str]:
    """What a processor yields when each cut comes in an epoch of its own."""
    stream = script([], schema=ours.INPUT).withWatermark("at", "2 seconds")
    mode = next(mode for mode, kinds in GROUPS.items() if kind in (*kinds, theirs.Nested))
    made = transform(stream.groupBy("user"), flavour, kind(), output, "append", mode, shards=2)
    with operator(made) as op:
        found = [row for cut in cuts for row in op.send(cut)]
        if mode == "eventTime":
            found += op.watermark("2024-01-01T00:10:00Z")
    return Counter(map(repr, found))


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    "kind", [*theirs.PLAIN, *theirs.EVENT, *theirs.ENDING], ids=lambda kind: kind.__name__
)
def test_results_do_not_depend_on_how_epochs_are_cut(kind: Any, flavour: str) -> None:
    rows = [tuple(row.values()) for row in make_rows(1)[0][:30]]
    one = in_process(kind, flavour, [[row] for row in rows])
    assert one.total() and one == in_process(kind, flavour, [rows]) == in_process(
        kind, "rows", [rows[:11], rows[11:]]
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number, rows in enumerate(make_rows()):
        write_file(tmp_path / "in", number, rows)
    return tmp_path / "in"


@oracle
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("mode", GROUPS)
def test_both_flavours_give_what_plain_spark_gives(
    spark: SparkSession, files: Path, tmp_path: Path, mode: str, flavour: str
) -> None:
    kinds = GROUPS[mode]
    stream = penstock.from_dataframe(read(spark, files)).withWatermark("at", "2 seconds").groupBy("user")
    made = [
        transform(stream, flavour, kind(), ours.OUTPUT, "append", mode, shards=4, cores=1, name=kind.__name__)
        for kind in kinds
    ]
    joined = made[0]
    for one in made[1:]:
        joined = joined.union(one)
    mine = run_ours(spark, joined, tmp_path / "ours")
    with plain_spark(spark):
        from pyspark.sql import functions as f

        names = f.array(*[f.lit(kind.__name__) for kind in kinds])
        frame = read(spark, files).withWatermark("at", "2 seconds").withColumn("which", f.explode(names))
        query = transform(
            frame.groupBy("which", "user"), flavour, ours.Many(kinds), ours.OUTPUT, "append", mode
        )
        found = run_spark(query, tmp_path / "plain")
    assert {name for name, *_ in mine} == {kind.__name__ for kind in kinds}
    assert mine == found


@oracle
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_nested_output_and_initial_rows_are_those_of_plain_spark(
    spark: SparkSession, files: Path, tmp_path: Path, flavour: str
) -> None:
    known = [(f"u{at}", 100 * at, at) for at in range(10)]
    initial = spark.createDataFrame(known, "user string, other int, seen long").groupBy("user")

    def both(frame: Any) -> list[Any]:
        grouped = frame.groupBy("user")
        return [
            transform(grouped, flavour, theirs.Nested(), theirs.NESTED, "append", "none"),
            transform(grouped, flavour, theirs.Started(), ours.OUTPUT, "append", "none", initial),
        ]

    nested, started = both(penstock.from_dataframe(read(spark, files)))
    with running(nested, spark, tmp_path / "nested") as query:
        query.processAllAvailable()
        shown = Counter(repr(plain(row)) for row in query.table().to_pylist())
    mine = run_ours(spark, started, tmp_path / "started")
    with plain_spark(spark):
        nested, started = both(read(spark, files))
        told: Counter[str] = Counter()
        query = nested.writeStream.outputMode("append").option(
            "checkpointLocation", str(tmp_path / "plain-nested")
        )
        query = query.foreachBatch(
            lambda batch, number: told.update(repr(plain(row.asDict(True))) for row in batch.collect())
        )
        query.trigger(availableNow=True).start().awaitTermination(120)
        assert run_spark(started, tmp_path / "plain-started") == mine
    assert shown == told and shown.total() == sum(map(len, make_rows()))


def plain(value: Any) -> Any:
    """A value in one form: maps are dicts in order of their keys."""
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        value = dict(value)
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    return [plain(one) for one in value] if isinstance(value, list) else value


@oracle
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_processor_behind_another_gives_what_plain_spark_gives(
    spark: SparkSession, files: Path, tmp_path: Path, flavour: str
) -> None:
    def chained(frame: Any, *names: dict[str, str]) -> Any:
        given = frame.withWatermark("at", "2 seconds").groupBy("user")
        first = transform(
            given,
            flavour,
            theirs.Passing(),
            ours.INPUT,
            "append",
            "eventTime",
            eventTimeColumnName="at",
            **names[0],
        )
        grouped = first.groupBy("user")
        return transform(
            grouped, flavour, theirs.EventTimes(), ours.OUTPUT, "append", "eventTime", **names[1]
        )

    source = penstock.from_dataframe(read(spark, files))
    mine = run_ours(spark, chained(source, {"name": "one"}, {"name": "two"}), tmp_path / "ours")
    with plain_spark(spark):
        assert run_spark(chained(read(spark, files), {}, {}), tmp_path / "plain") == mine
    assert mine.total() == sum(map(len, make_rows())) - 2  # but for those that are late
