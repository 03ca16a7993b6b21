"""PySpark's three methods for keyed Python code with state, on a grouped stream: names and parameters are PySpark's.

What a program gains by moving is one line: the stream that `groupBy` is called on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology import processors
from penstock.topology.functions import check_function
from penstock.topology.processors import DeclaredState, Flavour, Processor
from penstock.topology.schema import parse_schema
from penstock.topology.types import ddl_of

if TYPE_CHECKING:
    from penstock.topology.nodes import Node
    from penstock.topology.stream import Stream

_SHARDS = 256


class ProcessorMethods:
    """The methods; a grouped stream has them."""

    _node: Node
    _keys: tuple[str, ...]

    def _operator(
        self, name: str, kind: str, schema: pa.Schema, shards: int, cores: int | None, **more: Any
    ) -> Stream:
        raise NotImplementedError

    def transformWithState(
        self,
        statefulProcessor: Any,
        outputStructType: object,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
        *,
        name: str | None = None,
        shards: int = _SHARDS,
        cores: int | None = None,
        on_error: str = "fail",
    ) -> Stream:
        """Run a `pyspark.sql.streaming.StatefulProcessor`, unchanged, whose methods take and yield rows.

        `init(handle)` is run once here, on a copy, to learn which states there are; then once in every task.

        Args:
            statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName: as in PySpark.
            initialState: `df.groupBy(key)` of a batch DataFrame, or of a bounded stream; or a DataFrame as
                `spark.read.format("statestore")` gives it. `handleInitialState` is called once per row of it, before
                any other source is read.
            name: of the operator; it is the identity of its state across restarts.
            shards, cores: as of `agg`.
            on_error: "fail" ends the query when the processor raises; "dead_letter" takes back what the call changed in
                the key's state and timers, puts a row out on `dead_letters` of the returned stream, and goes on.

        Raises:
            DeclarationError: it is no processor, its `init` fails, or a mode, schema or initial state does not fit.
        """
        return self._processor(
            "transformWithState", "rows", statefulProcessor, outputStructType, outputMode, timeMode,
            initialState, eventTimeColumnName, name, shards, cores, on_error,
        )  # fmt: skip

    def transformWithStateInPandas(
        self,
        statefulProcessor: Any,
        outputStructType: object,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
        *,
        name: str | None = None,
        shards: int = _SHARDS,
        cores: int | None = None,
        on_error: str = "fail",
    ) -> Stream:
        """Run a `StatefulProcessor`, unchanged, whose methods take and yield pandas frames; otherwise as
        `transformWithState`."""
        return self._processor(
            "transformWithStateInPandas", "frames", statefulProcessor, outputStructType, outputMode, timeMode,
            initialState, eventTimeColumnName, name, shards, cores, on_error,
        )  # fmt: skip

    def applyInPandasWithState(
        self,
        func: Callable[..., Any],
        outputStructType: object,
        stateStructType: object,
        outputMode: str,
        timeoutConf: str,
        *,
        name: str | None = None,
        shards: int = _SHARDS,
        cores: int | None = None,
        on_error: str = "fail",
    ) -> Stream:
        """Call `func(key, frames, state)`, written for PySpark's method of this name, unchanged.

        Args:
            func, outputStructType, stateStructType, outputMode, timeoutConf: as in PySpark; `state` is a
                `pyspark.sql.streaming.state.GroupState`.
            name, shards, cores, on_error: as of `transformWithState`.
        """
        from penstock.topology.nodes import check_on_error

        check_function(func, ("key", "frames", "state"), "applyInPandasWithState(...)")
        operator = self._named(name, getattr(func, "__name__", "func"))
        mode = processors.check_modes(
            "applyInPandasWithState", operator, outputMode, timeoutConf, processors.TIMEOUTS
        )
        kit, event_time = processors.kit(), self._event_time(operator, mode, "applyInPandasWithState")
        state = DeclaredState(
            "state", "value", parse_schema(stateStructType, f"state of operator '{operator}'")
        )
        timeout = next(known for known in processors.TIMEOUTS if known.lower() == timeoutConf.lower())
        made = kit.group_function(func, timeout, event_time is not None)
        declared = Processor(made, "frames", mode, (state,), kit, event_time, wide=False)
        schema = parse_schema(outputStructType, f"output schema of operator '{operator}'")
        letters = check_on_error(on_error, "applyInPandasWithState(...)")
        return self._operator(
            operator, "processor", schema, shards, cores, processor=declared, dead_letters=letters
        )

    def _processor(
        self,
        what: str,
        flavour: Flavour,
        processor: Any,
        output: object,
        output_mode: str,
        time_mode: str,
        initial: Any,
        event_column: str,
        name: str | None,
        shards: int,
        cores: int | None,
        on_error: str,
    ) -> Stream:
        from penstock.topology.nodes import check_on_error

        processors.check_processor(processor, what)
        operator = self._named(name, type(processor).__name__)
        mode = processors.check_modes(what, operator, output_mode, time_mode, processors.TIME_MODES)
        event_time = self._event_time(operator, mode, what)
        schema = parse_schema(output, f"output schema of operator '{operator}'")
        more: dict[str, Any] = {"dead_letters": check_on_error(on_error, f"{what}(...)")}
        if event_column:
            _check_event_column(event_column, schema, operator)
            more["emitted_time"] = event_column
        states = processors.learn_states(processor, operator, mode)
        kit = processors.kit()
        if initial is not None:
            source, keys = self._initial(initial, operator, kit)
            more |= {"inputs": (self._node, source), "right_keys": keys}
        declared = Processor(processor, flavour, mode, states, kit, event_time)
        return self._operator(operator, "processor", schema, shards, cores, processor=declared, **more)

    def _named(self, name: str | None, default: str) -> str:
        from penstock.topology.nodes import operator_name

        return operator_name(name, default, self._keys)

    def _event_time(self, operator: str, mode: str, what: str) -> str | None:
        found: str | None = self._node.event_time
        if mode == "event" and found is None:
            raise DeclarationError(
                f"operator '{operator}': {what} by event time needs a watermark; call withWatermark(column, delay) on "
                "the stream before groupBy."
            )
        return found

    def _initial(self, initial: Any, operator: str, kit: processors.Kit) -> tuple[Node, tuple[str, ...]]:
        """Return the source of the initial rows and their key columns."""
        from dataclasses import replace

        from penstock.topology.grouped import GroupedStream

        if isinstance(initial, GroupedStream):
            source, keys = initial._node, initial._keys
            if not source.bounded or source.inputs:
                raise DeclarationError(
                    f"operator '{operator}': initialState must be a bounded source, such as from_rows(...).groupBy(key)."
                )
        else:
            stream, keys = kit.initial_rows(initial, operator)
            source = stream.node
        mine = [self._node.schema.field(key).type for key in self._keys]
        theirs = [source.schema.field(key).type for key in keys]
        if mine != theirs:
            raise DeclarationError(
                f"operator '{operator}': initialState is keyed by {', '.join(map(ddl_of, theirs))} and the rows by "
                f"{', '.join(map(ddl_of, mine))}; group both by the same types."
            )
        return replace(source, initial=True), keys


def _check_event_column(column: str, schema: pa.Schema, operator: str) -> None:
    if column not in schema.names or not pa.types.is_timestamp(schema.field(column).type):
        raise DeclarationError(
            f"operator '{operator}': eventTimeColumnName {column!r} is no timestamp column of its output; it has "
            f"{', '.join(schema.names)}."
        )
