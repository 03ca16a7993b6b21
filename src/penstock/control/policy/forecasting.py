"""What is coming: the rate of every shard in the seconds ahead, from the rates of the seconds and minutes behind.

Poisson noise is told from change by its size: a rate over w seconds strays by √(c λ / w), c the index of dispersion.
A faster reading replaces a slower one only where the two differ by more than noise would. Holds rates, decides nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.control.measure.sample import F64
from penstock.control.policy.seasons import Seasons

SCALES_S = (1.0, 4.0, 16.0)
"""Memories of the moving averages, fastest first; an average over a memory τ weighs like a window of 2 τ."""

_SCALES = np.array(SCALES_S)

_READING_TURNS = 3
"""Turns that one reading of a rate is smoothed over (`Measuring.smoothing`)."""
_KEEP_TURNS = 20
"""Turns for which a high rate is remembered at least: where they are long, few of them are in any time."""
_MAX_INDEX = 8.0
"""Most that a measured index of dispersion counts: past it, it is change and not noise that was measured."""


@dataclass(frozen=True)
class Forecast:
    """One executor's rates, per shard."""

    expected_per_s: F64
    """Most likely over the horizon."""
    readings: F64
    """[scale, shard]: the newest reading and the averages, fastest first."""
    windows_s: F64
    """How many seconds stand behind each of them."""
    index: float
    """Index of dispersion of arrivals."""
    held_per_s: float
    """Highest total of the last `keep_s`, short swings aside: what a core is given back against."""
    ahead_per_s: float
    """Highest total that trend and season promise within the horizon; the expected one where they promise nothing."""

    horizon_s: float = 3.0

    @property
    def total_per_s(self) -> float:
        return float(np.add.reduce(self.expected_per_s))

    def derive_certain(self, rates: F64, z: float) -> F64:
        """Return what rates, [scale, group], are at least: the highest lower bound of any scale that holds still.

        A slow reading remembers a load that is gone: it counts only where no faster one lies below it by more than noise.
        """
        unit = 1.0 / self.windows_s[:, None]
        noise = z * np.sqrt(self.index * np.maximum(rates, unit) * unit)
        lower = rates - noise
        upper = np.minimum.accumulate(rates + noise, axis=0)
        found: F64 = lower[0]
        for slow, faster in zip(lower[1:], upper[:-1], strict=True):
            found = np.where(slow <= faster, np.maximum(found, slow), found)
        return found


@dataclass
class Forecaster:
    """Remembers the rates of one executor.

    Args:
        horizon_s: how far ahead is looked: what it takes until a plan has taken effect, and a little more.
        keep_s: how long a high rate is remembered before cores are given back.
        z: deviations of noise past which a reading is believed.
    """

    horizon_s: float = 3.0
    keep_s: float = 30.0
    z: float = 3.0
    seasons: Seasons = field(default_factory=Seasons)
    _at_s: float | None = None
    _since_s: float = 0.0
    _sums: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    _weights: F64 = field(default_factory=lambda: np.zeros(len(SCALES_S)))
    _totals: deque[tuple[float, float]] = field(default_factory=deque)

    def take(self, at_s: float, rate_per_s: F64, index: float = 1.0) -> Forecast:
        """Take the rates of one turn and return the forecast."""
        turn_s = self._learn(at_s, rate_per_s)
        window_s = _READING_TURNS * turn_s
        readings = np.empty((len(SCALES_S) + 1, len(rate_per_s)))
        readings[0] = rate_per_s
        np.divide(self._sums, self._weights[:, None], out=readings[1:])
        known_s = at_s - self._since_s + window_s
        windows_s = np.array([window_s, *(max(min(2 * s, known_s), window_s) for s in SCALES_S)])
        index = min(max(index, 1.0), _MAX_INDEX)
        # The whole is known far better than its parts, and shares outlast rates: each by its own readings.
        totals = readings.sum(axis=1)
        parts, one_row = np.empty((2, len(readings), 1 + len(rate_per_s)))
        parts[:, 0], one_row[:, 0] = totals, 1.0 / windows_s
        np.divide(readings, np.maximum(totals, 1e-12)[:, None], out=parts[:, 1:])
        one_row[:, 1:] = (1.0 / np.maximum(totals * windows_s, 1.0))[:, None]
        settled = _settle(parts, one_row, index, self.z)
        total, share = float(settled[0]), settled[1:]
        expected = share * (total / max(float(share.sum()), 1e-12))
        self.seasons.take(at_s, total)
        ahead = max(
            total,
            self._extrapolate(totals.tolist(), windows_s.tolist(), index),
            self.seasons.derive_highest(self.horizon_s) or 0.0,
        )
        return Forecast(
            expected,
            readings,
            windows_s,
            index,
            max(self._hold(at_s, totals.tolist(), turn_s), total),
            ahead,
            self.horizon_s,
        )

    def _learn(self, at_s: float, rate_per_s: F64) -> float:
        if self._at_s is None or at_s <= self._at_s or self._sums.shape[1] != len(rate_per_s):
            self._since_s, turn_s = at_s, 1.0
            self._sums = np.tile(rate_per_s * 1e-6, (len(SCALES_S), 1))
            self._weights = np.full(len(SCALES_S), 1e-6)
            self._totals.clear()
        else:
            turn_s = at_s - self._at_s
        self._at_s = at_s
        keep = np.exp(-turn_s / _SCALES)
        self._sums = keep[:, None] * self._sums + (1 - keep)[:, None] * rate_per_s
        self._weights = keep * self._weights + (1 - keep)
        return turn_s

    def _hold(self, at_s: float, totals: Sequence[float], turn_s: float) -> float:
        """Return the highest total of the last seconds, by an average that short swings do not show in; a queue whose
        values fall keeps only what can still be the highest."""
        total = min(totals[-1], totals[-2])
        while self._totals and self._totals[-1][1] <= total:
            self._totals.pop()
        self._totals.append((at_s, total))
        while self._totals[0][0] < at_s - max(self.keep_s, _KEEP_TURNS * turn_s):
            self._totals.popleft()
        return self._totals[0][1]

    def _extrapolate(self, totals: Sequence[float], windows_s: Sequence[float], index: float) -> float:
        """Return the total at the horizon if it goes on rising as it did.

        An average over a memory τ lags a ramp of slope a by a τ, so two of them tell the slope: (R_τ - R_τ') / (τ' - τ).
        The flatter of two slopes is believed: after a step, unlike on a ramp, they differ.
        """
        fast, middle, slow = SCALES_S
        noise = self.z * math.sqrt(index * max(totals[3], 0.0) / windows_s[3])
        if totals[2] - totals[3] <= noise:
            return 0.0
        slope = min((totals[1] - totals[2]) / (middle - fast), (totals[2] - totals[3]) / (slow - middle))
        return totals[1] + slope * (fast + self.horizon_s) if slope > 0 else 0.0


def _settle(readings: F64, one_row: F64, index: float, z: float) -> F64:
    """Return the slowest reading, replaced by each faster one that differs from it by more than noise.

    Args:
        one_row: what a single row counts in each reading: a reading r of n rows strays by r / √n = √(r · one row).
    """
    found: F64 = readings[-1]
    least = np.maximum(readings, one_row)
    for at in range(len(readings) - 2, -1, -1):
        reading = readings[at]
        noise = z * np.sqrt(index * np.maximum(least[at], found) * one_row[at])
        found = np.where(np.abs(reading - found) > noise, reading, found)
    return found
