"""Keys: how they compare, which shard they belong to, and the bytes under which their state is stored.

Owns canonical key values (NaN equals NaN, -0.0 equals 0.0, time stamps in microseconds UTC: as Spark groups),
the key hash and the key bytes. All three are part of the format: what they give for a value never changes
within `FORMAT`. Column functions are vectorised and never run Python per row; `KeyCodec` and `hash_key` are
their scalar twins.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator as op
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CheckpointError, DeclarationError, OperatorError

FORMAT = 1
MAX_KEY_BYTES = 440
"""LMDB's limit for a key is 511 bytes; the rest is left for state names, list indexes and map keys."""

Column: TypeAlias = "pa.Array | pa.ChunkedArray"
Words: TypeAlias = npt.NDArray[np.uint64]
Kind = Literal["int", "uint", "float", "decimal", "bytes"]

_ALL_ONES = 0xFFFF_FFFF_FFFF_FFFF
_SIGN = 1 << 63
_GAMMA = 0x9E37_79B9_7F4A_7C15
_MIX_1 = 0xBF58_476D_1CE4_E5B9
_MIX_2 = 0x94D0_49BB_1331_11EB
_BYTES_SEED = 0x2545_F491_4F6C_DD1D
_NAN_BITS = 0x7FF8_0000_0000_0000
_TAIL_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
_BLOCK_ROWS = 1 << 15  # a block's words and scratch fit a core's second-level cache
_MICROS_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_NAIVE = dt.datetime(1970, 1, 1)
_EXACT = decimal.Context(prec=80)
_MISFITS = (TypeError, ValueError, AttributeError, ArithmeticError, struct.error)
_SINGLE = struct.Struct(">f")
_DOUBLE = struct.Struct(">d")
_WORD = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_pack_word = _WORD.pack
_unpack_word = _WORD.unpack_from


# -------------------- what may be a key


def kind_of(type_: pa.DataType) -> Kind | None:
    """Say how a column of this type is keyed, or None when it cannot be a key."""
    is_ = pa.types
    whole = is_.is_boolean(type_) or is_.is_signed_integer(type_)
    if whole or is_.is_date32(type_) or is_.is_timestamp(type_):
        return "int"
    if is_.is_unsigned_integer(type_):
        return "uint"
    if is_.is_float32(type_) or is_.is_float64(type_):
        return "float"
    if is_.is_decimal128(type_):
        return "decimal"
    text = is_.is_string(type_) or is_.is_large_string(type_)
    return "bytes" if text or is_.is_binary(type_) or is_.is_large_binary(type_) else None


def key_types(schema: pa.Schema, names: Sequence[str], operator: str) -> list[pa.DataType]:
    """Return the types of an operator's key columns.

    Raises:
        DeclarationError: no key column is named, one is not in the schema, or its type cannot be a key.
    """
    if not names:
        raise DeclarationError(f"operator {operator!r} has no key column; name at least one in groupBy(...)")
    for name in names:
        if schema.get_field_index(name) < 0:
            known = ", ".join(repr(column) for column in schema.names)
            raise DeclarationError(
                f"operator {operator!r}: key column {name!r} is not among its input's columns {known}"
            )
    types = [schema.field(name).type for name in names]
    _require_kinds(types, names, operator)
    return types


def _require_kinds(types: Sequence[pa.DataType], names: Sequence[str], operator: str) -> list[Kind]:
    kinds: list[Kind] = []
    for type_, name in zip(types, names, strict=True):
        kind = kind_of(type_)
        if kind is None:
            raise DeclarationError(
                f"operator {operator!r}: column {name!r} of type {type_} is an unhashable key; group by a "
                "boolean, number, date, timestamp, string, binary or decimal column, or a field of it"
            )
        kinds.append(kind)
    return kinds


def _require_keys(columns: Sequence[Column], names: Sequence[str], operator: str) -> list[Kind]:
    kinds = _require_kinds([column.type for column in columns], names, operator)
    for column, name in zip(columns, names, strict=True):
        if column.null_count:
            raise OperatorError(
                f"operator {operator!r}: key column {name!r} holds {column.null_count} null(s), which are "
                f'no keys; filter them out before groupBy, e.g. .where("`{name}` IS NOT NULL")'
            )
        if pa.types.is_timestamp(column.type) and column.type.unit in ("s", "ms"):
            _require_micros(column, name, operator)
    return kinds


def _require_micros(column: Column, name: str, operator: str) -> None:
    try:
        column.cast(pa.timestamp("us", column.type.tz))
    except pa.ArrowInvalid as error:
        raise OperatorError(
            f"operator {operator!r}: key column {name!r} of type {column.type} has a time outside the range "
            "of timestamps in microseconds; filter it out before groupBy"
        ) from error


