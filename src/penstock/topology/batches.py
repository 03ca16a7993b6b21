"""Batches from what an operator returned: rows of any kind, or a table.

A row or column that does not fit is refused with operator, column and value; nothing is rounded, cut or guessed on
the way.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import OperatorError
from penstock.raised import bounded, describe_own, function_error
from penstock.topology.misfits import explain_misfit
from penstock.topology.returned import shown
from penstock.topology.rows import bounds_of
from penstock.topology.type_words import in_sparks_words, type_words
from penstock.topology.types import ddl_of

_REASON = 1_000
"""Characters of a value, and of why it does not fit."""


def rows_to_batch(rows: Sequence[Any], schema: pa.Schema, operator: str) -> pa.RecordBatch:
    """Return the batch of an operator's output rows: tuples by position, dicts and named tuples by name.

    A dict may leave out nullable columns. A named tuple with other names than the schema's goes by position.

    Raises:
        OperatorError: a row or value does not fit; it names operator, column, value and expected type.
    """
    try:
        columns = _columns_of(rows, schema, operator)
        arrays = [_array_of(values, field, operator) for field, values in zip(schema, columns, strict=True)]
    except OperatorError:
        raise
    except BaseException as error:  # of a method of what was returned: its __len__, __iter__ or __repr__, say
        raise function_error(f"operator {operator!r} returned rows that cannot be read", error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array_of(values: Sequence[Any], field: pa.Field, operator: str) -> pa.Array:
    try:
        array = pa.array(_prepare(values, field.type), field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise _misfit(values, field, operator, error) from error
    _require_no_nulls(array, field, operator)
    return array


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
        nested = "; it has rows inside, return one list of rows" if _is_list_of_rows(wrong) else ""
        raise OperatorError(
            f"operator {operator!r} returned {shown(wrong)} with {len(wrong)} value(s) for the "
            f"{len(schema)} column(s) {', '.join(repr(name) for name in schema.names)}{nested}"
        )
    return list(zip(*rows, strict=True))


def _is_list_of_rows(row: Sequence[Any]) -> bool:
    return bool(row) and all(isinstance(one, tuple | dict | list) for one in row)


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
                f"operator {operator!r} returned {shown(row)} with column(s) {sorted(map(repr, unknown))} "
                f"that its schema does not have; it has {', '.join(repr(name) for name in schema.names)}"
            )
        return tuple(map(row.get, schema.names))
    if isinstance(row, list):
        return tuple(row)
    raise OperatorError(
        f"operator {operator!r} returned {shown(row)} of type {type(row).__name__} as a row; a row is a "
        f"tuple, dict or named tuple with {', '.join(repr(name) for name in schema.names)}, and functions return a list of "
        "rows"
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
        except (pa.ArrowException, AttributeError, OverflowError, TypeError, ValueError) as own:
            return OperatorError(
                f"operator {operator!r} returned {shown(value)} ({type(value).__name__}) in column "
                f"{field.name!r} of row {at}, which does not fit {ddl_of(field.type)}: "
                f"{explain_misfit(value, field.type) or _reason(own)}"
            )
    return OperatorError(
        f"operator {operator!r}: column {field.name!r} does not fit {ddl_of(field.type)}: {_reason(error)}"
    )


def _reason(error: Exception) -> str:
    return in_sparks_words(bounded(describe_own(error), _REASON))


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
        first, bounds = bounds_of(array)
        _require_no_nulls(array.items[first : first + bounds[-1]], field.type.item_field, operator, path)


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
            raise TypeError(f"no cast from {type_words(array.type)}")
        # a nanosecond stamp is cut to Spark's microseconds; anything else must fit exactly
        return array.cast(field.type, safe=not (stamps and array.type.unit == "ns"))
    except (pa.ArrowException, TypeError) as error:
        raise OperatorError(
            f"operator {operator!r} returned column {field.name!r} as {type_words(array.type)}, which does not fit "
            f"{ddl_of(field.type)}: {_reason(error)}"
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
