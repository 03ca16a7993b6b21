"""What a user's function holds: the state of one key, as values, lists and maps of Python objects.

A handle is the decoded state and a note of what changed. What is written takes at once the form in which it reads back,
and is shared with nobody: neither with what was given nor with what a reader gets. A handle loads what it lacks through
its `StateColumn` and never encodes, hashes or stores: that is done once per epoch, when staging. Handles are valid only
while their own key is being processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn, Protocol, TypeVar

from penstock.dataplane.state.misuse import (
    checked_elements,
    refuse_assignment,
    refuse_deletion,
    refuse_subscript,
    refuse_unknown,
    with_words,
)
from penstock.dataplane.state.normal import Misfit, Normal, is_missing
from penstock.errors import OperatorError
from penstock.topology.states import TIMER_NAMES

FIRST_LOAD: Final = 1024
"""A map of fewer elements is loaded whole when it is first read; of a larger one only what is asked for."""

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


class MapStateColumn(StateColumn, Protocol):
    """A declared map state over all keys."""

    plain_key: type | None
    """The Python type of which every key is held as it is, where a look-up need not check more."""
    order: Normal | None
    """The order of keys, where it is not their own."""

    def key(self, prefix: bytes, element: Any) -> Any:
        """Return a map key as it is held; raises OperatorError for what is none."""
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


class MapHandle:
    """A map per key. Iteration is in key order: it does not depend on what happened to be in memory."""

    __slots__ = ("_absent", "_column", "_complete", "_data", "_dirty", "_prefix", "_shard", "_started")

    def __init__(self, column: MapStateColumn, shard: int, prefix: bytes, complete: bool) -> None:
        self._column = column
        self._shard = shard
        self._prefix = prefix
        self._data: dict[Any, Any] = {}
        # What each changed element was before the epoch. In a map that is not complete ABSENT may mean unknown.
        self._dirty: dict[Any, Any] = {}
        self._absent: set[Any] = (
            set()
        )  # elements of a map that is not complete that are known not to be stored
        self._started = complete
        self._complete = complete

    @property
    def changed(self) -> bool:
        """Whether there is something to settle."""
        return bool(self._dirty)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is not self._column.plain_key or key not in self._data:
            key = self._column.key(self._prefix, key)
            if not self._has(key):
                raise KeyError(key)
        return self._data[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        key = self._column.key(self._prefix, key)
        try:
            normal = self._column.normal(value)
        except Misfit as misfit:
            raise self._column.refusal(self._prefix, misfit) from None
        if key not in self._dirty:
            self._dirty[key] = self._data.get(key, ABSENT)
        self._data[key] = normal

    def __delitem__(self, key: Any) -> None:
        key = self._column.key(self._prefix, key)
        if not self._has(key):
            raise KeyError(key)
        self._take(key)

    def __contains__(self, key: Any) -> bool:
        if type(key) is self._column.plain_key and key in self._data:
            return True
        return self._has(self._column.key(self._prefix, key))

    def __len__(self) -> int:
        if not self._complete:
            self._load(None)
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        if type(key) is not self._column.plain_key or key not in self._data:
            key = self._column.key(self._prefix, key)
            if not self._has(key):
                return default
        return self._data[key]

    def pop(self, key: Any, default: Any = ABSENT) -> Any:
        """Remove `key` and return its value; KeyError when it is not there and there is no `default`."""
        key = self._column.key(self._prefix, key)
        if self._has(key):
            return self._take(key)
        if default is ABSENT:
            raise KeyError(key)
        return default

    def setdefault(self, key: Any, default: Any) -> Any:
        """Return the value of `key`, after setting it to `default` when it is not there."""
        if key not in self:
            self[key] = default
        return self[key]

    def keys(self) -> list[Any]:
        """Return all keys, in order."""
        if not self._complete:
            self._load(None)
        return sorted(self._data, key=self._column.order)

    def values(self) -> list[Any]:
        """Return all values, in the order of their keys."""
        return [self._data[key] for key in self.keys()]

    def items(self) -> list[tuple[Any, Any]]:
        """Return all (key, value) pairs, in the order of the keys."""
        return [(key, self._data[key]) for key in self.keys()]

    def exists(self) -> bool:
        """Whether the map has any element."""
        return len(self) > 0

    def getValue(self, key: Any) -> Any:
        """Return the value of `key`, None when there is none."""
        return self.get(key)

    def containsKey(self, key: Any) -> bool:
        """Whether `key` is there."""
        return key in self

    def updateValue(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        self[key] = value

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Go through all (key, value) pairs, in the order of the keys."""
        return iter(self.items())

    def removeKey(self, key: Any) -> None:
        """Remove `key`; without effect when it is not there."""
        self.pop(key, None)

    def clear(self) -> None:
        """Remove all elements."""
        if not self._complete:
            self._load(None)
        for key, value in self._data.items():
            self._dirty.setdefault(key, value)
        self._data.clear()

    def __repr__(self) -> str:
        return f"MapState({self._data!r}{'' if self._complete else ', ...'})"

    def _take(self, key: Any) -> Any:
        """Remove an element that is there, and return what it was."""
        value = self._data.pop(key)
        if key not in self._dirty:
            self._dirty[key] = value
        return value

    def _has(self, key: Any) -> bool:
        """Whether the map has an element; it is looked for in the store unless it is known by now."""
        if not self._complete and key not in self._data and key not in self._dirty:
            if not self._started:
                self._load(FIRST_LOAD)
            if not (self._complete or key in self._data or key in self._absent):
                stored = self._stored(key)
                if stored is not ABSENT:
                    self._data[key] = stored
        return key in self._data

    def _stored(self, key: Any) -> Any:
        """Return what was stored under `key` before this epoch."""
        found = ABSENT if key in self._absent else self._column.find(self._shard, self._prefix, key)
        if found is ABSENT:
            self._absent.add(key)
        return found

    def _load(self, limit: int | None) -> None:
        stored = self._column.load(self._shard, self._prefix, limit)
        self._started = True
        self._complete = limit is None or len(stored) < limit
        for key, value in stored:
            if key in self._dirty:
                # Written before it was read: only now it is known what it was.
                if self._dirty[key] is ABSENT:
                    self._dirty[key] = value
            elif key not in self._data:
                self._data[key] = value
        if self._complete:
            self._absent.clear()


