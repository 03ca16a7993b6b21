"""Schemas: DDL and its round trip, declarations from Arrow and Spark, Python types, rows and batches."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DeclarationError, OperatorError
from penstock.topology.schema import (
    batch_to_rows,
    conform_batch,
    ddl_of,
    fingerprint,
    parse_schema,
    parse_type,
    python_type,
    row_class,
    rows_to_batch,
    struct_class,
)

D = decimal.Decimal
UTC_STAMP = pa.timestamp("us", "UTC")

_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
_whole = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_stamps = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
_text = st.text(st.characters(codec="utf-8"), max_size=8)
ATOMS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{type_: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for type_, bits in _whole.items()},
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): _text,
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.dates(),
    pa.timestamp("us"): _stamps,
    UTC_STAMP: _stamps.map(lambda stamp: stamp.replace(tzinfo=dt.UTC)),
    pa.decimal128(10, 2): st.decimals(-(10**7), 10**7, places=2),
    pa.decimal128(38, 0): st.decimals(-(10**37), 10**37, places=0),
}


def _nest(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.builds(pa.field, _names, inner, st.booleans())
    structs = st.lists(field, min_size=1, max_size=3, unique_by=lambda f: f.name).map(pa.struct)
    keys = st.sampled_from([pa.string(), pa.int64(), pa.date32()])
    return st.one_of(inner.map(pa.list_), structs, st.builds(pa.map_, keys, inner))


TYPES = st.recursive(st.sampled_from(list(ATOMS)), _nest, max_leaves=5)
SCHEMAS = st.lists(
    st.builds(pa.field, _names, TYPES, st.booleans()),
    min_size=1,
    max_size=4,
    unique_by=lambda field: field.name,
).map(pa.schema)


def values_of(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values as user code holds them: named tuples for structs, dicts for maps."""
    if pa.types.is_list(type_):
        return st.lists(st.none() | values_of(type_.value_type), max_size=3)
    if pa.types.is_map(type_):
        return st.dictionaries(values_of(type_.key_type), st.none() | values_of(type_.item_type), max_size=3)
    if pa.types.is_struct(type_):
        fields = [values_of(f.type) | st.none() if f.nullable else values_of(f.type) for f in type_]
        return st.tuples(*fields).map(lambda row: struct_class(type_)(*row))
    return ATOMS[type_]


# ---- DDL


