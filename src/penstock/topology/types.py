"""The types that columns and state may have: their names, the one Arrow form of each, and its DDL.

What cannot be carried is refused by column, with what to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.suggesting import did_you_mean

ATOMS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "uint8": pa.uint8(),  # Spark has no unsigned types; Arrow sources may
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),  # as Spark gives it to Arrow
    "interval day to second": pa.duration("us"),
}
SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_ELSEWHERE = {
    **dict.fromkeys(("str", "text", "utf8", "clob"), "string"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("int64", "i64"), "bigint"),
    **dict.fromkeys(("int32", "i32"), "int"),
    **dict.fromkeys(("int16", "i16"), "smallint"),
    **dict.fromkeys(("int8", "i8"), "tinyint"),
    **dict.fromkeys(("float64", "f64", "number"), "double"),
    **dict.fromkeys(("float32", "f32"), "float"),
    **dict.fromkeys(("bytes", "bytearray", "blob", "bytea"), "binary"),
    **dict.fromkeys(("datetime", "datetime64", "timestamptz", "instant"), "timestamp"),
    **dict.fromkeys(("list", "tuple", "set", "seq"), "array<...> with the type of its elements"),
    **dict.fromkeys(("dict", "json"), "map<..., ...> or struct<...>, or string for JSON text"),
    "timedelta": "interval day to second",
    "uuid": "string",
    "any": "the type that its values will have",
}
"""What the types of Python, pandas and other databases are called here."""
PYTHONS_TYPES = {
    "int": "bigint",
    "float": "double",
    "str": "string",
    "bool": "boolean",
    "bytes": "binary",
    "datetime": "timestamp",
    "date": "date",
    "Decimal": "decimal(18,2)",
    "list": "array<string>",
    "dict": "map<string,string>",
}
"""What to write for a class of Python's."""
_REFUSED = {
    "interval": "use interval day to second",
    "interval year to month": "store an int of months",
    "void": "give it the type its values will have",
    "null": "give it the type its values will have",
    "variant": "store a string of JSON",
    "char": "use string",
    "character": "use string",
    "varchar": "use string",
    "geometry": "store binary",
    "geography": "store binary",
    "object": "store binary",
    "udt": "use the type it is stored as",
}
_DDL_OF_ATOM = {type_: name for name, type_ in ATOMS.items()}
_KNOWN = [*ATOMS, *SYNONYMS, "decimal", "array", "map", "struct"]


