"""Smoothing of what was measured per interval (DRS IV-A): by weight or by window. Holds numbers, knows no samples.

`Weighted` and `Windowed` are settings; `start()` gives the memory that one measured quantity needs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64
from penstock.errors import DeclarationError


class Smoother(Protocol):
    """The memory of one quantity, a number or an array."""

    def add(self, value: F64, elapsed_s: float) -> F64:
        """Take what was measured in one interval and return the smoothed value D(n)."""

    def add_number(self, value: float, elapsed_s: float) -> float:
        """The same for a quantity that is one number; a smoother has either arrays or numbers."""

    def put(self, where: npt.NDArray[np.bool_], value: F64) -> None:
        """Replace the memory at some places of an array."""


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


class _Weighted:
    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._smoothed: F64 | None = None
        self._number: float | None = None

    def add(self, value: F64, elapsed_s: float) -> F64:
        before = self._smoothed
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
        self._numbers: deque[tuple[float, float]] = deque(maxlen=samples)

    def add(self, value: F64, elapsed_s: float) -> F64:
        self._kept.append((np.array(value, dtype=np.float64), elapsed_s))
        total, total_s = np.zeros(()), 0.0
        for one, length in self._kept:
            total = one * length if total_s == 0.0 else total + one * length
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
        for one, _ in self._kept:
            one[where] = value[where]
