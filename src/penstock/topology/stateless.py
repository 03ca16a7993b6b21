"""Stateless steps: what happens to rows between two stages, without keys or state. Pure functions of Arrow tables.

A step runs inside the task that makes the rows, before they are written to the channel, so it costs no stage of its
own. Every step treats each row alone: how rows are cut into tables must not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeclarationError, OperatorError
from penstock.raised import function_error, pass_on, show
from penstock.topology.batches import rows_to_batch
from penstock.topology.durations import parse_duration
from penstock.topology.expressions import Column, as_expression, evaluate, explain, type_of
from penstock.topology.returned import ReturnedError, refuse_asynchronous, returned_rows, shown
from penstock.topology.rows import batch_to_rows, row_class
from penstock.topology.type_words import in_sparks_words, type_words
from penstock.topology.types import canonical_type


class FusedStep(Protocol):
    """One step: a table in, a table of `schema` out."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that come out."""
        ...

    def apply(self, table: pa.Table) -> pa.Table:
        """Return what becomes of the rows.

        Raises:
            OperatorError: names the step and what went wrong.
        """
        ...


@dataclass(frozen=True)
class Select:
    """Compute columns."""

    where: str
    columns: tuple[tuple[str, Column], ...]
    schema: pa.Schema

    def apply(self, table: pa.Table) -> pa.Table:
        arrays = [_computed(self.where, column, table, field.type) for (_, column), field in self._pairs()]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _pairs(self) -> Sequence[tuple[tuple[str, Column], pa.Field]]:
        return list(zip(self.columns, self.schema, strict=True))


@dataclass(frozen=True)
class Filter:
    """Keep rows for which a condition holds; null counts as false."""

    where: str
    condition: Column
    schema: pa.Schema

    def apply(self, table: pa.Table) -> pa.Table:
        kept = _computed(self.where, self.condition, table, pa.bool_())
        return table.filter(kept, null_selection_behavior="drop")


@dataclass(frozen=True)
class MapRows:
    """Call a function for every row; it returns one row, or several where `flat`."""

    where: str
    function: Callable[[Any], Any]
    flat: bool
    before: pa.Schema
    schema: pa.Schema

    def apply(self, table: pa.Table) -> pa.Table:
        made: list[Any] = []
        for row in batch_to_rows(table, row_class(self.before)):
            try:
                given = self.function(row)
                if self.flat:
                    made.extend(returned_rows(given))
                else:
                    made.append(self._one_row(given))
            except ReturnedError as error:
                raise OperatorError(f"{self.where} {error} (for {show(row)}).") from None
            except BaseException as error:
                raise function_error(f"{self.where} failed for {show(row)}", error) from error
        return pa.Table.from_batches([rows_to_batch(made, self.schema, self.where)], self.schema)

    def _one_row(self, given: Any) -> Any:
        """Return what `map` was given for a row, after refusing what is no row."""
        if type(given) is tuple:
            return given
        refuse_asynchronous(given)
        if (
            isinstance(given, list)
            and given
            and isinstance(given[0], tuple | dict)
            and len(given) != len(self.schema)
        ):
            raise ReturnedError(
                f"returned {shown(given)}, which is a list of rows; return one row, or use flat_map(...)"
            )
        if not isinstance(given, tuple | dict | list):
            fix = "use flat_map(...) or filter(...) to leave rows out" if given is None else "for each row"
            raise ReturnedError(
                f"returned {shown(given)}, which is no row; return a tuple, dict or named tuple with "
                f"{', '.join(repr(name) for name in self.schema.names)}, {fix}"
            )
        return given


@dataclass(frozen=True)
class MapArrow:
    """Call a function with tables of rows, of any number."""

    where: str
    function: Callable[[pa.Table], pa.Table]
    schema: pa.Schema

    def apply(self, table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return self.schema.empty_table()
        try:
            made = self.function(table)
        except BaseException as error:
            raise function_error(f"{self.where} failed", error) from error
        if isinstance(made, pa.RecordBatch):
            made = pa.Table.from_batches([made])
        if not isinstance(made, pa.Table):
            raise OperatorError(
                f"{self.where} returned {type(made).__name__}; it must return a pyarrow.Table."
            )
        try:
            return made.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, KeyError, ValueError) as error:
            told = in_sparks_words(str(error))
            raise OperatorError(f"{self.where} returned rows that do not fit its schema: {told}") from error


