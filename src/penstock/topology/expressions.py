"""Column expressions: `penstock.col("price") * 2`, compiled to `pyarrow.compute`. Immutable trees; no engine here.

Names and meaning follow PySpark's Column where both can say the same. Arithmetic is checked, as Spark's ANSI mode
is: an overflow or a division by zero is an error, never a wrong number. `and`, `or` and comparisons know three
values, true, false and null.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeclarationError
from penstock.raised import describe, describe_own, pass_on
from penstock.suggesting import did_you_mean
from penstock.topology.arithmetic import divide, remainder
from penstock.topology.casting import cast_values
from penstock.topology.schema import parse_any_type
from penstock.topology.substitutes import COLUMN, refuse_missing
from penstock.topology.type_words import in_sparks_words

Values: TypeAlias = Any
"""What an expression computes: an Arrow array, chunked or not, or a scalar that stands for every row."""
_NO_KERNEL = re.compile(r"has no kernel matching input types \((.*)\)")
_NO_CAST = re.compile(r"Unsupported cast from (.*) to (.*?)(?: using function| \(no available|$)")
_NO_FIELD = re.compile(r"No match for FieldRef.Name\((.*?)\) in (.*)")
_LITERALS = (bool, int, float, str, bytes, decimal.Decimal, dt.date, dt.datetime, dt.timedelta)


@dataclass(frozen=True, eq=False)
class Column:
    """An expression over the columns of a stream. Made by `col`, `lit`, `when`, `coalesce` and by operators."""

    text: str
    """How it reads, and the name of its column when it is not given another one."""
    compute: Callable[[pa.Table], Values]
    _columns: tuple[str, ...] = ()
    """Columns that it reads."""
    _named: bool = False
    """Whether the name was given by `alias` or is that of a column."""

    # -- names and types ----------------------------------------------------------------------------------------------

    def alias(self, name: str) -> Column:
        """Name the result."""
        return Column(name, self.compute, self._columns, True)

    def cast(self, dataType: Any) -> Column:
        """Convert to another type, given as DDL, as a DataType of Spark or as a `pyarrow.DataType`; a value that does not
        fit is an error."""
        target = parse_any_type(dataType, f"cast of {self.text}")
        return _call(f"CAST({self.text} AS {target})", lambda value: cast_values(value, target), self)

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
        return _binary("/", divide, self, other)

    def __rtruediv__(self, other: object) -> Column:
        return _binary("/", divide, other, self)

    def __mod__(self, other: object) -> Column:
        return _binary("%", remainder, self, other)

    def __rmod__(self, other: object) -> Column:
        return _binary("%", remainder, other, self)

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
        """Whether there is no value."""
        return _call(f"({self.text} IS NULL)", pc.is_null, self)

    def isNotNull(self) -> Column:
        """Whether there is a value."""
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

    def __getitem__(self, item: object) -> NoReturn:
        raise DeclarationError(
            f"{self.text}[{item!r}]: write getField(name) for a field of a struct, and map_arrow(function, schema=...) for "
            "elements of arrays and maps."
        )

    def __iter__(self) -> NoReturn:
        raise DeclarationError(
            f"{self.text} is a column expression and holds no values to go through; use map(...)."
        )

    def __contains__(self, item: object) -> NoReturn:
        raise DeclarationError(f"{item!r} in {self.text}: write {self.text}.contains(...), or isin(...).")

    def __bool__(self) -> NoReturn:
        raise DeclarationError(
            f"{self.text} is a column expression and has no truth value; write & for and, | for or, ~ for not, and put "
            "comparisons into parentheses."
        )

    __hash__ = object.__hash__

    # -- strings ------------------------------------------------------------------------------------------------------

    def startswith(self, other: str) -> Column:
        """Whether a string begins with another."""
        return _call(f"startswith({self.text}, {other!r})", lambda value: pc.starts_with(value, other), self)

    def endswith(self, other: str) -> Column:
        """Whether a string ends with another."""
        return _call(f"endswith({self.text}, {other!r})", lambda value: pc.ends_with(value, other), self)

    def contains(self, other: str) -> Column:
        """Whether another string stands in a string."""
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

    if not TYPE_CHECKING:  # type checkers are to find what is not there

        def __getattr__(self, name: str) -> NoReturn:
            refuse_missing(self, name, COLUMN)


@dataclass(frozen=True, eq=False, repr=False)
class Case(Column):
    """`when(...)`: the value of the first condition that holds, null where none does."""

    branches: tuple[tuple[Column, Column], ...] = ()

    def when(self, condition: Column, value: object) -> Case:
        """Add another condition, tried after those before it."""
        return _case((*self.branches, (_as_column(condition), _as_column(value))), None)

    def otherwise(self, value: object) -> Column:
        """The value where no condition holds; null where it is not given."""
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
    try:
        scalar = pa.scalar(value)
    except (OverflowError, pa.ArrowException):
        raise DeclarationError(
            f"lit({value!r}) is outside what a column holds; whole numbers have 64 bits, a decimal.Decimal has 38 digits."
        ) from None
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
    for name in expression._columns:
        if name not in schema.names:
            known = f"{nearest(name, schema)}; it has {', '.join(schema.names)}"
            sql = "; SQL text is not taken, write penstock.col(...)"
            more = "" if name.isidentifier() or _field_of(name, schema) else sql
            raise DeclarationError(f"{where}: there is no column {name!r}{known}{more}.")
    try:
        return evaluate(expression, schema.empty_table()).type
    except BaseException as error:  # a function of the user's may stand in it
        pass_on(error)
        raise DeclarationError(f"{where}: {expression.text} {explain(error)}") from error


def explain(error: BaseException) -> str:
    """Say why an expression cannot be computed, in words of columns and of Spark's types rather than of Arrow's."""
    return in_sparks_words(_explain(error))


def _explain(error: BaseException) -> str:
    known = issubclass(type(error), pa.ArrowException | TypeError | ValueError)
    told = next(iter((describe_own if known else describe)(error).splitlines()), "")
    if found := _NO_KERNEL.search(told):
        types = found[1].split(", ")
        listed = " and ".join(types) if len(types) <= 2 else ", ".join(types)
        return f"cannot be computed of {listed}; convert with .cast(...)."
    if found := _NO_CAST.search(told):
        return f"cannot be computed: there is no cast from {found[1]} to {found[2]}."
    if "divide by zero" in told:
        return "divides by zero; leave such rows out with filter(...) before."
    if found := _NO_FIELD.search(told):
        return f"cannot be computed: there is no field '{found[1]}' in {found[2]}."
    return f"cannot be computed: {told.rstrip('.')}."


def nearest(name: str, names: Sequence[str] | pa.Schema) -> str:
    """Suggest the name that was probably meant, or how a field of a struct is reached."""
    if isinstance(names, pa.Schema):
        hint = _field_of(name, names) or did_you_mean(name, names.names)
    else:
        hint = did_you_mean(name, names)
    return f" ({hint})" if hint else ""


def _field_of(name: str, schema: pa.Schema) -> str:
    """Return how to write `s.a` where `s` is a struct; nothing where it is none."""
    first, dot, rest = name.partition(".")
    if not dot or first not in schema.names or not pa.types.is_struct(schema.field(first).type):
        return ""
    fields = "".join(f".getField({one!r})" for one in rest.split("."))
    return f"a field of a struct is penstock.col({first!r}){fields}.alias({rest.rpartition('.')[2]!r})"


def plain_name(given: object) -> str | None:
    """Return the column that an expression, ours or Spark's, only names; None where it is more than that."""
    if isinstance(given, Column):
        return given.text if given._named and given._columns == (given.text,) else None
    if type(given).__module__.startswith("pyspark.sql"):
        found = re.fullmatch(r"Column<'(\w+)'>", repr(given))
        return found[1] if found else None
    return None


