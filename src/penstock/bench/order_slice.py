"""A stretch of the order stream, compressed in time and rate: rows that can be sent, and counts that can be simulated.

Each live second stands for several of the day, at the mean of their rates, scaled to fewer tasks; which shard an order is
for is drawn from the day's own rates, so that bursts, drift and the opening stay what they are. A pure function of its
fields: the same rows live and simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.workloads import order_stream
from penstock.workloads.dynamics import SCHEMA, shard_of_keys

I64 = npt.NDArray[np.int64]

SHARDS: Final = order_stream.SHARDS
COMPRESSED: Final = 4
"""Seconds of the day in a second."""
SCALE: Final = 0.5
"""Share of the day's rate."""
MAX_TASKS: Final = round(order_stream.MAX_TASKS * SCALE)
SERVICE_PER_S: Final = order_stream.SERVICE_PER_S
BEFORE_S: Final = 30
"""Seconds before the opening of the second session."""
KEYS: Final = 2_048
WARM_PER_S: Final = 100


@dataclass(frozen=True)
class OrderSlice:
    """So many seconds around an opening, after some at a low and even rate; `function(offset, count)` of a source."""

    seconds: int
    warm_s: int
    seed: int = order_stream.SEEDS[0]
    payload_bytes: int = 16

    @cached_property
    def counts(self) -> I64:
        """[second, shard]: orders, the seconds to warm up first."""
        return _counts(self.seconds, self.warm_s, self.seed)

    @cached_property
    def starts(self) -> I64:
        """Number of the first order of each second, and of the one after the last."""
        return np.concatenate(([0], np.cumsum(self.counts.sum(axis=1))))

    def steps(self) -> list[tuple[float, float]]:
        """Return the rate of a native source, second by second; nothing comes at the end."""
        return [*((1.0, float(rows)) for rows in self.counts.sum(axis=1)), (0.0, 0.0)]

    def shards_of(self, second: int) -> I64:
        """Return the shard of each order of a second, in their order."""
        found = np.repeat(np.arange(SHARDS), self.counts[second])
        rng = np.random.default_rng([0x51C3, self.seed, second])
        return rng.permutation(found)

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        """Make orders `offset` to `offset + count`."""
        first = int(np.searchsorted(self.starts, offset, "right")) - 1
        last = int(np.searchsorted(self.starts, offset + count, "left"))
        shards = np.concatenate([self.shards_of(second) for second in range(first, last)])
        shards = shards[offset - int(self.starts[first]) :][:count]
        columns: list[Any] = [
            pa.array(_key_of(shards, np.arange(offset, offset + count))),
            pa.array([bytes(self.payload_bytes)] * count, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _counts(seconds: int, warm_s: int, seed: int) -> I64:
    day = order_stream.make_order_day(seed)
    start = order_stream.SESSION_S - BEFORE_S * COMPRESSED
    rates = day.rates[start : start + seconds * COMPRESSED].reshape(seconds, COMPRESSED, SHARDS).mean(axis=1)
    rng = np.random.default_rng([0x51C2, seed])
    drawn = rng.poisson(rates * SCALE).astype(np.int64)
    # Every second has an order, so that the numbers of the first orders of all seconds differ.
    drawn[drawn.sum(axis=1) == 0, 0] = 1
    warm = np.full((warm_s, SHARDS), max(1, WARM_PER_S // SHARDS), np.int64)
    return np.concatenate([warm, drawn])


@lru_cache(maxsize=1)
def _keys_by_shard() -> tuple[I64, I64, I64]:
    """Return keys sorted by shard, and where those of each shard start and how many they are."""
    shard_of = shard_of_keys(KEYS, SHARDS)
    counts = np.bincount(shard_of, minlength=SHARDS)
    return np.argsort(shard_of, kind="stable"), np.cumsum(counts) - counts, counts


def _key_of(shards: I64, numbers: I64) -> I64:
    """Return a key of each order's shard; those of a shard come in turn."""
    keys, starts, counts = _keys_by_shard()
    found: I64 = keys[starts[shards] + numbers % counts[shards]]
    return found
