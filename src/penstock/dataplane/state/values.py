"""Typed values of state: fit them to their declared type, encode and decode them.

A value is kept in memory exactly as it reads back from its encoding, so that what a function sees never
depends on whether its state was in memory. Encodings are msgpack without type names: reading one can run no
code.
"""

from __future__ import annotations

from collections import namedtuple
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Final, Optional

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import CheckpointError, OperatorError
from penstock.topology.batches import rows_to_batch
from penstock.topology.rows import python_type
from penstock.topology.types import ddl_of

MAX_VALUE_BYTES: Final = 16 << 20

_MISFITS: Final = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError, OperatorError)
_MANY_ENCODINGS: Final = (pa.types.is_floating, pa.types.is_temporal, pa.types.is_decimal)
_EXACT: Final = (float, int, str, bytes, bool)


class ValueCodec:
    """Encode and decode the values of one declared type."""

    def __init__(self, type_: pa.DataType) -> None:
        self.arrow_type = type_
        self.type = ddl_of(type_)
        self.mutable = _holds(type_, pa.types.is_list) or _holds(type_, pa.types.is_map)
        """Whether a decoded value could be changed in place."""
        plain = python_type(type_)
        self._exact: type | None = plain if plain in _EXACT else None
        self._limits = _limits(type_) if pa.types.is_integer(type_) else None
        # msgpack holds a decimal as text of any length; Arrow knows precision and scale.
        self._checked = pa.schema([("value", type_)]) if _holds(type_, pa.types.is_decimal) else None
        # Of these types two values that read back alike have one encoding; others have to be encoded again, as an
        # integer may stand for a double, or a local time for one in UTC.
        self._faithful = not any(_holds(type_, is_) for is_ in _MANY_ENCODINGS)
        self._decoder = msgspec.msgpack.Decoder(_bounded_type(type_))
        # A struct that gained nullable fields since a value was stored: what it lacks reads as null.
        self._grown = msgspec.msgpack.Decoder(_grown_struct(type_)) if pa.types.is_struct(type_) else None
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)

    def decode(self, raw: bytes) -> Any:
        """Return the value of an encoding.

        Raises:
            CheckpointError: it is no value of this type.
        """
        try:
            return self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            if self._grown is not None:
                with suppress(msgspec.MsgspecError):
                    return self._decoder.decode(self._encoder.encode(self._grown.decode(raw)))
            raise CheckpointError(
                f"stored state is no {self.type} ({error}); the checkpoint is of another topology"
            ) from error

    def copy(self, value: Any) -> Any:
        """Return a value that can be changed without changing this one."""
        return self._decoder.decode(self._encoder.encode(value)) if self.mutable else value

    def encode_all(self, values: list[Any]) -> tuple[list[Any], list[bytes]] | None:
        """Return the values as they read back, and their encodings; None when one of them does not fit."""
        encode = self._encoder.encode
        try:
            if self._all_exact(values):
                return values, [encode(value) for value in values]
            try:
                encoded = [encode(value) for value in values]
                fitted = list(map(self._decoder.decode, encoded))
            except _MISFITS:
                fitted = [self._fit(value) for value in values]
            else:
                if self._faithful:
                    return fitted, encoded
            if self._checked is not None:
                rows_to_batch([(value,) for value in fitted], self._checked, "")
            return fitted, [encode(value) for value in fitted]
        except _MISFITS:
            return None

    def encode_known(self, values: list[Any]) -> list[bytes]:
        """Return the encodings of values that were decoded or fitted before: the very bytes that are
        stored."""
        encode = self._encoder.encode
        return [encode(value) for value in values]

    def first_misfit(self, values: list[Any]) -> tuple[int, str]:
        """Return index and reason of the first value that `encode_all` does not take."""
        for at, value in enumerate(values):
            if self.encode_all([value]) is None:
                try:
                    self._fit(value)
                except _MISFITS as error:
                    return at, f"{type(error).__name__}: {error}"
                return at, "it has more digits than the type"
        raise ValueError("all values fit")

    def _all_exact(self, values: list[Any]) -> bool:
        """Whether all values are of the one Python type that reads back as it is, and in range."""
        if self._exact is None or set(map(type, values)) != {self._exact}:
            return False
        return self._limits is None or (self._limits[0] <= min(values) and max(values) <= self._limits[1])

    def _fit(self, value: Any) -> Any:
        return self._decoder.decode(self._encoder.encode(_by_position(value, self.arrow_type)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def _by_position(value: Any, type_: pa.DataType) -> Any:
    """Return a value whose structs given as dicts are tuples in field order."""
    if pa.types.is_struct(type_) and isinstance(value, dict):
        if unknown := value.keys() - {field.name for field in type_}:
            raise TypeError(f"its struct has no field {', '.join(sorted(map(repr, unknown)))}")
        return tuple(_by_position(value.get(field.name), field.type) for field in type_)
    if pa.types.is_struct(type_) and isinstance(value, tuple):
        return tuple(_by_position(v, field.type) for v, field in zip(value, type_, strict=True))
    if pa.types.is_list(type_) and isinstance(value, (list, tuple)):
        return [_by_position(v, type_.value_type) for v in value]
    if pa.types.is_map(type_) and isinstance(value, dict):
        return {k: _by_position(v, type_.item_type) for k, v in value.items()}
    return value


def _holds(type_: pa.DataType, is_wanted: Any) -> bool:
    """Whether a type is, or anywhere contains, a wanted one."""
    return bool(is_wanted(type_)) or any(
        _holds(type_.field(at).type, is_wanted)
        for at in range(type_.num_fields if pa.types.is_nested(type_) else 0)
    )


def _limits(type_: pa.DataType) -> tuple[int, int]:
    bits: int = type_.bit_width
    if pa.types.is_unsigned_integer(type_):
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


def _bounded_type(type_: pa.DataType) -> Any:
    """Return `python_type` with integers held to their width, so that decoding checks what Arrow would
    check."""
    is_ = pa.types
    if is_.is_uint64(type_):
        return Annotated[int, msgspec.Meta(ge=0)]
    if is_.is_integer(type_):
        lowest, highest = _limits(type_)
        return Annotated[int, msgspec.Meta(ge=lowest, le=highest)]
    if is_.is_list(type_):
        return list[_or_null(type_.value_type)]  # type: ignore[misc]
    if is_.is_map(type_):
        return dict[_bounded_type(type_.key_type), _or_null(type_.item_type)]  # type: ignore[misc]
    return _bounded_struct(type_) if is_.is_struct(type_) else python_type(type_)


@lru_cache(maxsize=1024)
def _bounded_struct(type_: pa.StructType) -> Any:
    made: Any = namedtuple("Row", [field.name for field in type_], rename=True)  # type: ignore[misc]
    types = [_or_null(field.type) if field.nullable else _bounded_type(field.type) for field in type_]
    made.__annotations__ = dict(zip(made._fields, types, strict=True))
    return made


@lru_cache(maxsize=1024)
def _grown_struct(type_: pa.StructType) -> Any:
    """The struct with null for nullable fields at its end that an encoding lacks."""
    fields = list(type_)
    strict = max((at for at, field in enumerate(fields) if not field.nullable), default=-1)
    made: Any = namedtuple("Grown", [field.name for field in fields], rename=True)  # type: ignore[misc]
    made.__new__.__defaults__ = (None,) * (len(fields) - strict - 1)
    made._field_defaults = dict.fromkeys(made._fields[strict + 1 :])
    made.__annotations__ = dict(
        zip(made._fields, _bounded_struct(type_).__annotations__.values(), strict=True)
    )
    return made


def _or_null(type_: pa.DataType) -> Any:
    return Optional[_bounded_type(type_)]  # noqa: UP045
