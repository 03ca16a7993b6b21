"""Map states over all keys of a task: elements are entries of their own, encoded in bulk when staging.

A handle notes the old value of what it changes, so the hash that the digest loses is made from it again and
no hashes are kept. That needs every value in memory to be exactly what its encoding reads back as; `collect`
sees to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from operator import add, attrgetter
from typing import Any, Final, TypeVar

import pyarrow as pa

from penstock.dataplane.keys.codec import KeyCodec
from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.state.handles import ABSENT, CopyingMapHandle, KeyState, MapHandle
from penstock.dataplane.state.kinds import Changes, Column, StateContext
from penstock.dataplane.state.sealing import entry_hashes
from penstock.dataplane.state.values import ValueCodec
from penstock.errors import OperatorError
from penstock.topology.type_words import in_sparks_words, type_words

_T = TypeVar("_T")
_EXACT_KEYS: Final[dict[str, type]] = {
    "int8": int, "int16": int, "int32": int, "int64": int, "string": str, "binary": bytes, "bool": bool,
}  # fmt: skip


class _Elements:
    """Changed elements of map handles, with their old values; those of one handle stand together."""

    def __init__(self) -> None:
        self.handles: list[MapHandle] = []
        self.counts: list[int] = []
        self.elements: list[Any] = []
        self.olds: list[Any] = []

    def add(self, handle: MapHandle, elements: list[Any], olds: list[Any]) -> None:
        self.handles.append(handle)
        self.counts.append(len(elements))
        self.elements.extend(elements)
        self.olds.extend(olds)

    def repeated(self, per_handle: list[_T]) -> Iterator[_T]:
        """Return, for each element, what belongs to its handle."""
        return chain.from_iterable(map(repeat, per_handle, self.counts))

    def parts(self) -> Iterator[tuple[MapHandle, slice]]:
        """Yield each handle with the place of its elements."""
        start = 0
        for handle, count in zip(self.handles, self.counts, strict=True):
            yield handle, slice(start, start + count)
            start += count


class MapColumn(Column):
    """A MapState over all keys."""

    def __init__(
        self, context: StateContext, name: str, ordinal: int, codec: ValueCodec, key_type: pa.DataType
    ) -> None:
        super().__init__(context, name, ordinal, codec)
        self._key_type = key_type
        self._elements = KeyCodec([key_type], ["key"], context.operator)
        # Python values of these types read back as themselves, so a whole column of them is encoded at once.
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
        if deletes.elements:
            self._collect_deletes(deletes, into)

    def _split(self, handle: MapHandle, puts: _Elements, values: list[Any], deletes: _Elements) -> None:
        """Sort a handle's changed elements into those that are there now and those that were there before."""
        changed, olds = list(handle._dirty), list(handle._dirty.values())
        if not handle._complete:
            olds = [handle._stored(key) if old is ABSENT else old for key, old in handle._dirty.items()]
        new = list(map(handle._data.get, changed, repeat(ABSENT)))
        missing = [at for at, value in enumerate(new) if value is ABSENT]
        if missing:
            gone = [at for at in missing if olds[at] is not ABSENT]
            kept = [at for at, value in enumerate(new) if value is not ABSENT]
            deletes.add(handle, [changed[at] for at in gone], [olds[at] for at in gone])
            changed, olds = [changed[at] for at in kept], [olds[at] for at in kept]
            new = [new[at] for at in kept]
        puts.add(handle, changed, olds)
        values.extend(new)

    def _collect_puts(self, puts: _Elements, values: list[Any], into: Changes) -> None:
        keys = self._entry_keys(puts)
        fitted, encoded = self._encode(keys, values)
        for handle, part in puts.parts():
            if fitted is not values:
                handle._data.update(zip(puts.elements[part], fitted[part], strict=True))
            if not handle._complete:
                handle._absent.difference_update(puts.elements[part])
        shards = list(puts.repeated([handle._shard for handle in puts.handles]))
        into.put_all(shards, keys, encoded, entry_hashes(keys, encoded), self._old_hashes(keys, puts.olds))

    def _collect_deletes(self, deletes: _Elements, into: Changes) -> None:
        keys = self._entry_keys(deletes)
        olds = self._old_hashes(keys, deletes.olds)
        for handle, part in deletes.parts():
            into.delete_all(handle._shard, keys[part], olds[part])
            if not handle._complete:
                handle._absent.update(deletes.elements[part])

    def _old_hashes(self, keys: list[bytes], olds: list[Any]) -> list[bytes | None]:
        there = [at for at, old in enumerate(olds) if old is not ABSENT]
        if len(there) == len(olds):
            return list(entry_hashes(keys, self.codec.encode_known(olds)))
        hashes: list[bytes | None] = [None] * len(olds)
        encoded = self.codec.encode_known([olds[at] for at in there])
        for at, hash_ in zip(there, entry_hashes([keys[at] for at in there], encoded), strict=True):
            hashes[at] = hash_
        return hashes

    def _entry_keys(self, given: _Elements) -> list[bytes]:
        elements = given.elements
        if self._exact is not None and set(map(type, elements)) == {self._exact}:
            try:
                column = pa.array(elements, self._key_type)
                raws = encode_keys([column], ["key"], self._context.operator).to_pylist()
                return list(map(add, given.repeated([handle._prefix for handle in given.handles]), raws))
            except (pa.ArrowException, OverflowError, UnicodeError, OperatorError):
                pass  # the loop below names the element
        keys = []
        for at, handle in enumerate(given.repeated(given.handles)):
            raw, elements[at] = self._canonical(handle, elements[at])
            keys.append(handle._prefix + raw)
        return keys

    def _canonical(self, handle: MapHandle, element: Any) -> tuple[bytes, Any]:
        """Encode an element, and let the map hold it in the form in which it reads back."""
        raw = self._encode_element(element, handle._prefix)
        canonical = self._decode_element(raw)
        if element in handle._data:
            handle._data[canonical] = handle._data.pop(element)
        return raw, canonical

    def weight(self, handle: MapHandle) -> int:
        return 500 + 250 * len(handle._data)

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        try:
            pa.scalar(element, self._key_type)
            raw = self._elements.encode([element])
            if self._elements.decode(raw)[0] == element:
                return raw
            reason = "use a key that the type holds exactly"
        except (pa.ArrowException, OverflowError, TypeError, ValueError, OperatorError) as error:
            reason = in_sparks_words(str(error))
        raise self._misfit(
            prefix, f"{element!r:.200} is no map key of type {type_words(self._key_type)}", reason
        )

    def _decode_element(self, element: bytes) -> Any:
        return self._elements.decode(element)[0]
