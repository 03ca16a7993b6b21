"""What a user declares: sources, keyed operators, and streams between them. Validated as it is written; no
engine here.

A stream is an immutable node of the topology. Every mistake that can be seen without data fails in the call
that makes it, with the operator's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from penstock.errors import DeclarationError, OperatorError
from penstock.topology.aggregates import Aggregate, count, output_schema
from penstock.topology.batches import rows_to_batch
from penstock.topology.durations import parse_duration
from penstock.topology.expressions import as_expression
from penstock.topology.expressions import col as column
from penstock.topology.keytypes import check_key_columns
from penstock.topology.processor_streams import ProcessorMethods
from penstock.topology.processors import Processor
from penstock.topology.schema import parse_schema
from penstock.topology.stateless import (
    FusedStep,
    MapArrow,
    MapRows,
    Watermark,
    filter_step,
    retype_step,
    select_step,
)
from penstock.topology.states import StateSpec, check_states, check_timer_function
from penstock.topology.windows import Window, split_grouping

if TYPE_CHECKING:
    from penstock.topology.windowed import WindowedStream
    from penstock.topology.writer import StreamWriter

DEFAULT_SHARDS = 256
DEFAULT_STATION_SHARDS = 64
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
    """generate | dataframe | rows | arrow | aggregate | windowed | cogrouped | broadcast | processor | station |
    stateless | union | loop | side"""
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
    faults: bool = False
    """Of a scripted source: something dies in it, which only `penstock.testing.run` can carry out."""
    right_keys: tuple[str, ...] = ()
    """Of an operator with a second input (cogrouped, or a processor's initial state): the key columns of that."""
    processor: Processor | None = None
    emitted_time: str | None = None
    """Of a processor: the column of its output that is the event time there."""
    initial: bool = False
    """Of a source: it holds initial state; no other source begins before all of it is taken in."""
    window: Window | None = None
    """Of a windowed operator: what it groups by beside its keys."""
    window_at: int = 0
    """Place of the window among the grouping columns."""
    output_mode: str | None = None
    """Of a windowed operator: append or update; append where it is not settled."""
    step: FusedStep | None = None
    """Of a stateless node: what it does to the rows of its one input, inside the stage that makes them."""
    steps: tuple[FusedStep, ...] = ()
    """Of a station: what it does to its rows."""
    keep_local: bool = False
    """Of a station: its rows stay on the node that makes them, where it has a task there."""
    on_broadcast: Callable[..., Any] | None = None
    shared: Mapping[str, StateSpec] | None = None
    """Of an operator with a broadcast input: what it does with those rows, and the states of a shard it keeps them in."""
    on_timer: Callable[..., Any] | None = None
    """Of a row function: what is called when a timer of a key is due."""
    dead_letters: bool = False
    """Of an operator: a function that raises ends its key's call as a dead letter, not the query."""
    output: str = "main"
    """Of a side: which output of the operator it is."""
    ring: Ring | None = None
    """Of a loop: where its rows come from."""

    def feeds(self) -> tuple[Feed, ...]:
        """Where the rows come from, in declared order: stages, and what happens to their rows on the way here."""
        if self.kind == "union":
            return tuple(feed for given in self.inputs for feed in given.feeds())
        if self.kind == "stateless" and self.step is not None:
            step = self.step
            return tuple(replace(feed, steps=(*feed.steps, step)) for feed in self.inputs[0].feeds())
        if self.kind == "side":
            return (Feed(self.inputs[0], (), self.output),)
        if self.kind == "loop" and self.ring is not None:
            return self.ring.feeds(self.name)
        return (Feed(self, ()),)

    @property
    def event_time(self) -> str | None:
        """The column with the event time of the rows, where a watermark is declared and the column is still there."""
        if self.kind == "loop":
            return None
        if self.kind == "stateless" and isinstance(self.step, Watermark):
            return self.step.column
        if self.emitted_time is not None:
            return self.emitted_time
        found = [given.event_time for given in self.inputs]
        name = next((one for one in found if one is not None and one in self.schema.names), None)
        return name if name is not None and pa.types.is_timestamp(self.schema.field(name).type) else None


class Ring:
    """The closing of a loop: declared first, known later."""

    def __init__(self) -> None:
        self.fed: Node | None = None

    def feeds(self, name: str) -> tuple[Feed, ...]:
        if self.fed is None:
            raise DeclarationError(
                f"loop '{name}' is never closed; call feed(stream) with what goes back into it."
            )
        return tuple(replace(feed, feedback=True) for feed in self.fed.feeds())


@dataclass(frozen=True)
class Feed:
    """One stage that a node takes rows from, with the stateless steps fused into it."""

    stage: Node
    steps: tuple[FusedStep, ...]
    output: str = "main"
    feedback: bool = False


DEAD_LETTERS = parse_schema(
    "operator string, key string, time timestamp, error string, traceback string, rows array<string>",
    "dead letters",
)
"""What a dead letter says: whose call it was, when, what was raised, and the rows it was called with, as JSON."""


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

    @overload
    def groupBy(self, *columns: str) -> GroupedStream: ...  # type: ignore[overload-overlap]

    @overload
    def groupBy(self, *columns: str | Window) -> WindowedStream: ...

    def groupBy(self, *columns: str | Window) -> GroupedStream | WindowedStream:
        """Key the rows by one or several columns; one of them may be a window, `penstock.window("ts", "5 minutes")`.

        Keys compare as Spark's do: NaN equals NaN, -0.0 equals 0.0, time stamps in UTC. A null in a key
        column ends the query with an error.

        Raises:
            DeclarationError: a column is unknown, or of a type that cannot be a key.
        """
        if any(isinstance(column, Window) for column in columns):
            return self._windowed(columns)
        names = check_key_columns(self._node.schema, columns, self._node.name)
        return GroupedStream(self._node, names)

    def _windowed(self, columns: Sequence[str | Window]) -> WindowedStream:
        from penstock.topology.windowed import WindowedStream

        window, place = split_grouping(columns, self._node.schema, self._node.name)
        plain = [column for column in columns if not isinstance(column, Window)]
        names = check_key_columns(self._node.schema, plain, self._node.name) if plain else ()
        return WindowedStream(self._node, names, window, place)

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

    def withWatermark(self, eventTime: str, delayThreshold: object, *, idle_after: object = None) -> Stream:
        """Say which column holds the event time, and how long rows may be late.

        The watermark is the latest event time that was put out so far less the delay; over several inputs the least
        one counts. Rows that windows and event-time processors find behind it are late.

        Args:
            eventTime: a column of type timestamp.
            delayThreshold: such as "10 minutes".
            idle_after: after this long without rows the source holds the watermark of others up no more.

        Raises:
            DeclarationError: no such column, or none of type timestamp; no duration, or a negative one.
        """
        where = self._where("withWatermark")
        if eventTime not in self.columns:
            raise DeclarationError(
                f"{where}: there is no column {eventTime!r}; there are {', '.join(self.columns)}."
            )
        found = self.schema.field(eventTime).type
        if not pa.types.is_timestamp(found):
            raise DeclarationError(
                f"{where}: column '{eventTime}' is of type {found}, and event time is a timestamp; cast it with "
                f"withColumn('{eventTime}', col('{eventTime}').cast('timestamp'))."
            )
        delay_us = parse_duration(delayThreshold, where)
        idle_us = None if idle_after is None else parse_duration(idle_after, where)
        if delay_us < 0 or (idle_us is not None and idle_us <= 0):
            raise DeclarationError(f"{where}: a delay is not negative, and a time until idle is positive.")
        idle_s = None if idle_us is None else idle_us / 1e6
        return self._step(Watermark(where, eventTime, delay_us, self.schema, idle_s))

    def station(
        self,
        name: str,
        *,
        cores: int | None = None,
        shards: int = DEFAULT_STATION_SHARDS,
        keep_local: bool = False,
    ) -> Stream:
        """Run the stateless steps just before this as a station: an operator without keys or state, with a queue,
        cores and rates of its own. Without it they run inside the task that makes the rows.

        Rows are dealt to its tasks in turn, so rows of a key may overtake each other in it.

        Args:
            name: of the station, as of an operator.
            cores: tasks it starts with.
            shards: lanes that rows are dealt to; at least as many as it may ever have tasks.
            keep_local: let rows stay on the node that makes them where the station has a task there.

        Raises:
            DeclarationError: a watermark is declared among the steps; declare it after the station.
        """
        check_name(name, "station")
        steps: list[FusedStep] = []
        node = self._node
        while node.kind == "stateless" and node.step is not None:
            if isinstance(node.step, Watermark):
                raise DeclarationError(
                    f"station '{name}': call withWatermark(...) after station(...), where its rows are put out."
                )
            steps.insert(0, node.step)
            node = node.inputs[0]
        check_size(name, shards, cores)
        made = Node(
            name,
            "station",
            self.schema,
            (node,),
            (),
            shards,
            cores,
            steps=tuple(steps),
            keep_local=keep_local,
        )
        return Stream(made)

    @property
    def dead_letters(self) -> Stream:
        """The dead letters of this operator: calls that raised, with key, traceback and rows.

        Raises:
            DeclarationError: the operator was not declared with on_error="dead_letter".
        """
        if not self._node.dead_letters:
            raise DeclarationError(
                f"'{self._node.name}' has no dead letters; declare the operator with on_error='dead_letter'."
            )
        made = Node(f"{self._node.name}_dead_letters", "side", DEAD_LETTERS, (self._node,), output="dead")
        return Stream(made)

    @property
    def late_rows(self) -> Stream:
        """The rows that came too late, as they came to this operator: for one of their windows, or for a processor by
        event time.

        Raises:
            DeclarationError: this is no windowed operator and no processor by event time.
        """
        processor = self._node.processor
        if self._node.kind != "windowed" and (processor is None or processor.time_mode != "event"):
            raise DeclarationError(
                f"'{self._node.name}' has no late rows; they are what a groupBy(penstock.window(...), ...) leaves out."
            )
        name, schema = f"{self._node.name}_late_rows", self._node.inputs[0].schema
        return Stream(Node(name, "side", schema, (self._node,), output="late"))

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
        operator = operator_name(name, "agg", self._keys)
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
        on_timer: Callable[..., Any] | None = None,
        on_error: str = "fail",
    ) -> Stream:
        """Call `function(key, rows, state)` once per key and epoch, for keys that have rows; it returns
        output rows or None.

        Args:
            function: `key` is a tuple of the key columns, `rows` the key's rows in order, `state` has one
                attribute per declared state.
            schema: of the output rows, as DDL string, StructType or Arrow schema.
            state: for example `{"seen": penstock.ValueState("long")}`.
            name: of the operator; it is the identity of its state across restarts.
            on_timer: `on_timer(key, time, state)` is called for each timer of a key that is due, after the rows of the
                epoch; it returns output rows or None. With it `state` has `set_timer(when)`, `delete_timer(when)`
                and `timers()`, for event time or with `processing=True` for the epoch time, and the clocks
                `watermark` and `now`. An `on_timer` that raises ends the query, whatever `on_error` says.
            on_error: "fail" ends the query when the function raises; "dead_letter" takes back what the call changed
                in the key's state, puts a row out on `dead_letters` of the returned stream, and goes on.
        """
        more: dict[str, Any] = {"dead_letters": check_on_error(on_error, "apply_rows(...)")}
        if on_timer is not None:
            check_timer_function(on_timer, state or {}, name or "apply_rows(...)")
            more["on_timer"] = on_timer
        return self._function("rows", function, schema, state, name, shards, cores, more)

    def with_broadcast(self, other: Stream) -> BroadcastStream:
        """Give every shard all rows of another stream beside the rows of its keys.

        Raises:
            DeclarationError: `other` is no stream.
        """
        where = f"with_broadcast(...) of '{self._node.name}'"
        return BroadcastStream(self, _stream(other, where))

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
        more: Mapping[str, Any] | None = None,
    ) -> Stream:
        if not callable(function):
            raise DeclarationError(f"apply_{kind}(...) takes a function, not {function!r}.")
        operator = operator_name(name, getattr(function, "__name__", kind), self._keys)
        states = check_states(state or {}, operator)
        parsed = parse_schema(schema, f"schema of operator '{operator}'")
        return self._operator(
            operator, kind, parsed, shards, cores, function=function, states=states, **(more or {})
        )

    def _operator(
        self, name: str, kind: str, schema: pa.Schema, shards: int, cores: int | None, **more: Any
    ) -> Stream:
        check_size(name, shards, cores)
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
        on_error: str = "fail",
    ) -> Stream:
        """Call `function(key, left rows, right rows, state)` once per key and epoch, for keys that have rows on either
        side; it returns output rows or None.

        What arrives together depends on load: keep in `state` what has to meet rows of later epochs.

        Args:
            schema, state, name, shards, cores, on_error: as of `GroupedStream.apply_rows`.
        """
        keys, right = self._left._keys, self._right
        if not callable(function):
            raise DeclarationError(f"apply_rows(...) takes a function, not {function!r}.")
        operator = operator_name(name, getattr(function, "__name__", "cogrouped"), keys)
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
            dead_letters=check_on_error(on_error, "apply_rows(...)"),
        )


