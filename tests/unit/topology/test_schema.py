"""Schemas: DDL and its round trip, declarations from Arrow and Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.unit.topology.strategies import SCHEMAS, UTC_STAMP

from penstock.errors import DeclarationError
from penstock.topology.schema import fingerprint, parse_schema, parse_type
from penstock.topology.types import ddl_of

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
        (
            "a int, b interval year to month",
            r"schema of operator 'x'.*'b' has type interval year to month.*int of months",
        ),
        ("b void", r"'b' has type void"),
        ("v variant", r"'v' has type variant.*JSON"),
        ("c varchar(10)", r"'c' has type varchar.*use string"),
        ("a struct<b: array<interval>>", r"'b' has type interval"),
        ("b bool", r"'b' has unknown type 'bool'; write boolean"),
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
    with pytest.raises(DeclarationError, match=r"'d' has Arrow type month_day_nano_interval"):
        parse_schema(pa.schema({"d": pa.month_day_nano_interval()}))


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
