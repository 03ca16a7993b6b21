"""Schemas of rows and state: what a user may declare, what Arrow carries, and what Python code sees.

Owns the DDL of schemas (Spark's, written without Spark), the Arrow form every other module uses, and the way
between Python rows and Arrow batches. A row that does not fit is refused with operator, column and value;
nothing is rounded, cut or guessed on the way. Never imports pyspark: a StructType is known by its methods.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
import hashlib
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, pairwise, repeat
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeclarationError, OperatorError

_ATOMS: dict[str, pa.DataType] = {
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
}
_SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_REFUSED = {
    "interval": "store a bigint of microseconds",
    "void": "give it the type its values will have",
    "null": "give it the type its values will have",
    "variant": "store a string of JSON",
    "time": "store a bigint of microseconds",
    "char": "use string",
    "character": "use string",
    "varchar": "use string",
    "geometry": "store binary",
    "geography": "store binary",
    "object": "store binary",
    "udt": "use the type it is stored as",
}
_DDL_OF_ATOM = {type_: name for name, type_ in _ATOMS.items()}
_KNOWN = [*_ATOMS, *_SYNONYMS, "decimal", "array", "map", "struct"]
_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>\w+)|(?P<mark>[<>(),:]))""",
    re.DOTALL,
)


# -------------------- declaring


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
        fields = _Parser(spec, what).schema()
    elif isinstance(spec, pa.Schema):
        fields = [_canonical_field(field, what) for field in spec]
    elif hasattr(spec, "jsonValue"):
        fields = _struct_fields(_type_of_json(spec.jsonValue(), what, ""), what)
    elif hasattr(spec, "simpleString"):
        fields = _struct_fields(_Parser(spec.simpleString(), what).whole_type(), what)
    else:
        raise DeclarationError(
            f"{what}: a {type(spec).__name__} is no schema; give DDL such as 'stock int, price double', a "
            "pyarrow.Schema or a StructType"
        )
    _require_names(fields, what)
    return pa.schema(fields)


def parse_type(ddl: str, what: str = "type") -> pa.DataType:
    """Return the Arrow type of one DDL type such as `map<string,array<int>>`."""
    return _Parser(ddl, what).whole_type()