class BroadcastStream:
    """Keyed rows beside a stream that every shard gets whole, waiting for an operator."""

    def __init__(self, keyed: GroupedStream, broadcast: Stream) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    def apply_rows(
        self,
        function: Callable[..., Any],
        *,
        on_broadcast: Callable[..., Any],
        shared: Mapping[str, StateSpec],
        schema: object,
        state: Mapping[str, StateSpec] | None = None,
        name: str | None = None,
        shards: int = DEFAULT_SHARDS,
        cores: int | None = None,
        on_error: str = "fail",
    ) -> Stream:
        """Call `on_broadcast(rows, shared)` once per shard and epoch with the broadcast rows, then
        `function(key, rows, state, shared)` for every key that has rows.

        Every shard keeps a copy of `shared`, so that it goes where the shard goes: declare no more shards than needed.
        What `on_broadcast` returns is put out, once for every shard; mostly it returns None.

        Args:
            shared: the states that broadcast rows are kept in, declared as `state` is; `function` reads them.
            schema, state, name, shards, cores, on_error: as of `GroupedStream.apply_rows`.
        """
        for given, what in ((function, "a function"), (on_broadcast, "on_broadcast=, a function")):
            if not callable(given):
                raise DeclarationError(f"apply_rows(...) takes {what}, not {given!r}.")
        operator = operator_name(name, getattr(function, "__name__", "broadcast"), self._keyed._keys)
        return self._keyed._operator(
            operator,
            "broadcast",
            parse_schema(schema, f"schema of operator '{operator}'"),
            shards,
            cores,
            inputs=(self._keyed._node, self._broadcast.node),
            function=function,
            states=check_states(state or {}, operator),
            on_broadcast=on_broadcast,
            shared=check_states(shared, operator),
            dead_letters=check_on_error(on_error, "apply_rows(...)"),
        )


