"""Smoothing of what was measured per interval (DRS IV-A): by weight or by window. Holds numbers, knows no samples.

`Weighted` and `Windowed` are settings; `start()` gives the memory that one measured quantity needs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64
from penstock.errors import DeclarationError

_FEW_PLACES = 8
"""Places from which on an array has shares that are worth a test."""


class Smoother(Protocol):
    """The memory of one quantity, a number or an array."""

    def add(self, value: F64, elapsed_s: float) -> F64:
        """Take what was measured in one interval and return the smoothed value D(n)."""

    def add_number(self, value: float, elapsed_s: float) -> float:
        """The same for a quantity that is one number; a smoother has either arrays or numbers."""

    def put(self, where: npt.NDArray[np.bool_], value: F64) -> None:
        """Replace the memory at some places of an array."""

    @property
    def span_s(self) -> float:
        """Time over which the values of an array were taken that it remembers."""


class Smoothing(Protocol):
    """A setting that makes smoothers."""

    def start(self) -> Smoother: ...


@dataclass(frozen=True)
class Weighted:
    """D(n) = α D(n-1) + (1 - α) d(n), beginning with D(1) = d(1)."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 1:
            raise DeclarationError(
                f"smoothing: alpha must be at least 0 and less than 1, not {self.alpha!r}."
            )

    def start(self) -> Smoother:
        return _Weighted(self.alpha)


@dataclass(frozen=True)
class Windowed:
    """D(n) = the mean of the last w values, each counted by the length of its interval."""

    samples: int = 3

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise DeclarationError(f"smoothing: a window needs at least 1 sample, not {self.samples!r}.")

    def start(self) -> Smoother:
        return _Windowed(self.samples)


@dataclass(frozen=True)
class Adapting:
    """Of an array: its sum over the last `rate_samples` values, dealt by the shares of the last `samples`; shares that have
    changed are forgotten at once. Of a number, or of few places: `Windowed(rate_samples)`.

    Values are taken as rates of things that come one by one, so that shares of n things are off by what chance makes of n.
    Two sets of them differ where χ² of homogeneity is beyond chance by `sigmas`, and where what is beyond it comes to
    `least_change` in relative squares, Σ (Δp)² / p; the newest interval is then all that is kept.
    """

    samples: int = 8
    rate_samples: int = 3
    sigmas: float = 5.0
    least_change: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.rate_samples <= self.samples:
            raise DeclarationError(
                f"smoothing: rate_samples must be 1 to samples, not {self.rate_samples!r} of {self.samples!r}."
            )

    def start(self) -> Smoother:
        return _Adapting(self)


class _Weighted:
    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._smoothed: F64 | None = None
        self._number: float | None = None
        self._elapsed_s = 0.0

    @property
    def span_s(self) -> float:
        # As many values as a mean of which varies as much as this one.
        return self._elapsed_s * (1 + self._alpha) / (1 - self._alpha)

    def add(self, value: F64, elapsed_s: float) -> F64:
        before, self._elapsed_s = self._smoothed, elapsed_s
        after = value if before is None else self._alpha * before + (1 - self._alpha) * value
        self._smoothed = np.array(after, dtype=np.float64)
        return self._smoothed.copy()

    def add_number(self, value: float, elapsed_s: float) -> float:
        before = self._number
        self._number = value if before is None else self._alpha * before + (1 - self._alpha) * value
        return self._number

    def put(self, where: npt.NDArray[np.bool_], value: F64) -> None:
        if self._smoothed is not None:
            self._smoothed[where] = value[where]


class _Windowed:
    def __init__(self, samples: int) -> None:
        self._kept: deque[tuple[F64, float]] = deque(maxlen=samples)
        """Values times the length of their interval, and that length."""
        self._numbers: deque[tuple[float, float]] = deque(maxlen=samples)

    @property
    def span_s(self) -> float:
        return sum(length_s for _, length_s in self._kept)

    def add(self, value: F64, elapsed_s: float) -> F64:
        self._kept.append((np.asarray(value * elapsed_s, dtype=np.float64), elapsed_s))
        total, total_s = self._kept[0]
        for amount, length in islice(self._kept, 1, None):
            total = total + amount
            total_s += length
        return np.asarray(total / total_s)

    def add_number(self, value: float, elapsed_s: float) -> float:
        self._numbers.append((value, elapsed_s))
        total = total_s = 0.0
        for one, length in self._numbers:
            total += one * length
            total_s += length
        return total / total_s

    def put(self, where: npt.NDArray[np.bool_], value: F64) -> None:
        for amount, elapsed_s in self._kept:
            amount[where] = value[where] * elapsed_s


class _Adapting:
    def __init__(self, setting: Adapting) -> None:
        self._setting = setting
        self._rate = _Windowed(setting.rate_samples)
        self._kept: deque[tuple[F64, float]] = deque(maxlen=setting.samples)
        """Things of each interval, by place, and its length."""

    @property
    def span_s(self) -> float:
        return max(sum(length_s for _, length_s in self._kept), self._rate.span_s)

    def add(self, value: F64, elapsed_s: float) -> F64:
        rate = self._rate.add(value, elapsed_s)
        if rate.size < _FEW_PLACES:
            return rate
        newest = np.array(value, dtype=np.float64) * elapsed_s
        if self._kept and self._is_other(newest, self._things()):
            self._kept.clear()
        self._kept.append((newest, elapsed_s))
        things = self._things()
        total = float(things.sum())
        return np.asarray(things / total * float(rate.sum())) if total > 0 else rate

    def add_number(self, value: float, elapsed_s: float) -> float:
        return self._rate.add_number(value, elapsed_s)  # a single number has no shares

    def _things(self) -> F64:
        return np.asarray(np.sum([things for things, _ in self._kept], axis=0))

    def _is_other(self, newest: F64, known: F64) -> bool:
        """Say whether shares have changed."""
        there = (newest > 0) | (known > 0)
        free = int(there.sum()) - 1
        here, before = float(newest.sum()), float(known.sum())
        if free < 1 or here <= 0 or before <= 0:
            return False
        both = (newest + known)[there] / (here + before)
        weight = here * before / (here + before)
        beyond = weight * float(((newest[there] / here - known[there] / before) ** 2 / both).sum()) - free
        return beyond > self._setting.sigmas * float(np.sqrt(2 * free)) and (
            beyond > self._setting.least_change * weight
        )

    def put(self, where: npt.NDArray[np.bool_], value: F64) -> None:
        self._rate.put(where, value)
        for things, elapsed_s in self._kept:
            things[where] = value[where] * elapsed_s
