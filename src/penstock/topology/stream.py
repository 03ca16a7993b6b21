"""What a user declares: sources, keyed operators, and streams between them. Validated as it is written; no
engine here.

A stream is an immutable node of the topology. Every mistake that can be seen without data fails in the call
that makes it, with the operator's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import DeclarationError, OperatorError
from penstock.topology.aggregates import Aggregate, count, output_schema
from penstock.topology.batches import rows_to_batch
from penstock.topology.expressions import as_expression
from penstock.topology.expressions import col as column
from penstock.topology.keytypes import check_key_columns
from penstock.topology.processor_streams import ProcessorMethods
from penstock.topology.processors import Processor
from penstock.topology.schema import parse_schema
from penstock.topology.stateless import FusedStep, MapArrow, MapRows, filter_step, retype_step, select_step
from penstock.topology.states import StateSpec, check_states

if TYPE_CHECKING:
    from penstock.topology.writer import StreamWriter

DEFAULT_SHARDS = 256
MAX_SHARDS = 4096
_AT_ONCE_PER_S = 1e12
"""Rate at which the rows of a bounded source arrive: all are there."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}$")

Rate = float | Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Node:
    """One source or operator of a topology."""

    name: str
    kind: str
    """generate | dataframe | rows | arrow | aggregate | cogrouped | processor | stateless | union"""
    schema: pa.Schema
    inputs: tuple[Node, ...] = ()
    keys: tuple[str, ...] = ()
    shards: int = DEFAULT_SHARDS
    cores: int | None = None
    function: Callable[..., Any] | None = None
    states: Mapping[str, StateSpec] | None = None
    aggregates: tuple[Aggregate, ...] = ()
    rate: tuple[tuple[float, float], ...] = ()
    limit: int | None = None
    dataframe: Any = None
    stamp: str | None = None
    bounded: bool = False
    """Of a source: it ends, and a query whose sources all do ends by itself after them."""
    right_keys: tuple[str, ...] = ()
    """Of an operator with a second input (cogrouped, or a processor's initial state): the key columns of that."""
    processor: Processor | None = None
    initial: bool = False
    """Of a source: it holds initial state; no other source begins before all of it is taken in."""
    step: FusedStep | None = None
    """Of a stateless node: what it does to the rows of its one input, inside the stage that makes them."""

    def feeds(self) -> tuple[Feed, ...]:
        """Where the rows come from, in declared order: stages, and what happens to their rows on the way here."""
        if self.kind == "union":
            return tuple(feed for given in self.inputs for feed in given.feeds())
        if self.kind == "stateless" and self.step is not None:
            return tuple(Feed(feed.stage, (*feed.steps, self.step)) for feed in self.inputs[0].feeds())
        return (Feed(self, ()),)


@dataclass(frozen=True)
class Feed:
    """One stage that a node takes rows from, with the stateless steps fused into it."""

    stage: Node
    steps: tuple[FusedStep, ...]


