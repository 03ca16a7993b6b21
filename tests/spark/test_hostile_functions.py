"""What a function raises or prints never kills a lease: on Spark, where words and errors go through a socket."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = os.fsdecode(b"name-\xff")
ROWS = 60


class PanicException(BaseException):
    """What extensions written in Rust raise."""


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("str raises")


RAISED: list[Any] = [
    lambda: ValueError(f"cannot parse {NAME}"), lambda: asyncio.CancelledError("the reason"), KeyboardInterrupt,
    GeneratorExit, lambda: SystemExit(3), lambda: PanicException("index"), Odd, lambda: ValueError("ä" * 50_000_000),
]  # fmt: skip


def hurl(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, int]]:
    print("parsing", NAME, key.k)
    sys.stdout.buffer.write(b"bytes \xff\n")
    for row in rows:
        if row.k < len(RAISED):
            raise RAISED[row.k]()
        yield row.k, row.id


def rows() -> Any:
    return penstock.from_rows([(i % 20, i) for i in range(ROWS)], schema="k long, id long", name="src")


def test_every_call_that_raised_is_one_letter_and_no_lease_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = rows().groupBy("k").apply_rows(
        hurl, schema="k long, id long", state={}, name="op", shards=4, on_error="dead_letter"
    )  # fmt: skip
    writer = out.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("memory")
    query = writer.also("letters", out.dead_letters.writeStream.format("memory")).start(spark)
    query.awaitTermination(60)
    letters = query.table("letters")
    keys = letters.column("key").to_pylist()
    assert set(keys) == {f"[{at}]" for at in range(len(RAISED))}
    assert sum(map(len, letters.column("rows").to_pylist())) == 3 * len(RAISED)
    assert query.table().num_rows == ROWS - 3 * len(RAISED)
    shell = query._shell
    assert shell is not None and shell._office._count == len(
        shell.engine.serving.slots()
    )  # nothing was asked for twice


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_error_tells_what_raised(spark: SparkSession, tmp_path: Path, at: int) -> None:
    error = RAISED[at]

    def fail(key: Any, rows: list[Any], state: Any) -> None:
        if key.k == 7:
            raise error()

    out = rows().groupBy("k").apply_rows(fail, schema="k long", state={}, name="op", shards=4)
    query = out.writeStream.option("checkpointLocation", str(tmp_path)).format("memory").start(spark)
    with pytest.raises(penstock.QueryError) as caught:
        query.awaitTermination(60)
    assert type(caught.value.__cause__) is penstock.OperatorError
    assert str(caught.value.__cause__).startswith(
        f"operator 'op' failed for key (7,): {type(error()).__name__}"
    )


def test_what_a_sinks_function_raises_is_one_error(spark: SparkSession, tmp_path: Path) -> None:
    def fail(table: pa.Table, sink_epoch: int) -> None:
        raise asyncio.CancelledError(NAME)

    query = rows().writeStream.option("checkpointLocation", str(tmp_path)).foreach_arrow(fail).start(spark)
    with pytest.raises(penstock.QueryError) as caught:
        query.awaitTermination(60)
    assert type(caught.value.__cause__) is penstock.OperatorError
    assert "sink" in str(caught.value.__cause__) and "CancelledError: name-\\udcff" in str(
        caught.value.__cause__
    )