def _too_long(size: int, names: Sequence[str], operator: str) -> OperatorError:
    columns = ", ".join(repr(name) for name in names)
    return OperatorError(
        f"operator {operator!r}: a key of column(s) {columns} takes {size} bytes, over the limit of "
        f"{MAX_KEY_BYTES}; group by a shorter column, or by a hash of it"
    )


# -------------------- canonical columns


def _chunks(column: Column) -> list[pa.Array]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _words(array: pa.Array) -> Words:
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
    factor = _MICROS_PER[array.type.unit]
    return stamps * factor if factor > 1 else stamps


def _decimal_words(array: pa.Array) -> tuple[Words, Words]:
    """Return the low and high words of the unscaled 128-bit integers."""
    if not len(array):
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    pairs = np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), 16 * array.offset).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _bounds_and_data(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
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


def _words_at_any_byte(padded: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    return np.ndarray((len(padded) - 7,), dtype, buffer=padded, strides=(1,))


# -------------------- hash and shard


def hash_keys(columns: Sequence[Column], names: Sequence[str], operator: str) -> Words:
    """Hash the key in every row; equal keys give equal hashes in every run and on every machine.

    One fixed-width column is hashed without collisions. Nothing is copied but the bytes of text columns.

    Raises:
        DeclarationError: a column's type cannot be a key.
        OperatorError: a key is null, or longer than `MAX_KEY_BYTES`.
    """
    hashes: Words | None = None
    kinds = _require_keys(columns, names, operator)
    for column, name, kind in zip(columns, names, kinds, strict=True):
        own = np.empty(len(column), np.uint64)
        start = 0
        for array in _chunks(column):
            _hash_array(array, kind, own[start : start + len(array)], name, operator)
            start += len(array)
        hashes = own if hashes is None else _combine(hashes, own)
    if hashes is None:
        raise DeclarationError(f"operator {operator!r} has no key column; name at least one in groupBy(...)")
    return hashes


def _hash_array(array: pa.Array, kind: Kind, out: Words, name: str, operator: str) -> None:
    if kind == "bytes":
        bounds, padded = _bounds_and_data(array)
        longest = int(np.diff(bounds).max(initial=0))
        if longest > MAX_KEY_BYTES:
            raise _too_long(longest, [name], operator)
        text = _words_at_any_byte(padded, "<u8")
        for rows in _blocks(len(out)):
            _hash_text(text, bounds[rows.start : rows.stop + 1], out[rows])
    elif kind == "decimal":
        low, high = _decimal_words(array)
        for rows in _blocks(len(out)):
            out[rows] = _bytes_seed(16)
            _absorb(out[rows], low[rows])
            _absorb(out[rows], high[rows])
            _finalise(out[rows])
    else:
        words = _words(array)
        for rows in _blocks(len(out)):
            np.add(words[rows], np.uint64(_GAMMA), out=out[rows])
            _finalise(out[rows])


def _hash_text(text: npt.NDArray[Any], bounds: npt.NDArray[np.int64], out: Words) -> None:
    """Absorb each row's bytes as little-endian words; a step works only on the rows that reach that far."""
    starts, sizes = bounds[:-1], np.diff(bounds)
    shortest, longest = int(sizes.min(initial=1 << 40)), int(sizes.max(initial=0))
    np.multiply(sizes.view(np.uint64), np.uint64(_GAMMA), out=out)
    out += np.uint64(_BYTES_SEED)
    for at in range(0, max(longest, 1), 8):
        everyone = at == 0 or shortest > at
        rows = slice(None) if everyone else np.flatnonzero(sizes > at)
        words = text[starts[rows] + at]
        if shortest < at + 8:
            words &= _TAIL_MASKS[np.minimum(sizes[rows] - at, 8)]
        state = out[rows]  # a view when everyone takes part, else a copy
        _absorb(state, words)
        if not everyone:
            out[rows] = state
    _finalise(out)


def _blocks(rows: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK_ROWS, rows)) for start in range(0, rows, _BLOCK_ROWS)]


def _absorb(state: Words, words: Words) -> None:
    state ^= words
    state *= np.uint64(_MIX_1)
    state ^= state >> np.uint64(32)


def _finalise(state: Words) -> None:
    """Mix in place; invertible, every input bit reaches every output bit."""
    scratch = state >> np.uint64(30)
    state ^= scratch
    state *= np.uint64(_MIX_1)
    np.right_shift(state, np.uint64(27), out=scratch)
    state ^= scratch
    state *= np.uint64(_MIX_2)
    np.right_shift(state, np.uint64(31), out=scratch)
    state ^= scratch