class Stream:
    """Rows that a source or an operator puts out. Use `groupBy` to key them, `writeStream` to send them to a
    sink."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def node(self) -> Node:
        return self._node

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns, as Arrow has them."""
        return self._node.schema

    @property
    def columns(self) -> list[str]:
        return list(self._node.schema.names)

    def groupBy(self, *columns: str) -> GroupedStream:
        """Key the rows by one or several columns.

        Keys compare as Spark's do: NaN equals NaN, -0.0 equals 0.0, time stamps in UTC. A null in a key
        column ends the query with an error.

        Raises:
            DeclarationError: a column is unknown, or of a type that cannot be a key.
        """
        names = check_key_columns(self._node.schema, columns, self._node.name)
        return GroupedStream(self._node, names)

    def select(self, *columns: object) -> Stream:
        """Compute columns: names, or expressions of `penstock.col`; "*" stands for all there are.

        Raises:
            DeclarationError: a column is unknown, or an expression does not fit the types.
        """
        return self._step(select_step(self._where("select"), columns, self._node.schema))

    def withColumn(self, colName: str, col: object) -> Stream:
        """Add a column, or replace the one of that name."""
        expression = as_expression(col, self._where("withColumn"))
        kept: list[object] = [name for name in self.columns if name != colName]
        if colName in self.columns:
            kept.insert(self.columns.index(colName), expression.alias(colName))
        else:
            kept.append(expression.alias(colName))
        return self._step(select_step(self._where("withColumn"), kept, self._node.schema))

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """Rename a column; does nothing where there is none of that name, as in Spark."""
        if existing not in self.columns:
            return self
        renamed = [column(name).alias(new) if name == existing else name for name in self.columns]
        return self._step(select_step(self._where("withColumnRenamed"), renamed, self._node.schema))

    def drop(self, *cols: str) -> Stream:
        """Leave columns out; names that are not there are passed over, as in Spark."""
        kept = [name for name in self.columns if name not in cols]
        return self._step(select_step(self._where("drop"), kept, self._node.schema))

    def filter(self, condition: object) -> Stream:
        """Keep the rows for which a condition holds; null counts as false.

        Raises:
            DeclarationError: it is no condition over these columns.
        """
        return self._step(filter_step(self._where("filter"), condition, self._node.schema))

    where = filter

    def union(self, other: Stream) -> Stream:
        """Put the rows of two streams together; columns go by position, as in Spark, and keep the names of the first.

        Rows of one key keep the order they have in each stream; between the two, the first goes first within an epoch.

        Raises:
            DeclarationError: the streams have different types, or `other` is no stream.
        """
        where = self._where("union")
        theirs = _stream(other, where)
        if [field.type for field in theirs.schema] != [field.type for field in self.schema]:
            raise DeclarationError(
                f"{where}: the streams have different columns, {_shown(self.schema)} and {_shown(theirs.schema)}; "
                "select the same types in the same order first."
            )
        return self._merge(
            theirs, [column(theirs.columns[at]).alias(name) for at, name in enumerate(self.columns)]
        )

    unionAll = union

    def unionByName(self, other: Stream) -> Stream:
        """Put the rows of two streams together; columns go by name.

        Raises:
            DeclarationError: a column is missing on one side, or has another type there.
        """
        where = self._where("unionByName")
        theirs = _stream(other, where)
        mine = {field.name: field.type for field in self.schema}
        if mine != {field.name: field.type for field in theirs.schema}:
            raise DeclarationError(
                f"{where}: the streams have different columns, {_shown(self.schema)} and {_shown(theirs.schema)}; "
                "select the same names and types first."
            )
        return self._merge(theirs, list(self.columns))

    def _merge(self, other: Stream, columns: list[Any]) -> Stream:
        fields = [
            pa.field(mine.name, mine.type, mine.nullable or theirs.nullable)
            for mine, theirs in zip(self.schema, other.select(*columns).schema, strict=True)
        ]
        schema = pa.schema(fields)
        mine = self._step(retype_step(self._where("union"), self.columns, self.schema, schema))
        theirs = other.select(*columns)
        theirs = theirs._step(retype_step(self._where("union"), self.columns, theirs.schema, schema))
        return Stream(
            Node(f"{self._node.name}_union_{other.node.name}", "union", schema, (mine.node, theirs.node))
        )

    def map(self, function: Callable[[Any], Any], *, schema: object) -> Stream:
        """Call `function(row)` for every row; it returns one row (a tuple, dict or named tuple) of `schema`."""
        return self._map_rows("map", function, schema, False)

    def flat_map(self, function: Callable[[Any], Any], *, schema: object) -> Stream:
        """Call `function(row)` for every row; it returns any number of rows of `schema`, or None."""
        return self._map_rows("flat_map", function, schema, True)

    def map_arrow(self, function: Callable[[pa.Table], pa.Table], *, schema: object) -> Stream:
        """Call `function(table)` with Arrow tables of rows; it returns a table of `schema`.

        How rows are cut into tables depends on load: treat each row alone.
        """
        where = self._where("map_arrow")
        parsed = parse_schema(schema, f"schema of {where}")
        return self._step(MapArrow(where, _callable(function, where), parsed))

    def _map_rows(self, what: str, function: Callable[[Any], Any], schema: object, flat: bool) -> Stream:
        where = self._where(what)
        parsed = parse_schema(schema, f"schema of {where}")
        return self._step(MapRows(where, _callable(function, where), flat, self._node.schema, parsed))

    def _step(self, step: FusedStep) -> Stream:
        return Stream(Node(self._node.name, "stateless", step.schema, (self._node,), step=step))

    def _where(self, what: str) -> str:
        return f"{what}(...) after '{self._node.name}'"

    @property
    def writeStream(self) -> StreamWriter:
        """Begin to describe where the rows go."""
        from penstock.topology.writer import StreamWriter

        return StreamWriter(self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.type}" for field in self._node.schema)
        return f"Stream[{self._node.name}: {fields}]"


