"""Unchanged PySpark processors here, against PySpark's own tester and against plain Spark on the same files."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark import processors as ours
from tests.spark.flows import running, wait_until

import penstock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.topology.stream import Stream

ROWS_PER_FILE = 60
FILES = 4
START = datetime(2024, 1, 1, tzinfo=UTC)
ORACLE = bool(os.environ.get("PENSTOCK_ORACLE"))
"""Whether what takes long on plain Spark is compared too; `make oracle` does."""

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def make_rows(files: int = FILES) -> list[list[dict[str, Any]]]:
    """Rows whose event time grows by half a second on average; in the last files some come late."""
    rng = random.Random(11)
    found, at, n = [], START, 0
    for file in range(files):
        rows = []
        for _ in range(ROWS_PER_FILE):
            at += timedelta(milliseconds=rng.randrange(0, 1000, 100))
            n += 1
            rows.append(
                {
                    "n": n,
                    "user": f"u{rng.randrange(8)}",
                    "kind": rng.choice("xyz"),
                    "amount": rng.randrange(100),
                    "at": at,
                }
            )
        if file >= 2:
            rows.append({"n": 10_000 + n, "user": "late", "kind": "x", "amount": 1, "at": START})
        found.append(rows)
    # Far ahead, in two batches: everything before is over when the second one is done.
    for step in (1, 2):
        found.append(
            [{"n": 20_000 + step, "user": "end", "kind": "x", "amount": 0, "at": at + timedelta(hours=step)}]
        )
    return found


def write_file(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(row | {"at": row["at"].isoformat()}) for row in rows]
    hidden = folder / f".{number}.tmp"
    hidden.write_text("\n".join(lines) + "\n")
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(folder / f"{number:03d}.json")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number, rows in enumerate(make_rows()):
        write_file(tmp_path / "in", number, rows)
    return tmp_path / "in"


def read(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(ours.INPUT).option("maxFilesPerTrigger", 1).json(str(folder))


def by_event_time(stream: Stream, kinds: Any = ours.EVENT) -> Stream:
    """All processors on one stream, their outputs together."""
    marked = stream.withWatermark("at", "2 seconds")
    made = [
        marked.groupBy("user").transformWithState(
            kind(), ours.OUTPUT, "append", "eventTime", shards=8, cores=1
        )
        for kind in kinds
    ]
    joined = made[0]
    for one in made[1:]:
        joined = joined.union(one)
    return joined


def tuples(table: Any) -> Counter[tuple[Any, ...]]:
    return Counter((row["processor"], row["user"], row["n"], row["a"], row["b"]) for row in table.to_pylist())


def run_ours(spark: SparkSession, stream: Stream, checkpoint: Path) -> Counter[tuple[Any, ...]]:
    with running(stream, spark, checkpoint) as query:
        query.processAllAvailable()
        return tuples(query.table())


@contextmanager
def plain_spark(spark: SparkSession, more: dict[str, str] | None = None) -> Iterator[None]:
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        **(more or {}),
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def run_spark(
    frame: DataFrame, checkpoint: Path, mode: str = "append", **trigger: Any
) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    query = (
        frame.writeStream.outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, number: found.update(map(tuple, batch.collect())))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    if trigger:
        return found, query  # type: ignore[return-value]
    query.awaitTermination(120)
    return found


def by_tester(kinds: Any = ours.EVENT, files: int = FILES) -> Counter[tuple[Any, ...]]:
    """What PySpark's tester makes of the same batches, with the watermark that Spark would have."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.tws_tester import TwsTester

    found: list[Any] = []
    for kind in kinds:
        tester = TwsTester(kind(), timeMode="eventTime", eventTimeExtractor=lambda row: ours.ms(row))
        late_ms, newest = 0, 0
        for rows in make_rows(files):
            by_user = defaultdict(list)
            for row in rows:
                if ours.ms(Row(**row)) > late_ms:
                    by_user[row["user"]].append(Row(**row))
            for user, mine in by_user.items():
                found += tester.test(user, mine)
            late_ms = newest
            newest = max(newest, *(round(row["at"].timestamp() * 1000) - 2000 for row in rows))
            found += tester.setWatermark(newest)
    return Counter((row.processor, row.user, row.n, row.a, row.b) for row in found)


