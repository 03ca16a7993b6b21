"""Types are named as Spark names them, wherever a person reads of them."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.explain import explain_program
from penstock.topology.type_words import in_sparks_words, schema_words, type_words
from penstock.topology.types import ATOMS

ALL = "i int, l long, s string, b boolean, d date, t timestamp, n timestamp_ntz, x binary, p decimal(10,2), a array<long>, "
ALL += "m map<string,int>, r struct<q:long,u:timestamp>, f float, g double, y tinyint, z smallint"
ARROWS = (
    "int64",
    "int32",
    "int16",
    "int8",
    "utf8",
    "timestamp[",
    "date32",
    "decimal128",
    "list<",
    "bool)",
    "bool,",
    "[us",
)


def stream() -> penstock.Stream:
    return penstock.from_rows([], schema=ALL, name="rows")


def is_clean(text: str) -> bool:
    return not any(word in text for word in ARROWS)


def test_every_type_has_a_name_that_reads_back() -> None:
    for name, type_ in ATOMS.items():
        assert type_words(type_) == name == in_sparks_words(str(type_)), name
    assert type_words(pa.large_string()) == "string"
    assert type_words(pa.list_(pa.struct([("a", pa.int64())]))) == "array<struct<a:bigint>>"
    assert type_words(pa.month_day_nano_interval()) == "month_day_nano_interval", (
        "Spark has none; Arrow's own"
    )


def test_arrows_messages_are_told_in_sparks_words() -> None:
    with pytest.raises(pa.ArrowException) as caught:
        pa.array(["x"]).cast(pa.timestamp("us", "UTC"))
    assert "timestamp" in str(caught.value)
    assert in_sparks_words("tried to convert to int64, list<item: int32>, timestamp[us, tz=UTC]") == (
        "tried to convert to bigint, array<int>, timestamp"
    )
    assert in_sparks_words("my_int64_column int64[3]") == "my_int64_column int64[3]", "no name of a type"


def test_what_a_stream_shows_is_in_sparks_words(capsys: pytest.CaptureFixture[str]) -> None:
    rows = stream()
    rows.printSchema()
    assert is_clean(capsys.readouterr().out + repr(rows) + schema_words(rows.schema))
    assert rows.dtypes[:3] == [("i", "int"), ("l", "bigint"), ("s", "string")]
    counts = rows.groupBy("l").agg(penstock.max("t"), penstock.sum("p").alias("total"), name="counts")
    told = explain_program(compile_program(counts.node, tasks=2, memory_bytes=1 << 20), extended=True)
    assert is_clean(told) and "total decimal(20,2)" in told


MISTAKES = {
    "a key": (lambda rows: rows.groupBy("m"), "type map<string,int>, which cannot be a key"),
    "a window": (lambda rows: rows.groupBy(penstock.window("l", "1 minute")), "type bigint, not timestamp"),
    "a watermark": (lambda rows: rows.withWatermark("l", "1 minute"), "type bigint, and event time"),
    "a condition": (lambda rows: rows.filter(penstock.col("l")), "of type bigint"),
    "a union": (lambda rows: rows.union(stream().select("l")), r"\(i int, l bigint.*t timestamp"),
    "an aggregate": (lambda rows: rows.groupBy("i").agg(penstock.sum("b")), "of type boolean"),
    "a partition": (
        lambda rows: (
            rows.writeStream.format("parquet").partitionBy("t").option("checkpointLocation", "x").start("y")
        ),
        "type timestamp, which cannot name folders",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_refusal_names_types_as_spark_does(mistake: str) -> None:
    make, told = MISTAKES[mistake]
    with pytest.raises(penstock.DeclarationError, match=told) as caught:
        make(stream())  # type: ignore[no-untyped-call]
    assert is_clean(str(caught.value))


def test_so_does_the_error_of_a_function_that_returns_what_does_not_fit() -> None:
    from penstock.testing import run, script

    clicks = script(
        [(1, dt.datetime(2026, 1, 1, tzinfo=dt.UTC))], schema="user long, at timestamp", name="clicks"
    )
    made = clicks.groupBy("user").apply_arrow(
        lambda rows, state: pa.table({"user": rows.column("user"), "at": pa.array(["soon"])}),
        schema="user long, at timestamp", name="late",
    )  # fmt: skip
    with pytest.raises(penstock.OperatorError) as caught:
        run(made)
    assert is_clean(str(caught.value)) and "timestamp" in str(caught.value)
