"""States as a user declares them: their kinds and types, checked before anything runs. No engine here."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.functions import check_function
from penstock.topology.keytypes import can_be_key
from penstock.topology.returned import shown
from penstock.topology.schema import parse_any_type
from penstock.topology.types import ddl_of

MAX_STATES: Final = 200
RESERVED: Final = frozenset({"cached", "key"})
TIMER_NAMES: Final = frozenset({"delete_timer", "now", "set_timer", "timers", "watermark"})
"""What the state of a key has besides where the function has timers."""

_MAP_KEYS: Final = "a boolean, number, date, timestamp, string, binary or decimal"


class StateSpec:
    """A declared state: one of the three classes below."""

    kind: str
    value_type: pa.DataType
    label: str | None = None
    """Its name in messages, where that is not the name under which it is declared."""
    local_times: bool = False
    """Whether times without a zone are local ones, as PySpark's states take them; otherwise they are refused."""
    enclosed: bool = False
    """Whether what a user gives is the first field of its value."""

    def identity(self) -> dict[str, object]:
        """Return what must not change across restarts, JSON-able."""
        return {"kind": self.kind, "value": ddl_of(self.value_type)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateSpec) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(str(self.identity()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({ddl_of(self.value_type)!r})"


class ValueState(StateSpec):
    """One value per key: `ValueState("double")`; of several fields `ValueState("price double, volume int")`, which comes
    back as a named tuple.

    Args:
        type: a DDL type or row, a DataType of Spark, StructType among them, or a `pyarrow.DataType`.
    """

    kind = "value"

    def __init__(self, type: object) -> None:
        self.value_type = parse_any_type(type, "ValueState")


class ListState(StateSpec):
    """A list of values per key: `ListState("string")`; types as of `ValueState`."""

    kind = "list"

    def __init__(self, type: object) -> None:
        self.value_type = parse_any_type(type, "ListState")


class MapState(StateSpec):
    """A map per key: `MapState("long", "price double, volume int")`; types as of `ValueState`."""

    kind = "map"

    def __init__(self, key: object, value: object) -> None:
        self.key_type = parse_any_type(key, "key of MapState")
        if not can_be_key(self.key_type):
            raise DeclarationError(f"key of MapState cannot be {ddl_of(self.key_type)}; use {_MAP_KEYS}")
        self.value_type = parse_any_type(value, "value of MapState")

    def identity(self) -> dict[str, object]:
        return {"kind": self.kind, "key": ddl_of(self.key_type), "value": ddl_of(self.value_type)}

    def __repr__(self) -> str:
        return f"MapState({ddl_of(self.key_type)!r}, {ddl_of(self.value_type)!r})"


def check_states(states: object, operator: str) -> dict[str, StateSpec]:
    """Return an operator's declared states, in order.

    Raises:
        DeclarationError: a name cannot be an attribute or is taken, a declaration is no state, or there are
            too many.
    """
    if not isinstance(states, Mapping):
        raise DeclarationError(
            f"operator {operator!r}: states are declared by name, such as {{'seen': penstock.ValueState('long')}}, not "
            f"{states!r}"
        )
    if len(states) > MAX_STATES:
        raise DeclarationError(
            f"operator {operator!r} has {len(states)} states; at most {MAX_STATES} are possible"
        )
    for name, spec in states.items():
        plain = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
        if not plain or name.startswith("_") or name in RESERVED:
            raise DeclarationError(
                f"operator {operator!r}: {name!r} cannot name a state; use a Python name without a leading underscore "
                f"other than {', '.join(sorted(RESERVED))}"
            )
        if not isinstance(spec, StateSpec):
            raise DeclarationError(f"operator {operator!r}: state {name!r} is {_instead(spec)}")
    return dict(states)


def _instead(spec: object) -> str:
    if isinstance(spec, type) and issubclass(spec, StateSpec) and spec is not StateSpec:
        types = "'string', 'long'" if spec is MapState else "'long'"
        return f"the class {spec.__name__} without a type; write penstock.{spec.__name__}({types}), with its type"
    return f"{shown(spec)}; declare a ValueState, ListState or MapState"


def check_timer_function(function: object, states: Mapping[str, Any], operator: str) -> None:
    """Check what is given as on_timer.

    Raises:
        DeclarationError: it is no function of (key, time, state), or a state has the name of something that timers need.
    """
    check_function(function, ("key", "time", "state"), f"operator {operator!r}: on_timer")
    taken = sorted(TIMER_NAMES & set(states))
    if taken:
        raise DeclarationError(
            f"operator {operator!r}: with on_timer a state cannot be named {taken[0]!r}; choose another name"
        )