def ddl_of(declared: pa.Schema | pa.DataType) -> str:
    """Return the DDL of a schema or type; `parse_schema` and `parse_type` give the same thing back."""
    if isinstance(declared, pa.Schema):
        return ", ".join(_ddl_of_field(field, " ") for field in declared)
    type_ = _canonical_type(declared, "type", "")
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(_ddl_of_field(field, ':') for field in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{ddl_of(type_.key_type)},{ddl_of(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{ddl_of(type_.value_type)}>"
    return _DDL_OF_ATOM[type_]


def fingerprint(schema: pa.Schema) -> bytes:
    """Return 8 bytes that are equal for equal schemas, in every process and version."""
    return hashlib.blake2b(ddl_of(schema).encode(), digest_size=8).digest()


def _ddl_of_field(field: pa.Field, between: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field.name) is not None
    name = field.name if plain else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{between}{ddl_of(field.type)}{'' if field.nullable else ' NOT NULL'}"


def _refuse(what: str, column: str, problem: str) -> NoReturn:
    raise DeclarationError(f"{what}: column {column!r} {problem}" if column else f"{what} {problem}")


def _require_names(fields: Iterable[pa.Field], what: str) -> None:
    names = [field.name for field in fields]
    if not names or "" in names:
        raise DeclarationError(f"{what}: name at least one column, and each by a text that is not empty")
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError(f"{what}: column {name!r} is named twice; rename one")


def _struct_fields(type_: pa.DataType, what: str) -> list[pa.Field]:
    if not pa.types.is_struct(type_):
        raise DeclarationError(f"{what}: {ddl_of(type_)} is a type without column names; give a struct")
    return list(type_)


def _struct(fields: list[pa.Field], what: str, column: str) -> pa.DataType:
    _require_names(fields, f"{what}: struct in column {column!r}" if column else what)
    return pa.struct(fields)


def _named_type(name: str, what: str, column: str) -> pa.DataType:
    """Return the type without parameters that has this name."""
    word = name.lower()
    word = _SYNONYMS.get(word, word)
    if word in _ATOMS:
        return _ATOMS[word]
    if word in _REFUSED:
        _refuse(what, column, f"has type {name.lower()}, which cannot be carried; {_REFUSED[word]}")
    close = difflib.get_close_matches(word, _KNOWN, 1)
    _refuse(what, column, f"has unknown type {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def _decimal(precision: int, scale: int, what: str, column: str) -> pa.DataType:
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        _refuse(
            what,
            column,
            f"has type decimal({precision},{scale}); decimals have 1 to 38 digits, scale included",
        )
    return pa.decimal128(precision, scale)


# -------------------- from Arrow and from Spark's JSON


def _canonical_field(field: pa.Field, what: str) -> pa.Field:
    return pa.field(field.name, _canonical_type(field.type, what, field.name), field.nullable)


def _canonical_type(type_: pa.DataType, what: str, column: str) -> pa.DataType:
    is_ = pa.types
    if type_ in _DDL_OF_ATOM or (is_.is_decimal128(type_) and type_.scale >= 0):
        return type_
    if is_.is_large_string(type_):
        return pa.string()
    if is_.is_large_binary(type_):
        return pa.binary()
    if is_.is_timestamp(type_):
        return _ATOMS["timestamp" if type_.tz else "timestamp_ntz"]
    if is_.is_list(type_) or is_.is_large_list(type_):
        return pa.list_(_canonical_type(type_.value_type, what, column))
    if is_.is_map(type_):
        key, value = (_canonical_type(part, what, column) for part in (type_.key_type, type_.item_type))
        return pa.map_(key, value)
    if is_.is_struct(type_):
        return _struct([_canonical_field(field, what) for field in type_], what, column)
    _refuse(
        what, column, f"has Arrow type {type_}, which cannot be carried; cast it to a type that Spark has"
    )


def _type_of_json(json: Any, what: str, column: str) -> pa.DataType:
    if isinstance(json, str):
        return _Parser(json, what, column).whole_type()
    kind = json["type"]
    if kind == "array":
        return pa.list_(_type_of_json(json["elementType"], what, column))
    if kind == "map":
        key, value = (_type_of_json(json[part], what, column) for part in ("keyType", "valueType"))
        return pa.map_(key, value)
    if kind != "struct":
        return _named_type(kind, what, column)
    fields = [
        pa.field(field["name"], _type_of_json(field["type"], what, field["name"]), field["nullable"])
        for field in json["fields"]
    ]
    return _struct(fields, what, column)


class _Parser:
    """Spark's grammar of column lists and types: `name [:] type [NOT NULL] [COMMENT 'text']`, ..."""

    def __init__(self, text: str, what: str, column: str = "") -> None:
        self.text, self.what, self.column = text, what, column
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                self.fail(f"cannot be read at {text[position:].strip()[:20]!r}")
            self.tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            position = match.end()

    def schema(self) -> list[pa.Field]:
        if [token.lower() for _, token in self.tokens[:2]] == ["struct", "<"]:
            return _struct_fields(self.whole_type(), self.what)
        fields = self.fields() if self.tokens else []
        self.end()
        return fields

    def whole_type(self) -> pa.DataType:
        type_ = self.type()
        self.end()
        return type_

    def fields(self) -> list[pa.Field]:
        fields = [self.field()]
        while self.take(","):
            fields.append(self.field())
        return fields

    def field(self) -> pa.Field:
        outer = self.column
        kind, name = self.next("a column name")
        if kind not in ("word", "quoted"):
            self.fail(f"has {name!r} where a column name should stand")
        self.column = name[1:-1].replace("``", "`") if kind == "quoted" else name
        self.take(":")
        type_ = self.type()
        nullable = not self.take("not")
        if not nullable:
            self.need("null")
        if self.take("comment") and self.next("a comment")[0] != "text":
            self.fail("has a COMMENT without a quoted text")
        field = pa.field(self.column, type_, nullable)
        self.column = outer
        return field

    def type(self) -> pa.DataType:
        kind, name = self.next("a type")
        if kind != "word":
            self.fail(f"has {name!r} where a type should stand")
        word = _SYNONYMS.get(name.lower(), name.lower())
        if word == "decimal":
            return self.decimal()
        if word in ("array", "map", "struct"):
            self.need("<")
            type_ = self.nested(word)
            self.need(">")
            return type_
        type_ = _named_type(name, self.what, self.column)
        if (
            word == "string"
            and self.take("collate")
            and (collation := self.next("a collation")[1]).lower() != "utf8_binary"
        ):
            self.fail(f"has a string with collation {collation}, which cannot be carried; use string")
        return type_

    def nested(self, word: str) -> pa.DataType:
        if word == "array":
            return pa.list_(self.type())
        if word == "map":
            key = self.type()
            self.need(",")
            return pa.map_(key, self.type())
        return _struct([] if self.peek() == ">" else self.fields(), self.what, self.column)

    def decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.take("("):
            precision = self.number()
            scale = self.number() if self.take(",") else 0
            self.need(")")
        return _decimal(precision, scale, self.what, self.column)

    def number(self) -> int:
        digits = self.next("a number")[1]
        if not digits.isdecimal():
            self.fail(f"has {digits!r} where a number should stand")
        return int(digits)

    def peek(self) -> str:
        kind, token = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        return token.lower() if kind in ("word", "mark") else ""

    def take(self, token: str) -> bool:
        taken = self.peek() == token
        self.at += taken
        return taken

    def need(self, token: str) -> None:
        if not self.take(token):
            found = self.tokens[self.at][1] if self.at < len(self.tokens) else "the end"
            self.fail(f"has {found!r} where {token.upper()!r} should stand")

    def next(self, expected: str) -> tuple[str, str]:
        if self.at == len(self.tokens):
            self.fail(f"ends where {expected} should stand")
        self.at += 1
        return self.tokens[self.at - 1]

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.fail(f"goes on with {self.tokens[self.at][1]!r} where ',' or the end should stand")

    def fail(self, problem: str) -> NoReturn:
        _refuse(self.what, self.column, f"{problem} in {self.text!r}")


# -------------------- Python's view


def python_type(type_: pa.DataType) -> Any:
    """Return the Python type of a value, as a msgspec decoder takes it; nested values may be null.

    `msgspec.msgpack.Decoder(python_type(t))` reads what `msgspec.msgpack.Encoder()` wrote of such a value.
    """
    is_ = pa.types
    if is_.is_timestamp(type_):
        return Annotated[dt.datetime, msgspec.Meta(tz=type_.tz is not None)]
    if is_.is_list(type_):
        return list[python_type(type_.value_type) | None]  # type: ignore[misc]
    if is_.is_map(type_):
        return dict[python_type(type_.key_type), python_type(type_.item_type) | None]  # type: ignore[misc]
    if is_.is_struct(type_):
        return struct_class(type_)
    for fits, plain in _PLAIN:
        if fits(type_):
            return plain
    raise DeclarationError(f"Arrow type {type_} has no Python type here; cast it to a type that Spark has")


_PLAIN: list[tuple[Callable[[pa.DataType], bool], type]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_date32, dt.date),
    (pa.types.is_decimal128, decimal.Decimal),
]


@lru_cache(maxsize=1024)
def struct_class(type_: pa.StructType) -> type[tuple[Any, ...]]:
    """Return the named tuple class of a struct, the same each time; odd names become _1, _2."""
    made: Any = namedtuple("Row", [field.name for field in type_], rename=True)  # type: ignore[misc]
    types = [python_type(field.type) for field in type_]
    types = [plain | None if field.nullable else plain for plain, field in zip(types, type_, strict=True)]
    made.__annotations__ = dict(zip(made._fields, types, strict=True))
    cls: type[tuple[Any, ...]] = made
    return cls


def row_class(schema: pa.Schema) -> type[tuple[Any, ...]]:
    """Return the named tuple class of a schema's rows."""
    return struct_class(pa.struct(list(schema)))


# -------------------- rows from batches


def batch_to_rows(batch: pa.RecordBatch | pa.Table, row_class: type[tuple[Any, ...]] = tuple) -> list[Any]:
    """Return a batch's rows as `row_class`; structs become named tuples, maps dicts, zoned stamps UTC."""
    columns = [_column_values(batch.column(at), name) for at, name in enumerate(batch.schema.names)]
    return _tuples(row_class, columns) if columns else [tuple.__new__(row_class)] * batch.num_rows


def _tuples(cls: type[tuple[Any, ...]], columns: list[list[Any]]) -> list[Any]:
    rows = zip(*columns, strict=True)
    return list(rows) if cls is tuple else list(map(tuple.__new__, repeat(cls), rows))


def _column_values(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    try:
        return _values(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    except OverflowError as error:
        raise OperatorError(
            f"column {name!r} holds a date or time outside the years 1 to 9999, which Python cannot hold; "
            "filter it out, or use a vectorised operator"
        ) from error


def _values(array: pa.Array) -> list[Any]:
    type_ = array.type
    if pa.types.is_struct(type_):
        rows = _tuples(struct_class(type_), [_values(child) for child in array.flatten()])
        return _with_nulls(rows, array)
    if pa.types.is_map(type_):
        return _with_nulls(_map_values(array), array)
    if pa.types.is_list(type_):
        first, bounds = _bounds(array)
        flat = _values(array.values[first : first + bounds[-1]])
        return _with_nulls([flat[a:b] for a, b in pairwise(bounds)], array)
    if pa.types.is_date32(type_) or (pa.types.is_timestamp(type_) and type_.unit == "us"):
        return _times(array)
    if array.null_count == 0 and (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        numbers: list[Any] = array.to_numpy().tolist()
        return numbers
    values: list[Any] = array.to_pylist()
    return values


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    for at in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) if array.null_count else ():
        values[at] = None
    return values


def _bounds(array: pa.Array) -> tuple[int, list[int]]:
    offsets = array.offsets.to_numpy()
    return int(offsets[0]), (offsets - offsets[0]).tolist()


def _map_values(array: pa.Array) -> list[Any]:
    first, bounds = _bounds(array)
    keys = _values(array.keys[first : first + bounds[-1]])
    items = _values(array.items[first : first + bounds[-1]])
    return [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in pairwise(bounds)]


def _times(array: pa.Array) -> list[Any]:
    """Go by numpy, which makes datetimes far faster than Arrow, but numbers of those out of range."""
    whole = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    extremes = pc.min_max(whole).as_py()
    limits = _DAYS if pa.types.is_date32(array.type) else _MICROS
    if extremes["min"] is not None and not limits[0] <= extremes["min"] <= extremes["max"] <= limits[1]:
        raise OverflowError("date or time out of range")
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        deltas = whole.fill_null(0).to_numpy().view("m8[us]").tolist()
        return _with_nulls(list(map(_EPOCH_UTC.__add__, deltas)), array)
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAYS = tuple(day.toordinal() - dt.date(1970, 1, 1).toordinal() for day in (dt.date.min, dt.date.max))
_MICROS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


# -------------------- batches from rows


def rows_to_batch(rows: Sequence[Any], schema: pa.Schema, operator: str) -> pa.RecordBatch:
    """Return the batch of an operator's output rows: tuples by position, dicts and named tuples by name.

    A dict may leave out nullable columns. A named tuple with other names than the schema's goes by position.

    Raises:
        OperatorError: a row or value does not fit; it names operator, column, value and expected type.
    """
    columns = _columns_of(rows, schema, operator)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = pa.array(_prepare(values, field.type), field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise _misfit(values, field, operator, error) from error
        _require_no_nulls(array, field, operator)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns_of(rows: Sequence[Any], schema: pa.Schema, operator: str) -> list[Sequence[Any]]:
    if not rows:
        return [()] * len(schema)
    kinds = set(map(type, rows))
    if kinds != {tuple}:
        positions = {kind: _positions(kind, schema) for kind in kinds}
        if any(order is not None or not hasattr(kind, "_fields") for kind, order in positions.items()):
            rows = [_by_position(row, positions[type(row)], schema, operator) for row in rows]
    if set(map(len, rows)) != {len(schema)}:
        wrong = next(row for row in rows if len(row) != len(schema))
        raise OperatorError(
            f"operator {operator!r} returned {_shown(wrong)} with {len(wrong)} value(s) for the "
            f"{len(schema)} column(s) {', '.join(repr(name) for name in schema.names)}"
        )
    return list(zip(*rows, strict=True))


def _positions(kind: type, schema: pa.Schema) -> list[int] | None:
    """Return where a named tuple class holds each column, or None to take its values as they stand."""
    names = list(getattr(kind, "_fields", ()))
    if names == schema.names or sorted(names) != sorted(schema.names):
        return None
    return [names.index(name) for name in schema.names]


def _by_position(row: Any, order: list[int] | None, schema: pa.Schema, operator: str) -> tuple[Any, ...]:
    if isinstance(row, tuple):
        names = getattr(row, "__fields__", None)  # Spark's Row keeps its names per row, not per class
        if order is None and names is not None and sorted(names) == sorted(schema.names):
            order = [list(names).index(name) for name in schema.names]
        return row if order is None else tuple(row[at] for at in order)
    if isinstance(row, dict):
        if unknown := row.keys() - set(schema.names):
            raise OperatorError(
                f"operator {operator!r} returned {_shown(row)} with column(s) {sorted(map(repr, unknown))} "
                f"that its schema does not have; it has {', '.join(repr(name) for name in schema.names)}"
            )
        return tuple(map(row.get, schema.names))
    if isinstance(row, list):
        return tuple(row)
    raise OperatorError(
        f"operator {operator!r} returned {_shown(row)} of type {type(row).__name__} as a row; return a "
        f"tuple, dict or named tuple with {', '.join(repr(name) for name in schema.names)}"
    )


# Arrow would cut, split or reinterpret these silently.
_MISTAKEN: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...]]] = [
    (pa.types.is_integer, (float, np.floating, decimal.Decimal)),
    (pa.types.is_floating, (bool,)),
    (pa.types.is_string, (bytes,)),
    (pa.types.is_binary, (str,)),
    (pa.types.is_temporal, (int, float)),
    (pa.types.is_decimal128, (bool,)),
    (pa.types.is_list, (str, bytes, dict)),
]


@lru_cache(maxsize=1024)
def _mistaken(type_: pa.DataType) -> tuple[type, ...]:
    return next((kinds for fits, kinds in _MISTAKEN if fits(type_)), ())


def _prepare(values: Sequence[Any], type_: pa.DataType) -> Sequence[Any]:
    """Return the values as Arrow takes them without guessing (structs as tuples, maps as pairs)."""
    for kind in set(map(type, values)):
        if issubclass(kind, _mistaken(type_)):
            raise TypeError(f"a {kind.__name__} is no {ddl_of(type_)}")
    if pa.types.is_struct(type_):
        return _prepare_structs(values, type_)
    if pa.types.is_map(type_):
        pairs = [None if v is None else list(v.items() if isinstance(v, dict) else v) for v in values]
        keys = _prepare([key for pair in pairs if pair for key, _ in pair], type_.key_type)
        items = _prepare([item for pair in pairs if pair for _, item in pair], type_.item_type)
        return _regroup(pairs, list(zip(keys, items, strict=True)))
    if pa.types.is_list(type_):
        flat = _prepare(list(chain.from_iterable(v for v in values if v is not None)), type_.value_type)
        return _regroup(values, flat)
    return values


def _prepare_structs(values: Sequence[Any], type_: pa.StructType) -> Sequence[Any]:
    names = [field.name for field in type_]
    given = [_struct_tuple(value, names) for value in values if value is not None]
    columns = [
        _prepare(column, field.type) for column, field in zip(zip(*given, strict=True), type_, strict=False)
    ]
    prepared = iter(zip(*columns, strict=True))
    return [None if value is None else next(prepared) for value in values]


def _struct_tuple(value: Any, names: list[str]) -> tuple[Any, ...]:
    if isinstance(value, dict):
        if unknown := value.keys() - set(names):
            raise TypeError(f"its struct has no field {', '.join(sorted(map(repr, unknown)))}")
        return tuple(map(value.get, names))
    if not isinstance(value, tuple) or len(value) != len(names):
        raise TypeError(f"a struct is a dict or tuple of {', '.join(map(repr, names))}")
    return value


def _regroup(groups: Sequence[Any], flat: Sequence[Any]) -> list[Any]:
    regrouped, at = [], 0
    for group in groups:
        regrouped.append(None if group is None else flat[at : at + len(group)])
        at += 0 if group is None else len(group)
    return regrouped


def _misfit(values: Sequence[Any], field: pa.Field, operator: str, error: Exception) -> OperatorError:
    """Name the first value that does not fit by itself."""
    for at, value in enumerate(values):
        try:
            pa.array(_prepare([value], field.type), field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as own:
            return OperatorError(
                f"operator {operator!r} returned {_shown(value)} ({type(value).__name__}) in column "
                f"{field.name!r} of row {at}, which does not fit {ddl_of(field.type)}: {own}"
            )
    return OperatorError(
        f"operator {operator!r}: column {field.name!r} does not fit {ddl_of(field.type)}: {error}"
    )


def _require_no_nulls(array: pa.Array, field: pa.Field, operator: str, path: str = "") -> None:
    path = path or field.name
    if array.null_count and not field.nullable:
        at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise OperatorError(
            f"operator {operator!r} returned None in column {path!r} (value {at}), which is "
            f"{ddl_of(field.type)} NOT NULL; return a value, or declare the column without NOT NULL"
        )
    if pa.types.is_struct(field.type):
        present = array.drop_null()
        for child, values in zip(field.type, present.flatten(), strict=True):
            _require_no_nulls(values, child, operator, f"{path}.{child.name}")
    elif pa.types.is_list(field.type):
        _require_no_nulls(array.flatten(), field.type.value_field, operator, path)
    elif pa.types.is_map(field.type) and len(array):
        first, bounds = _bounds(array)
        _require_no_nulls(array.items[first : first + bounds[-1]], field.type.item_field, operator, path)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def conform_batch(data: pa.RecordBatch | pa.Table, schema: pa.Schema, operator: str) -> pa.RecordBatch:
    """Return a vectorised operator's output as one batch of this schema: columns by name, widths cast.

    Raises:
        OperatorError: a column is missing or too many, or its values do not fit.
    """
    if sorted(data.schema.names) != sorted(schema.names):
        raise OperatorError(
            f"operator {operator!r} returned columns {', '.join(map(repr, data.schema.names))} where its "
            f"schema has {', '.join(map(repr, schema.names))}"
        )
    arrays = []
    for field in schema:
        column = data.column(field.name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if array.type != field.type:
            array = _cast(array, field, operator)
        _require_no_nulls(array, field, operator)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, field: pa.Field, operator: str) -> pa.Array:
    stamps = pa.types.is_timestamp(array.type) and pa.types.is_timestamp(field.type)
    try:
        if not stamps and not pa.types.is_null(array.type) and _family(array.type) != _family(field.type):
            raise TypeError(f"no cast from {array.type}")
        # a nanosecond stamp is cut to Spark's microseconds; anything else must fit exactly
        return array.cast(field.type, safe=not (stamps and array.type.unit == "ns"))
    except (pa.ArrowException, TypeError) as error:
        raise OperatorError(
            f"operator {operator!r} returned column {field.name!r} as {array.type}, which does not fit "
            f"{ddl_of(field.type)}: {error}"
        ) from error


def _family(type_: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_integer(type_) or is_.is_floating(type_) or is_.is_decimal(type_):
        return "number"
    if (
        is_.is_string(type_)
        or is_.is_large_string(type_)
        or (is_.is_dictionary(type_) and is_.is_string(type_.value_type))
    ):
        return "text"
    if is_.is_binary(type_) or is_.is_large_binary(type_):
        return "bytes"
    if is_.is_list(type_) or is_.is_large_list(type_):
        return "list"
    return str(type_) if is_.is_primitive(type_) else str(type_).partition("<")[0]
