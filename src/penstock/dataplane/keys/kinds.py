"""What may be a key, and how a key that is none is refused: by operator and column, with the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock.errors import CheckpointError, DeclarationError, OperatorError
from penstock.topology.type_words import type_words

FORMAT = 1
MAX_KEY_BYTES = 440
"""LMDB's limit for a key is 511 bytes; the rest is left for state names, list indexes and map keys."""
Column: TypeAlias = "pa.Array | pa.ChunkedArray"
Kind = Literal["int", "uint", "float", "decimal", "bytes"]


def kind_of(type_: pa.DataType) -> Kind | None:
    """Say how a column of this type is keyed, or None when it cannot be a key."""
    is_ = pa.types
    whole = is_.is_boolean(type_) or is_.is_signed_integer(type_)
    if whole or is_.is_date32(type_) or is_.is_timestamp(type_):
        return "int"
    if is_.is_unsigned_integer(type_):
        return "uint"
    if is_.is_float32(type_) or is_.is_float64(type_):
        return "float"
    if is_.is_decimal128(type_):
        return "decimal"
    text = is_.is_string(type_) or is_.is_large_string(type_)
    return "bytes" if text or is_.is_binary(type_) or is_.is_large_binary(type_) else None


def key_types(schema: pa.Schema, names: Sequence[str], operator: str) -> list[pa.DataType]:
    """Return the types of an operator's key columns.

    Raises:
        DeclarationError: no key column is named, one is not in the schema, or its type cannot be a key.
    """
    if not names:
        raise DeclarationError(f"operator {operator!r} has no key column; name at least one in groupBy(...)")
    for name in names:
        if schema.get_field_index(name) < 0:
            known = ", ".join(repr(column) for column in schema.names)
            raise DeclarationError(
                f"operator {operator!r}: key column {name!r} is not among its input's columns {known}"
            )
    types = [schema.field(name).type for name in names]
    require_kinds(types, names, operator)
    return types


def require_kinds(types: Sequence[pa.DataType], names: Sequence[str], operator: str) -> list[Kind]:
    """Return how each column is keyed; refuse a type that cannot be a key."""
    kinds: list[Kind] = []
    for type_, name in zip(types, names, strict=True):
        kind = kind_of(type_)
        if kind is None:
            raise DeclarationError(
                f"operator {operator!r}: column {name!r} of type {type_words(type_)} is an unhashable key; group by a "
                "boolean, number, date, timestamp, string, binary or decimal column, or a field of it"
            )
        kinds.append(kind)
    return kinds


def require_keys(columns: Sequence[Column], names: Sequence[str], operator: str) -> list[Kind]:
    """Return how each column is keyed; refuse nulls and times out of range too."""
    kinds = require_kinds([column.type for column in columns], names, operator)
    for column, name in zip(columns, names, strict=True):
        if column.null_count:
            raise OperatorError(
                f"operator {operator!r}: key column {name!r} holds {column.null_count} null(s), which are "
                f"no keys; filter them out before groupBy with .filter(penstock.col({name!r}).isNotNull())"
            )
        if pa.types.is_timestamp(column.type) and column.type.unit in ("s", "ms"):
            _require_micros(column, name, operator)
    return kinds


def _require_micros(column: Column, name: str, operator: str) -> None:
    try:
        column.cast(pa.timestamp("us", column.type.tz))
    except pa.ArrowInvalid as error:
        raise OperatorError(
            f"operator {operator!r}: key column {name!r} of type {type_words(column.type)} has a time outside the range "
            "of timestamps in microseconds; filter it out before groupBy"
        ) from error


def too_long(size: int, names: Sequence[str], operator: str) -> OperatorError:
    """Return the error of a key over the limit."""
    columns = ", ".join(repr(name) for name in names)
    return OperatorError(
        f"operator {operator!r}: a key of column(s) {columns} takes {size} bytes, over the limit of "
        f"{MAX_KEY_BYTES}; group by a shorter column, or by a hash of it"
    )


def misfit(types: Sequence[pa.DataType]) -> CheckpointError:
    """Return the error of stored bytes that are no key."""
    names = ", ".join(map(type_words, types))
    return CheckpointError(
        f"stored key bytes are no key of ({names}); was the checkpoint written by this topology?"
    )