class GroupedStream(ProcessorMethods):
    """Keyed rows, waiting for an operator."""

    def __init__(self, node: Node, keys: tuple[str, ...]) -> None:
        self._node = node
        self._keys = keys

    def agg(
        self,
        *aggregates: Aggregate,
        name: str | None = None,
        shards: int = DEFAULT_SHARDS,
        cores: int | None = None,
    ) -> Stream:
        """Keep built-in aggregates per key; after each epoch the keys that changed are put out with their new
        values.

        Args:
            aggregates: such as `penstock.count()`, `penstock.sum("amount").alias("total")`.
            name: of the operator; it is the identity of its state across restarts.
            shards: hash buckets of its keys; fixed for the life of the checkpoint.
            cores: tasks it starts with; all cores of the machine when not given.
        """
        operator = _operator_name(name, "agg", self._keys)
        schema = output_schema(aggregates, self._keys, self._node.schema, operator)
        return self._operator(operator, "aggregate", schema, shards, cores, aggregates=tuple(aggregates))

    def count(self, name: str | None = None) -> Stream:
        """Count the rows of each key."""
        return self.agg(count(), name=name)

    def apply_rows(
        self,
        function: Callable[..., Any],
        *,
        schema: object,
        state: Mapping[str, StateSpec] | None = None,
        name: str | None = None,
        shards: int = DEFAULT_SHARDS,
        cores: int | None = None,
    ) -> Stream:
        """Call `function(key, rows, state)` once per key and epoch, for keys that have rows; it returns
        output rows or None.

        Args:
            function: `key` is a tuple of the key columns, `rows` the key's rows in order, `state` has one
                attribute per declared state.
            schema: of the output rows, as DDL string, StructType or Arrow schema.
            state: for example `{"seen": penstock.ValueState("long")}`.
            name: of the operator; it is the identity of its state across restarts.
        """
        return self._function("rows", function, schema, state, name, shards, cores)

    def apply_arrow(
        self,
        function: Callable[..., Any],
        *,
        schema: object,
        state: Mapping[str, StateSpec] | None = None,
        name: str | None = None,
        shards: int = DEFAULT_SHARDS,
        cores: int | None = None,
    ) -> Stream:
        """Call `function(table, state)` once per shard and epoch with an Arrow table of the shard's rows; it
        returns an Arrow table."""
        return self._function("arrow", function, schema, state, name, shards, cores)

    def cogroup(self, other: GroupedStream) -> CogroupedStream:
        """Bring the rows of two streams together by key; the key columns go by position and must have the same types.

        Raises:
            DeclarationError: the keys differ in number or type.
        """
        where = f"cogroup(...) of '{self._node.name}'"
        if not isinstance(other, GroupedStream):
            raise DeclarationError(f"{where} takes another groupBy(...), not {other!r}.")
        mine = [self._node.schema.field(name).type for name in self._keys]
        theirs = [other._node.schema.field(name).type for name in other._keys]
        if mine != theirs:
            raise DeclarationError(
                f"{where} and '{other._node.name}': the keys have different types, {', '.join(map(str, mine))} and "
                f"{', '.join(map(str, theirs))}; cast one side with withColumn(...)."
            )
        return CogroupedStream(self, other)

    def _function(
        self,
        kind: str,
        function: Callable[..., Any],
        schema: object,
        state: Mapping[str, StateSpec] | None,
        name: str | None,
        shards: int,
        cores: int | None,
    ) -> Stream:
        if not callable(function):
            raise DeclarationError(f"apply_{kind}(...) takes a function, not {function!r}.")
        operator = _operator_name(name, getattr(function, "__name__", kind), self._keys)
        states = check_states(state or {}, operator)
        parsed = parse_schema(schema, f"schema of operator '{operator}'")
        return self._operator(operator, kind, parsed, shards, cores, function=function, states=states)

    def _operator(
        self, name: str, kind: str, schema: pa.Schema, shards: int, cores: int | None, **more: Any
    ) -> Stream:
        if not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            raise DeclarationError(
                f"operator '{name}': shards must be from 1 to {MAX_SHARDS}, not {shards!r}."
            )
        if cores is not None and (not isinstance(cores, int) or cores < 1):
            raise DeclarationError(f"operator '{name}': cores must be a positive number, not {cores!r}.")
        inputs = more.pop("inputs", (self._node,))
        return Stream(Node(name, kind, schema, inputs, self._keys, shards, cores, **more))


