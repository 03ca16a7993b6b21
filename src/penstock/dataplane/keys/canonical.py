"""Canonical key values: NaN equals NaN, -0.0 equals 0.0, time stamps in microseconds UTC, as Spark groups.

Gives the words (of 64 bits) or bytes that hashes and key bytes are made of: for whole columns without Python per
row, and, in the same form, for single values. Part of the format.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator as op
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dataplane.keys.kinds import Column, kind_of

Words: TypeAlias = npt.NDArray[np.uint64]
ALL_ONES = 0xFFFF_FFFF_FFFF_FFFF
SIGN = 1 << 63
MICROS_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}
EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
EPOCH_NAIVE = dt.datetime(1970, 1, 1)
EXACT = decimal.Context(prec=80)
DOUBLE = struct.Struct(">d")
WORD = struct.Struct(">Q")
_SINGLE = struct.Struct(">f")
_NAN_BITS = 0x7FF8_0000_0000_0000


def chunks_of(column: Column) -> list[pa.Array]:
    """Return the arrays of a column."""
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def words_of(array: pa.Array) -> Words:
    """Return one canonical 64-bit word per value of a fixed-width array without nulls; do not write to it."""
    type_ = array.type
    if pa.types.is_boolean(type_):
        return _as_words(array.cast(pa.int8()).to_numpy())
    if pa.types.is_date32(type_):
        return _as_words(array.view(pa.int32()).to_numpy())
    if pa.types.is_timestamp(type_):
        return _as_words(_micros(array))
    values = array.to_numpy()
    if not pa.types.is_floating(type_):
        return _as_words(values)
    floats = values.astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    bits: Words = floats.view(np.uint64)
    bits[np.isnan(floats)] = _NAN_BITS
    return bits


def _as_words(values: npt.NDArray[Any]) -> Words:
    wide = values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)
    return wide.view(np.uint64)


def _micros(array: pa.Array) -> npt.NDArray[np.int64]:
    stamps: npt.NDArray[np.int64] = array.view(pa.int64()).to_numpy()
    if array.type.unit == "ns":
        return np.floor_divide(stamps, 1000)
    factor = MICROS_PER[array.type.unit]
    return stamps * factor if factor > 1 else stamps


def decimal_words(array: pa.Array) -> tuple[Words, Words]:
    """Return the low and high words of the unscaled 128-bit integers."""
    if not len(array):
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    pairs = np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), 16 * array.offset).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def bounds_and_data(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return n + 1 bounds that start at 0, and the bytes they cut, copied with 8 zero bytes behind them.

    The zero bytes let a whole word be read at the start of any byte without leaving the memory.
    """
    if not len(array):
        return np.zeros(1, np.int64), np.zeros(8, np.uint8)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.int64)
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    padded = np.zeros(size + 8, np.uint8)
    if size:
        padded[:size] = np.frombuffer(data, np.uint8, size, first)
    bounds -= first
    return bounds, padded


def words_at_any_byte(padded: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """Return a view with the word that begins at each byte."""
    return np.ndarray((len(padded) - 7,), dtype, buffer=padded, strides=(1,))


def _float_bits(value: float) -> int:
    bits: int = WORD.unpack(DOUBLE.pack(value + 0.0))[0]
    return _NAN_BITS if value != value else bits


def _micros_of(value: dt.datetime) -> int:
    delta = value - (EPOCH_NAIVE if value.tzinfo is None else EPOCH_UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def unscaled(value: decimal.Decimal | int, scale: int) -> int:
    """Return a decimal times ten to the scale; refuse one with more decimals."""
    exact = EXACT.scaleb(decimal.Decimal(value), scale)
    whole = int(exact)
    if whole != exact:
        raise ValueError(f"{value} has more than {scale} decimals")
    return whole


def _text_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def canonical_of(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return the function from a Python value to its word, or to its bytes (decimals: 16, little-endian)."""
    kind = kind_of(type_)
    if kind == "bytes":
        return _text_bytes
    if kind == "decimal":
        return lambda value: unscaled(value, type_.scale).to_bytes(16, "little", signed=True)
    if kind == "float":
        single = pa.types.is_float32(type_)
        return lambda value: _float_bits(_SINGLE.unpack(_SINGLE.pack(value))[0] if single else float(value))
    if pa.types.is_date32(type_):
        return lambda value: value.toordinal() - EPOCH_DAY
    return _micros_of if pa.types.is_timestamp(type_) else op.index
