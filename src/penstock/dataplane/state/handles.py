"""What a user's function holds: the state of one key, and its values; lists and maps stand in modules of their own.

A handle is the decoded state and a note of what changed. What is written takes at once the form in which it reads back,
and is shared with nobody: neither with what was given nor with what a reader gets. A handle loads what it lacks through
its `StateColumn` and never encodes, hashes or stores: that is done once per epoch, when staging. Handles are valid only
while their own key is being processed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol, TypeVar

from penstock.dataplane.state.misuse import (
    refuse_assignment,
    refuse_deletion,
    refuse_subscript,
    refuse_unknown,
    with_words,
)
from penstock.dataplane.state.normal import Misfit, Normal, is_missing
from penstock.errors import OperatorError
from penstock.topology.states import TIMER_NAMES

ABSENT: Final = object()
"""Stands for what is not there."""

put: Final = object.__setattr__
"""How the engine sets what users may not assign to."""

_T = TypeVar("_T")


class StateColumn(Protocol):
    """One declared state over all keys: how its handles find what is stored."""

    label: str
    normal: Normal
    """From what a function gives to what is held; raises `Misfit`."""
    copier: Normal | None
    """Copies a value; None where none could be changed in place."""

    def refusal(self, prefix: bytes, misfit: Misfit) -> OperatorError:
        """Return the error of a value that is none of this state."""
        ...

    def load(self, shard: int, prefix: bytes, limit: int | None) -> list[tuple[Any, Any]]:
        """Return (element, value) of stored elements under `prefix`, at most `limit`, in key order."""
        ...

    def find(self, shard: int, prefix: bytes, element: Any) -> Any:
        """Return the value of one stored element, or ABSENT."""
        ...

    def load_list(self, shard: int, prefix: bytes) -> tuple[list[Any], list[bytes]]:
        """Return the values of a stored list and their entry hashes."""
        ...

    def size(self, shard: int, prefix: bytes) -> int:
        """Return the number of stored elements of a list."""
        ...


class KeyState:
    """The state of one key: one attribute per declared state, made by a subclass with those names as
    slots. Assigning to them is refused, with what to write."""

    _key: Any
    _shard: int
    _object: Any
    _used: int
    _settled: int
    _weight: int
    __slots__ = ("_key", "_object", "_settled", "_shard", "_used", "_weight")

    def __init__(self, key: Any, shard: int) -> None:
        put(self, "_key", key)
        put(self, "_shard", shard)
        put(self, "_object", None)
        put(self, "_used", 0)
        put(self, "_settled", 0)
        put(self, "_weight", 0)

    def __setattr__(self, name: str, value: Any) -> None:
        # The engine sets what is here with `put`; whoever comes this way is a user's function.
        refuse_assignment(name, value, getattr(self, name) if hasattr(type(self), name) else None)

    def __delattr__(self, name: str) -> None:
        refuse_deletion(name)

    def __getattr__(self, name: str) -> Any:
        if name in TIMER_NAMES:
            raise AttributeError(
                f"a state has {name!r} only where the operator has timers; give apply_rows(..., on_timer=function)"
            )
        refuse_unknown(name, [one for one in type(self).__slots__ if one.isidentifier()])

    def __getitem__(self, name: object) -> NoReturn:
        refuse_subscript(name)

    def __setitem__(self, name: object, value: object) -> NoReturn:
        refuse_subscript(name)

    def __delitem__(self, name: object) -> NoReturn:
        refuse_subscript(name)

    def cached(self, build: Callable[[KeyState], _T]) -> _T:
        """Return the object derived from this key's state, made by `build(state)` when there is none.

        There is none at first use, after a restart, a move or an eviction; otherwise the same object comes
        back in later epochs. The function itself keeps it in step with the state. It is never stored.
        """
        if self._object is None:
            put(self, "_object", build(self))
        made: _T = self._object
        return made


class ValueHandle:
    """One value per key."""

    __slots__ = ("_changed", "_column", "_entry", "_hash", "_shard", "_value")

    def __init__(
        self, column: StateColumn, shard: int, entry: bytes, value: Any, hash_: bytes | None
    ) -> None:
        self._column = column
        self._shard = shard
        self._entry = entry
        self._value = value
        self._hash = hash_
        self._changed = False

    @property
    def changed(self) -> bool:
        """Whether there is something to settle."""
        return self._changed

    def exists(self) -> bool:
        """Whether the key has a value."""
        return self._value is not None

    def get(self) -> Any:
        """Return the value, None when there is none."""
        return self._value

    def update(self, value: Any) -> None:
        """Set the value; None is refused.

        Raises:
            OperatorError: the value is none of the state's type.
        """
        try:
            self._value = self._column.normal(value)
        except Misfit as misfit:
            if is_missing(value):
                raise ValueError(
                    f"{value} is no value of state {self._column.label!r}; call clear() to remove it"
                ) from None
            raise self._column.refusal(self._entry, misfit) from None
        self._changed = True

    def clear(self) -> None:
        """Remove the value."""
        self._value = None
        self._changed = True

    def __repr__(self) -> str:
        return f"ValueState({self._value!r})"


class CopyingValueHandle(ValueHandle):
    """A value that could be changed in place (it holds arrays or maps): every reader gets a copy of its
    own."""

    __slots__ = ()

    def get(self) -> Any:
        """Return a copy of the value, None when there is none."""
        return None if self._value is None else self._column.copier(self._value)  # type: ignore[misc]


for _kind in (ValueHandle, CopyingValueHandle):
    with_words(_kind, "ValueState")