def test_every_spark_type_and_synonym_is_read() -> None:
    expected = {
        "boolean": pa.bool_(),
        "BYTE": pa.int8(),
        "tinyint": pa.int8(),
        "Short": pa.int16(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "INTEGER": pa.int32(),
        "long": pa.int64(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "real": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": UTC_STAMP,
        "timestamp_ltz": UTC_STAMP,
        "timestamp_ntz": pa.timestamp("us"),
        "decimal": pa.decimal128(10, 0),
        "dec(5)": pa.decimal128(5, 0),
        "numeric( 10 , 2 )": pa.decimal128(10, 2),
        "array<string>": pa.list_(pa.string()),
        "Map<string,int>": pa.map_(pa.string(), pa.int32()),
        "struct<a:int,b:string>": pa.struct({"a": pa.int32(), "b": pa.string()}),
    }
    assert {ddl: parse_type(ddl) for ddl in expected} == expected
    assert parse_schema(", ".join(f"c{at} {ddl}" for at, ddl in enumerate(expected))).types == [
        *expected.values()
    ]


def test_the_grammar_of_column_lists_is_sparks() -> None:
    schema = parse_schema(
        " stock: int NOT NULL COMMENT 'it\\'s, so' , "
        "`odd ``name``, here` array<struct<a: int not null, `b c` map<int,array<double>>>> "
        'comment "x, y",\n comment string, not int, 2nd string collate UTF8_BINARY '
    )
    inner = pa.struct(
        [pa.field("a", pa.int32(), False), pa.field("b c", pa.map_(pa.int32(), pa.list_(pa.float64())))]
    )
    assert schema == pa.schema(
        [
            pa.field("stock", pa.int32(), False),
            pa.field("odd `name`, here", pa.list_(inner)),
            pa.field("comment", pa.string()),
            pa.field("not", pa.int32()),
            pa.field("2nd", pa.string()),
        ]
    )
    assert parse_schema("struct<a:int,b:string NOT NULL>") == parse_schema("a int, b string NOT NULL")
    assert parse_schema("struct int").names == ["struct"]


@given(SCHEMAS)
@settings(deadline=None)
def test_ddl_gives_the_same_schema_back(schema: pa.Schema) -> None:
    assert parse_schema(ddl_of(schema)) == schema
    assert parse_schema(f"struct<{ddl_of(schema)}>") == schema
    for type_ in schema.types:
        assert parse_type(ddl_of(type_)) == type_
    assert parse_schema(schema) == schema


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("a int, b interval day to second", r"schema of operator 'x'.*'b' has type interval"),
        ("b void", r"'b' has type void"),
        ("v variant", r"'v' has type variant.*JSON"),
        ("c varchar(10)", r"'c' has type varchar.*use string"),
        ("a struct<b: array<interval>>", r"'b' has type interval"),
        ("b bool", r"'b' has unknown type 'bool'; did you mean 'boolean'"),
        ("a array<int", r"'a' has 'the end' where '>'"),
        ("a", r"'a' ends where a type"),
        ("a int b string", r"goes on with 'b'"),
        ("a int,", r"ends where a column name"),
        ("a int, a string", r"'a' is named twice"),
        ("s struct<a:int,a:int>", r"'s'.*'a' is named twice"),
        ("s struct<>", r"name at least one"),
        ("", r"name at least one"),
        ("d decimal(39,2)", r"'d' has type decimal\(39,2\)"),
        ("d decimal(3,4)", r"decimal\(3,4\)"),
        ("a int NOT", r"'NULL' should stand"),
        ("a int; drop", r"cannot be read at '; drop'"),
        ("a string collate unicode", r"'a'.*collation unicode"),
        ("<int>", r"column name"),
    ],
)
def test_what_cannot_be_carried_or_read_is_refused_by_column(ddl: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        parse_schema(ddl, "schema of operator 'x'")


# ---- other declarations


def test_an_arrow_schema_is_brought_to_one_form() -> None:
    given_ = pa.schema(
        {
            "a": pa.large_string(),
            "b": pa.large_binary(),
            "c": pa.timestamp("ns", "Europe/Zurich"),
            "d": pa.timestamp("s"),
            "e": pa.large_list(pa.field("element", pa.int64(), nullable=False)),
        },
        metadata={"pandas": "x"},
    )
    assert ddl_of(parse_schema(given_)) == "a string, b binary, c timestamp, d timestamp_ntz, e array<bigint>"
    assert parse_schema(given_).metadata is None
    with pytest.raises(DeclarationError, match=r"'d' has Arrow type duration\[us\]"):
        parse_schema(pa.schema({"d": pa.duration("us")}))


class StructTypeByJson:
    def jsonValue(self) -> dict[str, Any]:
        def field(name: str, type_: Any, nullable: bool = True) -> dict[str, Any]:
            return {"name": name, "type": type_, "nullable": nullable, "metadata": {}}

        inner = {"type": "struct", "fields": [field("x", "long", False)]}
        return {
            "type": "struct",
            "fields": [
                field("a", "integer", False),
                field("b", {"type": "array", "elementType": inner, "containsNull": True}),
                field(
                    "c",
                    {
                        "type": "map",
                        "keyType": "string",
                        "valueType": "decimal(10,2)",
                        "valueContainsNull": True,
                    },
                ),
                field("d", "timestamp_ntz"),
            ],
        }


class StructTypeByString:
    def simpleString(self) -> str:
        return "struct<a:int,b:array<string>>"


def test_a_spark_struct_type_is_known_by_its_methods() -> None:
    assert ddl_of(parse_schema(StructTypeByJson())) == (
        "a int NOT NULL, b array<struct<x:bigint NOT NULL>>, c map<string,decimal(10,2)>, d timestamp_ntz"
    )
    assert ddl_of(parse_schema(StructTypeByString())) == "a int, b array<string>"


def test_a_spark_type_that_cannot_be_carried_is_refused_by_column() -> None:
    class Declared:
        def jsonValue(self) -> dict[str, Any]:
            udt = {"type": "udt", "class": "x", "sqlType": "string"}
            return {"type": "struct", "fields": [{"name": "vec", "type": udt, "nullable": True}]}

    with pytest.raises(DeclarationError, match=r"'vec' has type udt"):
        parse_schema(Declared())


def test_something_else_is_no_schema() -> None:
    with pytest.raises(DeclarationError, match=r"output of 'x': a int is no schema"):
        parse_schema(7, "output of 'x'")


def test_fingerprints_are_stable_and_tell_schemas_apart() -> None:
    assert fingerprint(parse_schema("stock int, price double")).hex() == "d7803a696b6bb54d"
    ddls = ["a int", "a bigint", "b int", "a int NOT NULL", "a int, b int", "b int, a int"]
    assert len({fingerprint(parse_schema(ddl)) for ddl in ddls}) == len(ddls)


# ---- Python types


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


# ---- rows and batches


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
        ({"stock": [2**40], "price": [1.0], "note": ["a"]}, r"'stock' as int64, which does not fit int"),
        ({"stock": ["1"], "price": [1.0], "note": ["a"]}, r"'stock' as string, which does not fit int"),
        ({"stock": [1.5], "price": [1.0], "note": ["a"]}, r"'stock' as double"),
        ({"stock": [None], "price": [1.0], "note": ["a"]}, r"None in column 'stock'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(OperatorError, match=r"operator 'match'.*" + message):
        conform_batch(pa.table(columns), PRICES, "match")