class Loop(Stream):
    """Rows that come back: declared with `penstock.loop`, used like any stream, closed with `feed`."""

    def feed(self, stream: Stream) -> None:
        """Let the rows of a stream go back into the loop.

        Raises:
            DeclarationError: the loop is closed already, the rows have another schema, or they go through no operator.
        """
        where, ring = f"feed(...) of loop '{self._node.name}'", self._node.ring
        assert ring is not None
        given = _stream(stream, where).node
        if ring.fed is not None:
            raise DeclarationError(
                f"{where}: the loop is closed already; use union(...) to let several streams in."
            )
        if [field.type for field in given.schema] != [field.type for field in self.schema]:
            raise DeclarationError(
                f"{where}: the loop has {_shown(self.schema)} and is fed {_shown(given.schema)}; select the same types in "
                "the same order first."
            )
        if not _goes_through_an_operator(given, self._node):
            raise DeclarationError(
                f"{where}: its rows go through no operator on the way; nothing could end them."
            )
        columns = [
            column(theirs).alias(mine) for theirs, mine in zip(stream.columns, self.columns, strict=True)
        ]
        shaped = stream.select(*columns)
        ring.fed = shaped._step(retype_step(where, self.columns, shaped.schema, self.schema)).node


def loop(name: str, *, schema: object) -> Loop:
    """Declare a loop: a stream whose rows are made further down, and named later with `feed`.

    Rows that come back are taken before any others. Windows and timers are refused inside a loop: event time does not
    go round.

    Args:
        name: of the loop, for errors.
        schema: of the rows that come back.
    """
    check_name(name, "loop")
    parsed = parse_schema(schema, f"schema of loop '{name}'")
    return Loop(Node(name, "loop", parsed, ring=Ring()))