def ddl_of(declared: pa.Schema | pa.DataType) -> str:
    """Return the DDL of a schema or type; `parse_schema` and `parse_type` give the same thing back."""
    if isinstance(declared, pa.Schema):
        return ", ".join(_ddl_of_field(field, " ") for field in declared)
    type_ = canonical_type(declared, "type", "")
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(_ddl_of_field(field, ':') for field in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{ddl_of(type_.key_type)},{ddl_of(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{ddl_of(type_.value_type)}>"
    return _DDL_OF_ATOM[type_]


def _ddl_of_field(field: pa.Field, between: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field.name) is not None
    name = field.name if plain else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{between}{ddl_of(field.type)}{'' if field.nullable else ' NOT NULL'}"


def schema_tree(schema: pa.Schema) -> str:
    """Return a schema as the tree that Spark's printSchema prints."""
    return "\n".join(["root", *(line for field in schema for line in _branch(field, " |"))]) + "\n"


def _branch(field: pa.Field, indent: str, nullable: str = "nullable") -> list[str]:
    type_, deeper = field.type, f"{indent}    |"
    name = next(iter(re.split(r"[<(]", ddl_of(type_)))) if pa.types.is_nested(type_) else ddl_of(type_)
    name = {"bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte"}.get(name, name)
    lines = [f"{indent}-- {field.name}: {name} ({nullable} = {str(field.nullable).lower()})"]
    if pa.types.is_struct(type_):
        return lines + [line for child in type_ for line in _branch(child, deeper)]
    if pa.types.is_list(type_):
        element = pa.field("element", type_.value_type)
        return lines + _branch(element, deeper, "containsNull")
    if pa.types.is_map(type_):
        key, value = pa.field("key", type_.key_type), pa.field("value", type_.item_type)
        line = f"{deeper}-- key: {ddl_of(key.type)}"
        return [*lines, line, *_branch(value, deeper, "valueContainsNull")]
    return lines


def refuse(what: str, column: str, problem: str) -> NoReturn:
    """Raise DeclarationError for a column of what is declared."""
    raise DeclarationError(f"{what}: column {column!r} {problem}" if column else f"{what} {problem}")


def require_names(fields: Iterable[pa.Field], what: str) -> None:
    """Refuse no columns, columns without a name and columns of one name."""
    names = [field.name for field in fields]
    if not names or "" in names:
        raise DeclarationError(f"{what}: name at least one column, and each by a text that is not empty")
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError(f"{what}: column {name!r} is named twice; rename one")


def struct_fields(type_: pa.DataType, what: str) -> list[pa.Field]:
    """Return the columns of a struct; refuse any other type."""
    if not pa.types.is_struct(type_):
        raise DeclarationError(f"{what}: {ddl_of(type_)} is a type without column names; give a struct")
    return list(type_)


def struct_type(fields: list[pa.Field], what: str, column: str) -> pa.DataType:
    """Return the struct of these fields after checking their names."""
    require_names(fields, f"{what}: struct in column {column!r}" if column else what)
    return pa.struct(fields)


def named_type(name: str, what: str, column: str) -> pa.DataType:
    """Return the type without parameters that has this name."""
    word = name.lower()
    word = SYNONYMS.get(word, word)
    if word in ATOMS:
        return ATOMS[word]
    if word in _REFUSED:
        refuse(what, column, f"has type {name.lower()}, which cannot be carried; {_REFUSED[word]}")
    meant = _ELSEWHERE.get(word)
    hint = f"write {meant}" if meant else did_you_mean(word, _KNOWN, f"there are {', '.join(_KNOWN)}")
    refuse(what, column, f"has unknown type {name!r}; {hint}")


def decimal_type(precision: int, scale: int, what: str, column: str) -> pa.DataType:
    """Return a decimal type; refuse what 128 bits do not hold."""
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        refuse(
            what,
            column,
            f"has type decimal({precision},{scale}); decimals have 1 to 38 digits, scale included",
        )
    return pa.decimal128(precision, scale)


def canonical_field(field: pa.Field, what: str) -> pa.Field:
    """Return a field in the one form of its meaning."""
    return pa.field(field.name, canonical_type(field.type, what, field.name), field.nullable)


def canonical_type(type_: pa.DataType, what: str, column: str) -> pa.DataType:
    """Return a type in the one form of its meaning; refuse what cannot be carried."""
    is_ = pa.types
    if type_ in _DDL_OF_ATOM or (is_.is_decimal128(type_) and type_.scale >= 0):
        return type_
    if is_.is_large_string(type_):
        return pa.string()
    if is_.is_large_binary(type_):
        return pa.binary()
    if is_.is_timestamp(type_):
        return ATOMS["timestamp" if type_.tz else "timestamp_ntz"]
    if is_.is_time(type_):
        return ATOMS["time"]
    if is_.is_duration(type_):
        return ATOMS["interval day to second"]
    if is_.is_list(type_) or is_.is_large_list(type_):
        return pa.list_(canonical_type(type_.value_type, what, column))
    if is_.is_map(type_):
        key, value = (canonical_type(part, what, column) for part in (type_.key_type, type_.item_type))
        return pa.map_(key, value)
    if is_.is_struct(type_):
        return struct_type([canonical_field(field, what) for field in type_], what, column)
    refuse(what, column, f"has Arrow type {type_}, which cannot be carried; cast it to a type that Spark has")