def refuse_expression(what: str, given: object, where: str) -> NoReturn:
    """Raise the error of an expression where only the name of a column can stand.

    Args:
        what: the method, for the form to write.
    """
    name = plain_name(given)
    if name is not None:
        raise DeclarationError(f'{where} takes the name of a column, not {given!r}; write {what}("{name}").')
    computed = isinstance(given, Column) or type(given).__module__.startswith("pyspark.sql")
    fix = f'; compute it first with withColumn("name", ...) and write {what}("name")' if computed else ""
    raise DeclarationError(f"{where} takes the name of a column, not {given!r}{fix}.")


def _as_column(given: object) -> Column:
    return given if isinstance(given, Column) else lit(given)


def _describe(given: object) -> str:
    if type(given).__module__.startswith("pyspark.sql"):
        return "a pyspark.sql.Column (write penstock.col(...) instead: it runs without Spark's expressions)"
    if type(given).__name__ == "Aggregate":
        return "an aggregate; give it to groupBy(...).agg(...)"
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return f"the function {name}; Python code goes into map(function, schema=...) or flat_map(function, schema=...)"
    return f"{given!r}; write penstock.lit({given!r}) for a constant" if _is_plain(given) else repr(given)


def _is_plain(given: object) -> bool:
    return given is None or isinstance(given, _LITERALS)


def _call(text: str, compute: Callable[..., Any], *given: Column) -> Column:
    columns = tuple(dict.fromkeys(name for one in given for name in one._columns))
    return Column(text, lambda table: compute(*(one.compute(table) for one in given)), columns)


def _binary(sign: str, compute: Callable[[Any, Any], Any], left: object, right: object) -> Column:
    first, second = _as_column(left), _as_column(right)
    return _call(f"({first.text} {sign} {second.text})", compute, first, second)


def _case(branches: tuple[tuple[Column, Column], ...], otherwise: Column | None) -> Case:
    text = " ".join(f"WHEN {condition.text} THEN {value.text}" for condition, value in branches)
    tail = f" ELSE {otherwise.text}" if otherwise is not None else ""
    given = [one for pair in branches for one in pair] + ([otherwise] if otherwise is not None else [])
    columns = tuple(dict.fromkeys(name for one in given for name in one._columns))

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
