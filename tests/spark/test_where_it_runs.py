"""What a user sees of a query from outside: names in the Spark UI, what functions print, jobs cancelled under it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.flows import (
    await_rows,
    committed,
    last_regions,
    model_regions,
    running,
    sales,
    two_steps,
    wait_until,
)

import penstock
from penstock.spark.hearing import LOGGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def descriptions(spark: SparkSession) -> list[str]:
    """What the Spark UI calls the jobs of this session, newest first."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None).iterator()  # type: ignore[union-attr]
    found = []
    while jobs.hasNext():
        description = jobs.next().description()
        found.append(str(description.get()) if description.isDefined() else "")
    return found


def test_leases_stand_in_the_spark_ui_under_the_names_of_their_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = len(descriptions(spark))
    with running(two_steps(2000, cores=2), spark, tmp_path) as query:
        await_rows(query, 2000)
        named = descriptions(spark)[: len(descriptions(spark)) - before]
        served = query._ask(
            lambda shell: {
                f"penstock {slot.stage}, task {slot.index + 1} of {len(run.slots)}"
                for run in shell.engine.runs.values()
                for slot in run.slots.values()
            }
        )
    assert "penstock regions, task 2 of 2" in named
    assert set(named) == served


def test_what_a_function_prints_and_logs_is_in_the_drivers_log_with_task_shard_and_key(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def speak(key: Any, rows: list[Any], state: Any) -> Any:
        if any(row.id == 40 for row in rows):
            print("saw the row")
            logging.getLogger("shop").warning("it is %d", 40)
            logging.info("nobody asked for this")

    spoken = (
        sales(200).groupBy("customer").apply_rows(speak, schema="x long", state={}, name="spoken", shards=4)
    )
    with running(spoken, spark, tmp_path) as query:
        await_rows(query, 200)
    customer = (40 * 7919) % 53
    said = [record for record in caplog.records if record.name == LOGGER]
    assert [record.levelname for record in said] == ["INFO", "WARNING"]
    place, _, text = said[0].message.partition("]: ")
    assert text == "saw the row"
    assert place.startswith("spoken[task ") and ", shard " in place and place.endswith(f", key {customer}")
    assert said[1].message.endswith("]: shop: it is 40")


def test_a_function_that_never_stops_printing_is_bounded_and_not_held_up(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shout(key: Any, rows: list[Any], state: Any) -> Any:
        for row in rows:
            print("row", row.id)

    loud = sales(5000).groupBy("customer").apply_rows(shout, schema="x long", state={}, name="loud", shards=4)
    with running(loud, spark, tmp_path) as query:
        await_rows(query, 5000)
        wait_until(lambda: any("lines left out" in record.message for record in caplog.records), query, 15)
    assert sum(1 for record in caplog.records if "]: row" in record.message) < 4500


def test_cancelling_all_jobs_costs_a_query_its_leases_for_a_moment_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(two_steps(6000, rate=2000), spark, tmp_path) as query:
        for rows in (500, 2500):
            wait_until(lambda rows=rows: committed(query) >= rows, query)
            spark.sparkContext.cancelAllJobs()
        await_rows(query, 6000)
        assert last_regions([query.table()]) == model_regions(6000)


def test_an_ingest_whose_job_is_cancelled_starts_again_and_counts_every_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    for number in range(6):
        pq.write_table(
            pa.table({"id": list(range(number * 40, number * 40 + 40))}), folder / f"{number:02}.parquet"
        )
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(folder))

    def slow(row: Any) -> Any:
        import time

        time.sleep(0.01)
        return row.id % 5, row.id

    stream = penstock.from_dataframe(frame, name="files").map(slow, schema="five long, id long")
    counted = stream.groupBy("five").agg(
        penstock.count(), penstock.sum("id").alias("ids"), name="counted", shards=4
    )
    with running(counted, spark, tmp_path / "checkpoint") as query:
        (ingest,) = query._ingests
        wait_until(lambda: "penstock counted, ingest files" in descriptions(spark)[:3], query)
        while not ingest._restarts:
            spark.sparkContext.cancelAllJobs()
            wait_until(lambda: bool(ingest._restarts) or committed(query, "files") == 240, query, 3)
        query.processAllAvailable()
        last = {row["five"]: (row["count"], row["ids"]) for row in query.table().to_pylist()}
    assert last == {five: (48, sum(range(five, 240, 5))) for five in range(5)}
