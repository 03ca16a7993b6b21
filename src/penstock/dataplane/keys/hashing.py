"""The hash of a key, and the shard that a hash belongs to. Part of the format.

Column functions are vectorised and never run Python per row; `hash_key` and `shard_of` are their scalar twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dataplane.keys.canonical import (
    ALL_ONES,
    Words,
    bounds_and_data,
    canonical_of,
    chunks_of,
    decimal_words,
    words_at_any_byte,
    words_of,
)
from penstock.dataplane.keys.kinds import MAX_KEY_BYTES, Column, Kind, require_keys, too_long
from penstock.errors import DeclarationError

_GAMMA = 0x9E37_79B9_7F4A_7C15
_MIX_1 = 0xBF58_476D_1CE4_E5B9
_MIX_2 = 0x94D0_49BB_1331_11EB
_BYTES_SEED = 0x2545_F491_4F6C_DD1D
_TAIL_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
_BLOCK_ROWS = 1 << 15  # a block's words and scratch fit a core's second-level cache


def hash_keys(columns: Sequence[Column], names: Sequence[str], operator: str) -> Words:
    """Hash the key in every row; equal keys give equal hashes in every run and on every machine.

    One fixed-width column is hashed without collisions. Nothing is copied but the bytes of text columns.

    Raises:
        DeclarationError: a column's type cannot be a key.
        OperatorError: a key is null, or longer than `MAX_KEY_BYTES`.
    """
    hashes: Words | None = None
    kinds = require_keys(columns, names, operator)
    for column, name, kind in zip(columns, names, kinds, strict=True):
        own = np.empty(len(column), np.uint64)
        start = 0
        for array in chunks_of(column):
            _hash_array(array, kind, own[start : start + len(array)], name, operator)
            start += len(array)
        hashes = own if hashes is None else _combine(hashes, own)
    if hashes is None:
        raise DeclarationError(f"operator {operator!r} has no key column; name at least one in groupBy(...)")
    return hashes


def _hash_array(array: pa.Array, kind: Kind, out: Words, name: str, operator: str) -> None:
    if kind == "bytes":
        bounds, padded = bounds_and_data(array)
        longest = int(np.diff(bounds).max(initial=0))
        if longest > MAX_KEY_BYTES:
            raise too_long(longest, [name], operator)
        text = words_at_any_byte(padded, "<u8")
        for rows in _blocks(len(out)):
            _hash_text(text, bounds[rows.start : rows.stop + 1], out[rows])
    elif kind == "decimal":
        low, high = decimal_words(array)
        for rows in _blocks(len(out)):
            out[rows] = _bytes_seed(16)
            _absorb(out[rows], low[rows])
            _absorb(out[rows], high[rows])
            _finalise(out[rows])
    else:
        words = words_of(array)
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


def hash_key(values: Sequence[object], types: Sequence[pa.DataType] | None = None) -> int:
    """Scalar reference of `hash_keys`.

    Without `types` each value is taken as Arrow would infer it; give them for float32 and decimal, where
    a Python value alone does not say how the column holds it.
    """
    hash_: int | None = None
    for number, value in enumerate(values):
        canonical = canonical_of(types[number] if types is not None else pa.scalar(value).type)(value)
        own = _hash_bytes(canonical) if isinstance(canonical, bytes) else _mix(canonical + _GAMMA)
        hash_ = own if hash_ is None else _mix(hash_ * _GAMMA + own)
    if hash_ is None:
        raise DeclarationError("a key has at least one value")
    return hash_


def _mix(state: int) -> int:
    state &= ALL_ONES
    state = ((state ^ state >> 30) * _MIX_1) & ALL_ONES
    state = ((state ^ state >> 27) * _MIX_2) & ALL_ONES
    return state ^ state >> 31


def _bytes_seed(size: int) -> int:
    return (size * _GAMMA + _BYTES_SEED) & ALL_ONES


def _hash_bytes(data: bytes) -> int:
    state = _bytes_seed(len(data))
    for at in range(0, max(len(data), 1), 8):
        state = ((state ^ int.from_bytes(data[at : at + 8], "little")) * _MIX_1) & ALL_ONES
        state ^= state >> 32
    return _mix(state)
