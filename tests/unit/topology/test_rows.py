"""What Python code sees: the types of values and the classes of rows."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.topology.strategies import TYPES, UTC_STAMP, values_of

from penstock.topology.rows import python_type, row_class, struct_class
from penstock.topology.schema import parse_schema, parse_type
from penstock.topology.types import ddl_of

D = decimal.Decimal


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_msgspec_reads_back_what_it_wrote_of_any_type(data: st.DataObject) -> None:
    type_ = data.draw(TYPES)
    value = data.draw(values_of(type_))
    decoded = msgspec.msgpack.Decoder(python_type(type_)).decode(msgspec.msgpack.Encoder().encode(value))
    assert decoded == value
    assert type(decoded) is type(value)


def test_msgspec_keeps_the_classes_of_nested_values() -> None:
    type_ = parse_type(
        "array<struct<at:timestamp,paid:decimal(10,2),note:string,more:struct<local:timestamp_ntz>>>"
    )
    row: Any = struct_class(type_.value_type)
    more: Any = struct_class(type_.value_type.field("more").type)
    aware = dt.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    value = [row(aware, D("1.50"), None, more(aware.replace(tzinfo=None))), None, row(None, None, "x", None)]
    decoded = msgspec.msgpack.Decoder(python_type(type_)).decode(msgspec.msgpack.encode(value))
    assert decoded == value
    assert isinstance(decoded[0].more, more)
    assert decoded[0].at.tzinfo is dt.UTC and decoded[0].more.local.tzinfo is None


def test_msgspec_refuses_a_value_of_another_type() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.Decoder(python_type(pa.int64())).decode(msgspec.msgpack.encode("x"))
    aware = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    for type_, stamp in ((UTC_STAMP, aware.replace(tzinfo=None)), (pa.timestamp("us"), aware)):
        with pytest.raises(msgspec.ValidationError, match="timezone"):
            msgspec.msgpack.Decoder(python_type(type_)).decode(msgspec.msgpack.encode(stamp))


def test_row_classes_are_made_once_and_rename_what_is_no_identifier() -> None:
    schema = parse_schema("stock int, `total price` double, class string")
    assert row_class(schema) is row_class(parse_schema(ddl_of(schema)))
    assert row_class(schema)._fields == ("stock", "_1", "_2")  # type: ignore[attr-defined]
