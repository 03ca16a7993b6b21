"""Map states over all keys of a task: elements are entries of their own, encoded in bulk when staging.

A handle notes the old value of what it changes, so the hash that the digest loses is made from it again and
no hashes are kept. That needs every value in memory to be exactly what its encoding reads back as.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import chain, repeat
from numbers import Number
from operator import add, attrgetter
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from penstock.dataplane.keys.codec import KeyCodec
from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.keys.kinds import MAX_KEY_BYTES
from penstock.dataplane.state.handles import ABSENT, KeyState
from penstock.dataplane.state.kinds import Changes, Column, StateContext
from penstock.dataplane.state.map_handles import CopyingMapHandle, MapHandle
from penstock.dataplane.state.normal import Misfit, Normal, normal_of
from penstock.dataplane.state.sealing import entry_hashes
from penstock.dataplane.state.values import ValueCodec

_T = TypeVar("_T")
_PLAIN_KEYS: Final[dict[str, type]] = {
    "int8": int, "int16": int, "int32": int, "int64": int, "string": str, "binary": bytes, "bool": bool,
}  # fmt: skip
_NUMBERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
)
_SHORT: Final = MAX_KEY_BYTES // 4  # characters, of at most four bytes each
_NAN: Final = math.nan
"""The one NaN that is a map key: a dict finds a key that is not equal to itself by identity alone."""


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
        self._key_of = map_key_of(key_type, codec.local_times)
        self._elements = KeyCodec([key_type], ["key"], context.operator)
        self.plain_key = _PLAIN_KEYS.get(str(key_type))
        self._number = next((number for fits, number in _NUMBERS if fits(key_type)), None)
        self.order: Normal | None = _after_numbers if pa.types.is_floating(key_type) else None

    def make(self, shard: int, key: bytes, empty: bool) -> MapHandle:
        kind = MapHandle if self.copier is None else CopyingMapHandle
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
        encoded = self._encode(keys, values)
        for handle, part in puts.parts():
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
            return list(entry_hashes(keys, self.codec.encode_all(olds)))
        hashes: list[bytes | None] = [None] * len(olds)
        encoded = self.codec.encode_all([olds[at] for at in there])
        for at, hash_ in zip(there, entry_hashes([keys[at] for at in there], encoded), strict=True):
            hashes[at] = hash_
        return hashes

    def _entry_keys(self, given: _Elements) -> list[bytes]:
        prefixes = given.repeated([handle._prefix for handle in given.handles])
        if self.plain_key is None:
            raws = [self._elements.encode((element,)) for element in given.elements]
        else:
            column = pa.array(given.elements, self._key_type)
            raws = encode_keys([column], ["key"], self._context.operator).to_pylist()
        return list(map(add, prefixes, raws))

    def key(self, prefix: bytes, element: Any) -> Any:
        """Return a map key as it is held.

        Raises:
            OperatorError: it is none.
        """
        try:
            return self._key_of(element)
        except Misfit as misfit:
            raise self._error(prefix, f" map key {misfit}") from None

    def sought(self, prefix: bytes, element: Any) -> Any:
        """Return the held key that a dict would find by this one, or ABSENT where it can be none.

        Raises:
            OperatorError: no dict can be asked for it, as it can change.
        """
        try:
            return self._key_of(element)
        except Misfit as misfit:
            try:
                hash(element)
            except TypeError:
                raise self._error(prefix, f" map key {misfit}") from None
        return self._equal_number(element)

    def _equal_number(self, element: Any) -> Any:
        """Return the number of the key's type that equals one of another type, as 1 does 1.0, or ABSENT."""
        if self._number is not None and isinstance(element, (Number, np.generic)):
            plain = element.item() if isinstance(element, np.generic) else element
            with suppress(TypeError, ValueError, ArithmeticError):
                key = self._key_of(self._number(plain))
                if key == plain:
                    return key
        return ABSENT

    def weight(self, handle: MapHandle) -> int:
        return 500 + 250 * len(handle._data)

    def _encode_element(self, element: Any, prefix: bytes) -> bytes:
        return self._elements.encode((element,))

    def _decode_element(self, element: bytes) -> Any:
        key = self._elements.decode(element)[0]
        return _NAN if key != key else key


def map_key_of(type_: pa.DataType, local_times: bool) -> Normal:
    """Return what brings map keys into the form in which they are held: -0.0 is 0.0, and every NaN the same."""
    normal, is_ = normal_of(type_, local_times), pa.types
    if is_.is_floating(type_):
        return lambda key: _NAN if (made := normal(key)) != made else made + 0.0
    if not (is_.is_string(type_) or is_.is_binary(type_)):
        return normal

    def short(key: Any) -> Any:
        made = normal(key)
        if (
            len(made) > _SHORT
            and (size := len(made.encode() if isinstance(made, str) else made)) > MAX_KEY_BYTES
        ):
            raise Misfit(
                made, type_, f"it takes {size} bytes, over the limit of {MAX_KEY_BYTES}; use a hash of it"
            )
        return made

    return short


def _after_numbers(key: float) -> tuple[bool, float]:
    return key != key, key
