"""The bytes and hashes of the entries of columnar state; pure, and no Python per entry.

An entry is one key's row of 64-bit words: [key hash, presence bits, state words ...]. Its entry key is
0x01, the length of the key bytes (2 bytes, big-endian) and the key bytes; its value is the state words (8
bytes each, little-endian) and the presence bits (little-endian bytes). In LMDB a value stands behind 8
bytes of check: lane 0 of its entry hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.state.protocol import U64

HASH: Final = 0
BITS: Final = 1
WORDS: Final = 2
"""Columns of a row: key hash, presence bits, first state word."""

MAX_BITS: Final = 32
CHECK_BYTES: Final = 8
PREFIX_BYTES: Final = 3

_ALL_ONES: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E37_79B9_7F4A_7C15
_MIX_1: Final = 0xBF58_476D_1CE4_E5B9
_MIX_2: Final = 0x94D0_49BB_1331_11EB
_LANE_SEEDS: Final = (0x6A09_E667_F3BC_C908, 0xBB67_AE85_84CA_A73B)


@dataclass(frozen=True)
class EntryFormat:
    """The shape of a value: how many state words and presence bits a key has."""

    words: int
    bits: int

    @property
    def bit_bytes(self) -> int:
        return max(1, -(-self.bits // 8))

    @property
    def value_bytes(self) -> int:
        return 8 * self.words + self.bit_bytes


# ---------------------------------------------------------------------------------------------- entry hash


def entry_hashes(rows: U64) -> U64:
    """Hash rows into two lanes, shape (n, 2): each lane a weighted sum of the row's words, then mixed.

    lane(row) = mix(sum_i row[i] * weight(lane, i)), all modulo 2**64; see `entry_hash`, the scalar reference.
    """
    lanes: U64 = np.matmul(rows, _weights(rows.shape[1]))
    scratch = lanes >> np.uint64(32)
    lanes ^= scratch
    lanes *= np.uint64(_MIX_1)
    np.right_shift(lanes, np.uint64(29), out=scratch)
    lanes ^= scratch
    lanes *= np.uint64(_MIX_2)
    np.right_shift(lanes, np.uint64(32), out=scratch)
    lanes ^= scratch
    return lanes


def entry_hash(row: Sequence[int]) -> tuple[int, int]:
    """Scalar reference of `entry_hashes`, for one row [key hash, bits, words ...]."""
    lanes = []
    for lane in (0, 1):
        state = sum(word * _weight(lane, at) for at, word in enumerate(row)) & _ALL_ONES
        state = ((state ^ state >> 32) * _MIX_1) & _ALL_ONES
        state = ((state ^ state >> 29) * _MIX_2) & _ALL_ONES
        lanes.append(state ^ state >> 32)
    return lanes[0], lanes[1]


def _weight(lane: int, at: int) -> int:
    """An odd constant per lane and position: the splitmix64 sequence from the lane's seed."""
    state = (_LANE_SEEDS[lane] + (at + 1) * _GAMMA) & _ALL_ONES
    state = ((state ^ state >> 30) * _MIX_1) & _ALL_ONES
    state = ((state ^ state >> 27) * _MIX_2) & _ALL_ONES
    return (state ^ state >> 31) | 1


@lru_cache(maxsize=64)
def _weights(width: int) -> U64:
    return np.array([[_weight(lane, at) for lane in (0, 1)] for at in range(width)], np.uint64)


# ---------------------------------------------------------------------------------------------- entry keys


def entry_keys(keys: pa.BinaryArray, key_bytes: int | None) -> pa.BinaryArray:
    """Put the prefix before every key; `key_bytes` is the length of all keys where it is fixed."""
    if key_bytes is not None:
        joined = np.empty((len(keys), PREFIX_BYTES + key_bytes), np.uint8)
        joined[:, :PREFIX_BYTES] = (1, key_bytes >> 8, key_bytes & 0xFF)
        joined[:, PREFIX_BYTES:] = binary_matrix(keys, key_bytes)
        return fixed_binary(joined)
    prefix = np.ones((len(keys), PREFIX_BYTES), np.uint8)
    prefix[:, 1:] = binary_sizes(keys).astype(">u2").view(np.uint8).reshape(-1, 2)
    return pc.binary_join_element_wise(fixed_binary(prefix), keys, pa.scalar(b"", pa.binary()))


