"""Column expressions: `penstock.col("price") * 2`, compiled to `pyarrow.compute`. Immutable trees; no engine here.

Names and meaning follow PySpark's Column where both can say the same. Arithmetic is checked, as Spark's ANSI mode
is: an overflow or a division by zero is an error, never a wrong number. `and`, `or` and comparisons know three
values, true, false and null.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeclarationError
from penstock.topology.schema import parse_type

Values: TypeAlias = Any
"""What an expression computes: an Arrow array, chunked or not, or a scalar that stands for every row."""
_LITERALS = (bool, int, float, str, bytes, decimal.Decimal, dt.date, dt.datetime, dt.timedelta)


@dataclass(frozen=True, eq=False)
class Column:
    """An expression over the columns of a stream. Made by `col`, `lit`, `when`, `coalesce` and by operators."""

    text: str
    """How it reads, and the name of its column when it is not given another one."""
    compute: Callable[[pa.Table], Values]
    columns: tuple[str, ...] = ()
    """Columns that it reads."""
    named: bool = False
    """Whether the name was given by `alias` or is that of a column."""

    # -- names and types ----------------------------------------------------------------------------------------------

    def alias(self, name: str) -> Column:
        """Name the result."""
        return Column(name, self.compute, self.columns, True)

    def cast(self, dataType: Any) -> Column:
        """Convert to another type; a value that does not fit is an error."""
        ddl = dataType if isinstance(dataType, str) else dataType.simpleString()  # a DataType of Spark
        target = parse_type(ddl, f"cast of {self.text}")
        return _call(f"CAST({self.text} AS {target})", lambda value: pc.cast(value, target), self)

    astype = cast

    # -- arithmetic ---------------------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Column:
        return _binary("+", pc.add_checked, self, other)

    def __radd__(self, other: object) -> Column:
        return _binary("+", pc.add_checked, other, self)

    def __sub__(self, other: object) -> Column:
        return _binary("-", pc.subtract_checked, self, other)

    def __rsub__(self, other: object) -> Column:
        return _binary("-", pc.subtract_checked, other, self)

    def __mul__(self, other: object) -> Column:
        return _binary("*", pc.multiply_checked, self, other)

    def __rmul__(self, other: object) -> Column:
        return _binary("*", pc.multiply_checked, other, self)

    def __truediv__(self, other: object) -> Column:
        return _binary("/", _divide, self, other)

    def __rtruediv__(self, other: object) -> Column:
        return _binary("/", _divide, other, self)

    def __mod__(self, other: object) -> Column:
        return _binary("%", _remainder, self, other)

    def __rmod__(self, other: object) -> Column:
        return _binary("%", _remainder, other, self)

    def __neg__(self) -> Column:
        return _call(f"(- {self.text})", pc.negate_checked, self)

    # -- comparison ---------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return _binary("=", pc.equal, self, other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return _binary("!=", pc.not_equal, self, other)

    def __lt__(self, other: object) -> Column:
        return _binary("<", pc.less, self, other)

    def __le__(self, other: object) -> Column:
        return _binary("<=", pc.less_equal, self, other)

    def __gt__(self, other: object) -> Column:
        return _binary(">", pc.greater, self, other)

    def __ge__(self, other: object) -> Column:
        return _binary(">=", pc.greater_equal, self, other)

    def between(self, lowerBound: object, upperBound: object) -> Column:
        """Whether the value lies between two others, both included."""
        return (self >= lowerBound) & (self <= upperBound)

    def isin(self, *values: object) -> Column:
        """Whether the value is one of these; null for null."""
        given = (
            list(values[0])
            if len(values) == 1 and isinstance(values[0], list | tuple | set)
            else list(values)
        )

        def compute(value: Values) -> Values:
            found = pc.is_in(value, value_set=pa.array(given, value.type))
            return pc.if_else(pc.is_valid(value), found, pa.scalar(None, pa.bool_()))

        return _call(f"({self.text} IN ({', '.join(map(repr, given))}))", compute, self)

    def isNull(self) -> Column:
        return _call(f"({self.text} IS NULL)", pc.is_null, self)

    def isNotNull(self) -> Column:
        return _call(f"({self.text} IS NOT NULL)", pc.is_valid, self)

    # -- logic --------------------------------------------------------------------------------------------------------

    def __and__(self, other: object) -> Column:
        return _binary("AND", pc.and_kleene, self, other)

    def __rand__(self, other: object) -> Column:
        return _binary("AND", pc.and_kleene, other, self)

    def __or__(self, other: object) -> Column:
        return _binary("OR", pc.or_kleene, self, other)

    def __ror__(self, other: object) -> Column:
        return _binary("OR", pc.or_kleene, other, self)

    def __invert__(self) -> Column:
        return _call(f"(NOT {self.text})", pc.invert, self)

    def __bool__(self) -> NoReturn:
        raise DeclarationError(
            f"{self.text} is a column expression and has no truth value; write & for and, | for or, ~ for not, and put "
            "comparisons into parentheses."
        )

    __hash__ = object.__hash__

    # -- strings ------------------------------------------------------------------------------------------------------

    def startswith(self, other: str) -> Column:
        return _call(f"startswith({self.text}, {other!r})", lambda value: pc.starts_with(value, other), self)

    def endswith(self, other: str) -> Column:
        return _call(f"endswith({self.text}, {other!r})", lambda value: pc.ends_with(value, other), self)

    def contains(self, other: str) -> Column:
        return _call(
            f"contains({self.text}, {other!r})", lambda value: pc.match_substring(value, other), self
        )

    def substr(self, startPos: int, length: int) -> Column:
        """Part of a string; positions count from 1, as in SQL."""
        first = max(0, startPos - 1)
        return _call(
            f"substr({self.text}, {startPos}, {length})",
            lambda value: pc.utf8_slice_codeunits(value, first, first + length),
            self,
        )

    def getField(self, name: str) -> Column:
        """A field of a struct."""
        return _call(f"{self.text}.{name}", lambda value: pc.struct_field(value, name), self)

    def otherwise(self, value: object) -> Column:
        """The value where no condition of `when` holds."""
        raise DeclarationError(f"otherwise(...) goes with when(...), not with {self.text}.")

    def __repr__(self) -> str:
        return f"Column<{self.text}>"


@dataclass(frozen=True, eq=False, repr=False)
class Case(Column):
    """`when(...)`: the value of the first condition that holds, null where none does."""

    branches: tuple[tuple[Column, Column], ...] = ()

    def when(self, condition: Column, value: object) -> Case:
        """Add another condition, tried after those before it."""
        return _case((*self.branches, (_as_column(condition), _as_column(value))), None)

    def otherwise(self, value: object) -> Column:
        return _case(self.branches, _as_column(value))


def col(name: str) -> Column:
    """Name a column of the stream."""
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"col(...) takes the name of a column, not {name!r}.")
    return Column(name, lambda table: table.column(name), (name,), True)


def lit(value: object) -> Column:
    """Write a constant."""
    if isinstance(value, Column):
        return value
    if value is not None and not isinstance(value, _LITERALS):
        raise DeclarationError(f"lit(...) takes a plain value, not {_describe(value)}.")
    scalar = pa.scalar(value)
    return Column("NULL" if value is None else repr(value), lambda table: scalar)


def when(condition: Column, value: object) -> Case:
    """Begin a choice: `when(col("n") > 0, "plus").otherwise("minus")`."""
    return _case(((_as_column(condition), _as_column(value)),), None)


def coalesce(*columns: object) -> Column:
    """The first value that is not null."""
    if not columns:
        raise DeclarationError("coalesce(...) takes at least one column.")
    given = [
        _as_column(one) if isinstance(one, Column) or not isinstance(one, str) else col(one)
        for one in columns
    ]
    return _call(f"coalesce({', '.join(one.text for one in given)})", pc.coalesce, *given)


def function(name: str, compute: Callable[..., Any], *columns: object) -> Column:
    """Use any function of `pyarrow.compute`: `function("sqrt", pyarrow.compute.sqrt, "x")`."""
    given = [col(one) if isinstance(one, str) else _as_column(one) for one in columns]
    return _call(f"{name}({', '.join(one.text for one in given)})", compute, *given)


def as_expression(given: object, where: str) -> Column:
    """Take a column name or an expression; refuse Spark's own Column with the hint to use ours.

    Raises:
        DeclarationError: it is neither; names the place.
    """
    if isinstance(given, str):
        return col(given)
    if isinstance(given, Column):
        return given
    raise DeclarationError(
        f"{where} takes column names and penstock.col(...) expressions, not {_describe(given)}."
    )


def evaluate(expression: Column, table: pa.Table) -> pa.ChunkedArray:
    """Compute an expression over a table; one value for each row.

    Raises:
        pa.ArrowException: a value is outside what the expression can do.
    """
    found = expression.compute(table)
    if isinstance(found, pa.Scalar):
        found = pa.repeat(found, table.num_rows)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


def type_of(expression: Column, schema: pa.Schema, where: str) -> pa.DataType:
    """Return the type that an expression has over rows of a schema.

    Raises:
        DeclarationError: a column is unknown, or the expression does not fit the types; names the place.
    """
    for name in expression.columns:
        if name not in schema.names:
            raise DeclarationError(
                f"{where}: there is no column '{name}'{nearest(name, schema.names)}; it has {', '.join(schema.names)}."
            )
    try:
        return evaluate(expression, schema.empty_table()).type
    except (pa.ArrowException, TypeError, ValueError) as error:
        told = str(error).splitlines()[0]
        raise DeclarationError(
            f"{where}: {expression.text} does not fit the types of its columns: {told}"
        ) from error


def nearest(name: str, names: Sequence[str]) -> str:
    """Suggest the name that was probably meant."""
    import difflib

    close = difflib.get_close_matches(name, names, 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _as_column(given: object) -> Column:
    return given if isinstance(given, Column) else lit(given)


def _describe(given: object) -> str:
    if type(given).__module__.startswith("pyspark.sql"):
        return "a pyspark.sql.Column (write penstock.col(...) instead: it runs without Spark's expressions)"
    return repr(given)


def _call(text: str, compute: Callable[..., Any], *given: Column) -> Column:
    columns = tuple(dict.fromkeys(name for one in given for name in one.columns))
    return Column(text, lambda table: compute(*(one.compute(table) for one in given)), columns)


def _binary(sign: str, compute: Callable[[Any, Any], Any], left: object, right: object) -> Column:
    first, second = _as_column(left), _as_column(right)
    return _call(f"({first.text} {sign} {second.text})", compute, first, second)


def _divide(left: Values, right: Values) -> Values:
    """Divide as Spark does: integers give a double, and a zero below is an error."""
    if not pa.types.is_decimal(left.type) and not pa.types.is_decimal(right.type):
        left, right = pc.cast(left, pa.float64()), pc.cast(right, pa.float64())
    if pc.any(pc.equal(right, pa.scalar(0, right.type))).as_py():
        raise pa.ArrowInvalid("divide by zero")
    return pc.divide_checked(left, right)


def _remainder(left: Values, right: Values) -> Values:
    """The remainder with the sign of the dividend, as in SQL."""
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        left, right = pc.cast(left, pa.float64()), pc.cast(right, pa.float64())
    if pc.any(pc.equal(right, pa.scalar(0, right.type))).as_py():
        raise pa.ArrowInvalid("divide by zero")
    quotient = pc.divide_checked(left, right)
    if pa.types.is_floating(quotient.type):
        quotient = pc.trunc(quotient)
    return pc.subtract_checked(left, pc.multiply_checked(quotient, right))


def _case(branches: tuple[tuple[Column, Column], ...], otherwise: Column | None) -> Case:
    text = " ".join(f"WHEN {condition.text} THEN {value.text}" for condition, value in branches)
    tail = f" ELSE {otherwise.text}" if otherwise is not None else ""
    given = [one for pair in branches for one in pair] + ([otherwise] if otherwise is not None else [])
    columns = tuple(dict.fromkeys(name for one in given for name in one.columns))

    def compute(table: pa.Table) -> Values:
        found = otherwise.compute(table) if otherwise is not None else None
        for condition, value in reversed(branches):
            holds = pc.fill_null(_whole(condition.compute(table), table), False)
            chosen = value.compute(table)
            found = pc.if_else(holds, chosen, pa.scalar(None, chosen.type) if found is None else found)
        return found

    return Case(f"CASE {text}{tail} END", compute, columns, False, branches)


def _whole(value: Values, table: pa.Table) -> Values:
    return pa.repeat(value, table.num_rows) if isinstance(value, pa.Scalar) else value
