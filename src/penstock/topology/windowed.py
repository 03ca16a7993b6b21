"""What can be done with rows grouped by a window: the operators behind `groupBy(window(...), ...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.aggregates import Aggregate, output_schema
from penstock.topology.calling import checks_arguments
from penstock.topology.functions import check_function
from penstock.topology.grouped import GroupedStream, function_place
from penstock.topology.nodes import DEFAULT_SHARDS, Node, operator_name
from penstock.topology.schema import parse_schema
from penstock.topology.shorthand import AggregateMethods
from penstock.topology.states import StateSpec, check_states
from penstock.topology.stream import Stream
from penstock.topology.substitutes import WINDOWED, refuse_missing
from penstock.topology.windows import Window


@checks_arguments
class WindowedStream(AggregateMethods):
    """Rows grouped by a window and any number of key columns, waiting for an operator.

    The output begins with the grouping columns, in the order given; the window is a struct of `start` and `end`.
    """

    def __init__(self, node: Node, keys: tuple[str, ...], window: Window, place: int) -> None:
        self._node = node
        self._keys = keys
        self._window = window
        self._place = place
        self._names = [*keys[:place], window.name, *keys[place:]]

    def agg(
        self,
        *aggregates: Aggregate,
        name: str | None = None,
        shards: int = DEFAULT_SHARDS,
        cores: int | None = None,
    ) -> Stream:
        """Keep built-in aggregates per window and key.

        With outputMode "append", the default, a window is put out once, when the watermark has reached its end. With
        "update" the windows that changed are put out after each epoch. Closed windows leave the state either way.

        Args:
            aggregates, name, shards, cores: as of `GroupedStream.agg`.
        """
        operator = operator_name(name, "agg", self._names)
        schema = output_schema(aggregates, self._keys, self._node.schema, operator)
        fields = list(schema)
        fields.insert(self._place, self._window.field(self._node.schema))
        if self._window.name in schema.names:
            raise DeclarationError(
                f"operator '{operator}' has two output columns '{self._window.name}'; rename one with .alias(...)."
            )
        return self._operator(operator, pa.schema(fields), shards, cores, aggregates=tuple(aggregates))

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
        """Call `function(key, rows, state)` once per window and key, when the window closes; it returns output rows or
        None.

        Args:
            function: `key` is a named tuple of the grouping columns, the window among them with `start` and `end`;
                `rows` are all rows of the window in the order in which they came; `state` belongs to the key columns
                without the window, so that one window can hand on to the next.
            schema, state, name, shards, cores: as of `GroupedStream.apply_rows`.
        """
        check_function(function, ("key", "rows", "state"), function_place("apply_rows", name, self._node))
        operator = operator_name(name, getattr(function, "__name__", "rows"), self._names)
        states = check_states(state or {}, operator)
        parsed = parse_schema(schema, f"schema of operator '{operator}'")
        return self._operator(operator, parsed, shards, cores, function=function, states=states)

    if not TYPE_CHECKING:  # type checkers are to find what is not there

        def __getattr__(self, name: str) -> NoReturn:
            refuse_missing(self, name, WINDOWED)

    def _operator(self, name: str, schema: pa.Schema, shards: int, cores: int | None, **more: Any) -> Stream:
        # Without key columns all windows are in one shard: at any moment most rows belong to one window anyway.
        shards, cores = (shards, cores) if self._keys else (1, 1)
        grouped = GroupedStream(self._node, self._keys)
        return grouped._operator(
            name, "windowed", schema, shards, cores, window=self._window, window_at=self._place, **more
        )
