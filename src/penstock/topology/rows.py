"""What Python code sees of Arrow data: the Python type of a value, the class of a row, and the rows of a batch."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import namedtuple
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeclarationError, OperatorError
from penstock.suggesting import did_you_mean


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
    (pa.types.is_time64, dt.time),
    (pa.types.is_duration, dt.timedelta),
    (pa.types.is_decimal128, decimal.Decimal),
]


@lru_cache(maxsize=1024)
def struct_class(type_: pa.StructType) -> type[tuple[Any, ...]]:
    """Return the named tuple class of a struct, the same each time; odd names become _1, _2."""
    made: Any = namedtuple("Row", [field.name for field in type_], rename=True)  # type: ignore[misc]
    types = [python_type(field.type) for field in type_]
    types = [plain | None if field.nullable else plain for plain, field in zip(types, type_, strict=True)]
    made.__annotations__ = dict(zip(made._fields, types, strict=True))
    named: Any = made
    named.__getattr__ = _refuse_column
    cls: type[tuple[Any, ...]] = named
    return cls


def _refuse_column(row: Any, name: str) -> NoReturn:
    """Say what columns a row has; called for names that it has not."""
    if name.startswith("__"):
        raise AttributeError(f"a row has no {name!r}")
    hint = did_you_mean(name, row._fields)
    raise AttributeError(
        f"a row has no column {name!r}; {f'{hint} I' if hint else 'i'}t has {', '.join(row._fields)}"
    )


def row_class(schema: pa.Schema) -> type[tuple[Any, ...]]:
    """Return the named tuple class of a schema's rows."""
    return struct_class(pa.struct(list(schema)))


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
        first, bounds = bounds_of(array)
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


def bounds_of(array: pa.Array) -> tuple[int, list[int]]:
    """Return where an array of lists or maps begins in its values, and the bounds of each from there."""
    offsets = array.offsets.to_numpy()
    return int(offsets[0]), (offsets - offsets[0]).tolist()


def _map_values(array: pa.Array) -> list[Any]:
    first, bounds = bounds_of(array)
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
