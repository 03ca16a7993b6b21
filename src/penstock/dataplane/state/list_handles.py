"""What a user's function holds of a list state: the list of one key, which is not loaded to be appended to.

As with every handle (see `handles`), what is written takes its normal form at once and is shared with nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.dataplane.state.handles import StateColumn
from penstock.dataplane.state.misuse import checked_elements, with_words
from penstock.dataplane.state.normal import Misfit


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
        try:
            made = self._column.normal(value)
        except Misfit as misfit:
            raise self._column.refusal(self._prefix, misfit) from None
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


with_words(ListHandle, "ListState")
