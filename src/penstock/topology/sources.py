"""Native sources: rows made by a function at a rate, and rows that are there."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import DeclarationError, OperatorError
from penstock.topology.batches import rows_to_batch
from penstock.topology.functions import check_function
from penstock.topology.nodes import (
    AT_ONCE_PER_S,
    Node,
    check_name,
)
from penstock.topology.schema import parse_schema
from penstock.topology.stream import Stream
from penstock.topology.type_words import in_sparks_words

Rate = float | Sequence[tuple[float, float]]


def generate(
    function: Callable[[int, int], pa.RecordBatch],
    *,
    schema: object,
    rate: Rate,
    name: str = "source",
    limit: int | None = None,
) -> Stream:
    """Declare a native open-loop source: row i arrives at its scheduled time, whether or not the query keeps
    up.

    Args:
        function: `function(offset, count)` returns rows offset to offset + count as an Arrow record batch;
            the same offset must always give the same row, since rows that were not committed are made again.
        schema: of the rows.
        rate: rows per second, or a list of (seconds, rows per second) steps of which the last one holds; 0
            pauses.
        name: of the source.
        limit: number of rows after which the source ends.
    """
    check_name(name, "source")
    check_function(function, ("offset", "count"), f"source '{name}': generate(...)")
    steps = _read_rate(rate, name)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise DeclarationError(f"source '{name}': limit must be a number of rows, not {limit!r}.")
    parsed = parse_schema(schema, f"schema of source '{name}'")
    return Stream(Node(name, "generate", parsed, function=function, rate=steps, limit=limit))


def _read_rate(rate: object, name: str) -> tuple[tuple[float, float], ...]:
    given = rate if isinstance(rate, list | tuple) else [(0, rate)]
    pairs = all(isinstance(step, list | tuple) and len(step) == 2 for step in given)
    amounts: list[Any] = [amount for step in given for amount in step] if pairs else []
    if not amounts or not all(map(_is_amount, amounts)):
        raise DeclarationError(
            f"source '{name}': rate must be rows per second, or a list of (seconds, rows per second) steps, not {rate!r}."
        )
    return tuple((float(amounts[at]), float(amounts[at + 1])) for at in range(0, len(amounts), 2))


def _is_amount(given: object) -> bool:
    number = isinstance(given, numbers.Real) and not isinstance(given, bool)
    return number and math.isfinite(given) and given >= 0  # type: ignore[arg-type, operator]


def from_rows(rows: object, *, schema: object = None, name: str = "source") -> Stream:
    """Take rows that are there as a bounded source; a query over bounded sources alone ends by itself.

    A `datetime` without a zone in a timestamp column is read as UTC, in a pandas DataFrame too; Spark's createDataFrame
    takes it for a time of the machine's zone, or of the session's where it comes in a DataFrame of pandas.

    Args:
        rows: a list of tuples, dicts or named tuples, with `schema`; or a `pyarrow.Table` or pandas DataFrame.
        schema: of the rows, as DDL string, StructType or Arrow schema; a table's own where it is not given.

    Raises:
        DeclarationError: the rows do not fit the schema, or a list comes without one.
    """
    check_name(name, "source")
    table = _table_of(rows, schema, name)

    def take(offset: int, count: int) -> pa.RecordBatch:
        cut = table.slice(offset, count).combine_chunks().to_batches()
        return cut[0] if cut else pa.RecordBatch.from_pylist([], schema=table.schema)

    steps = ((0.0, AT_ONCE_PER_S),)
    return Stream(
        Node(name, "generate", table.schema, function=take, rate=steps, limit=table.num_rows, bounded=True)
    )


def _table_of(rows: object, schema: object, name: str) -> pa.Table:
    what = f"schema of source '{name}'"
    if type(rows).__module__.startswith("pandas."):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        wanted = parse_schema(rows.schema if schema is None else schema, what)
        try:
            return rows.select(wanted.names).cast(wanted)
        except (pa.ArrowException, KeyError, ValueError) as error:
            told = in_sparks_words(str(error))
            raise DeclarationError(f"source '{name}': its rows do not fit its schema: {told}") from error
    if not isinstance(rows, list | tuple):
        raise DeclarationError(
            f"source '{name}': from_rows(...) takes a list of rows or a table, not {type(rows).__name__}."
        )
    if schema is None:
        raise DeclarationError(
            f"source '{name}': from_rows(...) of a list needs schema=, for example schema='user long'."
        )
    wanted = parse_schema(schema, what)
    try:
        return pa.Table.from_batches([rows_to_batch(list(rows), wanted, name)], wanted)
    except OperatorError as error:
        told = (
            str(error)
            .replace("return a", "give a")
            .replace(f"operator {name!r} returned", "from_rows(...) was given")
        )
        told = told.replace(f"operator {name!r}", "from_rows(...)")
        raise DeclarationError(f"source '{name}': its rows do not fit its schema: {told}") from error