def _combine(hashes: Words, own: Words) -> Words:
    for rows in _blocks(len(hashes)):
        block = hashes[rows]
        block *= np.uint64(_GAMMA)
        block += own[rows]
        _finalise(block)
    return hashes


def shards_of(hashes: Words, shards: int) -> npt.NDArray[np.uint16]:
    """Map hashes to shards 0 .. shards - 1 by their top 16 bits."""
    if not 1 <= shards <= 1 << 16:
        raise DeclarationError(f"an operator has between 1 and 65536 shards, not {shards}")
    top = (hashes >> np.uint64(48)).astype(np.uint32)
    top *= np.uint32(shards) if shards < 1 << 16 else np.uint32(1 << 16)
    top >>= np.uint32(16)
    return top.astype(np.uint16)


def shard_of(hash_: int, shards: int) -> int:
    """Scalar twin of `shards_of`."""
    return ((hash_ >> 48) * shards) >> 16


def group_rows_by_shard(
    shards: npt.NDArray[np.uint16], n_shards: int
) -> tuple[npt.NDArray[np.intp] | None, npt.NDArray[np.uint32]]:
    """Return the permutation that stable-sorts rows by shard (None when sorted) and rows per shard."""
    counts = np.bincount(shards, minlength=n_shards).astype(np.uint32)
    if bool(np.all(shards[1:] >= shards[:-1])):
        return None, counts
    return np.argsort(shards, kind="stable"), counts  # a radix sort for 16-bit values


# -------------------- key bytes


def encode_keys(columns: Sequence[Column], names: Sequence[str], operator: str) -> pa.BinaryArray:
    """Encode the key in every row: bytes are equal exactly when keys are, and sort as numbers and dates do.

    Fixed-width values take 8 bytes big-endian (sign bit flipped), decimals 16; text is raw when last,
    and else behind a 4-byte big-endian length.

    Raises:
        DeclarationError: a column's type cannot be a key.
        OperatorError: a key is null, or its encoding is longer than `MAX_KEY_BYTES`.
    """
    kinds = _require_keys(columns, names, operator)
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
        raise _too_long(longest, names, operator)
    return keys


def _longest(keys: pa.BinaryArray) -> int:
    return pc.max(pc.binary_length(keys)).as_py() or 0


def _encode_fixed(array: pa.Array, kind: Kind) -> list[Words]:
    if kind == "decimal":
        low, high = _decimal_words(array)
        return [high ^ np.uint64(_SIGN), low]
    words = _words(array)
    if kind == "uint":
        return [words]
    if kind == "int":
        return [words ^ np.uint64(_SIGN)]
    # a negative float has all its bits flipped, any other its sign bit alone
    negative = (words.view(np.int64) >> np.int64(63)).view(np.uint64)
    return [words ^ (negative | np.uint64(_SIGN))]


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
        bounds, padded = _bounds_and_data(keys)
        position, ends = bounds[:-1].copy(), bounds[1:]
        columns = []
        for number, type_ in enumerate(types):
            last = number == len(types) - 1
            columns.append(_decode_column(type_, padded, position, ends, last))
        if not np.array_equal(position, ends):
            raise _misfit(types)
        return columns
    except pa.ArrowInvalid as error:
        raise _misfit(types) from error


def _misfit(types: Sequence[pa.DataType]) -> CheckpointError:
    names = ", ".join(str(type_) for type_ in types)
    return CheckpointError(
        f"stored key bytes are no key of ({names}); was the checkpoint written by this topology?"
    )


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
        values = _words_at_any_byte(padded, dtype)[position].astype(dtype[1:])
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
        pairs[:, 1] = words ^ np.uint64(_SIGN)
        pairs[:, 0] = read(">u8", 8)
        return pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(pairs)])
    if kind == "uint":
        return pa.array(words).cast(type_)
    if kind == "float":
        flip = np.where(words >> np.uint64(63), np.uint64(_SIGN), np.uint64(_ALL_ONES))
        return pa.array((words ^ flip).view(np.float64).astype(type_.to_pandas_dtype()))
    return _from_ints((words ^ np.uint64(_SIGN)).view(np.int64), type_)


