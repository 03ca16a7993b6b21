"""What a user's function holds of a map state: the map of one key, of which no more is loaded than is asked for.

What is no key of the map is refused where it is written, and not found where it is looked up, as in a dict.
As with every handle (see `handles`), what is written takes its normal form at once and is shared with nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

from penstock.dataplane.state.handles import ABSENT, StateColumn
from penstock.dataplane.state.misuse import with_words
from penstock.dataplane.state.normal import Misfit, Normal

FIRST_LOAD: Final = 1024
"""A map of fewer elements is loaded whole when it is first read; of a larger one only what is asked for."""


class MapStateColumn(StateColumn, Protocol):
    """A declared map state over all keys."""

    plain_key: type | None
    """The Python type of which every key is held as it is, where a look-up need not check more."""
    order: Normal | None
    """The order of keys, where it is not their own."""

    def key(self, prefix: bytes, element: Any) -> Any:
        """Return a map key as it is held; raises OperatorError for what is none."""
        ...

    def sought(self, prefix: bytes, key: Any) -> Any:
        """Return the held key that a dict would find by this one, or ABSENT where it can be none."""
        ...


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
            key = self._there(key)
        return self._data[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        column = self._column
        if type(key) is not column.plain_key or key not in self._data:
            key = column.key(self._prefix, key)
        try:
            normal = column.normal(value)
        except Misfit as misfit:
            raise column.refusal(self._prefix, misfit) from None
        if key not in self._dirty:
            self._dirty[key] = self._data.get(key, ABSENT)
        self._data[key] = normal

    def __delitem__(self, key: Any) -> None:
        self._take(self._there(key))

    def __contains__(self, key: Any) -> bool:
        if type(key) is self._column.plain_key and key in self._data:
            return True
        return self._has(self._column.sought(self._prefix, key))

    def __len__(self) -> int:
        if not self._complete:
            self._load(None)
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        if type(key) is not self._column.plain_key or key not in self._data:
            key = self._column.sought(self._prefix, key)
            if not self._has(key):
                return default
        return self._data[key]

    def pop(self, key: Any, default: Any = ABSENT) -> Any:
        """Remove `key` and return its value; KeyError when it is not there and there is no `default`."""
        if default is ABSENT:
            return self._take(self._there(key))
        key = self._column.sought(self._prefix, key)
        return self._take(key) if self._has(key) else default

    def setdefault(self, key: Any, default: Any) -> Any:
        """Return the value of `key`, after setting it to `default` when it is not there.

        What is returned shares nothing with the map: a list or dict that is changed is stored when it is set again.
        """
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

    def _there(self, key: Any) -> Any:
        """Return the held key that is found by `key`; KeyError where there is none."""
        sought = self._column.sought(self._prefix, key)
        if not self._has(sought):
            raise KeyError(key)
        return sought

    def _has(self, key: Any) -> bool:
        """Whether the map has an element; it is looked for in the store unless it is known by now."""
        if key is ABSENT:
            return False
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


for _kind in (MapHandle, CopyingMapHandle):
    with_words(_kind, "MapState")
