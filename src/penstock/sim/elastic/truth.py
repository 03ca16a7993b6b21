"""The true latency of every row, by window and shard, and what follows from it: success rate, mean, quantiles.

Only a simulation can know this. Nothing here is shown to a policy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.control.measure.sample import F64, I64
from penstock.control.sla import SLA
from penstock.errors import DeclarationError

_FLUSH_ROWS: Final = 200_000
_BINS: Final = 400
_LOWEST_S: Final = 1e-5
_GROWTH: Final = 1.05
"""Latencies are kept in classes of 5 %: from 10 µs to about 50 minutes."""


class Truth:
    """What happened to the rows of one operator.

    Args:
        shards: of the operator.
        sla: windows of its length are kept; a quantile can only be judged at its bound.
        seconds: how long the run will be; more is allowed.
    """

    def __init__(self, shards: int, sla: SLA, seconds: float) -> None:
        self.shards, self.sla = shards, sla
        shape = int(np.ceil(seconds / sla.window)), shards
        self._count: I64 = np.zeros(shape, np.int64)
        self._sum_s: F64 = np.zeros(shape)
        self._over: I64 = np.zeros(shape, np.int64)
        self._oldest_s: F64 = np.full(shape, np.inf)
        self._classes: I64 = np.zeros((shape[0], _BINS), np.int64)
        self._rows: list[tuple[F64, F64, I64]] = []
        self._buffered = 0

    def _grow(self, windows: int) -> None:
        more = ((0, windows - len(self._count)), (0, 0))
        self._count, self._over = np.pad(self._count, more), np.pad(self._over, more)
        self._sum_s, self._classes = np.pad(self._sum_s, more), np.pad(self._classes, more)
        self._oldest_s = np.pad(self._oldest_s, more, constant_values=np.inf)

    def add(self, at_s: F64, done_s: F64, shard: I64) -> None:
        """Note rows: when they arrived and were completed."""
        if not len(at_s):
            return
        self._rows.append((at_s, done_s, shard))
        self._buffered += len(at_s)
        if self._buffered > _FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        at, done, shard = (np.concatenate(column) for column in zip(*self._rows, strict=True))
        self._rows, self._buffered = [], 0
        latency = done - at
        window = np.maximum((done / self.sla.window).astype(np.int64), 0)
        low, high = int(window.min()), int(window.max()) + 1
        if high > len(self._count):
            self._grow(max(high, 2 * len(self._count)))
        cell, cells, shape = (
            (window - low) * self.shards + shard,
            (high - low) * self.shards,
            (-1, self.shards),
        )
        self._count[low:high] += np.bincount(cell, minlength=cells).reshape(shape)
        self._sum_s[low:high] += np.bincount(cell, latency, cells).reshape(shape)
        over = latency > self.sla.latency
        self._over[low:high] += np.bincount(cell[over], minlength=cells).reshape(shape)
        np.minimum.at(self._oldest_s, (window, shard), at)
        grade = np.clip(np.log(np.maximum(latency, 1e-9) / _LOWEST_S) / np.log(_GROWTH), 0, _BINS - 1)
        seen = np.bincount((window - low) * _BINS + grade.astype(np.int64), minlength=(high - low) * _BINS)
        self._classes[low:high] += seen.reshape(-1, _BINS)

    def success(self, seconds: float, waiting: tuple[F64, I64], sla: SLA | None = None) -> F64:
        """Return the success rate of each shard: the share of its windows in which the SLA was met (StreamSwitch 6).

        A window is judged by the rows completed in it. One without completed rows fails where a row had waited longer
        than the bound by its end, and is met otherwise.

        Args:
            seconds: how much of the run counts; whole windows only.
            waiting: arrival times and shards of the rows that are not completed.
            sla: another one; its window must be a multiple of the kept one.

        Raises:
            DeclarationError: the other SLA cannot be judged from what was kept.
        """
        self.flush()
        sla = sla or self.sla
        times = round(sla.window / self.sla.window)
        if abs(times * self.sla.window - sla.window) > 1e-9 or times < 1:
            raise DeclarationError(
                f"SLA: a window of {sla.window:g} s cannot be judged; "
                f"take a multiple of {self.sla.window:g} s or run the simulation with it."
            )
        if not sla.is_mean and sla.latency != self.sla.latency:
            raise DeclarationError(
                "SLA: a quantile can only be judged at the bound that the simulation ran with."
            )
        found: F64 = self._met(sla, times, int(seconds / sla.window + 1e-9), waiting).mean(axis=0)
        return found

    def _met(self, sla: SLA, times: int, windows: int, waiting: tuple[F64, I64]) -> F64:
        if windows * times > len(self._count):
            self._grow(windows * times)

        def merged(kept: F64 | I64) -> F64:
            return kept[: windows * times].reshape(windows, times, self.shards).astype(np.float64)

        count = merged(self._count).sum(axis=1)
        if sla.is_mean:
            met = merged(self._sum_s).sum(axis=1) <= sla.latency * count
        else:
            met = merged(self._over).sum(axis=1) <= (1 - float(sla.quantile)) * count + 1e-9
        # Rows of a shard leave in order, so what the next window completes first is what this one waited for.
        later = self._oldest_s.copy()
        last = np.full(self.shards, np.inf)
        np.minimum.at(last, waiting[1], waiting[0])
        later[-1] = np.minimum(later[-1], last)
        oldest = np.minimum.accumulate(later[::-1], axis=0)[::-1]
        ends = np.arange(1, windows + 1) * sla.window
        follows = np.minimum(np.arange(1, windows + 1) * times, len(oldest) - 1)
        stuck = oldest[follows] < (ends - sla.latency)[:, None]
        found: F64 = (met & ~((count == 0) & stuck)).astype(np.float64)
        return found

    def mean_s(self) -> float:
        """Return the mean latency of all completed rows."""
        self.flush()
        return float(self._sum_s.sum() / max(1, self._count.sum()))

    def quantile_s(self, q: float) -> float:
        """Return a quantile of all latencies, within 5 %."""
        self.flush()
        return float(_quantiles(self._classes.sum(axis=0)[None, :], q)[0])

    def completed(self) -> I64:
        """Return the completed rows of each shard."""
        self.flush()
        found: I64 = self._count.sum(axis=0)
        return found

    def completed_by_window(self) -> F64:
        """Return the rows a second that were completed in each window."""
        self.flush()
        found: F64 = self._count.sum(axis=1) / self.sla.window
        return found

    def series(self, q: float = 0.99) -> tuple[F64, F64, F64]:
        """Return by window: its end, the mean latency, and a quantile; NaN where no row was completed."""
        self.flush()
        count = self._count.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self._sum_s.sum(axis=1) / count
        ends: F64 = np.arange(1.0, len(count) + 1) * self.sla.window
        return ends, mean, _quantiles(self._classes, q)


def _quantiles(classes: I64, q: float) -> F64:
    total = classes.sum(axis=1)
    place = (np.cumsum(classes, axis=1) >= (q * total)[:, None]).argmax(axis=1)
    found: F64 = _LOWEST_S * _GROWTH ** (place + 0.5)
    return np.where(total > 0, found, np.nan)
