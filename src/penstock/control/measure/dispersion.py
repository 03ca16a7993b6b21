"""Squared coefficients of variation from counts per interval: no single row is timed. Numbers in, a number out."""

from __future__ import annotations

_MEMORY = 64
_ENOUGH = 8
_GREATEST = 1e4


class Dispersion:
    """How much means of intervals differ from one interval to the next.

    If single values have variance v, the mean of w of them has v / w, so two means in a row differ by
    v (1/w + 1/w') in the square. Differences in a row, unlike deviations from one mean, do not take a slow change of
    the rate for variability. Arrivals: means are counts per second, w is seconds, v / λ is the index of dispersion,
    which for renewal arrivals tends to the squared coefficient of variation. Service: means are useful time per row,
    w is rows, v / mean² is the coefficient itself.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._square = self._inverse = self._mean = self._weight = 0.0
        self._count = 0

    def add(self, mean: float, weight: float) -> None:
        """Take the mean of one interval and how much stands behind it; intervals with nothing are left out."""
        if weight <= 0:
            return
        keep = 1 - 1 / _MEMORY
        if self._last is not None:
            self._square = keep * self._square + (mean - self._last[0]) ** 2
            self._inverse = keep * self._inverse + 1 / weight + 1 / self._last[1]
            self._count += 1
        self._mean = keep * self._mean + mean * weight
        self._weight = keep * self._weight + weight
        self._last = (mean, weight)

    def break_off(self) -> None:
        """The next interval does not follow the last one."""
        self._last = None

    def estimate_index(self) -> float | None:
        """Return v / mean, the index of dispersion of counts; None while too little was seen."""
        return self._over(1)

    def estimate_scv(self) -> float | None:
        """Return v / mean², the squared coefficient of variation; None while too little was seen."""
        return self._over(2)

    def _over(self, power: int) -> float | None:
        if self._count < _ENOUGH or self._mean <= 0:
            return None
        variance = self._square / self._inverse
        return float(min(variance / (self._mean / self._weight) ** power, _GREATEST))
