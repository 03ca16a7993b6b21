"""Rows whose key frequencies are shuffled while they flow (Elasticutor 5.1), and what shuffling leaves to win.

Each row is a pure function of its number: the shuffles are counted in rows, not by a clock, so that any range can be made
anywhere and replayed. Also the ceiling that any placement of shards has over one by hashing. No engine is run here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dataplane.keys.hashing import hash_keys, shards_of
from penstock.workloads.keyed import row_words

SCHEMA: Final = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), pa.field("payload", pa.binary(), nullable=False)]
)
DDL: Final = "key long not null, payload binary not null"

_CELL_BITS: Final = 18
_LONG: Final = pa.int64()

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dynamics:
    """A native source of keyed rows; `function(offset, count)` of `penstock.generate`.

    With `hot_keys`, these hold `hot_ratio` of all rows in equal shares and the others hold the rest; else the key of rank r
    (from 0) has a frequency proportional to `1 / (r + 1) ** zipf`. Which key has which rank is a random permutation, and
    another one every `rows_per_shuffle` rows; 0 means never.
    """

    keys: int = 10_000
    zipf: float = 0.5
    hot_keys: int = 0
    hot_ratio: float = 0.8
    rows_per_shuffle: int = 0
    payload_bytes: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.keys <= 1 << 16 and 0 <= self.hot_keys < self.keys and self.rows_per_shuffle >= 0):
            raise ValueError(f"dynamics need 1 to {1 << 16} keys, fewer of them hot, not {self}")

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        """Make rows `offset` to `offset + count`."""
        ranks = self._ranks(offset, count)
        key = np.empty(count, np.int64)
        for shuffle, start, end in self._stretches(offset, count):
            key[start:end] = self.key_of_rank(shuffle)[ranks[start:end]]
        columns: list[Any] = [pa.array(key), _payloads(count, self.payload_bytes)]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def shuffling(self, per_minute: float, rate_per_s: float) -> Dynamics:
        """Return the same with so many shuffles a minute (ω) for rows that pass at this rate."""
        rows = round(60.0 * rate_per_s / per_minute) if per_minute > 0 else 0
        return replace(self, rows_per_shuffle=max(rows, 1) if per_minute > 0 else 0)

    def shuffle_at(self, offset: int) -> int:
        """Return the number of the permutation that a row is made under."""
        return offset // self.rows_per_shuffle if self.rows_per_shuffle else 0

    def key_of_rank(self, shuffle: int) -> I64:
        """Return the permutation of this number: rank -> key."""
        return _permutation(self.keys, self.seed, shuffle)

    def by_rank(self) -> F64:
        """Return the frequency of each rank; they add up to 1."""
        return _by_rank(self.keys, self.zipf, self.hot_keys, self.hot_ratio)

    def by_key(self, shuffle: int) -> F64:
        """Return the frequency of each key under one permutation."""
        found = np.empty(self.keys)
        found[self.key_of_rank(shuffle)] = self.by_rank()
        return found

    def _ranks(self, offset: int, count: int) -> npt.NDArray[np.uint16]:
        cells = (row_words(offset, count, self.seed) >> np.uint64(64 - _CELL_BITS)).view(np.int64)
        return _rank_of_cell(self.keys, self.zipf, self.hot_keys, self.hot_ratio).take(cells, mode="clip")

    def _stretches(self, offset: int, count: int) -> Iterable[tuple[int, int, int]]:
        """Yield (number of the permutation, first row, end) of the stretches of a range, counted from its start."""
        if not self.rows_per_shuffle:
            yield 0, 0, count
            return
        start = 0
        while start < count:
            shuffle = self.shuffle_at(offset + start)
            end = min(count, (shuffle + 1) * self.rows_per_shuffle - offset)
            yield shuffle, start, end
            start = end


def shard_of_keys(keys: int, shards: int, kind: pa.DataType = _LONG) -> npt.NDArray[np.int64]:
    """Return the shard that each key from 0 on is hashed to, in a column of some kind of integers."""
    column = pa.array(np.arange(keys), kind)
    return shards_of(hash_keys([column], ["key"], "dynamics"), shards).astype(np.int64)


def derive_task_loads(by_key: F64, shard_of: I64, task_of: I64) -> F64:
    """Return the share of all load that each task has under a placement of shards."""
    return np.bincount(task_of[shard_of], by_key, int(task_of.max()) + 1).astype(np.float64)


def derive_ceiling(by_key: F64, shard_of: I64, task_of: I64) -> float:
    """Return how many times the throughput of a placement by hashing any other can have at most.

    In words: the largest task's load over the larger of the mean task's and the hottest key's, since neither can be
    undercut: a key runs on one task. In symbols: max_j w_j / max(1/k, max_i f_i).
    """
    loads = derive_task_loads(by_key, shard_of, task_of)
    return float(loads.max() / max(loads.sum() / len(loads), float(by_key.max())))


def mean_ceiling(source: Dynamics, shuffles: Iterable[int], shard_of: I64, task_of: I64) -> float:
    """Return the ceiling over some permutations that hold equally many rows each: their times add up, so it is the
    plain mean of theirs."""
    found = [derive_ceiling(source.by_key(one), shard_of, task_of) for one in shuffles]
    return float(np.mean(found))


@lru_cache(maxsize=32)
def _permutation(keys: int, seed: int, shuffle: int) -> I64:
    return np.random.default_rng((seed, shuffle)).permutation(keys).astype(np.int64)


@lru_cache(maxsize=8)
def _by_rank(keys: int, zipf: float, hot_keys: int, hot_ratio: float) -> F64:
    if hot_keys:
        hot = np.full(hot_keys, hot_ratio / hot_keys)
        return np.concatenate([hot, np.full(keys - hot_keys, (1 - hot_ratio) / (keys - hot_keys))])
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -zipf
    found: F64 = weights / weights.sum()
    return found


@lru_cache(maxsize=8)
def _rank_of_cell(keys: int, zipf: float, hot_keys: int, hot_ratio: float) -> npt.NDArray[np.uint16]:
    """Tabulate the inverse of the cumulative distribution at the middle of 2^18 equal cells."""
    cdf = np.cumsum(_by_rank(keys, zipf, hot_keys, hot_ratio))
    middles = (np.arange(1 << _CELL_BITS) + 0.5) / (1 << _CELL_BITS)
    return np.minimum(np.searchsorted(cdf, middles), keys - 1).astype(np.uint16)


def _payloads(count: int, size: int) -> pa.Array:
    """Return so many payloads of this size, all zero: their bytes are moved, never looked at."""
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    data = pa.py_buffer(bytes(count * size))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])
