"""Schemas of rows, as a user may declare them, and the Arrow form that every other module uses.

Reads DDL, Arrow schemas and Spark's StructType. Never imports pyspark: a StructType is known by its methods.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeGuard

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.ddl import Parser
from penstock.topology.types import (
    PYTHONS_TYPES,
    canonical_field,
    canonical_type,
    ddl_of,
    named_type,
    require_names,
    struct_fields,
    struct_type,
)


def parse_schema(spec: object, what: str = "schema") -> pa.Schema:
    """Return the Arrow schema of a declaration: DDL text, a `pyarrow.Schema`, or Spark's `StructType`.

    The result has one form per meaning: no metadata, 32-bit offsets, time stamps in microseconds (UTC where
    they have a zone), elements of arrays and values of maps nullable.

    Args:
        spec: what the user gave.
        what: how messages name it, such as "output schema of operator 'count'".

    Raises:
        DeclarationError: it cannot be read, names a column twice, or has a type that cannot be carried.
    """
    if isinstance(spec, str):
        fields = Parser(spec, what).schema()
    elif isinstance(spec, pa.Schema):
        fields = [canonical_field(field, what) for field in spec]
    elif hasattr(spec, "jsonValue") and not isinstance(spec, type):
        fields = struct_fields(_type_of_json(spec.jsonValue(), what, ""), what)
    elif hasattr(spec, "simpleString") and not isinstance(spec, type):
        fields = struct_fields(Parser(spec.simpleString(), what).whole_type(), what)
    else:
        raise DeclarationError(
            f"{what}: a {type(spec).__name__} is no schema; give DDL such as 'stock int, price double', a "
            "pyarrow.Schema or a StructType"
        )
    require_names(fields, what)
    return pa.schema(fields)


def parse_type(ddl: str, what: str = "type") -> pa.DataType:
    """Return the Arrow type of one DDL type such as `map<string,array<int>>`."""
    return Parser(ddl, what).whole_type()


def parse_any_type(spec: object, what: str) -> pa.DataType:
    """Return the Arrow type of a declaration: a DDL type, a DDL row such as `a long, b int`, which is a struct, a
    `pyarrow.DataType` or `pyarrow.Schema`, or a DataType of Spark.

    Raises:
        DeclarationError: it is none of these, or cannot be carried.
    """
    if isinstance(spec, str):
        parser = Parser(spec, what)
        return struct_type(parser.schema(), what, "") if parser.is_row() else parser.whole_type()
    if isinstance(spec, pa.DataType):
        return canonical_type(spec, what, "")
    if isinstance(spec, pa.Schema):
        return struct_type([canonical_field(field, what) for field in spec], what, "")
    if hasattr(spec, "jsonValue") and not isinstance(spec, type):
        return _type_of_json(spec.jsonValue(), what, "")
    called = f"{spec.__name__}, write {spec.__name__}()" if _is_spark_class(spec) else f"{spec!r}"
    if isinstance(spec, type) and spec.__name__ in PYTHONS_TYPES:
        called = f"Python's {spec.__name__}; write {PYTHONS_TYPES[spec.__name__]!r} for {spec.__name__}"
    raise DeclarationError(
        f"{what} takes a DDL type such as 'double', a row such as 'a long, b int', a StructType or another DataType of "
        f"Spark, or a pyarrow.DataType, not {called}"
    )


def _is_spark_class(spec: object) -> TypeGuard[type]:
    return isinstance(spec, type) and hasattr(spec, "jsonValue")


def fingerprint(schema: pa.Schema) -> bytes:
    """Return 8 bytes that are equal for equal schemas, in every process and version."""
    return hashlib.blake2b(ddl_of(schema).encode(), digest_size=8).digest()


def _type_of_json(json: Any, what: str, column: str) -> pa.DataType:
    if isinstance(json, str):
        return Parser(json, what, column).whole_type()
    kind = json["type"]
    if kind == "array":
        return pa.list_(_type_of_json(json["elementType"], what, column))
    if kind == "map":
        key, value = (_type_of_json(json[part], what, column) for part in ("keyType", "valueType"))
        return pa.map_(key, value)
    if kind != "struct":
        return named_type(kind, what, column)
    fields = [
        pa.field(field["name"], _type_of_json(field["type"], what, field["name"]), field["nullable"])
        for field in json["fields"]
    ]
    return struct_type(fields, what, column)