@pytest.mark.long
def test_nine_processors_give_what_pysparks_tester_and_plain_spark_give(
    spark: SparkSession, files: Path, tmp_path: Path
) -> None:
    stream = penstock.from_dataframe(read(spark, files))
    mine = run_ours(spark, by_event_time(stream), tmp_path / "ours")
    with plain_spark(spark):
        from pyspark.sql import functions as f

        names = f.array(*[f.lit(kind.__name__) for kind in ours.EVENT])
        frame = read(spark, files).withWatermark("at", "2 seconds").withColumn("which", f.explode(names))
        grouped = frame.groupBy("which", "user")
        theirs = run_spark(
            grouped.transformWithState(ours.Many(ours.EVENT), ours.OUTPUT, "append", "eventTime"),
            tmp_path / "plain",
        )
    assert {name for name, *_ in mine} == {kind.__name__ for kind in ours.EVENT}
    assert mine == theirs
    assert sum(count for (_, user, *_), count in mine.items() if user == "late") == 0 < len(mine)
    assert mine == by_tester()


def test_initial_rows_are_taken_once_and_before_all_others_over_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    rows = [row for batch in make_rows(2)[:2] for row in batch]
    write_file(folder, 0, rows[:60])
    known = [(f"u{at}", 100 * at, at) for at in range(10)]
    initial = spark.createDataFrame(known, "user string, other int, seen long").groupBy("user")
    seen: Counter[str] = Counter({user: count for user, _, count in known})
    wanted: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        seen[row["user"]] += 1
        wanted["Started", row["user"], row["n"], seen[row["user"]], ""] += 1
    found: Counter[tuple[Any, ...]] = Counter()
    for number in (1, 2):
        stream = penstock.from_dataframe(read(spark, folder)).groupBy("user")
        found += run_ours(
            spark,
            stream.transformWithState(
                ours.Started(), ours.OUTPUT, "append", "none", initial, shards=8, name="started"
            ),
            tmp_path / "ours",
        )
        if number == 1:
            write_file(folder, number, rows[60:])
    assert found == wanted
    if ORACLE:
        with plain_spark(spark):
            grouped = read(spark, folder).groupBy("user")
            theirs = grouped.transformWithState(ours.Started(), ours.OUTPUT, "append", "none", initial)
            assert run_spark(theirs, tmp_path / "plain") == wanted


def test_no_keyed_work_is_handed_back_to_spark(spark: SparkSession, files: Path, tmp_path: Path) -> None:
    tracker = spark.sparkContext._jsc.sc().statusStore()
    before = {job.jobId() for job in _jobs(tracker)}
    stream = penstock.from_dataframe(read(spark, files)).groupBy("user")
    made = stream.transformWithState(ours.RunningCount(), ours.OUTPUT, "append", "none", shards=8)
    assert len(run_ours(spark, made, tmp_path / "ours")) == sum(map(len, make_rows()))
    names = Counter(_what(job) for job in _jobs(tracker) if job.jobId() not in before)
    assert set(names) == {"lease", "ingest"}, names


def _jobs(store: Any) -> list[Any]:
    found = store.jobsList(None)
    return [found.apply(at) for at in range(found.size())]


def _what(job: Any) -> str:
    """What a Spark job was for. A batch of ingest has one stage: nothing is shuffled by key."""
    told = job.description().get() if job.description().isDefined() else ""
    if told.startswith("penstock ") and ", ingest " not in told:
        return "lease"
    return (
        "ingest" if told.startswith("penstock ") and job.stageIds().size() == 1 else f"{job.name()}: {told}"
    )


