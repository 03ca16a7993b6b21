"""The rows of `bench keyed-count`: a key, a value and the producer's stamp, the same for every engine.

Each row is a pure function of its number, so any range can be made anywhere, in any order, and replayed.
Rows come neither sorted nor sharded. No engine is imported and no clock is read here: stamps are passed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.workloads.mixing import GOLDEN, mix

KEYED_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("stamp", pa.int64(), nullable=False),
    ]
)
"""`stamp` is in microseconds; what it counts from is the caller's business."""

MAX_SKEWED_KEYS: Final = 1 << 16
VALUE_BITS: Final = 10

_CELL_BITS: Final = 18
_CHUNK_ROWS: Final = 1 << 15  # a chunk's arrays stay in the cache between the passes below
_WORD: Final = (1 << 64) - 1

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


def keyed_rows(
    offset: int,
    count: int,
    keys: int = 10_000,
    zipf: float = 0.5,
    seed: int = 0,
    stamps_us: int | I64 = 0,
) -> pa.RecordBatch:
    """Make rows `offset` to `offset + count`; the same arguments always give the same rows.

    Key `r` (from 0) is drawn with a probability proportional to `1 / (r + 1) ** zipf`; 0 means uniform.
    Skewed draws are exact to one part in 2^18, and are offered for up to `MAX_SKEWED_KEYS` keys.

    Args:
        stamps_us: one stamp for all rows, or one per row.

    Raises:
        ValueError: a negative range, no keys, or more keys than a skewed draw can tell apart.
    """
    if offset < 0 or count < 0 or keys < 1:
        raise ValueError(f"keyed rows need offset >= 0, count >= 0, keys >= 1, not {offset}, {count}, {keys}")
    key = np.empty(count, np.int64)
    value = np.empty(count, np.int64)
    for start, words in _chunks(offset, count, seed):
        end = start + len(words)
        key[start:end] = _draw_keys(words, keys, zipf)
        value[start:end] = words & np.uint64((1 << VALUE_BITS) - 1)
    stamp = np.full(count, stamps_us, np.int64) if isinstance(stamps_us, int) else stamps_us
    columns: list[Any] = [pa.array(key), pa.array(value), pa.array(stamp)]
    return pa.RecordBatch.from_arrays(columns, schema=KEYED_SCHEMA)


def row_words(offset: int, count: int, seed: int = 0) -> U64:
    """Return 64 random bits for each row of a range, a pure function of its number and the seed."""
    words = np.empty(count, np.uint64)
    for start, mixed in _chunks(offset, count, seed):
        words[start : start + len(mixed)] = mixed
    return words


def _chunks(offset: int, count: int, seed: int) -> Iterator[tuple[int, U64]]:
    """Yield (position in the range, mixed words of the row numbers from there on)."""
    ramp = np.arange(min(count, _CHUNK_ROWS), dtype=np.uint64) * np.uint64(GOLDEN)
    # The seed moves the sequence by a mixed distance, so that seeds 0 and 1 are not the same rows one apart.
    shift = _mix_word(seed)
    for start in range(0, count, _CHUNK_ROWS):
        base = ((offset + start + 1) * GOLDEN + shift) & _WORD
        yield start, mix(ramp[: count - start] + np.uint64(base))


def _mix_word(number: int) -> int:
    return int(mix(np.array([number & _WORD], np.uint64))[0])


def _draw_keys(words: U64, keys: int, zipf: float) -> U64 | npt.NDArray[np.uint16]:
    # The high bits choose the key and the low bits the value, so the two are independent.
    if zipf == 0.0:
        return ((words >> np.uint64(32)) * np.uint64(keys)) >> np.uint64(32)
    cells = (words >> np.uint64(64 - _CELL_BITS)).view(np.int64)
    return _inverse_cdf(keys, zipf).take(cells, mode="clip")  # in range by construction; "clip" skips a pass


@lru_cache(maxsize=4)
def _inverse_cdf(keys: int, zipf: float) -> npt.NDArray[np.uint16]:
    """Tabulate the inverse of the cumulative distribution at the middle of 2^18 equal cells."""
    if keys > MAX_SKEWED_KEYS:
        raise ValueError(f"a skewed draw tells at most {MAX_SKEWED_KEYS} keys apart, not {keys}; use zipf=0")
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -zipf
    cdf = np.cumsum(weights) / weights.sum()
    middles = (np.arange(1 << _CELL_BITS) + 0.5) / (1 << _CELL_BITS)
    return np.minimum(np.searchsorted(cdf, middles), keys - 1).astype(np.uint16)
