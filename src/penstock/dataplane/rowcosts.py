"""What a row of each shard costs, learned from looks at the clock. A difference between shards that does not repeat is
noise, and is believed no more than that. Arithmetic only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

KEPT = 0.9
"""Share of what was known of a shard that is kept when it is looked at again."""
NOISE_WEIGHT = 0.25
"""Of one look in what is known of the noise."""

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class RowCosts:
    """Cost of a row by shard.

    A look at a shard of r rows is off by a variance of v / r. v is learned from looks that follow each other, the
    variance τ² between shards from what they differ by beyond it; a shard's own mean then counts by
    τ² / (τ² + v / its rows), the mean of all by the rest (empirical Bayes). Before any shard was looked at twice, looks
    are taken as they are.
    """

    def __init__(self, shards: int) -> None:
        self.row_s: F64 = np.zeros(shards)
        """0 where nobody looked."""
        self._rows: F64 = np.zeros(shards)
        self._seconds: F64 = np.zeros(shards)
        self._noise: float | None = None

    def look(self, shards: I64, seconds: F64, rows: I64) -> None:
        """Take in the time that the rows of some shards took in one epoch."""
        count = np.maximum(rows, 1).astype(np.float64)
        self._learn_noise(shards, seconds / count, count)
        self._rows[shards] = KEPT * self._rows[shards] + count
        self._seconds[shards] = KEPT * self._seconds[shards] + seconds
        self._believe()

    def pass_on(self, taker: RowCosts, shards: npt.NDArray[np.integer]) -> None:
        """Let another one go on with what is known of some shards."""
        pairs = ((self.row_s, taker.row_s), (self._rows, taker._rows), (self._seconds, taker._seconds))
        for mine, theirs in pairs:
            theirs[shards] = mine[shards]
            mine[shards] = 0
        taker._noise = self._noise if taker._noise is None else taker._noise

    def _learn_noise(self, shards: I64, sample: F64, count: F64) -> None:
        known = self._rows[shards] > 0
        if not known.any():
            return
        before = self._seconds[shards][known] / self._rows[shards][known]
        off = (sample[known] - before) ** 2 / (1 / count[known] + 1 / self._rows[shards][known])
        found = float(off.mean())
        self._noise = found if self._noise is None else self._noise + NOISE_WEIGHT * (found - self._noise)

    def _believe(self) -> None:
        seen = self._rows > 0
        rows, own = self._rows[seen], self._seconds[seen] / self._rows[seen]
        if self._noise is None:
            self.row_s[seen] = own
            return
        mean = float(self._seconds[seen].sum() / rows.sum())
        spread = float((rows * (own - mean) ** 2).sum() / rows.sum())
        between = max(spread - self._noise * len(rows) / float(rows.sum()), 0.0)
        error = self._noise / rows
        trust = np.where(error > 0, between / np.maximum(between + error, 1e-30), 1.0)
        self.row_s[seen] = mean + trust * (own - mean)
