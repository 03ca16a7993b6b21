"""A PySpark `StatefulProcessor` as a declared operator: what its `init` asks for is learned on the driver.

Never imports pyspark: what is PySpark's (rows, timer values, the handle's classes) comes as a `Kit`, registered with
`set_kit`. A processor is known by its methods.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from penstock.errors import DeclarationError, OperatorError, PenstockError
from penstock.raised import describe, pass_on
from penstock.topology.schema import parse_schema
from penstock.topology.states import MAX_STATES, ListState, MapState, StateSpec, ValueState
from penstock.topology.types import ddl_of

Flavour = Literal["rows", "frames"]
TimeMode = Literal["none", "processing", "event"]

TIME_MODES: dict[str, TimeMode] = {"none": "none", "processingtime": "processing", "eventtime": "event"}
TIMEOUTS: dict[str, TimeMode] = {
    "NoTimeout": "none",
    "ProcessingTimeTimeout": "processing",
    "EventTimeTimeout": "event",
}
OUTPUT_MODES = ("append", "update", "complete")
EXPIRES = "expires_ms"
"""Name of the field beside a value that has a time to live."""


class Kit(Protocol):
    """What is PySpark's in a running processor; shipped to the tasks with the program."""

    def row_class(self, names: Sequence[str]) -> type[tuple[Any, ...]]:
        """Return a class of rows with these fields; an instance is made by `tuple.__new__`."""
        ...

    def timer_values(self, processing_ms: int, watermark_ms: int) -> Any: ...

    def expired_timer(self, expiry_ms: int) -> Any: ...

    def handle(self, tools: Any) -> Any:
        """Return the handle that `init` gets, over what a task has."""
        ...

    def deleted_error(self, what: str, told: str) -> OperatorError:
        """Return the error of using a state that `init` deleted, such as PySpark has it too."""
        ...

    def group_function(self, function: Callable[..., Any], timeout: str, watermarked: bool) -> Any:
        """Return a processor that serves an `applyInPandasWithState` function."""
        ...

    def initial_rows(self, given: Any, operator: str) -> tuple[Any, tuple[str, ...]]:
        """Return a grouped batch DataFrame, or one of the state reader, as a bounded stream, and its key columns."""
        ...


_kits: list[Callable[[], Kit]] = []


def set_kit(make: Callable[[], Kit]) -> None:
    """Register what brings PySpark's classes."""
    _kits[:] = [make]


def kit() -> Kit:
    if not _kits:
        raise DeclarationError("no PySpark classes are known in this process; import penstock first.")
    return _kits[0]()


@dataclass(frozen=True)
class DeclaredState:
    """One state variable, as `init` asked for it."""

    name: str
    kind: Literal["value", "list", "map"]
    schema: pa.Schema
    key_schema: pa.Schema | None = None
    ttl_ms: int | None = None

    def spec(self) -> StateSpec:
        """Return the state that holds it: a value with a time to live has its end beside it."""
        held: pa.DataType = pa.struct(list(self.schema))
        if self.ttl_ms is not None:
            held = pa.struct([pa.field("value", held), pa.field(EXPIRES, pa.int64(), False)])
        made: StateSpec = ValueState(held) if self.kind == "value" else ListState(held)
        if self.kind == "map":
            made = MapState(self.map_key_type(), held)
        made.label, made.local_times, made.enclosed = self.name, True, self.ttl_ms is not None
        return made

    def map_key_type(self) -> pa.DataType:
        """A key of one field is held as it is, one of several as bytes."""
        assert self.key_schema is not None
        return self.key_schema.field(0).type if len(self.key_schema) == 1 else pa.binary()

    def identity(self) -> dict[str, object]:
        """Return what must not change across restarts, as of the state that holds it."""
        found = self.spec().identity()
        if self.key_schema is not None and len(self.key_schema) > 1:
            found["fields"] = ddl_of(self.key_schema)
        return found


@dataclass(frozen=True)
class Processor:
    """A processor ready to be compiled."""

    processor: Any
    flavour: Flavour
    time_mode: TimeMode
    states: tuple[DeclaredState, ...]
    kit: Kit
    event_time: str | None = None
    """The watermark column of its input."""
    wide: bool = True
    """Of frames: whole numbers come as int64, as `transformWithStateInPandas` gives them."""
    zone: str | None = None
    """The session's time zone, known from the start on; None is that of the machine."""
    imported: tuple[str, ...] | None = None
    """Names of the states that its second input brings from another query; None where that holds initial rows."""

    def slots(self) -> dict[str, StateSpec]:
        """Return the states by the names that they have inside the engine, in order of declaration."""
        found: dict[str, StateSpec] = {}
        for at, state in enumerate(self.states):
            found[slot_of(state.name, at)] = state.spec()
        return found


