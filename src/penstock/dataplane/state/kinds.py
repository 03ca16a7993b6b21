"""Declared states over all keys of a task: where their entries lie, and what an epoch changed in them.

An entry key is [state ordinal >= 1][key length, u16][key bytes][element]: nothing for a value, the index
(u64) for a list, the encoded map key for a map. Handles hold values in the form in which they read back (see `normal`);
`collect` encodes each changed element once and drops what did not change. Nothing here touches files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter, eq
from typing import Any, Final, Protocol

from penstock.dataplane.keys.codec import KeyCodec
from penstock.dataplane.state.handles import (
    ABSENT,
    CopyingValueHandle,
    KeyState,
    ValueHandle,
)
from penstock.dataplane.state.list_handles import ListHandle
from penstock.dataplane.state.normal import Misfit
from penstock.dataplane.state.passing import passing
from penstock.dataplane.state.sealing import NO_HASH, entry_hashes
from penstock.dataplane.state.values import MAX_VALUE_BYTES, ValueCodec
from penstock.errors import OperatorError

_PACK_LENGTH: Final = struct.Struct(">H").pack
_PACK_INDEX: Final = struct.Struct(">Q").pack
_UNPACK_INDEX: Final = struct.Struct(">Q").unpack

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


class Column:
    """One declared state over all keys; makes the handles of its kind."""

    label: str
    """Name of the state in messages."""
    enclosed = False
    """Whether what the user gives is the first field of what is held."""

    def __init__(self, context: StateContext, name: str, ordinal: int, codec: ValueCodec) -> None:
        self.name = self.label = name
        self.ordinal = bytes([ordinal])
        self.codec = codec
        self.normal = codec.normal
        self.copier = codec.copier
        self._context = context

    def prefix(self, key: bytes) -> bytes:
        """Return what all entry keys of a key begin with."""
        return self.ordinal + _PACK_LENGTH(len(key)) + key

    def refusal(self, prefix: bytes, misfit: Misfit) -> OperatorError:
        """Return the error of a value that is none of this state; `prefix` says whose it is."""
        path = misfit.path[1:] if self.enclosed and misfit.path[:1] == ("value",) else misfit.path
        field = f" field {'.'.join(path)!r}:" if path else ""
        return self._error(prefix, f"{field} {misfit}")

    def make(self, shard: int, key: bytes, empty: bool) -> Any:
        """Make the handle of a key; `empty` when nothing can be stored under it."""
        raise NotImplementedError

    def collect(self, touched: Sequence[KeyState], into: Changes) -> None:
        """Encode what changed in `touched`."""
        raise NotImplementedError

    fixed_weight: int | None = None
    """About how many bytes of memory any handle takes, where that does not depend on what it holds."""

    def weight(self, handle: Any) -> int:
        """Return about how many bytes of memory a handle takes."""
        return self.fixed_weight or 0

    def find(self, shard: int, prefix: bytes, element: Any) -> Any:
        found = self._context.reader.read(shard, prefix + self._encode_element(element, prefix))
        return ABSENT if found is None else self.codec.decode(found[0])

    def load(self, shard: int, prefix: bytes, limit: int | None) -> list[tuple[Any, Any]]:
        entries = self._context.reader.read_prefix(shard, prefix, limit)
        start, element_of, value_of = len(prefix), self._decode_element, self.codec.decode
        return [(element_of(key[start:]), value_of(value)) for key, value, _ in entries]

    def load_list(self, shard: int, prefix: bytes) -> tuple[list[Any], list[bytes]]:
        entries = self._context.reader.read_prefix(shard, prefix, None)
        return [self.codec.decode(value) for _, value, _ in entries], [hash_ for _, _, hash_ in entries]

    def size(self, shard: int, prefix: bytes) -> int:
        last = self._context.reader.last_key(shard, prefix)
        return 0 if last is None else self._decode_element(last[len(prefix) :]) + 1

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        raise NotImplementedError

    def _decode_element(self, element: bytes) -> Any:
        raise NotImplementedError

    def _encode(self, prefixes: Sequence[bytes], values: list[Any]) -> list[bytes]:
        """Return the encodings of values; `prefixes` say whose they are."""
        encoded = self.codec.encode_all(values)
        sizes = list(map(len, encoded))
        if sizes and max(sizes) > MAX_VALUE_BYTES:
            size = max(sizes)
            what = f"a value takes {size} bytes, over the limit of {MAX_VALUE_BYTES}; split it over a list or map state"
            raise self._error(prefixes[sizes.index(size)], f" {what}")
        return encoded

    def _error(self, prefix: bytes, what: str) -> OperatorError:
        (length,) = struct.unpack(">H", prefix[1:3])
        key = self._context.keys.decode(prefix[3 : 3 + length])
        return OperatorError(
            f"operator {self._context.operator!r}: state {self.label!r} of key {key!r}:{what}"
        )


class ValueColumn(Column):
    """A ValueState over all keys."""

    fixed_weight = 300

    def __init__(self, context: StateContext, name: str, ordinal: int, codec: ValueCodec) -> None:
        super().__init__(context, name, ordinal, codec)
        kind = ValueHandle if self.copier is None else CopyingValueHandle
        self._kind = passing(kind, "update", codec.arrow_type)

    def make(self, shard: int, key: bytes, empty: bool) -> ValueHandle:
        entry = self.prefix(key)
        return self.holding(shard, entry, None if empty else self._context.reader.read(shard, entry))

    def holding(self, shard: int, entry: bytes, stored: tuple[bytes, bytes] | None) -> ValueHandle:
        """Make a handle of what was read for it: (value, hash), or None."""
        if stored is None:
            return self._kind(self, shard, entry, None, None)
        return self._kind(self, shard, entry, self.codec.decode(stored[0]), stored[1])

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
        encoded = self._encode(keys, values)
        hashes = entry_hashes(keys, encoded)
        olds = [handle._hash for handle in changed]
        for handle, hash_ in zip(changed, hashes, strict=True):
            handle._hash = hash_
            handle._changed = False
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

    def __init__(self, context: StateContext, name: str, ordinal: int, codec: ValueCodec) -> None:
        super().__init__(context, name, ordinal, codec)
        self._kind = passing(ListHandle, "appendValue", codec.arrow_type)

    def make(self, shard: int, key: bytes, empty: bool) -> ListHandle:
        return self._kind(self, shard, self.prefix(key), empty)

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
        hashes = self._put(handle, indexes, [items[index] for index in indexes], into)
        handle._hashes.extend([NO_HASH] * (len(items) - kept))
        for index, hash_ in zip(indexes, hashes, strict=True):
            handle._hashes[index] = hash_
        handle._stored = len(items)
        handle._changed = {}

    def _put(
        self, handle: ListHandle, indexes: Sequence[int], items: list[Any], into: Changes
    ) -> list[bytes]:
        keys = [handle._prefix + _PACK_INDEX(index) for index in indexes]
        encoded = self._encode(keys, items)
        hashes = entry_hashes(keys, encoded)
        olds = [handle._hashes[index] if index < len(handle._hashes) else None for index in indexes]
        into.put_all([handle._shard] * len(keys), keys, encoded, hashes, olds)
        return hashes

    def weight(self, handle: ListHandle) -> int:
        return 400 + 120 * len(handle._items or ())

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        return _PACK_INDEX(element)

    def _decode_element(self, element: bytes) -> int:
        index: int = _UNPACK_INDEX(element)[0]
        return index
