"""Spark's folder of an ingested source is lost, older, newer or torn, on Spark itself: every row of the input reaches the
sink exactly once, or the start is refused by name. The oracle is arithmetic on what was put in."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.verifying import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.long
COMPACT = "spark.sql.streaming.fileSource.log.compactInterval"
Harm = Callable[[Path, Path], None]
"""Does something to a folder; the second one is a copy of what it was after three batches."""


@pytest.fixture(autouse=True)
def compacting(spark: SparkSession) -> Iterator[None]:
    """Spark compacts the log of a file source with every third entry."""
    spark.conf.set(COMPACT, "3")
    yield
    spark.conf.unset(COMPACT)


class Flow:
    """A query that hands every row it is given to a list, over several starts."""

    def __init__(self, spark: SparkSession, root: Path, shape: str) -> None:
        self.spark, self.root, self.shape = spark, root, shape
        self.checkpoint = root / "checkpoint"
        self.folder = self.checkpoint / "ingest" / "src"
        self.got: list[int] = []
        self.files = 0
        (root / "in").mkdir()

    def put(self, files: int) -> None:
        """Ten rows a file, of consecutive numbers; time passes by a minute a file."""
        for number in range(self.files, self.files + files):
            ids = range(number * 10, number * 10 + 10)
            at = pa.array([(1 + number) * 60_000_000] * 10, pa.timestamp("us", "UTC"))
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "at": at}), self.root / "in" / ".new")
            os.rename(self.root / "in" / ".new", self.root / "in" / f"{number:04d}.parquet")
        self.files += files

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema("id long, at timestamp").option("maxFilesPerTrigger", 1)
        files = reader.parquet(str(self.root / "in"))
        rate = self.spark.readStream.format("rate").option("rowsPerSecond", 20).load()
        match self.shape:
            case "rate":
                return rate.selectExpr("value AS id")
            case "union":  # the rows of the second part have numbers below zero
                return files.select("id").union(rate.selectExpr("-1 - value AS id"))
            case "watermark":
                return files.withWatermark("at", "1 second").select("id")
            case "duplicates":
                return files.dropDuplicates(["id"]).select("id")
        return files.select("id")

    def run(self) -> None:
        stream = penstock.from_dataframe(self.frame(), name="src")
        writer = stream.writeStream.option("checkpointLocation", str(self.checkpoint))
        query = writer.foreach_arrow(
            lambda rows, epoch: self.got.extend(rows.column("id").to_pylist())
        ).start(self.spark)
        try:
            if self.shape in ("rate", "union"):
                time.sleep(2.5)
            else:
                query.processAllAvailable()
            assert query.exception() is None
        finally:
            query.stop()

    def check(self) -> None:
        """Every row that was put in is there once; of a rate, all up to some number."""
        files, rate = [one for one in self.got if one >= 0], [-1 - one for one in self.got if one < 0]
        whole = self.files * 10 if self.shape not in ("rate", "union") else len(files)
        assert sorted(files) == list(range(whole)), (sorted(files), whole)
        assert sorted(rate) == list(range(len(rate)))


def lose(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder)


def take_older(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def tear_offsets(folder: Path, copy: Path) -> None:
    path = folder / "offsets" / str(newest(folder, "offsets"))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


def empty_offsets(folder: Path, copy: Path) -> None:
    (folder / "offsets" / str(newest(folder, "offsets"))).write_bytes(b"")


def tear_metadata(folder: Path, copy: Path) -> None:
    (folder / "metadata").write_bytes(b'{"id":"')


def drop_sources(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder / "sources")


def drop_offsets_and_commits(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder / "offsets")
    shutil.rmtree(folder / "commits")


def newest(folder: Path, log: str) -> int:
    return max(int(name) for name in os.listdir(folder / log) if name.isdigit())


HARMS: list[Harm] = [
    lose, take_older, tear_offsets, empty_offsets, tear_metadata, drop_sources, drop_offsets_and_commits,
]  # fmt: skip


STATE_HARMS = [harm for harm in HARMS if harm is not tear_metadata]
"""Those that take away what goes with the state."""


def empty_commit(folder: Path, copy: Path) -> None:
    path = folder / "commits" / str(newest(folder, "commits"))
    path.write_bytes(b"")
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def empty_plan(folder: Path, copy: Path) -> None:
    """Spark had planned one batch more, and nothing of it has reached the disk."""
    last = newest(folder, "offsets")
    (folder / "offsets" / str(last + 1)).write_bytes(b"")
    (folder / "sources" / "0" / str(last + 1)).write_bytes(b"")


def prepared(spark: SparkSession, root: Path, shape: str) -> tuple[Flow, Path]:
    """A flow past two compactions of its source, and a copy of Spark's folder from before."""
    flow, copy = Flow(spark, root, shape), root / "copy"
    flow.put(3)
    flow.run()
    shutil.copytree(flow.folder, copy)
    flow.put(5)
    flow.run()
    if shape == "files":
        assert "5.compact" in os.listdir(flow.folder / "sources" / "0")
    flow.put(2)
    return flow, copy