def _from_ints(values: npt.NDArray[np.int64], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        scaled = values * 1000 if type_.unit == "ns" else values // _MICROS_PER[type_.unit]
        return pa.array(scaled).view(type_)
    if pa.types.is_date32(type_):
        return pa.array(values).cast(pa.int32()).view(type_)
    return pa.array(values).cast(type_)


# -------------------- one key at a time


def hash_key(values: Sequence[object], types: Sequence[pa.DataType] | None = None) -> int:
    """Scalar reference of `hash_keys`.

    Without `types` each value is taken as Arrow would infer it; give them for float32 and decimal, where
    a Python value alone does not say how the column holds it.
    """
    hash_: int | None = None
    for number, value in enumerate(values):
        canonical = _canonical(types[number] if types is not None else pa.scalar(value).type)(value)
        own = _hash_bytes(canonical) if isinstance(canonical, bytes) else _mix(canonical + _GAMMA)
        hash_ = own if hash_ is None else _mix(hash_ * _GAMMA + own)
    if hash_ is None:
        raise DeclarationError("a key has at least one value")
    return hash_


def _mix(state: int) -> int:
    state &= _ALL_ONES
    state = ((state ^ state >> 30) * _MIX_1) & _ALL_ONES
    state = ((state ^ state >> 27) * _MIX_2) & _ALL_ONES
    return state ^ state >> 31


def _bytes_seed(size: int) -> int:
    return (size * _GAMMA + _BYTES_SEED) & _ALL_ONES


def _hash_bytes(data: bytes) -> int:
    state = _bytes_seed(len(data))
    for at in range(0, max(len(data), 1), 8):
        state = ((state ^ int.from_bytes(data[at : at + 8], "little")) * _MIX_1) & _ALL_ONES
        state ^= state >> 32
    return _mix(state)


def _float_bits(value: float) -> int:
    bits: int = _WORD.unpack(_DOUBLE.pack(value + 0.0))[0]
    return _NAN_BITS if value != value else bits


def _micros_of(value: dt.datetime) -> int:
    delta = value - (_EPOCH_NAIVE if value.tzinfo is None else _EPOCH_UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _unscaled(value: decimal.Decimal | int, scale: int) -> int:
    exact = _EXACT.scaleb(decimal.Decimal(value), scale)
    whole = int(exact)
    if whole != exact:
        raise ValueError(f"{value} has more than {scale} decimals")
    return whole


def _text_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _canonical(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return the function from a Python value to its word, or to its bytes (decimals: 16, little-endian)."""
    kind = kind_of(type_)
    if kind == "bytes":
        return _text_bytes
    if kind == "decimal":
        return lambda value: _unscaled(value, type_.scale).to_bytes(16, "little", signed=True)
    if kind == "float":
        single = pa.types.is_float32(type_)
        return lambda value: _float_bits(_SINGLE.unpack(_SINGLE.pack(value))[0] if single else float(value))
    if pa.types.is_date32(type_):
        return lambda value: value.toordinal() - _EPOCH_DAY
    return _micros_of if pa.types.is_timestamp(type_) else op.index


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
        kinds = _require_kinds(self.types, self.names, operator)
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
            expected = ", ".join(f"{n} {t}" for n, t in zip(self.names, self.types, strict=True))
            raise OperatorError(
                f"operator {self.operator!r}: {tuple(values)!r} is no key of ({expected}): {error}"
            ) from error
        if len(key) > MAX_KEY_BYTES:
            raise _too_long(len(key), self.names, self.operator)
        return key

    def decode(self, key: bytes) -> tuple[Any, ...]:
        """Return the canonical values of a key: time stamps with UTC where the column has a zone."""
        try:
            at, values = 0, []
            for decode in self._decoders:
                value, at = decode(key, at)
                values.append(value)
        except (ValueError, struct.error, OverflowError) as error:
            raise _misfit(self.types) from error
        if at != len(key):
            raise _misfit(self.types)
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
        return lambda value: (_unscaled(value, type_.scale) + (1 << 127)).to_bytes(16, "big")
    if kind == "uint":
        return _pack_word
    canonical = _canonical(type_)
    if kind == "float":
        return lambda value: _pack_word((bits := canonical(value)) ^ (_ALL_ONES if bits >> 63 else _SIGN))
    if canonical is op.index:
        return lambda value: _pack_word(op.index(value) + _SIGN)
    return lambda value: _pack_word(canonical(value) + _SIGN)


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
    return _EXACT.scaleb(decimal.Decimal(unscaled), -scale)


def _value_of_word(type_: pa.DataType, kind: Kind) -> Callable[[int], Any]:
    if kind == "uint":
        return int
    if kind == "float":
        return lambda word: _DOUBLE.unpack(_pack_word(word ^ (_SIGN if word >> 63 else _ALL_ONES)))[0]
    if pa.types.is_boolean(type_):
        return lambda word: word != _SIGN
    if pa.types.is_date32(type_):
        return lambda word: dt.date.fromordinal(word - _SIGN + _EPOCH_DAY)
    if pa.types.is_timestamp(type_):
        start = _EPOCH_NAIVE if type_.tz is None else _EPOCH_UTC
        return lambda word: start + dt.timedelta(microseconds=word - _SIGN)
    return lambda word: word - _SIGN
