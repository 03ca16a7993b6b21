"""Keyed rows, waiting for an operator: of one stream, of two that are keyed alike, or beside a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.aggregates import Aggregate, output_schema
from penstock.topology.calling import checks_arguments
from penstock.topology.functions import check_function
from penstock.topology.nodes import (
    DEFAULT_SHARDS,
    Node,
    check_on_error,
    check_size,
    operator_name,
)
from penstock.topology.processor_streams import ProcessorMethods
from penstock.topology.schema import parse_schema
from penstock.topology.shorthand import AggregateMethods
from penstock.topology.states import StateSpec, check_states, check_timer_function
from penstock.topology.stream import Stream, checked_stream
from penstock.topology.substitutes import COGROUPED, GROUPED, refuse_missing
from penstock.topology.type_words import type_words


@checks_arguments
class GroupedStream(ProcessorMethods, AggregateMethods):
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
        operator = self._checked("apply_rows", function, ("key", "rows", "state"), name)
        more: dict[str, Any] = {"dead_letters": check_on_error(on_error, f"operator '{operator}'")}
        if on_timer is not None:
            check_timer_function(on_timer, state or {}, operator)
            more["on_timer"] = on_timer
        return self._function("rows", function, schema, state, operator, shards, cores, more)

    def with_broadcast(self, other: Stream) -> BroadcastStream:
        """Give every shard all rows of another stream beside the rows of its keys.

        Raises:
            DeclarationError: `other` is no stream.
        """
        where = f"with_broadcast(...) of '{self._node.name}'"
        return BroadcastStream(self, checked_stream(other, where))

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
        operator = self._checked("apply_arrow", function, ("table", "state"), name)
        return self._function("arrow", function, schema, state, operator, shards, cores)

    def cogroup(self, other: GroupedStream) -> CogroupedStream:
        """Bring the rows of two streams together by key; the key columns go by position and must have the same types.

        Raises:
            DeclarationError: the keys differ in number or type.
        """
        where = f"cogroup(...) of '{self._node.name}'"
        if not isinstance(other, GroupedStream):
            raise DeclarationError(f"{where} takes another groupBy(...), not {_shown(other)}.")
        mine = [self._node.schema.field(name).type for name in self._keys]
        theirs = [other._node.schema.field(name).type for name in other._keys]
        if mine != theirs:
            raise DeclarationError(
                f"{where} and '{other._node.name}': the keys have different types, {', '.join(map(type_words, mine))} and "
                f"{', '.join(map(type_words, theirs))}; cast one side with withColumn(...)."
            )
        return CogroupedStream(self, other)

    def _checked(
        self, what: str, function: Any, parameters: Sequence[str], name: str | None, default: str = ""
    ) -> str:
        """Return the name of an operator after checking its function."""
        check_function(function, parameters, function_place(what, name, self._node))
        made = getattr(function, "__name__", default or what.removeprefix("apply_"))
        return operator_name(name, made, self._keys)

    def _function(
        self,
        kind: str,
        function: Callable[..., Any],
        schema: object,
        state: Mapping[str, StateSpec] | None,
        operator: str,
        shards: int,
        cores: int | None,
        more: Mapping[str, Any] | None = None,
    ) -> Stream:
        states = check_states(state or {}, operator)
        parsed = parse_schema(schema, f"schema of operator '{operator}'")
        return self._operator(
            operator, kind, parsed, shards, cores, function=function, states=states, **(more or {})
        )

    if not TYPE_CHECKING:  # type checkers are to find what is not there

        def __getattr__(self, name: str) -> NoReturn:
            refuse_missing(self, name, GROUPED)

    def _operator(
        self, name: str, kind: str, schema: pa.Schema, shards: int, cores: int | None, **more: Any
    ) -> Stream:
        check_size(name, shards, cores)
        inputs = more.pop("inputs", (self._node,))
        return Stream(Node(name, kind, schema, inputs, self._keys, shards, cores, **more))


def function_place(what: str, name: str | None, node: Node) -> str:
    """Return how messages name the call that a function is given to."""
    return f"operator '{name}': {what}(...)" if name is not None else f"{what}(...) after '{node.name}'"


def _shown(given: object) -> str:
    if type(given).__module__.startswith("pyspark.sql"):
        return "a groupBy of Spark; write penstock.from_dataframe(df).groupBy(...)"
    if isinstance(given, Stream):
        return "a stream without keys; call groupBy(...) on it"
    return repr(given)


@checks_arguments
class CogroupedStream:
    """Rows of two streams, keyed alike, waiting for an operator."""

    def __init__(self, left: GroupedStream, right: GroupedStream) -> None:
        self._left = left
        self._right = right

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            refuse_missing(self, name, COGROUPED)

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
        right = self._right
        operator = self._left._checked(
            "apply_rows", function, ("key", "left rows", "right rows", "state"), name, "cogrouped"
        )
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
            dead_letters=check_on_error(on_error, f"operator '{operator}'"),
        )


@checks_arguments
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
        operator = self._keyed._checked(
            "apply_rows", function, ("key", "rows", "state", "shared"), name, "broadcast"
        )
        check_function(on_broadcast, ("rows", "shared"), f"operator '{operator}': on_broadcast")
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
            dead_letters=check_on_error(on_error, f"operator '{operator}'"),
        )
