"""Batches of what operators return: rows of every kind, there and back, and tables; what is refused, and how."""

from __future__ import annotations

import decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.topology.strategies import SCHEMAS, UTC_STAMP, values_of

from penstock.errors import OperatorError
from penstock.topology.batches import conform_batch, rows_to_batch
from penstock.topology.rows import batch_to_rows, row_class
from penstock.topology.schema import parse_schema

D = decimal.Decimal


# ---- rows


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_rows_become_a_batch_and_come_back(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    columns = [values_of(f.type) | st.none() if f.nullable else values_of(f.type) for f in schema]
    rows = data.draw(st.lists(st.tuples(*columns), max_size=5))
    batch = rows_to_batch(rows, schema, "op")
    assert batch.schema == schema
    batch.validate(full=True)
    assert batch_to_rows(batch) == rows
    cls = row_class(schema)
    back = batch_to_rows(batch, cls)
    assert back == rows
    assert all(type(row) is cls for row in back)
    assert rows_to_batch(back, schema, "op").equals(batch)
    assert batch_to_rows(batch[1:4]) == rows[1:4]
    assert batch_to_rows(pa.Table.from_batches([batch[:2], batch[2:]])) == rows


PRICES = parse_schema("stock int NOT NULL, price double, note string")


class Priced(NamedTuple):
    note: str | None
    stock: int
    price: float | None


class Other(NamedTuple):
    x: int
    y: float
    z: str


class SparkRow(tuple[Any, ...]):
    """Spark's Row: a tuple that carries its names per instance."""

    __fields__: list[str]


def spark_row(**values: Any) -> SparkRow:
    row = SparkRow(values.values())
    row.__fields__ = list(values)
    return row


def test_rows_of_every_kind_may_be_mixed_and_go_by_name_where_they_have_names() -> None:
    rows = [
        (1, 1.5, "a"),
        [2, 2.5, None],
        {"price": 3.5, "stock": 3},
        Priced("d", 4, 4.5),
        spark_row(price=5.5, note="e", stock=5),
        Other(6, 6.5, "f"),
    ]
    assert batch_to_rows(rows_to_batch(rows, PRICES, "op")) == [
        (1, 1.5, "a"), (2, 2.5, None), (3, 3.5, None), (4, 4.5, "d"), (5, 5.5, "e"), (6, 6.5, "f"),
    ]  # fmt: skip
    assert rows_to_batch([Priced("d", 4, 4.5)], PRICES, "op").column("stock").to_pylist() == [4]
    assert rows_to_batch([spark_row(price=5.5, note="e", stock=5)], PRICES, "op").column(0).to_pylist() == [5]


def test_no_rows_make_an_empty_batch() -> None:
    assert rows_to_batch([], PRICES, "op").num_rows == 0
    assert batch_to_rows(rows_to_batch([], PRICES, "op"), row_class(PRICES)) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 2.0), r"\(1, 2.0\) with 2 value\(s\) for the 3 column\(s\) 'stock', 'price', 'note'"),
        ((1, "x", None), r"'x' \(str\) in column 'price' of row 1, which does not fit double"),
        ((2**31, 1.0, None), r"2147483648 \(int\) in column 'stock' of row 1, which does not fit int"),
        ((2**63, 1.0, None), r"in column 'stock' of row 1, which does not fit int"),
        ((1.5, 1.0, None), r"1.5 \(float\) in column 'stock'"),
        ((np.float32(1.5), 1.0, None), r"in column 'stock'"),
        ((D("1.5"), 1.0, None), r"in column 'stock'"),
        ((True, 1.0, None), r"True \(bool\) in column 'stock'"),
        ((None, 1.0, None), r"None in column 'stock' \(value 1\), which is int NOT NULL"),
        (({"price": 1.0}), r"None in column 'stock'"),
        ({"stock": 1, "prize": 2.0}, r"\"'prize'\".*schema does not have"),
        ((1, 1.0, b"x"), r"in column 'note'"),
        ((1, 1.0, 7), r"7 \(int\) in column 'note' of row 1, which does not fit string"),
        (5, r"5 of type int as a row"),
        ("abc", r"'abc' of type str as a row"),
        (None, r"None of type NoneType as a row"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_operator_column_and_value(row: Any, message: str) -> None:
    good = (0, 0.0, "")
    with pytest.raises(OperatorError, match=r"operator 'match'.*" + message):
        rows_to_batch([good, row], PRICES, "match")


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("array<int>", [1, 2.5]),
        ("array<string>", "abc"),
        ("array<int>", 5),
        ("map<string,int>", {"a": 1.5}),
        ("map<string,int>", 5),
        ("struct<a:int,b:string>", {"a": 1, "c": "x"}),
        ("struct<a:int,b:string>", (1,)),
        ("struct<a:int>", (1.5,)),
        ("date", 5),
        ("timestamp", 5),
        ("timestamp", "2024-01-01"),
        ("binary", "text"),
        ("decimal(5,2)", D("1.555")),
        ("decimal(5,2)", D("12345.00")),
        ("decimal(5,2)", 1.5),
        ("boolean", 1),
    ],
)
def test_a_value_is_never_rounded_split_or_reinterpreted(ddl: str, value: Any) -> None:
    with pytest.raises(OperatorError, match=r"'op'.*'c'"):
        rows_to_batch([(None,), (value,)], parse_schema(f"c {ddl}"), "op")


