"""The bytes of single keys: the scalar twin of `encoding`, for code that runs per key."""

from __future__ import annotations

import datetime as dt
import decimal
import operator as op
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.dataplane.keys.canonical import (
    ALL_ONES,
    DOUBLE,
    EPOCH_DAY,
    EPOCH_NAIVE,
    EPOCH_UTC,
    EXACT,
    SIGN,
    WORD,
    canonical_of,
    unscaled,
)
from penstock.dataplane.keys.kinds import MAX_KEY_BYTES, Kind, misfit, require_kinds, too_long
from penstock.errors import OperatorError
from penstock.topology.type_words import type_words

_MISFITS = (TypeError, ValueError, AttributeError, ArithmeticError, struct.error)
_LENGTH = struct.Struct(">I")
_pack_word = WORD.pack
_unpack_word = WORD.unpack_from


class KeyCodec:
    """Encode and decode single keys of fixed types; build it once, then call it per key.

    Give names and operator so that a key that does not fit is reported with them.
    """

    def __init__(
        self, types: Sequence[pa.DataType], names: Sequence[str] | None = None, operator: str = "?"
    ) -> None:
        self.types = tuple(types)
        self.names = tuple(names if names is not None else [f"key {at}" for at in range(len(self.types))])
        self.operator = operator
        kinds = require_kinds(self.types, self.names, operator)
        lasts = [at == len(kinds) - 1 for at in range(len(kinds))]
        self._encoders = [_encoder(*field) for field in zip(self.types, kinds, lasts, strict=True)]
        self._decoders = [_decoder(*field) for field in zip(self.types, kinds, lasts, strict=True)]

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return the key bytes that `encode_keys` gives for the same key."""
        try:
            if len(values) == len(self._encoders) == 1:
                key = self._encoders[0](values[0])
            else:
                key = b"".join([encode(value) for encode, value in zip(self._encoders, values, strict=True)])
        except _MISFITS as error:
            expected = ", ".join(f"{n} {type_words(t)}" for n, t in zip(self.names, self.types, strict=True))
            raise OperatorError(
                f"operator {self.operator!r}: {tuple(values)!r} is no key of ({expected}): {error}"
            ) from error
        if len(key) > MAX_KEY_BYTES:
            raise too_long(len(key), self.names, self.operator)
        return key

    def decode(self, key: bytes) -> tuple[Any, ...]:
        """Return the canonical values of a key: time stamps with UTC where the column has a zone."""
        try:
            at, values = 0, []
            for decode in self._decoders:
                value, at = decode(key, at)
                values.append(value)
        except (ValueError, struct.error, OverflowError) as error:
            raise misfit(self.types) from error
        if at != len(key):
            raise misfit(self.types)
        return tuple(values)


@lru_cache(maxsize=256)
def _codec(types: tuple[pa.DataType, ...]) -> KeyCodec:
    return KeyCodec(types)


def encode_key(values: Sequence[Any], types: Sequence[pa.DataType]) -> bytes:
    """Encode one key; code that runs per key holds a `KeyCodec` instead."""
    return _codec(tuple(types)).encode(values)


def decode_key(key: bytes, types: Sequence[pa.DataType]) -> tuple[Any, ...]:
    """Decode one key; code that runs per key holds a `KeyCodec` instead."""
    return _codec(tuple(types)).decode(key)


def _encoder(type_: pa.DataType, kind: Kind, last: bool) -> Callable[[Any], bytes]:
    if kind == "bytes":
        text = str.encode if pa.types.is_string(type_) or pa.types.is_large_string(type_) else bytes
        return text if last else lambda value: _LENGTH.pack(len(encoded := text(value))) + encoded
    if kind == "decimal":
        return lambda value: (unscaled(value, type_.scale) + (1 << 127)).to_bytes(16, "big")
    if kind == "uint":
        return _pack_word
    canonical = canonical_of(type_)
    if kind == "float":
        return lambda value: _pack_word((bits := canonical(value)) ^ (ALL_ONES if bits >> 63 else SIGN))
    if canonical is op.index:
        return lambda value: _pack_word(op.index(value) + SIGN)
    return lambda value: _pack_word(canonical(value) + SIGN)


def _decoder(type_: pa.DataType, kind: Kind, last: bool) -> Callable[[bytes, int], tuple[Any, int]]:
    if kind == "bytes":
        text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
        return lambda key, at: _decode_text(key, at, text, last)
    if kind == "decimal":
        return lambda key, at: (_decode_decimal(key, at, type_.scale), at + 16)
    value_of = _value_of_word(type_, kind)
    return lambda key, at: (value_of(_unpack_word(key, at)[0]), at + 8)


def _decode_text(key: bytes, at: int, text: bool, last: bool) -> tuple[str | bytes, int]:
    end = len(key)
    if not last:
        end, at = at + 4 + _LENGTH.unpack_from(key, at)[0], at + 4
    if end > len(key):
        raise ValueError("key too short")
    data = key[at:end]
    return (data.decode() if text else data), end


def _decode_decimal(key: bytes, at: int, scale: int) -> decimal.Decimal:
    if len(key) < at + 16:
        raise ValueError("key too short")
    unscaled = int.from_bytes(key[at : at + 16], "big") - (1 << 127)
    return EXACT.scaleb(decimal.Decimal(unscaled), -scale)


def _value_of_word(type_: pa.DataType, kind: Kind) -> Callable[[int], Any]:
    if kind == "uint":
        return int
    if kind == "float":
        return lambda word: DOUBLE.unpack(_pack_word(word ^ (SIGN if word >> 63 else ALL_ONES)))[0]
    if pa.types.is_boolean(type_):
        return lambda word: word != SIGN
    if pa.types.is_date32(type_):
        return lambda word: dt.date.fromordinal(word - SIGN + EPOCH_DAY)
    if pa.types.is_timestamp(type_):
        start = EPOCH_NAIVE if type_.tz is None else EPOCH_UTC
        return lambda word: start + dt.timedelta(microseconds=word - SIGN)
    return lambda word: word - SIGN
