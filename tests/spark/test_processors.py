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
oracle = pytest.mark.skipif(not ORACLE, reason="takes long; `make oracle` runs it")

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
                {"n": n, "user": f"u{rng.randrange(8)}", "kind": rng.choice("xyz"), "amount": rng.randrange(100), "at": at}
            )
        if file >= 2:
            rows.append({"n": 10_000 + n, "user": "late", "kind": "x", "amount": 1, "at": START})
        found.append(rows)
    # Far ahead, in two batches: everything before is over when the second one is done.
    for step in (1, 2):
        found.append([{"n": 20_000 + step, "user": "end", "kind": "x", "amount": 0, "at": at + timedelta(hours=step)}])
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
        marked.groupBy("user").transformWithState(kind(), ours.OUTPUT, "append", "eventTime", shards=8, cores=1)
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
def plain_spark(spark: SparkSession) -> Iterator[None]:
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def run_spark(frame: DataFrame, checkpoint: Path, **trigger: Any) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    query = (
        frame.writeStream.outputMode("append" if not trigger else "update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, number: found.update(map(tuple, batch.collect())))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    if trigger:
        return found, query  # type: ignore[return-value]
    query.awaitTermination(120)
    return found


def by_tester(kinds: Any = ours.EVENT) -> Counter[tuple[Any, ...]]:
    """What PySpark's tester makes of the same batches, with the watermark that Spark would have."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.tws_tester import TwsTester

    found: list[Any] = []
    for kind in kinds:
        tester = TwsTester(kind(), timeMode="eventTime", eventTimeExtractor=lambda row: ours.ms(row))
        late_ms, newest = 0, 0
        for rows in make_rows():
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
            grouped.transformWithState(ours.Many(ours.EVENT), ours.OUTPUT, "append", "eventTime"), tmp_path / "plain"
        )
    assert {name for name, *_ in mine} == {kind.__name__ for kind in ours.EVENT}
    assert mine == theirs
    assert sum(count for (_, user, *_), count in mine.items() if user == "late") == 0 < len(mine)
    assert mine == by_tester()