class CopyingMapHandle(MapHandle):
    """A map whose values could be changed in place: every reader gets a copy of its own."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        return self._copy(super().__getitem__(key))

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, ABSENT)
        return default if found is ABSENT else self._copy(found)

    def pop(self, key: Any, default: Any = ABSENT) -> Any:
        # What was there before the epoch is kept, for the digest: it must not be changed any more.
        found = super().pop(key, default)
        return found if found is default else self._copy(found)

    def values(self) -> list[Any]:
        return [self._copy(value) for value in super().values()]

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, self._copy(value)) for key, value in super().items()]

    def _copy(self, value: Any) -> Any:
        return self._column.copier(value)  # type: ignore[misc]


class ListHandle:
    """A list per key; appending to it does not load it."""

    __slots__ = ("_changed", "_column", "_hashes", "_items", "_prefix", "_shard", "_stored", "_tail")

    def __init__(self, column: StateColumn, shard: int, prefix: bytes, empty: bool) -> None:
        self._column = column
        self._shard = shard
        self._prefix = prefix
        self._items: list[Any] | None = [] if empty else None
        self._hashes: list[bytes] = []  # of the stored elements, once `_items` is loaded
        self._stored: int | None = 0 if empty else None  # how many elements are stored, once known
        self._tail: list[Any] = []  # appended while `_items` is not loaded
        self._changed: dict[int, None] = {}

    @property
    def changed(self) -> bool:
        """Whether there is something to settle."""
        longer = self._items is not None and len(self._items) != len(self._hashes)
        return bool(self._tail or self._changed) or longer

    def exists(self) -> bool:
        """Whether the list has any element."""
        return len(self) > 0

    def get(self) -> Iterator[Any]:
        """Go through the elements, in order; loads the list."""
        return iter(self)

    def put(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""
        made = self._normal(checked_elements(self, values))
        items = self._load()
        items[:] = made
        # Every stored place counts as changed: what is appended later may come to stand there.
        self._changed.update(dict.fromkeys(range(max(len(items), len(self._hashes)))))

    def appendValue(self, value: Any) -> None:
        """Add an element at the end; does not load the list."""
        (made,) = self._normal((value,))
        (self._tail if self._items is None else self._items).append(made)

    def appendList(self, values: Iterable[Any]) -> None:
        """Add elements at the end; does not load the list."""
        made = self._normal(checked_elements(self, values))
        (self._tail if self._items is None else self._items).extend(made)

    def clear(self) -> None:
        """Remove all elements."""
        self.put(())

    def __len__(self) -> int:
        if self._items is not None:
            return len(self._items)
        return self._length() + len(self._tail)

    def __iter__(self) -> Iterator[Any]:
        copier, items = self._column.copier, list(self._load())
        return iter(items if copier is None else map(copier, items))

    def __getitem__(self, index: Any) -> Any:
        found, copier = self._load()[index], self._column.copier
        if copier is None:
            return found
        return list(map(copier, found)) if isinstance(index, slice) else copier(found)

    def __setitem__(self, index: int, value: Any) -> None:
        (made,) = self._normal((value,))
        items = self._load()
        items[index] = made
        self._changed[range(len(items))[index]] = None

    def __repr__(self) -> str:
        return f"ListState({self._load()!r})"

    def _normal(self, values: Iterable[Any]) -> list[Any]:
        """Return elements as they are held; nothing is changed when one of them is none."""
        try:
            return list(map(self._column.normal, values))
        except Misfit as misfit:
            raise self._column.refusal(self._prefix, misfit) from None

    def _length(self) -> int:
        if self._stored is None:
            self._stored = self._column.size(self._shard, self._prefix)
        return self._stored

    def _load(self) -> list[Any]:
        if self._items is None:
            stored, self._hashes = self._column.load_list(self._shard, self._prefix)
            self._stored = len(stored)
            self._items = stored + self._tail
            self._tail = []
        return self._items


for _kind, _called in (
    (ValueHandle, "ValueState"), (CopyingValueHandle, "ValueState"), (ListHandle, "ListState"), (MapHandle, "MapState"),
    (CopyingMapHandle, "MapState"),
):  # fmt: skip
    with_words(_kind, _called)
