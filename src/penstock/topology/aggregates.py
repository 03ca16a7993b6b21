"""The built-in aggregates as a user declares them: constructors, output names, type rules; no engine.

Names, types and null handling are Spark's: nulls are skipped except by `count()` and `last`, a NaN is
greater than any other number, integers add up to a bigint that wraps around. Wrong columns and types fail
here, at declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.expressions import nearest, refuse_expression
from penstock.topology.returned import shown
from penstock.topology.type_words import type_words

MAX_TOP_N = 10_000


class AggregateKind(StrEnum):
    """What an aggregate computes; the value is part of the checkpoint's identity."""

    COUNT_ROWS = "count_rows"
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "avg"
    LAST = "last"
    TOP_N = "top_n"


@dataclass(frozen=True)
class Aggregate:
    """One declared aggregate. Made by the constructors below."""

    kind: AggregateKind
    column: str | None = None
    n: int = 0
    name: str = ""

    def alias(self, name: str) -> Aggregate:
        """Return the same aggregate with another output column name."""
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"alias(...) of {self.name!r} takes a column name, not {name!r}")
        return replace(self, name=name)

    def input_type(self, schema: pa.Schema, operator: str) -> pa.DataType:
        """Return the type of the aggregated column (null type for `count()`).

        Raises:
            DeclarationError: the column is not in the schema.
        """
        if self.column is None:
            return pa.null()
        if schema.get_field_index(self.column) < 0:
            known = f"{', '.join(map(repr, schema.names))}{nearest(self.column, schema)}"
            raise DeclarationError(
                f"operator {operator!r}: {self.name!r} aggregates column {self.column!r}, "
                f"which is not among its input's columns {known}"
            )
        return schema.field(self.column).type

    def output_field(self, schema: pa.Schema, operator: str) -> pa.Field:
        """Return name and type of the output column.

        Raises:
            DeclarationError: the column is unknown, or its type cannot be aggregated this way.
        """
        type_ = _result_type(self, self.input_type(schema, operator))
        if type_ is None:
            raise DeclarationError(
                f"operator {operator!r}: {self.kind.value} is not defined for column {self.column!r} of type "
                f"{type_words(schema.field(self.column).type)}; {_advice(self.kind)}"
            )
        counted = self.kind in (AggregateKind.COUNT_ROWS, AggregateKind.COUNT)
        return pa.field(self.name, type_, nullable=not counted)


def output_schema(
    aggregates: Sequence[Aggregate], keys: Sequence[str], schema: pa.Schema, operator: str
) -> pa.Schema:
    """Return key columns, then aggregate columns.

    Raises:
        DeclarationError: no aggregate is given, one does not fit its column, or two output columns share a
        name.
    """
    if not aggregates:
        raise DeclarationError(
            f"operator {operator!r} has no aggregate; give agg(...) at least one, e.g. count()"
        )
    for aggregate in aggregates:
        if not isinstance(aggregate, Aggregate):
            raise DeclarationError(
                f"operator {operator!r}: agg(...) takes aggregates such as penstock.sum('amount'), not {_shown(aggregate)}"
            )
    fields = [schema.field(key) for key in keys] + [one.output_field(schema, operator) for one in aggregates]
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            raise DeclarationError(
                f"operator {operator!r} has two output columns {field.name!r}; rename one with .alias(...)"
            )
        seen.add(field.name)
    return pa.schema(fields)


def _shown(given: object) -> str:
    if isinstance(given, list | tuple) and all(isinstance(one, Aggregate) for one in given):
        return f"a {type(given).__name__} of them; give them one by one, as agg(penstock.count(), penstock.sum('amount'))"
    return shown(given)


# ---------------------------------------------------------------------------------------------- constructors


def count(column: str | None = None) -> Aggregate:
    """Count rows, with nothing or "*"; with a column the rows in which it is not null."""
    if column is None or (isinstance(column, str) and column == "*"):
        return Aggregate(AggregateKind.COUNT_ROWS, name="count")
    return _of(AggregateKind.COUNT, column)


