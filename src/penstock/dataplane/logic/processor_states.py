"""State variables and timers of a processor inside one task: PySpark's methods over the state of the current key.

A variable is made once, in `init`, and always speaks of the key that is being processed. A value with a time to live
is held with its end; what has ended is not seen, and one hidden timer per key, at the earliest end, takes it away
even if the key never has rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, index
from typing import Any, Final

from penstock.dataplane.logic.processor_values import (
    Convert,
    MapKeys,
    RowClass,
    fields_of,
    reader_of,
)
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.timers import EPOCH_TIMERS, EVENT_TIMERS, TimerColumn
from penstock.errors import OperatorError
from penstock.raised import show
from penstock.topology.processors import DeclaredState, Processor, slot_of

ENDS: Final = 1
"""Microseconds behind the millisecond at which the hidden timer of a key stands; a processor's own stand on it."""

_FARTHEST_MS: Final = (1 << 63) // 1000 - 1
_TIMERS: Final = {"processing": EPOCH_TIMERS, "event": EVENT_TIMERS}


def timer_kinds(time_mode: str) -> tuple[str, ...]:
    """Return the kinds of timers that keys have in a time mode."""
    return (_TIMERS[time_mode],) if time_mode in _TIMERS else ()


class Tools:
    """What one task has for its processor: the current key, the clock, and the states by name."""

    def __init__(self, declared: Processor, operator: str, state: EntryState) -> None:
        self.operator = operator
        self.time_mode = declared.time_mode
        self.key: KeyState | None = None
        """The state of the key that is being processed."""
        self.time_ms = 0
        self.watermark_ms = 0
        self._in_init = True
        self._undeclared: dict[str, str] = {}
        """States that `init` asked for and that are not declared: by now it has not deleted them."""
        self._deleted_error = declared.kit.deleted_error
        self.nothing: Callable[[], Any] = tuple
        """Makes what stands for no rows."""
        kinds = timer_kinds(declared.time_mode)
        self._timers: TimerColumn | None = state.timers[kinds[0]] if kinds else None
        row_class = declared.kit.row_class
        self.variables: dict[str, Variable] = {
            one.name: _VARIABLES[one.kind](self, one, slot_of(one.name, at), row_class)
            for at, one in enumerate(declared.states)
        }
        self._ending = [one for one in self.variables.values() if one.ttl_ms is not None]

    # -- states -------------------------------------------------------------------------------------------------------

    def variable(self, name: str, kind: str) -> Any:
        """Return a declared state, or what stands for one that `init` goes on to delete.

        Raises:
            OperatorError: it was not declared when `init` was run on the driver.
        """
        found = self.variables.get(name)
        if found is None and self._in_init:
            self._undeclared.setdefault(name, kind)
            return Deleted(self.operator, name, kind, self._deleted_error)
        if found is None or found.kind != kind:
            raise self._not_declared(name, kind)
        return found

    def end_init(self) -> None:
        """`init` has run: what it asked for is declared, or deleted again.

        Raises:
            OperatorError: a state is neither.
        """
        self._in_init = False
        for name, kind in self._undeclared.items():
            raise self._not_declared(name, kind)

    def _not_declared(self, name: str, kind: str) -> OperatorError:
        known = ", ".join(f"{one.name!r} ({one.kind})" for one in self.variables.values()) or "none"
        return OperatorError(
            f"operator {self.operator!r} asks for {kind} state {name!r}, which init(handle) did not declare when it "
            f"was run on the driver (declared: {known}); declare all states in init, always the same ones"
        )

    def delete(self, name: str) -> None:
        """In `init` take a declaration back; in a call clear a state of the current key, if it is declared."""
        if self._in_init:
            self._undeclared.pop(name, None)
        elif name in self.variables and self.key is not None:
            self.variables[name].clear()

    def current(self) -> KeyState:
        if self.key is None:
            raise OperatorError(
                f"operator {self.operator!r} uses its state outside of handleInputRows, handleExpiredTimer and "
                "handleInitialState; there is no key then"
            )
        return self.key

    def take_imported(self, row: Any, names: Sequence[str]) -> None:
        """Put into the current key what one row of imported state brings."""
        for at, name in enumerate(names):
            held = getattr(row, f"v{at}")
            if held is not None:
                self.variables[name].take_imported(held, getattr(row, f"m{at}", None))
        if row.timer_ms is not None:
            self.register_timer(row.timer_ms)

    # -- timers -------------------------------------------------------------------------------------------------------

    def register_timer(self, expiry_ms: int) -> None:
        self._need_timers().register(self.current(), self._timer_us(expiry_ms))

    def delete_timer(self, expiry_ms: int) -> None:
        self._need_timers().delete(self.current(), self._timer_us(expiry_ms))

    def list_timers(self) -> Iterator[int]:
        times = self._need_timers().of(self.current())
        return iter([time_us // 1000 for time_us in times if time_us % 1000 != ENDS])

    def has_timer(self, state: KeyState, time_us: int) -> bool:
        return time_us in self._need_timers().of(state)

    def drop_timer(self, state: KeyState, time_us: int) -> None:
        self._need_timers().delete(state, time_us)

    def _timer_us(self, expiry_ms: Any) -> int:
        if isinstance(expiry_ms, bool) or not hasattr(expiry_ms, "__index__"):
            raise OperatorError(
                f"operator {self.operator!r}: a timer's time is a whole number of milliseconds since 1970, not "
                f"{show(expiry_ms)}; give int(...)"
            )
        if abs(index(expiry_ms)) > _FARTHEST_MS:
            raise OperatorError(
                f"operator {self.operator!r}: a timer cannot stand at {index(expiry_ms)} ms; times lie within "
                f"{_FARTHEST_MS} ms of 1970"
            )
        return 1000 * index(expiry_ms)

    def _need_timers(self) -> TimerColumn:
        if self._timers is None:
            raise OperatorError(
                f"operator {self.operator!r} uses timers in timeMode 'none'; give timeMode 'processingTime' or "
                "'eventTime'"
            )
        return self._timers

    # -- times to live ------------------------------------------------------------------------------------------------

    def ends_at(self, expires_ms: int) -> None:
        """Something of the current key ends then: see to it that the hidden timer stands no later."""
        assert self._timers is not None
        state = self.current()
        if not any(time_us % 1000 == ENDS for time_us in self._timers.of(state)):
            self._timers.register(state, 1000 * expires_ms + ENDS)
        else:
            for time_us in self._timers.of(state):
                if time_us % 1000 == ENDS and time_us > 1000 * expires_ms + ENDS:
                    self._timers.delete(state, time_us)
                    self._timers.register(state, 1000 * expires_ms + ENDS)

    def end(self, state: KeyState, time_us: int) -> None:
        """The hidden timer of a key is due: take away what has ended, and set it to the next end."""
        self.key = state
        self.drop_timer(state, time_us)
        ends = [end for one in self._ending if (end := one.drop_ended()) is not None]
        if ends:
            self.ends_at(min(ends))


class Deleted:
    """A state that `init` asked for and deleted: whoever uses it gets PySpark's error."""

    def __init__(
        self, operator: str, name: str, kind: str, error: Callable[[str, str], OperatorError]
    ) -> None:
        self._told = f"operator {operator!r}: init(handle) deleted state {name!r} with deleteIfExists"
        self._kind, self._error = kind, error

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        kind, told, error = self._kind, self._told, self._error

        def use(*given: Any, **named: Any) -> Any:
            raise error(f"{_DOING.get(method, method)} {kind} state{' exists' * (method == 'exists')}", told)

        return use


_DOING: Final = {"exists": "checking", "get": "getting", "update": "updating", "clear": "clearing"}
"""How PySpark names what failed."""


class Variable:
    """One state variable; subclasses have PySpark's methods of its kind."""

    kind: str

    def __init__(self, tools: Tools, declared: DeclaredState, slot: str, row_class: RowClass) -> None:
        self.name = declared.name
        self.ttl_ms = declared.ttl_ms
        self._tools = tools
        self._of: Callable[[Any], Any] = attrgetter(slot)
        self._read: Convert = reader_of(declared.schema, row_class)
        self._where = f"operator {tools.operator!r}: state {declared.name!r}"
        self._names = declared.schema.names
        self._begin(declared, row_class)

    def _begin(self, declared: DeclaredState, row_class: RowClass) -> None:
        pass

    def clear(self) -> None:
        raise NotImplementedError

    def drop_ended(self) -> int | None:
        """Take away what has ended; return when the next of what is left ends."""
        raise NotImplementedError

    def take_imported(self, held: Any, key: Any) -> None:
        """Hold what another query held: as state holds it, with its end where it has one."""
        raise NotImplementedError

    def _kept(self, held: Any) -> Any:
        if self.ttl_ms is not None:
            self._tools.ends_at(held[1])
        return tuple(held)

    def _handle(self) -> Any:
        return self._of(self._tools.current())

    def _held(self, value: Any) -> Any:
        """Return what state takes for a value."""
        if value is None:
            raise OperatorError(
                f"{self._where}: None is no value; give a tuple of {', '.join(self._names)}, or call clear()"
            )
        given = value if type(value) is tuple else fields_of(value, self._names, self._where, "value")
        return given if self.ttl_ms is None else (given, self._tools.time_ms + self.ttl_ms)

    def _written(self) -> None:
        """Something was written: see to it that it ends."""
        if self.ttl_ms is not None:
            self._tools.ends_at(self._tools.time_ms + self.ttl_ms)

    def _lives(self, held: Any) -> bool:
        return self.ttl_ms is None or held[1] > self._tools.time_ms

    def _given(self, held: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._read(held if self.ttl_ms is None else held[0])
        return found


class ValueVariable(Variable):
    kind = "value"

    def exists(self) -> bool:
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        held = self._of(self._tools.current()).get()
        if held is None:
            return None
        if self.ttl_ms is None:
            found: tuple[Any, ...] = self._read(held)
            return found
        return self._given(held) if self._lives(held) else None

    def update(self, newValue: Any) -> None:
        self._of(self._tools.current()).update(self._held(newValue))
        if self.ttl_ms is not None:
            self._written()

    def clear(self) -> None:
        self._handle().clear()

    def take_imported(self, held: Any, key: Any) -> None:
        self._handle().update(self._kept(held))

    def drop_ended(self) -> int | None:
        handle = self._handle()
        held = handle.get()
        if held is not None and not self._lives(held):
            handle.clear()
            return None
        return None if held is None else int(held[1])


class ListVariable(Variable):
    kind = "list"

    def exists(self) -> bool:
        handle = self._handle()
        return len(handle) > 0 if self.ttl_ms is None else any(map(self._lives, handle))

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter([self._given(held) for held in self._handle() if self._lives(held)])

    def put(self, newState: Iterable[Any]) -> None:
        held = [self._held(value) for value in newState]
        self._handle().put(held)
        if held:
            self._written()

    def appendValue(self, newState: Any) -> None:
        self._handle().appendValue(self._held(newState))
        self._written()

    def appendList(self, newState: Iterable[Any]) -> None:
        held = [self._held(value) for value in newState]
        self._handle().appendList(held)
        if held:
            self._written()

    def clear(self) -> None:
        self._handle().clear()

    def take_imported(self, held: Any, key: Any) -> None:
        self._handle().appendList([self._kept(one) for one in held])

    def drop_ended(self) -> int | None:
        handle = self._handle()
        held = list(handle)
        kept = [one for one in held if self._lives(one)]
        if len(kept) != len(held):
            handle.put(kept)
        return min((int(one[1]) for one in kept), default=None)


class MapVariable(Variable):
    kind = "map"

    def _begin(self, declared: DeclaredState, row_class: RowClass) -> None:
        assert declared.key_schema is not None
        self._keys = MapKeys(declared.key_schema, self._where)
        self._row = row_class(declared.schema.names)

    def exists(self) -> bool:
        handle = self._handle()
        return len(handle) > 0 if self.ttl_ms is None else any(map(self._lives, handle.values()))

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        held = self._handle().get(self._keys.held(key))
        if held is None or not self._lives(held):
            return None
        return tuple.__new__(self._row, self._given(held))

    def containsKey(self, key: Any) -> bool:
        held = self._handle().get(self._keys.held(key))
        return held is not None and self._lives(held)

    def updateValue(self, key: Any, value: Any) -> None:
        self._handle()[self._keys.held(key)] = self._held(value)
        self._written()

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter(
            [
                (self._keys.given(key), self._given(held))
                for key, held in self._handle().items()
                if self._lives(held)
            ]
        )

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([self._keys.given(key) for key, held in self._handle().items() if self._lives(held)])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([self._given(held) for held in self._handle().values() if self._lives(held)])

    def removeKey(self, key: Any) -> None:
        self._handle().pop(self._keys.held(key), None)

    def clear(self) -> None:
        self._handle().clear()

    def take_imported(self, held: Any, key: Any) -> None:
        self._handle()[self._keys.held(key)] = self._kept(held)

    def drop_ended(self) -> int | None:
        handle = self._handle()
        kept = []
        for key, held in handle.items():
            if self._lives(held):
                kept.append(int(held[1]))
            else:
                handle.pop(key)
        return min(kept, default=None)


_VARIABLES: dict[str, type[Variable]] = {"value": ValueVariable, "list": ListVariable, "map": MapVariable}