class CogroupedStream:
    """Rows of two streams, keyed alike, waiting for an operator."""

    def __init__(self, left: GroupedStream, right: GroupedStream) -> None:
        self._left = left
        self._right = right

    def apply_rows(
        self,
        function: Callable[..., Any],
        *,
        schema: object,
        state: Mapping[str, StateSpec] | None = None,
        name: str | None = None,
        shards: int = DEFAULT_SHARDS,
        cores: int | None = None,
    ) -> Stream:
        """Call `function(key, left rows, right rows, state)` once per key and epoch, for keys that have rows on either
        side; it returns output rows or None.

        What arrives together depends on load: keep in `state` what has to meet rows of later epochs.

        Args:
            schema, state, name, shards, cores: as of `GroupedStream.apply_rows`.
        """
        keys, right = self._left._keys, self._right
        if not callable(function):
            raise DeclarationError(f"apply_rows(...) takes a function, not {function!r}.")
        operator = _operator_name(name, getattr(function, "__name__", "cogrouped"), keys)
        return self._left._operator(
            operator,
            "cogrouped",
            parse_schema(schema, f"schema of operator '{operator}'"),
            shards,
            cores,
            inputs=(self._left._node, right._node),
            right_keys=right._keys,
            function=function,
            states=check_states(state or {}, operator),
        )


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
    if not callable(function):
        raise DeclarationError(
            f"source '{name}': generate(...) takes a function (offset, count), not {function!r}."
        )
    steps = (
        ((0.0, float(rate)),)
        if isinstance(rate, int | float)
        else tuple((float(s), float(r)) for s, r in rate)
    )
    if not steps or any(seconds < 0 or per_s < 0 for seconds, per_s in steps):
        raise DeclarationError(
            f"source '{name}': rate must be rows per second or (seconds, rows per second) steps, not {rate!r}."
        )
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise DeclarationError(f"source '{name}': limit must be a number of rows, not {limit!r}.")
    parsed = parse_schema(schema, f"schema of source '{name}'")
    return Stream(Node(name, "generate", parsed, function=function, rate=steps, limit=limit))


def from_rows(rows: object, *, schema: object = None, name: str = "source") -> Stream:
    """Take rows that are there as a bounded source; a query over bounded sources alone ends by itself.

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

    steps = ((0.0, _AT_ONCE_PER_S),)
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
            raise DeclarationError(f"source '{name}': its rows do not fit its schema: {error}") from error
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
        raise DeclarationError(f"source '{name}': its rows do not fit its schema: {error}") from error


def check_name(name: object, what: str) -> str:
    """Return a legal name or say what is wrong with it."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise DeclarationError(
            f"{what} name {name!r} must begin with a letter and have only letters, digits and underscores."
        )
    return name


def _operator_name(name: str | None, default: str, keys: Sequence[str]) -> str:
    if name is not None:
        return check_name(name, "operator")
    made = re.sub(r"[^A-Za-z0-9_]", "_", f"{default}_by_{'_'.join(keys)}").lstrip("_0123456789")[:60]
    return check_name(made or "operator", "operator")


def _callable(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    if not callable(function):
        raise DeclarationError(f"{where} takes a function, not {function!r}.")
    return function


def _stream(given: object, where: str) -> Stream:
    if not isinstance(given, Stream):
        raise DeclarationError(f"{where} takes a stream, not {given!r}.")
    return given


def _shown(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{field.name} {field.type}" for field in schema) + ")"