def _goes_through_an_operator(node: Node, ring: Node) -> bool:
    """Whether a loop's rows are made by stages, rather than being the loop's own."""
    if node is ring:
        return False
    if node.kind in ("stateless", "union"):
        return all(_goes_through_an_operator(given, ring) for given in node.inputs)
    return True


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


def check_size(name: str, shards: object, cores: object) -> None:
    """Refuse a number of shards or cores that an operator cannot have."""
    if not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
        raise DeclarationError(f"operator '{name}': shards must be from 1 to {MAX_SHARDS}, not {shards!r}.")
    if cores is not None and (not isinstance(cores, int) or cores < 1):
        raise DeclarationError(f"operator '{name}': cores must be a positive number, not {cores!r}.")


def check_on_error(given: object, where: str) -> bool:
    """Return whether calls that raise become dead letters."""
    if given not in ("fail", "dead_letter"):
        raise DeclarationError(f"{where}: on_error is 'fail' or 'dead_letter', not {given!r}.")
    return given == "dead_letter"


def check_name(name: object, what: str) -> str:
    """Return a legal name or say what is wrong with it."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise DeclarationError(
            f"{what} name {name!r} must begin with a letter and have only letters, digits and underscores."
        )
    return name


def operator_name(name: str | None, default: str, keys: Sequence[str]) -> str:
    """Return the name of an operator: the one given, or one made of what it does and its keys."""
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
