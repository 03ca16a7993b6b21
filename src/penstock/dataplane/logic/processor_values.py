"""Values between a processor and its state: what PySpark hands out (plain tuples, rows inside, local times without a
zone) and what state holds.

What a processor gives takes the form of the state itself (see `state.normal`). Reading a schema without structs and time
stamps inside costs nothing but the tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.dataplane.keys.codec import KeyCodec
from penstock.dataplane.state.normal import Misfit, normal_of
from penstock.errors import OperatorError
from penstock.raised import show

Convert = Callable[[Any], Any]
RowClass = Callable[[Sequence[str]], type[tuple[Any, ...]]]


def fields_of(value: Any, names: Sequence[str], where: str, what: str) -> Any:
    """Return what a processor gives for a row of these fields as a tuple, list or dict; as in PySpark it may be anything
    that can be gone through but text.

    Raises:
        OperatorError: it has no fields.
    """
    if isinstance(value, (tuple, list, dict)):
        return value
    if hasattr(value, "__iter__") and not isinstance(value, (str, bytes, bytearray)):
        return tuple(value)
    raise OperatorError(
        f"{where}: {show(value)} ({type(value).__name__}) is no {what}; give a tuple of {', '.join(names)}"
    )


def reader_of(schema: pa.Schema, row_class: RowClass) -> Convert:
    """Return what turns a stored struct into the tuple that a processor gets."""
    fields = [_reader(field.type, row_class) for field in schema]
    if not any(fields):
        return tuple
    return lambda value: tuple(
        [one if read is None or one is None else read(one) for one, read in zip(value, fields, strict=True)]
    )


def _reader(type_: pa.DataType, row_class: RowClass) -> Convert | None:
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return lambda value: value.astimezone().replace(tzinfo=None)
    if pa.types.is_struct(type_):
        names, inner = [field.name for field in type_], reader_of(pa.schema(list(type_)), row_class)
        made = row_class(names)
        return lambda value: tuple.__new__(made, inner(value))
    if pa.types.is_list(type_):
        element = _reader(type_.value_type, row_class)
        return None if element is None else lambda values: [v if v is None else element(v) for v in values]
    if pa.types.is_map(type_):
        key, item = _reader(type_.key_type, row_class), _reader(type_.item_type, row_class)
        if key is None and item is None:
            return None
        return lambda pairs: {
            k if key is None else key(k): v if item is None or v is None else item(v)
            for k, v in pairs.items()
        }
    return None


class MapKeys:
    """Keys of a map state: tuples for the processor, one value or bytes in state."""

    def __init__(self, schema: pa.Schema, where: str) -> None:
        self._where = where
        self._names = schema.names
        self._types = [field.type for field in schema]
        self._normal = normal_of(pa.struct(list(schema)), local_times=True)
        self._single = len(self._types) == 1
        self._read = reader_of(schema, lambda names: tuple)

    def held(self, key: Any) -> Any:
        """Return what state takes for a key.

        Raises:
            OperatorError: it is no key of the state.
        """
        if self._single and isinstance(key, str):
            return key  # PySpark goes through its letters, which gives the same for one letter and an error for more
        values = key if type(key) is tuple else fields_of(key, self._names, self._where, "map key")
        if self._single and len(values) == 1:
            return self._held_alone(*(values.values() if isinstance(values, dict) else values))
        try:
            values = self._normal(values)
        except Misfit as misfit:
            field = f" field {'.'.join(misfit.path)!r}:" if misfit.path else ""
            raise OperatorError(f"{self._where}: map key{field} {misfit}") from None
        present = tuple(value is not None for value in values)
        given = [value for value in values if value is not None]
        mask = sum(1 << at for at, there in enumerate(present) if there)
        return mask.to_bytes(8, "big") + self._codec(present).encode(given)

    def _held_alone(self, value: Any) -> Any:
        if value is None:
            raise OperatorError(f"{self._where}: its map key is None; a map key of one field cannot be null")
        return value

    def given(self, held: Any) -> tuple[Any, ...]:
        """Return the tuple that the processor gets."""
        if self._single:
            return tuple(self._read((held,)))
        mask = int.from_bytes(held[:8], "big")
        present = tuple(bool(mask >> at & 1) for at in range(len(self._types)))
        found = iter(self._codec(present).decode(held[8:]))
        return tuple(self._read(tuple(next(found) if there else None for there in present)))

    def _codec(self, present: tuple[bool, ...]) -> KeyCodec:
        kept = [at for at, there in enumerate(present) if there]
        return _key_codec(
            tuple(self._types[at] for at in kept), tuple(self._names[at] for at in kept), self._where
        )


@lru_cache(maxsize=1024)
def _key_codec(types: tuple[pa.DataType, ...], names: tuple[str, ...], where: str) -> KeyCodec:
    return KeyCodec(types, names, where)
