"""Which columns can be a key; checked where `groupBy` is written."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as kinds

from penstock.errors import DeclarationError
from penstock.topology.expressions import Column, nearest, refuse_expression
from penstock.topology.type_words import type_words

_KEY_TYPES = (
    kinds.is_boolean,
    kinds.is_integer,
    kinds.is_float32,
    kinds.is_float64,
    kinds.is_date32,
    kinds.is_timestamp,
    kinds.is_string,
    kinds.is_large_string,
    kinds.is_binary,
    kinds.is_large_binary,
    kinds.is_decimal128,
)


def can_be_key(type_: pa.DataType) -> bool:
    """Whether values of a type can be keys, of rows or of a map in state."""
    return any(is_key(type_) for is_key in _KEY_TYPES)


def check_key_columns(schema: pa.Schema, columns: Sequence[object], producer: str) -> tuple[str, ...]:
    """Return the key columns by name.

    Raises:
        DeclarationError: none is given, one is unknown, given twice, or not of a type that can be a key.
    """
    if not columns:
        raise DeclarationError(
            f"groupBy(...) on '{producer}' needs at least one column of {', '.join(schema.names)}."
        )
    names: list[str] = []
    for column in columns:
        if not isinstance(column, str):
            where = f"groupBy(...) on '{producer}'"
            if "window" in repr(column) and not isinstance(column, Column):
                raise DeclarationError(
                    f'{where} takes no window of Spark; write penstock.window("ts", "5 minutes") or '
                    'penstock.session_window("ts", "5 minutes").'
                )
            refuse_expression("groupBy", column, where)
        if column not in schema.names:
            raise DeclarationError(
                f"groupBy: '{producer}' has no column {column!r}, it has {', '.join(schema.names)}"
                f"{nearest(column, schema)}."
            )
        if column in names:
            raise DeclarationError(f"groupBy on '{producer}' names column '{column}' twice; give it once.")
        type_ = schema.field(column).type
        if not can_be_key(type_):
            raise DeclarationError(
                f"groupBy: column '{column}' of '{producer}' has type {type_words(type_)}, which cannot be a key; "
                "key by a number, string, binary, boolean, date, timestamp or decimal."
            )
        names.append(column)
    return tuple(names)