def test_processing_timers_and_times_to_live(spark: SparkSession, tmp_path: Path) -> None:
    def put(number: int) -> None:
        write_file(tmp_path / "in", number, make_rows(3)[number])

    put(0)
    stream = penstock.from_dataframe(read(spark, tmp_path / "in")).groupBy("user")
    made = [
        stream.transformWithState(kind(), ours.OUTPUT, "append", "processingTime", shards=4, cores=1)
        for kind in ours.PROCESSING
    ]
    with running(made[0].union(made[1]), spark, tmp_path / "ours") as query:
        query.processAllAvailable()
        time.sleep(1.2)
        put(1)
        wait_until(lambda: _flushed(tuples(query.table())) == 2 * ROWS_PER_FILE, query)
        query.processAllAvailable()
        found = tuples(query.table())
    caches = sorted((n, b) for name, _, n, _, b in found if name == "Cache" and n <= 2 * ROWS_PER_FILE)
    first = [b for n, b in caches if n <= ROWS_PER_FILE]
    second = [b for n, b in caches if n > ROWS_PER_FILE]
    assert first.count("nnnn") == 8 and set(second) <= {"nyny", "yyyy"} and second.count("nyny") == 8
    if ORACLE:
        with plain_spark(spark):
            theirs = _cache_on_spark(spark, tmp_path)
        assert [b for n, b in sorted(theirs) if n <= ROWS_PER_FILE] == ["nnnn"] * 8
        assert [b for n, b in sorted(theirs) if n > ROWS_PER_FILE] == ["nyny"] * 8


def _flushed(found: Counter[tuple[Any, ...]]) -> int:
    return sum(count * n for (name, _, n, _, _), count in found.items() if name == "Collected")


def _cache_on_spark(spark: SparkSession, tmp_path: Path) -> list[tuple[int, str]]:
    frame = read(spark, tmp_path / "in").groupBy("user")
    frame = frame.transformWithState(ours.Cache(), ours.OUTPUT, "update", "processingTime")
    found, query = run_spark(frame, tmp_path / "plain", "update", processingTime="4 seconds")  # type: ignore[misc]
    wait_until(lambda: len(found) >= 16, seconds=60)
    query.stop()
    return [(n, b) for _, _, n, _, b in found]


def test_the_pandas_flavour_and_group_functions(spark: SparkSession, files: Path, tmp_path: Path) -> None:
    def both(frame: Any) -> list[Any]:
        grouped = frame.groupBy("user")
        return [
            grouped.transformWithStateInPandas(ours.PandasCount(), ours.OUTPUT, "update", "none"),
            grouped.applyInPandasWithState(
                ours.count_group, ours.OUTPUT, "count long", "update", "NoTimeout"
            ),
        ]

    first, second = both(penstock.from_dataframe(read(spark, files)))
    mine = run_ours(spark, first.union(second), tmp_path / "ours")
    counts: Counter[str] = Counter()
    for row in (row for batch in make_rows() for row in batch):
        counts[row["user"]] += 1
        told = str(row["at"].astimezone().replace(tzinfo=None))
        assert mine["PandasCount", row["user"], row["n"], counts[row["user"]], told] == 1
        assert mine["count_group", row["user"], row["n"], counts[row["user"]], ""] == 1
    assert mine.total() == 2 * counts.total()
    if ORACLE:
        with plain_spark(spark):
            first, second = both(read(spark, files))
            assert mine == run_spark(first, tmp_path / "one", "update") + run_spark(
                second, tmp_path / "two", "update"
            )


def test_a_group_that_gets_no_rows_times_out(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "in", 0, make_rows(1)[0])
    stream = penstock.from_dataframe(read(spark, tmp_path / "in")).groupBy("user")
    made = stream.applyInPandasWithState(
        ours.flush_group, ours.OUTPUT, "count long", "update", "ProcessingTimeTimeout", shards=4
    )
    with running(made, spark, tmp_path / "ours") as query:
        wait_until(lambda: sum(n for _, _, n, _, _ in tuples(query.table())) == ROWS_PER_FILE, query)