@pytest.mark.parametrize("shape", ["files", "rate", "union", "watermark"])
def test_whatever_says_less_than_the_log_is_put_back(spark: SparkSession, tmp_path: Path, shape: str) -> None:
    flow, copy = prepared(spark, tmp_path, shape)
    for harm in HARMS:
        harm(flow.folder, copy)
        flow.run()
        flow.put(2)
        flow.run()  # and once more as if nothing had been
        flow.check()
        assert not verify(PosixDisk(), str(flow.checkpoint)).findings
    assert len(flow.got) > 150


def test_a_source_that_has_let_its_rows_go_is_put_back_all_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow, _ = prepared(spark, tmp_path, "files")
    for number in range(8):
        (tmp_path / "in" / f"{number:04d}.parquet").unlink()
    shutil.rmtree(flow.folder)
    flow.run()
    flow.check()


@pytest.mark.parametrize("harm", STATE_HARMS, ids=lambda harm: harm.__name__)
def test_state_in_the_streaming_dataframe_is_not_put_back_but_refused_by_name(
    spark: SparkSession, tmp_path: Path, harm: Harm
) -> None:
    flow, copy = Flow(spark, tmp_path, "duplicates"), tmp_path / "copy"
    flow.put(2)
    flow.run()
    shutil.copytree(flow.folder, copy)
    flow.put(2)
    flow.run()
    shutil.copytree(flow.folder, tmp_path / "newest")
    flow.put(1)
    harm(flow.folder, copy)
    with pytest.raises(
        penstock.CheckpointError, match=r"dropDuplicates.* cannot be put back; restore that folder"
    ):
        flow.run()
    shutil.rmtree(flow.folder, ignore_errors=True)
    shutil.copytree(tmp_path / "newest", flow.folder)  # what the message says
    flow.run()
    flow.check()


@pytest.mark.parametrize("harm", [tear_metadata, empty_commit, empty_plan], ids=lambda harm: harm.__name__)
def test_what_spark_can_do_without_is_dropped_beside_state(
    spark: SparkSession, tmp_path: Path, harm: Harm
) -> None:
    flow = Flow(spark, tmp_path, "duplicates")
    flow.put(3)
    flow.run()
    harm(flow.folder, flow.folder)
    flow.put(2)
    flow.run()
    flow.check()


def test_state_in_the_streaming_dataframe_goes_on_after_a_crash_before_sparks_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, "duplicates")
    flow.put(3)
    flow.run()
    (flow.folder / "commits" / str(newest(flow.folder, "commits"))).unlink()
    flow.put(2)
    flow.run()
    flow.check()


def test_records_without_a_plan_go_on_and_are_refused_where_a_plan_is_needed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(spark, tmp_path, "files")
    with monkeypatch.context() as early:  # as earlier releases did
        early.setattr("penstock.spark.ingest.Ingest._plan", lambda self, batch, writer: batch)
        flow.put(3)
        flow.run()
    shutil.copytree(flow.folder, tmp_path / "copy")
    shutil.rmtree(flow.folder)
    with pytest.raises(penstock.CheckpointError, match="has not kept what Spark planned for batch 2"):
        flow.run()
    shutil.copytree(tmp_path / "copy", flow.folder)
    flow.put(2)
    flow.run()
    shutil.rmtree(flow.folder)
    flow.run()
    flow.check()


def test_a_driver_that_takes_over_goes_on_from_what_the_other_has_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, "files")
    flow.put(4)
    stream = penstock.from_dataframe(flow.frame(), name="src")
    take: Any = lambda rows, epoch: flow.got.extend(rows.column("id").to_pylist())  # noqa: E731
    writer = stream.writeStream.option("checkpointLocation", str(flow.checkpoint)).foreach_arrow(take)
    first = writer.start(spark)
    first.processAllAvailable()
    second = writer.option("takeover", "true").start(spark)
    second.stop()
    first.stop()
    shutil.rmtree(flow.folder)
    flow.put(2)
    flow.run()
    flow.check()
