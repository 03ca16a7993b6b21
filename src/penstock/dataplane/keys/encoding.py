"""The bytes under which the state of a key is stored, for whole columns: never Python per row. Part of the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.keys.canonical import (
    ALL_ONES,
    MICROS_PER,
    SIGN,
    Words,
    bounds_and_data,
    decimal_words,
    words_at_any_byte,
    words_of,
)
from penstock.dataplane.keys.kinds import MAX_KEY_BYTES, Column, Kind, kind_of, misfit, require_keys, too_long


def encode_keys(columns: Sequence[Column], names: Sequence[str], operator: str) -> pa.BinaryArray:
    """Encode the key in every row: bytes are equal exactly when keys are, and sort as numbers and dates do.

    Fixed-width values take 8 bytes big-endian (sign bit flipped), decimals 16; text is raw when last,
    and else behind a 4-byte big-endian length.

    Raises:
        DeclarationError: a column's type cannot be a key.
        OperatorError: a key is null, or its encoding is longer than `MAX_KEY_BYTES`.
    """
    kinds = require_keys(columns, names, operator)
    parts: list[pa.BinaryArray] = []
    fields: list[npt.NDArray[Any]] = []  # fixed-width fields not yet joined into a part
    for number, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if kind != "bytes":
            fields.extend(_encode_fixed(array, kind))
            continue
        text = _as_binary(array)
        if number < len(columns) - 1:
            fields.append(pc.binary_length(text).to_numpy().astype(np.uint32))
        if fields:
            parts.append(_join_fixed(fields))
            fields = []
        parts.append(text)
    if fields:
        parts.append(_join_fixed(fields))
    keys = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    longest = _longest(keys) if "bytes" in kinds or 16 * len(kinds) > MAX_KEY_BYTES else 0
    if longest > MAX_KEY_BYTES:
        raise too_long(longest, names, operator)
    return keys


def _longest(keys: pa.BinaryArray) -> int:
    return pc.max(pc.binary_length(keys)).as_py() or 0


def _encode_fixed(array: pa.Array, kind: Kind) -> list[Words]:
    if kind == "decimal":
        low, high = decimal_words(array)
        return [high ^ np.uint64(SIGN), low]
    words = words_of(array)
    if kind == "uint":
        return [words]
    if kind == "int":
        return [words ^ np.uint64(SIGN)]
    # a negative float has all its bits flipped, any other its sign bit alone
    negative = (words.view(np.int64) >> np.int64(63)).view(np.uint64)
    return [words ^ (negative | np.uint64(SIGN))]


def _join_fixed(fields: list[npt.NDArray[Any]]) -> pa.BinaryArray:
    rows = len(fields[0])
    joined = np.empty(rows, [(f"f{at}", field.dtype.newbyteorder(">")) for at, field in enumerate(fields)])
    for at, field in enumerate(fields):
        joined[f"f{at}"] = field
    bounds = np.arange(rows + 1, dtype=np.int32)
    bounds *= np.int32(joined.itemsize)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(joined)])


def _as_binary(array: pa.Array) -> pa.BinaryArray:
    if pa.types.is_binary(array.type):
        return array
    return array.view(pa.binary()) if pa.types.is_string(array.type) else array.cast(pa.binary())


def decode_keys(keys: pa.BinaryArray, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Undo `encode_keys`: one array per key column, holding canonical values.

    Raises:
        CheckpointError: the bytes are not keys of these types.
    """
    try:
        if len(types) == 1 and kind_of(types[0]) == "bytes":
            return [keys.cast(types[0])]
        bounds, padded = bounds_and_data(keys)
        position, ends = bounds[:-1].copy(), bounds[1:]
        columns = []
        for number, type_ in enumerate(types):
            last = number == len(types) - 1
            columns.append(_decode_column(type_, padded, position, ends, last))
        if not np.array_equal(position, ends):
            raise misfit(types)
        return columns
    except pa.ArrowInvalid as error:
        raise misfit(types) from error


def _decode_column(
    type_: pa.DataType,
    padded: npt.NDArray[np.uint8],
    position: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    last: bool,
) -> pa.Array:
    """Read one column at `position`, and move `position` behind it."""

    def read(dtype: str, width: int) -> npt.NDArray[Any]:
        if bool(np.any(position + width > ends)):
            raise pa.ArrowInvalid("key too short")
        values = words_at_any_byte(padded, dtype)[position].astype(dtype[1:])
        np.add(position, width, out=position)
        return values

    kind = kind_of(type_)
    if kind == "bytes":
        sizes = ends - position if last else read(">u4", 4).astype(np.int64)
        if bool(np.any(position + sizes > ends)):
            raise pa.ArrowInvalid("key too short")
        bounds = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=bounds[1:])
        source = np.repeat(position - bounds[:-1], sizes) + np.arange(int(bounds[-1]))
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(padded[source])]
        position += sizes
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers).cast(type_)
    words = read(">u8", 8)
    if kind == "decimal":
        pairs = np.empty((len(words), 2), np.uint64)
        pairs[:, 1] = words ^ np.uint64(SIGN)
        pairs[:, 0] = read(">u8", 8)
        return pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(pairs)])
    if kind == "uint":
        return pa.array(words).cast(type_)
    if kind == "float":
        flip = np.where(words >> np.uint64(63), np.uint64(SIGN), np.uint64(ALL_ONES))
        return pa.array((words ^ flip).view(np.float64).astype(type_.to_pandas_dtype()))
    return _from_ints((words ^ np.uint64(SIGN)).view(np.int64), type_)


def _from_ints(values: npt.NDArray[np.int64], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        scaled = values * 1000 if type_.unit == "ns" else values // MICROS_PER[type_.unit]
        return pa.array(scaled).view(type_)
    if pa.types.is_date32(type_):
        return pa.array(values).cast(pa.int32()).view(type_)
    return pa.array(values).cast(type_)