def sum(column: str) -> Aggregate:
    """Add up a column, skipping nulls; null when there were only nulls.

    Integers give a bigint that wraps around as Spark's does with ANSI mode off; floats give a double; a
    decimal gets ten more digits, at most 38, and a sum beyond them is an error.
    """
    return _of(AggregateKind.SUM, column)


def min(column: str) -> Aggregate:
    """Keep the least value, skipping nulls; NaN only when there was nothing else."""
    return _of(AggregateKind.MIN, column)


def max(column: str) -> Aggregate:
    """Keep the greatest value, skipping nulls; a NaN is greater than any other number."""
    return _of(AggregateKind.MAX, column)


def mean(column: str) -> Aggregate:
    """Average a column of integers or floats as a double, skipping nulls; null when there were only nulls."""
    return _of(AggregateKind.MEAN, column)


avg = mean


def last(column: str) -> Aggregate:
    """Keep the value of the last row, be it null, in the one fixed order of the rows of a key."""
    return _of(AggregateKind.LAST, column)


def top_n(column: str, n: int) -> Aggregate:
    """Keep the `n` greatest values, greatest first, equal ones each by itself, skipping nulls."""
    _require_name(AggregateKind.TOP_N, column)
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_TOP_N:
        raise DeclarationError(f"top_n({column!r}, n) takes an n between 1 and {MAX_TOP_N}, not {n!r}")
    return Aggregate(AggregateKind.TOP_N, column, n, f"top_n({column}, {n})")


def _of(kind: AggregateKind, column: str) -> Aggregate:
    _require_name(kind, column)
    return Aggregate(kind, column, name=f"{kind.value}({column})")


def _require_name(kind: AggregateKind, column: object) -> None:
    if not isinstance(column, str) or not column:
        refuse_expression(f"penstock.{kind.value}", column, f"{kind.value}(...)")


# ---------------------------------------------------------------------------------------------- type rules


def is_word_type(type_: pa.DataType) -> bool:
    """Whether values of this type fit one 64-bit word and order as one."""
    is_ = pa.types
    numbers = (is_.is_boolean, is_.is_integer, is_.is_float32, is_.is_float64)
    times = (is_.is_date, is_.is_timestamp, is_.is_duration, is_.is_time)
    return any(is_kind(type_) for is_kind in (*numbers, *times))


def _is_wide_type(type_: pa.DataType) -> bool:
    is_ = pa.types
    texts = (is_.is_string, is_.is_large_string, is_.is_binary, is_.is_large_binary)
    return any(is_kind(type_) for is_kind in (*texts, is_.is_decimal128))


def _result_type(aggregate: Aggregate, type_: pa.DataType) -> pa.DataType | None:
    kind = aggregate.kind
    if kind in (AggregateKind.COUNT_ROWS, AggregateKind.COUNT):
        return pa.int64()
    if kind in (AggregateKind.SUM, AggregateKind.MEAN):
        return _sum_type(type_) if kind is AggregateKind.SUM else _mean_type(type_)
    if not is_word_type(type_) and not _is_wide_type(type_):
        return None
    return pa.list_(type_) if kind is AggregateKind.TOP_N else type_


def _sum_type(type_: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(type_):
        return pa.int64()
    if pa.types.is_decimal128(type_):
        digits = type_.precision + 10
        return pa.decimal128(digits if digits < 38 else 38, type_.scale)
    return _mean_type(type_)


def _mean_type(type_: pa.DataType) -> pa.DataType | None:
    number = pa.types.is_integer(type_) or pa.types.is_float32(type_) or pa.types.is_float64(type_)
    return pa.float64() if number else None


def _advice(kind: AggregateKind) -> str:
    if kind is AggregateKind.SUM:
        return "it takes integers, floats and decimals: cast the column"
    if kind is AggregateKind.MEAN:
        return "it takes integers and floats: cast the column, a decimal to double"
    return "it takes numbers, dates, times, booleans, strings, binaries and decimals: take out a field"
