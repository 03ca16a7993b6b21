"""Values between a processor and its state: what PySpark hands out (plain tuples, rows inside, local times without a
zone) and what state holds.

A schema without structs and time stamps inside costs nothing but the tuple.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.dataplane.keys.codec import KeyCodec
from penstock.errors import OperatorError

Convert = Callable[[Any], Any]
RowClass = Callable[[Sequence[str]], type[tuple[Any, ...]]]


def reader_of(schema: pa.Schema, row_class: RowClass) -> Convert:
    """Return what turns a stored struct into the tuple that a processor gets."""
    fields = [_reader(field.type, row_class) for field in schema]
    if not any(fields):
        return tuple
    return lambda value: tuple(
        [one if read is None or one is None else read(one) for one, read in zip(value, fields, strict=True)]
    )


def writer_of(schema: pa.Schema) -> Convert | None:
    """Return what turns a processor's tuple into what state takes; None where it takes it as it is."""
    fields = [_writer(field.type) for field in schema]
    if not any(fields):
        return None
    return lambda value: tuple(
        [
            one if write is None or one is None else write(one)
            for one, write in zip(value, fields, strict=True)
        ]
    )


def _reader(type_: pa.DataType, row_class: RowClass) -> Convert | None:
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return lambda value: value.astimezone().replace(tzinfo=None)
    if pa.types.is_struct(type_):
        names, inner = [field.name for field in type_], reader_of(pa.schema(list(type_)), row_class)
        made = row_class(names)
        return lambda value: tuple.__new__(made, inner(value))
    return _inside(type_, lambda inner: _reader(inner, row_class))


def _writer(type_: pa.DataType) -> Convert | None:
    if pa.types.is_timestamp(type_):
        return _aware if type_.tz is not None else _naive
    if pa.types.is_date32(type_):
        return lambda value: value.date() if isinstance(value, dt.datetime) else value
    if pa.types.is_struct(type_):
        inner = writer_of(pa.schema(list(type_)))
        names = [field.name for field in type_]
        return None if inner is None else lambda value: inner(_in_order(value, names))
    return _inside(type_, _writer)


def _inside(type_: pa.DataType, of: Callable[[pa.DataType], Convert | None]) -> Convert | None:
    if pa.types.is_list(type_):
        element = of(type_.value_type)
        return None if element is None else lambda values: [v if v is None else element(v) for v in values]
    if pa.types.is_map(type_):
        key, item = of(type_.key_type), of(type_.item_type)
        if key is None and item is None:
            return None
        return lambda pairs: {
            k if key is None else key(k): v if item is None or v is None else item(v)
            for k, v in pairs.items()
        }
    return None


def _in_order(value: Any, names: list[str]) -> Any:
    return tuple(map(value.get, names)) if isinstance(value, dict) else value


def _plain_time(value: Any) -> Any:
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def _aware(value: Any) -> Any:
    """A time without a zone is local time, as for Spark."""
    value = _plain_time(value)
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def _naive(value: Any) -> Any:
    return _plain_time(value)


class MapKeys:
    """Keys of a map state: tuples for the processor, one value or bytes in state."""

    def __init__(self, schema: pa.Schema, where: str) -> None:
        self._where = where
        self._names = schema.names
        self._types = [field.type for field in schema]
        self._write = writer_of(schema)
        self._single = len(self._types) == 1
        self._read = reader_of(schema, lambda names: tuple)

    def held(self, key: Any) -> Any:
        """Return the form in state."""
        values = tuple(key)
        if len(values) != len(self._types):
            raise OperatorError(f"{self._where}: {key!r} is no key of ({', '.join(self._names)})")
        if self._write is not None:
            values = self._write(values)
        if self._single:
            if values[0] is None:
                raise OperatorError(
                    f"{self._where}: its map key is None; a map key of one field cannot be null"
                )
            value = values[0]
            return value.item() if hasattr(value, "dtype") else value
        present = tuple(value is not None for value in values)
        given = [value for value in values if value is not None]
        mask = sum(1 << at for at, there in enumerate(present) if there)
        return mask.to_bytes(8, "big") + self._codec(present).encode(given)

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