def strip_entry_keys(entries: pa.BinaryArray) -> pa.BinaryArray | None:
    """Take the prefix off, or return None when an entry key is not one of columnar state."""
    bounds, data = binary_bounds(entries), binary_bytes(entries)
    sizes = np.diff(bounds)
    if entries.null_count or bool((sizes < PREFIX_BYTES).any()):
        return None
    starts = bounds[:-1] - bounds[0]
    lengths = data[starts + 1].astype(np.int32) << 8 | data[starts + 2]
    if bool((data[starts] != 1).any()) or bool((lengths != sizes - PREFIX_BYTES).any()):
        return None
    kept = np.ones(len(data), np.bool_)
    for at in range(PREFIX_BYTES):
        kept[starts + at] = False
    ends = bounds - bounds[0] - PREFIX_BYTES * np.arange(len(bounds), dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data[kept])]
    return pa.Array.from_buffers(pa.binary(), len(entries), buffers)


# ---------------------------------------------------------------------------------------------- values


def pack_values(rows: U64, form: EntryFormat, checks: U64 | None = None) -> pa.BinaryArray:
    """Pack state words and presence bits of rows, behind the given checks if any."""
    start = 0 if checks is None else CHECK_BYTES
    packed = np.empty((len(rows), start + form.value_bytes), np.uint8)
    if checks is not None:
        packed[:, :start] = _little_endian(checks.reshape(-1, 1))
    if form.words:
        packed[:, start : start + 8 * form.words] = _little_endian(rows[:, WORDS:])
    packed[:, start + 8 * form.words :] = _little_endian(rows[:, BITS : BITS + 1])[:, : form.bit_bytes]
    return fixed_binary(packed)


def unpack_values(
    values: pa.BinaryArray, hashes: U64, form: EntryFormat, checked: bool
) -> tuple[U64, U64] | None:
    """Undo `pack_values`: rows, and their checks if any; None when a value has another shape."""
    start = CHECK_BYTES if checked else 0
    size = start + form.value_bytes
    if values.null_count or bool((binary_sizes(values) != size).any()):
        return None
    packed = binary_matrix(values, size)
    rows = np.zeros((len(values), WORDS + form.words), np.uint64)
    rows[:, HASH] = hashes
    rows[:, WORDS:] = _words_of(packed[:, start : start + 8 * form.words])
    bits = np.zeros((len(values), 8), np.uint8)
    bits[:, : form.bit_bytes] = packed[:, start + 8 * form.words :]
    rows[:, BITS] = _words_of(bits)[:, 0]
    if form.bits < 64 and bool((rows[:, BITS] >> np.uint64(form.bits)).any()):
        return None
    return rows, _words_of(packed[:, :start]).reshape(-1)


def _little_endian(words: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(words).astype("<u8", copy=False).view(np.uint8)


def _words_of(packed: npt.NDArray[np.uint8]) -> U64:
    return np.ascontiguousarray(packed).view("<u8").astype(np.uint64, copy=False)


# ---------------------------------------------------------------------------------------------- binary arrays


def fixed_binary(matrix: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Return one binary value per row of a contiguous byte matrix, without a copy."""
    count, size = matrix.shape
    bounds = np.arange(count + 1, dtype=np.int32)
    bounds *= np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(matrix)])


def binary_bounds(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Return the n + 1 offsets of a binary array (its own memory)."""
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)


def binary_sizes(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Return the length of each value."""
    return np.diff(binary_bounds(values))


def binary_bytes(values: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values one after another (its own memory)."""
    bounds = binary_bounds(values)
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    return np.frombuffer(values.buffers()[2], np.uint8, size, first) if size else np.empty(0, np.uint8)


def binary_matrix(values: pa.BinaryArray, size: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of values that all have `size` bytes, one row each."""
    return binary_bytes(values).reshape(len(values), size)
