"""Value, list and map states over all keys of a task: where their entries lie, and what an epoch changed in them.

An entry key is [state ordinal >= 1][key length, u16][key bytes][element]: nothing for a value, the index (u64) for a
list, the encoded map key for a map. `collect` encodes each changed element once and drops what did not change; it is the
only place where values are checked against the declared type. Nothing here touches files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import add, attrgetter, eq
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from penstock.dataplane.keys import KeyCodec, encode_keys
from penstock.dataplane.state.handles import (
    CopyingMapHandle,
    CopyingValueHandle,
    KeyState,
    ListHandle,
    MapHandle,
    ValueHandle,
)
from penstock.dataplane.state.sealing import NO_HASH, entry_hashes
from penstock.dataplane.state.values import MAX_VALUE_BYTES, ValueCodec
from penstock.errors import OperatorError
from penstock.topology.states import ListState, MapState, StateSpec

_PACK_LENGTH: Final = struct.Struct(">H").pack
_PACK_INDEX: Final = struct.Struct(">Q").pack
_UNPACK_INDEX: Final = struct.Struct(">Q").unpack
_ABSENT: Final = object()
_T = TypeVar("_T")

Entry = tuple[bytes, bytes, bytes]
"""Key, value and hash of a stored entry."""


class EntryReader(Protocol):
    """Committed entries, verified; what is not yet in local state included."""

    def read(self, shard: int, key: bytes) -> tuple[bytes, bytes] | None: ...

    def read_prefix(self, shard: int, prefix: bytes, limit: int | None) -> list[Entry]: ...

    def last_key(self, shard: int, prefix: bytes) -> bytes | None: ...


@dataclass
class Changes:
    """Changed entries as parallel lists; a value of None deletes."""

    shards: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    olds: list[bytes] = field(default_factory=list)

    def put_all(
        self,
        shards: list[int],
        keys: list[bytes],
        values: Sequence[bytes],
        hashes: list[bytes],
        olds: Sequence[bytes | None],
    ) -> None:
        """Add entries that may have changed; those whose hash is the old one have not."""
        if any(map(eq, hashes, olds)):
            kept = [at for at, old in enumerate(olds) if old != hashes[at]]
            shards, keys, values = (
                [shards[at] for at in kept],
                [keys[at] for at in kept],
                [values[at] for at in kept],
            )
            hashes, olds = [hashes[at] for at in kept], [olds[at] for at in kept]
        self.shards.extend(shards)
        self.keys.extend(keys)
        self.values.extend(values)
        self.hashes.extend(hashes)
        self.olds.extend([old or NO_HASH for old in olds])

    def delete_all(self, shard: int, keys: list[bytes], olds: Sequence[bytes | None]) -> None:
        """Add entries of one shard that are no more."""
        self.shards.extend([shard] * len(keys))
        self.keys.extend(keys)
        self.values.extend([None] * len(keys))
        self.hashes.extend([NO_HASH] * len(keys))
        self.olds.extend([old or NO_HASH for old in olds])


@dataclass(frozen=True)
class StateContext:
    """What the columns of one operator share."""

    operator: str
    keys: KeyCodec
    reader: EntryReader


class _Elements:
    """Changed elements of map handles: those of one handle stand together."""

    def __init__(self) -> None:
        self.handles: list[MapHandle] = []
        self.counts: list[int] = []
        self.elements: list[Any] = []
        self.olds: list[bytes | None] = []

    def add(self, handle: MapHandle, elements: list[Any], olds: list[bytes | None]) -> None:
        self.handles.append(handle)
        self.counts.append(len(elements))
        self.elements.extend(elements)
        self.olds.extend(olds)

    def repeated(self, per_handle: list[_T]) -> Iterator[_T]:
        """Return, for each element, what belongs to its handle."""
        return chain.from_iterable(map(repeat, per_handle, self.counts))

    def parts(
        self, keys: list[bytes]
    ) -> Iterator[tuple[MapHandle, list[Any], list[bytes | None], list[bytes]]]:
        """Yield each handle with its elements, their old hashes and their entry keys."""
        start = 0
        for handle, count in zip(self.handles, self.counts, strict=True):
            part = slice(start, start + count)
            yield handle, self.elements[part], self.olds[part], keys[part]
            start += count


class Column:
    """One declared state over all keys; makes the handles of its kind."""

    def __init__(self, context: StateContext, name: str, ordinal: int, codec: ValueCodec) -> None:
        self.name = name
        self.ordinal = bytes([ordinal])
        self.codec = codec
        self._context = context

    def prefix(self, key: bytes) -> bytes:
        """Return what all entry keys of a key begin with."""
        return self.ordinal + _PACK_LENGTH(len(key)) + key

    def copy(self, value: Any) -> Any:
        return self.codec.copy(value)

    def make(self, shard: int, key: bytes, empty: bool) -> Any:
        """Make the handle of a key; `empty` when nothing can be stored under it."""
        raise NotImplementedError

    def collect(self, touched: Sequence[KeyState], into: Changes) -> None:
        """Encode what changed in `touched`; afterwards the handles hold what reading it back would give."""
        raise NotImplementedError

    fixed_weight: int | None = None
    """About how many bytes of memory any handle takes, where that does not depend on what it holds."""

    def weight(self, handle: Any) -> int:
        """Return about how many bytes of memory a handle takes."""
        return self.fixed_weight or 0

    def find(self, shard: int, prefix: bytes, element: Any) -> tuple[Any, bytes] | None:
        found = self._context.reader.read(shard, prefix + self._encode_element(element, prefix))
        return None if found is None else (self.codec.decode(found[0]), found[1])

    def load(self, shard: int, prefix: bytes, limit: int | None) -> list[tuple[Any, Any, bytes]]:
        entries = self._context.reader.read_prefix(shard, prefix, limit)
        start, element_of, value_of = len(prefix), self._decode_element, self.codec.decode
        return [(element_of(key[start:]), value_of(value), hash_) for key, value, hash_ in entries]

    def size(self, shard: int, prefix: bytes) -> int:
        last = self._context.reader.last_key(shard, prefix)
        return 0 if last is None else self._decode_element(last[len(prefix) :]) + 1

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        raise NotImplementedError

    def _decode_element(self, element: bytes) -> Any:
        raise NotImplementedError

    def _encode(self, prefixes: Sequence[bytes], values: list[Any]) -> tuple[list[Any], list[bytes]]:
        """Return the values as they read back, and their encodings; `prefixes` say whose they are."""
        fitted = self.codec.encode_all(values)
        if fitted is None:
            at, reason = self.codec.first_misfit(values)
            raise self._misfit(prefixes[at], f"{values[at]!r:.200} is no {self.codec.type}", reason)
        sizes = list(map(len, fitted[1]))
        if sizes and max(sizes) > MAX_VALUE_BYTES:
            size = max(sizes)
            what = f"a value takes {size} bytes, over the limit of {MAX_VALUE_BYTES}"
            raise self._misfit(prefixes[sizes.index(size)], what, "split it over a list or map state")
        return fitted

    def _misfit(self, prefix: bytes, what: str, reason: str) -> OperatorError:
        (length,) = struct.unpack(">H", prefix[1:3])
        key = self._context.keys.decode(prefix[3 : 3 + length])
        return OperatorError(
            f"operator {self._context.operator!r}: state {self.name!r} of key {key!r}: {what}; {reason}"
        )


class ValueColumn(Column):
    """A ValueState over all keys."""

    fixed_weight = 300

    def make(self, shard: int, key: bytes, empty: bool) -> ValueHandle:
        entry = self.prefix(key)
        return self.holding(shard, entry, None if empty else self._context.reader.read(shard, entry))

    def holding(self, shard: int, entry: bytes, stored: tuple[bytes, bytes] | None) -> ValueHandle:
        """Make a handle of what was read for it: (value, hash), or None."""
        kind = CopyingValueHandle if self.codec.mutable else ValueHandle
        if stored is None:
            return kind(self, shard, entry, None, None)
        return kind(self, shard, entry, self.codec.decode(stored[0]), stored[1])

    def collect(self, touched: Sequence[KeyState], into: Changes) -> None:
        changed = [handle for handle in map(attrgetter(self.name), touched) if handle._changed]
        values = [handle._value for handle in changed]
        if None in values:
            self._collect_cleared([handle for handle in changed if handle._value is None], into)
            changed = [handle for handle in changed if handle._value is not None]
            values = [handle._value for handle in changed]
        if not changed:
            return
        keys = [handle._entry for handle in changed]
        fitted, encoded = self._encode(keys, values)
        hashes = entry_hashes(keys, encoded)
        olds = [handle._hash for handle in changed]
        for handle, hash_ in zip(changed, hashes, strict=True):
            handle._hash = hash_
            handle._changed = False
        if fitted is not values:
            for handle, value in zip(changed, fitted, strict=True):
                handle._value = value
        into.put_all([handle._shard for handle in changed], keys, encoded, hashes, olds)

    def _collect_cleared(self, cleared: list[ValueHandle], into: Changes) -> None:
        for handle in cleared:
            handle._changed = False
            if handle._hash is not None:
                into.delete_all(handle._shard, [handle._entry], [handle._hash])
                handle._hash = None

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        return b""


class ListColumn(Column):
    """A ListState over all keys."""

    def make(self, shard: int, key: bytes, empty: bool) -> ListHandle:
        return ListHandle(self, shard, self.prefix(key), empty)

    def collect(self, touched: Sequence[KeyState], into: Changes) -> None:
        for state in touched:
            handle: ListHandle = getattr(state, self.name)
            if handle._items is None:
                if handle._tail:
                    start = handle._length()
                    self._put(handle, range(start, start + len(handle._tail)), handle._tail, into)
                    handle._stored = start + len(handle._tail)
                    handle._tail = []
            elif handle._changed or len(handle._items) != len(handle._hashes):
                self._collect_loaded(handle, handle._items, into)

    def _collect_loaded(self, handle: ListHandle, items: list[Any], into: Changes) -> None:
        stored = len(handle._hashes)
        gone = [handle._prefix + _PACK_INDEX(index) for index in range(len(items), stored)]
        into.delete_all(handle._shard, gone, handle._hashes[len(items) :])
        del handle._hashes[len(items) :]
        kept = len(handle._hashes)
        indexes = [index for index in handle._changed if index < kept]
        indexes.extend(range(kept, len(items)))
        values, hashes = self._put(handle, indexes, [items[index] for index in indexes], into)
        handle._hashes.extend([NO_HASH] * (len(items) - kept))
        for index, value, hash_ in zip(indexes, values, hashes, strict=True):
            items[index], handle._hashes[index] = value, hash_
        handle._stored = len(items)
        handle._changed = {}

    def _put(
        self, handle: ListHandle, indexes: Sequence[int], items: list[Any], into: Changes
    ) -> tuple[list[Any], list[bytes]]:
        keys = [handle._prefix + _PACK_INDEX(index) for index in indexes]
        values, encoded = self._encode(keys, items)
        hashes = entry_hashes(keys, encoded)
        olds = [handle._hashes[index] if index < len(handle._hashes) else None for index in indexes]
        into.put_all([handle._shard] * len(keys), keys, encoded, hashes, olds)
        return values, hashes

    def weight(self, handle: ListHandle) -> int:
        return 400 + 120 * len(handle._items or ())

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        return _PACK_INDEX(element)

    def _decode_element(self, element: bytes) -> int:
        index: int = _UNPACK_INDEX(element)[0]
        return index


class MapColumn(Column):
    """A MapState over all keys."""

    def __init__(
        self, context: StateContext, name: str, ordinal: int, codec: ValueCodec, key_type: pa.DataType
    ) -> None:
        super().__init__(context, name, ordinal, codec)
        self._key_type = key_type
        self._elements = KeyCodec([key_type], ["key"], context.operator)
        # Python values of these types read back as themselves, so encoding a whole column of them loses nothing.
        self._exact = _EXACT_KEYS.get(str(key_type))

    def make(self, shard: int, key: bytes, empty: bool) -> MapHandle:
        kind = CopyingMapHandle if self.codec.mutable else MapHandle
        return kind(self, shard, self.prefix(key), empty)

    def collect(self, touched: Sequence[KeyState], into: Changes) -> None:
        puts, deletes = _Elements(), _Elements()
        values: list[Any] = []
        for handle in map(attrgetter(self.name), touched):
            if handle._dirty:
                self._split(handle, puts, values, deletes)
                handle._dirty = {}
        if puts.elements:
            self._collect_puts(puts, values, into)
        for handle, elements, olds, keys in deletes.parts(self._entry_keys(deletes)):
            into.delete_all(handle._shard, keys, olds)
            for element in elements:
                if handle._complete:
                    del handle._known[element]
                else:
                    handle._known[element] = None

    def _split(self, handle: MapHandle, puts: _Elements, values: list[Any], deletes: _Elements) -> None:
        """Sort a handle's changed elements into those that are there now and those that were there before."""
        changed = list(handle._dirty)
        if not handle._complete:
            for element in changed:
                if element not in handle._known:
                    handle._learn(element)
        new = list(map(handle._data.get, changed, repeat(_ABSENT)))
        olds = list(map(handle._known.get, changed))
        if _ABSENT in new:
            gone = [at for at, value in enumerate(new) if value is _ABSENT and olds[at] is not None]
            kept = [at for at, value in enumerate(new) if value is not _ABSENT]
            deletes.add(handle, [changed[at] for at in gone], [olds[at] for at in gone])
            changed, olds, new = (
                [changed[at] for at in kept],
                [olds[at] for at in kept],
                [new[at] for at in kept],
            )
        puts.add(handle, changed, olds)
        values.extend(new)

    def _collect_puts(self, puts: _Elements, values: list[Any], into: Changes) -> None:
        keys = self._entry_keys(puts)
        fitted, encoded = self._encode(keys, values)
        hashes = entry_hashes(keys, encoded)
        start = 0
        for handle, elements, olds, _ in puts.parts(keys):
            end = start + len(elements)
            if fitted is not values:
                handle._data.update(zip(elements, fitted[start:end], strict=True))
            handle._known.update(zip(elements, hashes[start:end], strict=True))
            start = end
        shards = list(puts.repeated([handle._shard for handle in puts.handles]))
        into.put_all(shards, keys, encoded, hashes, puts.olds)

    def _entry_keys(self, elements: _Elements) -> list[bytes]:
        given = elements.elements
        if self._exact is not None and set(map(type, given)) == {self._exact}:
            try:
                column = pa.array(given, self._key_type)
                raws = encode_keys([column], ["key"], self._context.operator).to_pylist()
                return list(
                    map(add, elements.repeated([handle._prefix for handle in elements.handles]), raws)
                )
            except (pa.ArrowException, OverflowError, OperatorError):
                pass  # the loop below names the element
        keys = []
        for at, (handle, element) in enumerate(zip(elements.repeated(elements.handles), given, strict=True)):
            raw, given[at] = self._canonical(handle, element)
            keys.append(handle._prefix + raw)
        return keys

    def _canonical(self, handle: MapHandle, element: Any) -> tuple[bytes, Any]:
        """Encode an element, and let the map hold it in the form in which it reads back."""
        raw = self._encode_element(element, handle._prefix)
        canonical = self._decode_element(raw)
        for held in (handle._data, handle._known):
            if element in held:
                held[canonical] = held.pop(element)
        return raw, canonical

    def weight(self, handle: MapHandle) -> int:
        return 500 + 300 * len(handle._data)

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        try:
            raw = self._elements.encode([element])
        except OperatorError as error:
            raise self._misfit(
                prefix, f"{element!r:.200} is no map key of type {self._key_type}", str(error)
            ) from error
        if self._elements.decode(raw)[0] != element:
            reason = "use a key that the type holds exactly"
            raise self._misfit(prefix, f"{element!r:.200} is no map key of type {self._key_type}", reason)
        return raw

    def _decode_element(self, element: bytes) -> Any:
        return self._elements.decode(element)[0]


_EXACT_KEYS: Final[dict[str, type]] = {
    "int8": int, "int16": int, "int32": int, "int64": int, "string": str, "binary": bytes, "bool": bool,
}  # fmt: skip


def build_column(context: StateContext, name: str, ordinal: int, spec: StateSpec) -> Column:
    """Make the column of a declared state."""
    codec = ValueCodec(spec.value_type)
    if isinstance(spec, MapState):
        return MapColumn(context, name, ordinal, codec, spec.key_type)
    return (
        ListColumn(context, name, ordinal, codec)
        if isinstance(spec, ListState)
        else ValueColumn(context, name, ordinal, codec)
    )