@pytest.mark.parametrize(
    ("ddl", "value", "path"),
    [
        ("struct<a:int NOT NULL>", (None,), "c.a"),
        ("array<struct<a:int NOT NULL>>", [(1,), (None,)], "c.a"),
        ("map<int,struct<a:int NOT NULL>>", {1: (None,)}, "c.a"),
    ],
)
def test_a_null_in_a_nested_not_null_field_is_refused(ddl: str, value: Any, path: str) -> None:
    schema = parse_schema(f"c {ddl}")
    rows_to_batch([(None,)], schema, "op")
    with pytest.raises(OperatorError, match=rf"None in column '{path}'"):
        rows_to_batch([(None,), (value,)], schema, "op")


def test_structs_may_be_dicts_and_tuples_in_one_column() -> None:
    schema = parse_schema("c struct<a:int,b:array<struct<x:string>>>")
    rows = [((1, [{"x": "p"}, ("q",)]),), ({"a": 2},), (None,)]
    batch = rows_to_batch(rows, schema, "op")
    assert batch_to_rows(batch) == [((1, [("p",), ("q",)]),), ((2, None),), (None,)]


def test_a_time_that_python_cannot_hold_is_refused_by_column() -> None:
    for type_, value in ((UTC_STAMP, 2**62), (pa.timestamp("us"), -(2**62)), (pa.date32(), 2**30)):
        whole = pa.array([None, value], pa.int32() if type_ == pa.date32() else pa.int64())
        batch = pa.record_batch({"at": whole.view(type_)})
        with pytest.raises(OperatorError, match=r"'at' holds a date or time outside"):
            batch_to_rows(batch)


# ---- vectorised output


def test_a_table_is_conformed_to_the_schema_by_name_and_width() -> None:
    table = pa.table(
        {
            "note": pa.chunked_array([["a"], ["b"]], pa.large_string()),
            "stock": pa.array([1, 2], pa.int64()),
            "price": pa.array([1, 2], pa.int32()),
        }
    )
    batch = conform_batch(table, PRICES, "op")
    assert batch.schema == PRICES
    assert batch_to_rows(batch) == [(1, 1.0, "a"), (2, 2.0, "b")]
    stamps = pa.table({"t": pa.array([1001], pa.int64()).view(pa.timestamp("ns", "Asia/Tokyo"))})
    assert conform_batch(stamps, parse_schema("t timestamp"), "op").column(0).view(
        pa.int64()
    ).to_pylist() == [1]
    assert conform_batch(pa.table({"t": pa.nulls(1)}), parse_schema("t int"), "op").column(0).null_count == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"stock": [1], "price": [1.0]}, r"columns 'stock', 'price' where its schema has"),
        ({"stock": [2**40], "price": [1.0], "note": ["a"]}, r"'stock' as bigint, which does not fit int"),
        ({"stock": ["1"], "price": [1.0], "note": ["a"]}, r"'stock' as string, which does not fit int"),
        ({"stock": [1.5], "price": [1.0], "note": ["a"]}, r"'stock' as double"),
        ({"stock": [None], "price": [1.0], "note": ["a"]}, r"None in column 'stock'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(OperatorError, match=r"operator 'match'.*" + message):
        conform_batch(pa.table(columns), PRICES, "match")
