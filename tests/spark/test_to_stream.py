"""An operator's rows as a streaming DataFrame of Spark: each exactly once, across restarts of either side."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.spark.flows import await_rows, numbered, running, sales, wait_until

import penstock
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.exports import ExportFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXPORTED = ("id", "region", "seen", "balance")


def read_into(frame: DataFrame, folder: Path) -> Any:
    """A Spark query that writes what it reads to Parquet files, which are exactly-once with its checkpoint."""
    writer = frame.coalesce(1).writeStream.format("parquet").option("path", str(folder / "rows"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def rows_in(spark: SparkSession, folder: Path) -> list[tuple[int, ...]]:
    return sorted(tuple(row) for row in spark.read.parquet(str(folder / "rows")).collect())


def exported_rows(tables: list[pa.Table]) -> list[tuple[int, ...]]:
    return sorted(tuple(row[name] for name in EXPORTED) for table in tables for row in table.to_pylist())


@pytest.mark.long
def test_rows_of_an_operator_are_read_once_by_a_spark_query_that_is_stopped_and_started_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "reader"
    with running(numbered(sales(3000)), spark, tmp_path / "a", export="numbered") as query:
        reader = read_into(query.to_stream("numbered"), out)
        wait_until(lambda: bool(list(out.glob("checkpoint/commits/0"))), query)
        reader.stop()
        await_rows(query, 3000)
    sunk = [query.table()]
    with running(numbered(sales(6000)), spark, tmp_path / "a", export="numbered") as query:
        reader = read_into(query.to_stream("numbered"), out)
        await_rows(query, 6000)
        reader.processAllAvailable()
        reader.stop()
        sunk.append(query.table())
    assert sum(table.num_rows for table in sunk) == 6000
    assert rows_in(spark, out) == exported_rows(sunk)


@pytest.mark.long
def test_what_is_kept_outlives_the_query_and_a_range_that_is_gone_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, out = tmp_path / "a", tmp_path / "reader"
    with running(numbered(sales(300)), spark, checkpoint, export="*") as query:
        await_rows(query, 300)
    reader = read_into(penstock.read_export(spark, str(checkpoint), "numbered"), out)
    reader.processAllAvailable()
    reader.stop()
    assert rows_in(spark, out) == exported_rows([query.table()])

    newest = max((checkpoint / "export" / "numbered").glob("e*"))
    epoch = int(newest.name[1:])
    shutil.copy(newest, newest.with_name(f"e{epoch + 2:09d}"))  # as if the one between had been let go
    reader = read_into(penstock.read_export(spark, str(checkpoint), "numbered"), out)
    wait_until(lambda: not reader.isActive)
    told = str(reader.exception())
    assert f"epochs {epoch + 1} to {epoch + 1} of the export of 'numbered' are gone" in told

    ExportFolder(PosixDisk(), str(checkpoint), "numbered", query.table().schema, 1).open("another")
    reader = read_into(penstock.read_export(spark, str(checkpoint), "numbered"), out)
    wait_until(lambda: not reader.isActive)
    assert "is that of query another, and this reader has" in str(reader.exception())


def test_what_is_not_exported_is_refused_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    with running(numbered(sales(10)), spark, tmp_path, "noop", export="sales") as query:
        with pytest.raises(
            penstock.DeclarationError, match=r"start the query with option\('export', 'numbered'\)"
        ):
            query.to_stream("numbered")
        with pytest.raises(penstock.DeclarationError, match=r"no source or operator 'number'.*'numbered'\?"):
            query.to_stream("number")
        assert query.to_stream(name="sales").columns == ["id", "customer", "region", "amount"]
    with pytest.raises(
        penstock.DeclarationError, match=r"option 'export': there is no .*'sale'; did you mean 'sales'\?"
    ):
        numbered(sales(10)).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "b")
        ).option("export", "sale").start(spark)
    with pytest.raises(penstock.CheckpointError, match="has no export of 'sales'"):
        penstock.read_export(spark, str(tmp_path / "nothing"), "sales")
