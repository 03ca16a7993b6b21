"""Seasons: whether a total rate repeats itself, and with what period, found by its own history.

Rates are kept in bins; a period is believed once the history holds it at least twice and repeats it. Pure memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.control.measure.sample import F64


@dataclass
class Seasons:
    """The history of one rate.

    Args:
        bin_s: resolution; periods shorter than eight bins are noise.
        bins: how much is remembered.
        every_s: how often a period is looked for.
        least: correlation of the history with itself, one period earlier, from which on a period is believed.
    """

    bin_s: float = 5.0
    bins: int = 4096
    every_s: float = 60.0
    least: float = 0.6
    period_s: float | None = None
    """The period that is believed; None while there is none."""
    _means: list[float] = field(default_factory=list)
    _sum: float = 0.0
    _count: int = 0
    _began_s: float | None = None
    _looked_s: float = 0.0

    def take(self, at_s: float, rate_per_s: float) -> None:
        """Take the rate of one turn."""
        if self._began_s is None:
            self._began_s = self._looked_s = at_s
        while at_s >= self._began_s + self.bin_s:
            mean = self._sum / self._count if self._count else rate_per_s
            self._means.append(mean)
            self._sum, self._count = 0.0, 0
            self._began_s += self.bin_s
        del self._means[: -self.bins]
        self._sum += rate_per_s
        self._count += 1
        if at_s - self._looked_s >= self.every_s:
            self._looked_s = at_s
            self.period_s = self._find_period()

    def derive_highest(self, horizon_s: float) -> float | None:
        """Return the highest rate that was seen one period before what lies within the horizon; None without a period.

        The rate itself and not its ratio to the present one: once a peak has begun, the present rate has risen already,
        and a ratio would raise it again.
        """
        if self.period_s is None:
            return None
        then = len(self._means) - round(self.period_s / self.bin_s)
        ahead = int(np.ceil(horizon_s / self.bin_s)) + 1
        return max(self._means[max(then, 0) : then + ahead], default=None)

    def _find_period(self) -> float | None:
        """Return the first clear peak of the autocorrelation at lags that the history holds twice."""
        history = np.log1p(np.array(self._means))  # one great peak must not outweigh all else
        if len(history) < 32:
            return None
        found = _autocorrelation(history)
        lags = np.arange(8, len(history) // 2)
        here = found[lags]
        peaks = lags[(here >= self.least) & (here >= found[lags - 1]) & (here >= found[lags + 1])]
        # What has not fallen since lag 0 is a slow change, not a season.
        fell = np.flatnonzero(found[: len(history) // 2] < self.least / 2)
        peaks = peaks[peaks > fell[0]] if len(fell) else peaks[:0]
        return float(peaks[0]) * self.bin_s if len(peaks) else None


def _autocorrelation(history: F64) -> F64:
    """Correlate a history with itself at every lag, each by the part of it that overlaps."""
    centred = history - history.mean()
    size = 2 * len(history)
    power = np.abs(np.fft.rfft(centred, size)) ** 2
    products = np.fft.irfft(power, size)[: len(history)]
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    lags = np.arange(len(history))
    scale = np.sqrt(squares[len(history) - lags] * (squares[-1] - squares[lags]))
    found: F64 = products / np.maximum(scale, 1e-12)
    return found