@dataclass(frozen=True)
class Watermark:
    """Say which column holds the event time, and how long rows may be late; the rows stay as they are."""

    where: str
    column: str
    delay_us: int
    schema: pa.Schema
    idle_s: float | None = None
    """Seconds without rows after which the source counts as idle."""

    def apply(self, table: pa.Table) -> pa.Table:
        return table

    def latest_us(self, table: pa.Table) -> int | None:
        """Return the latest event time of some rows, None where there is none."""
        column = table.column(self.column)
        latest = pc.max(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())).as_py()
        return None if latest is None else int(latest)


def select_step(where: str, columns: Sequence[object], schema: pa.Schema) -> Select:
    """Declare a selection of names and expressions.

    Raises:
        DeclarationError: nothing is selected, a column is unknown, a name appears twice or an expression has none.
    """
    given = list(columns[0]) if len(columns) == 1 and isinstance(columns[0], list | tuple) else list(columns)
    if not given:
        raise DeclarationError(f"{where} takes at least one column.")
    named: list[tuple[str, Column]] = []
    for one in given:
        if isinstance(one, str) and one == "*":
            named.extend((name, as_expression(name, where)) for name in schema.names)
        else:
            column = as_expression(one, where)
            named.append((column.text, column))
    names = [name for name, _ in named]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DeclarationError(
            f"{where}: column '{twice}' appears twice; give one of them another name with alias(...)."
        )
    fields = [
        pa.field(name, _column_type(where, name, column, schema), _nullable(column, schema))
        for name, column in named
    ]
    return Select(where, tuple(named), pa.schema(fields))


def _column_type(where: str, name: str, column: Column, schema: pa.Schema) -> pa.DataType:
    """Return the type of a computed column in its one form; what could not be carried or stored is refused here."""
    found = type_of(column, schema, where)
    if pa.types.is_null(found):
        raise DeclarationError(
            f"{where}: column '{name}' is null in every row and has no type; write penstock.lit(None).cast('string'), with "
            "the type that its values are to have."
        )
    return canonical_type(found, where, name)


def retype_step(where: str, names: Sequence[str], before: pa.Schema, after: pa.Schema) -> Select:
    """Declare that the same columns go on under a schema that differs in what may be null."""
    return Select(where, tuple((name, as_expression(name, where)) for name in names), after)


def filter_step(where: str, condition: object, schema: pa.Schema) -> Filter:
    """Declare a filter.

    Raises:
        DeclarationError: the condition is no boolean expression over these columns.
    """
    column = as_expression(condition, where)
    found = type_of(column, schema, where)
    if not pa.types.is_boolean(found):
        raise DeclarationError(f"{where} takes a condition; {column.text} is of type {type_words(found)}.")
    return Filter(where, column, schema)


def watermark_step(
    where: str, column: str, delay: object, idle_after: object, schema: pa.Schema
) -> Watermark:
    """Declare a watermark.

    Raises:
        DeclarationError: no such column, or none of type timestamp; no duration, or a negative one.
    """
    if column not in schema.names:
        raise DeclarationError(
            f"{where}: there is no column {column!r}; there are {', '.join(schema.names)}."
        )
    found = schema.field(column).type
    if not pa.types.is_timestamp(found):
        raise DeclarationError(
            f"{where}: column '{column}' is of type {type_words(found)}, and event time is a timestamp; cast it with "
            f"withColumn('{column}', col('{column}').cast('timestamp'))."
        )
    delay_us = parse_duration(delay, where)
    idle_us = None if idle_after is None else parse_duration(idle_after, where)
    if delay_us < 0 or (idle_us is not None and idle_us <= 0):
        raise DeclarationError(f"{where}: a delay is not negative, and a time until idle is positive.")
    idle_s = None if idle_us is None else idle_us / 1e6
    return Watermark(where, column, delay_us, schema, idle_s)


def _nullable(column: Column, schema: pa.Schema) -> bool:
    """Whether a column may be null: only one that is taken over as it is keeps saying that it is not."""
    plain = column._columns == (column.text,) and column._named
    return schema.field(column.text).nullable if plain else True


def _computed(where: str, column: Column, table: pa.Table, type_: pa.DataType) -> pa.ChunkedArray:
    try:
        found = evaluate(column, table).cast(type_)
    except BaseException as error:  # a function of the user's may stand in it
        pass_on(error)
        raise OperatorError(f"{where}: {column.text} {explain(error)}") from error
    if len(found) != table.num_rows:
        raise OperatorError(f"{where}: {column.text} gave {len(found)} values for {table.num_rows} rows.")
    return found