def slot_of(name: str, at: int) -> str:
    """Name a state inside the engine, where names have to be Python's."""
    return f"s{at}_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def learn_states(processor: Any, operator: str, time_mode: TimeMode) -> tuple[DeclaredState, ...]:
    """Run `init` on a copy of the processor with a handle that takes notes, then `close`, as Spark does on its driver.

    Raises:
        DeclarationError: `init` failed, or asks for what there is not.
    """
    recorder = RecordingHandle(operator, time_mode)
    try:
        spare = copy_processor(processor)
        spare.init(recorder)
        spare.close()
    except PenstockError:
        raise
    except BaseException as error:
        pass_on(error)
        raise DeclarationError(
            f"operator '{operator}': init(handle) of {type(processor).__name__} failed on the driver, where it is run "
            f"once to learn the states: {describe(error)}"
        ) from error
    return tuple(recorder.states.values())


def copy_processor(processor: Any) -> Any:
    """Return a processor of its own for each task: `init` puts the task's states into it."""
    try:
        return copy.deepcopy(processor)
    except BaseException as error:  # it holds something that cannot be copied deep
        pass_on(error)
        return copy.copy(processor)


def check_processor(processor: Any, what: str) -> None:
    """Refuse what is no processor."""
    missing = [
        name for name in ("init", "handleInputRows", "close") if not callable(getattr(processor, name, None))
    ]
    if missing or isinstance(processor, type):
        raise DeclarationError(
            f"{what}(...) takes an instance of pyspark.sql.streaming.StatefulProcessor, not {processor!r}."
        )


def check_modes(
    what: str, operator: str, output_mode: object, mode: object, known: Mapping[str, TimeMode]
) -> TimeMode:
    """Return the time mode after checking both modes."""
    if not isinstance(output_mode, str) or output_mode.lower() not in OUTPUT_MODES:
        raise DeclarationError(
            f"operator '{operator}': outputMode {output_mode!r} of {what} is unknown; use append or update."
        )
    if output_mode.lower() == "complete":
        raise DeclarationError(
            f"operator '{operator}': outputMode 'complete' is not available: a processor puts out what it yields; "
            "use append or update."
        )
    names = {name.lower(): value for name, value in known.items()}
    if not isinstance(mode, str) or mode.lower() not in names:
        raise DeclarationError(
            f"operator '{operator}': {mode!r} is no time mode of {what}; use one of {', '.join(known)}."
        )
    return names[mode.lower()]


class Undefined:
    """What a state variable is while `init` runs on the driver: there, without a key and without values."""

    def __init__(self, operator: str, name: str) -> None:
        self._operator, self._name = operator, name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        raise DeclarationError(
            f"operator '{self._operator}': init(handle) uses state {self._name!r}; there is no key yet, so only "
            "declare states there."
        )


class RecordingHandle:
    """The handle of the driver: notes which states there are."""

    def __init__(self, operator: str, time_mode: TimeMode) -> None:
        self.states: dict[str, DeclaredState] = {}
        self._operator = operator
        self._time_mode = time_mode

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._note(stateName, "value", schema, None, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._note(stateName, "list", schema, None, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        return self._note(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self.states.pop(stateName, None)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        raise DeclarationError(
            f"operator '{self._operator}': init(handle) calls {method}; only states can be declared there."
        )

    def _note(
        self, name: str, kind: Literal["value", "list", "map"], schema: Any, key: Any, ttl_ms: int | None
    ) -> Any:
        where = f"state {name!r} of operator '{self._operator}'"
        if not isinstance(name, str) or not name or name in self.states:
            raise DeclarationError(
                f"operator '{self._operator}': a state is named {name!r}; give every state a name of its own."
            )
        if len(self.states) >= MAX_STATES:
            raise DeclarationError(f"operator '{self._operator}' has over {MAX_STATES} states.")
        if ttl_ms is not None and self._time_mode != "processing":
            raise DeclarationError(f"{where}: a time to live needs timeMode 'processingTime', as in Spark.")
        if ttl_ms is not None and (not isinstance(ttl_ms, int) or ttl_ms <= 0):
            raise DeclarationError(f"{where}: ttlDurationMs must be positive milliseconds, not {ttl_ms!r}.")
        keys = None if key is None else _not_nested(parse_schema(key, f"key of {where}"), where)
        self.states[name] = DeclaredState(name, kind, parse_schema(schema, where), keys, ttl_ms)
        return Undefined(self._operator, name)


def _not_nested(schema: pa.Schema, where: str) -> pa.Schema:
    for field in schema:
        if pa.types.is_nested(field.type):
            raise DeclarationError(
                f"{where}: its map key has the field {field.name!r} of type {ddl_of(field.type)}; use fields that are a "
                "boolean, number, date, timestamp, string, binary or decimal."
            )
    return schema
