"""A queue simulated row by row: first come first served, k servers, seeded. The oracle for the queueing formulas.

It shares no formula with what it checks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

_REPLICATIONS = 20
_STUDENT_999 = 3.883
"""Two-sided 99.9 % quantile of Student's t with 19 degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 99.9 % confidence interval."""

    mean: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def simulate_wait_s(
    rate: float,
    service: float,
    k: int,
    *,
    rows: int,
    seed: int,
    scv_arrival: float = 1.0,
    scv_service: float = 1.0,
) -> Interval:
    """Return the mean time in the queue over 20 independent runs of `rows` rows each, a fifth of them to warm up."""
    means = [
        _one_run(np.random.default_rng((seed, turn)), rate, service, k, rows, scv_arrival, scv_service)
        for turn in range(_REPLICATIONS)
    ]
    mean = fmean(means)
    half = _STUDENT_999 * stdev(means) / _REPLICATIONS**0.5
    return Interval(mean, mean - half, mean + half)


def _one_run(
    rng: np.random.Generator,
    rate: float,
    service: float,
    k: int,
    rows: int,
    scv_arrival: float,
    scv_service: float,
) -> float:
    arrivals = np.cumsum(draw_times(rng, 1.0 / rate, scv_arrival, rows)).tolist()
    work = draw_times(rng, 1.0 / service, scv_service, rows).tolist()
    free = [0.0] * k
    waited, warm = 0.0, rows // 5
    for at, (arrival, needed) in enumerate(zip(arrivals, work, strict=True)):
        begins = max(arrival, free[0])
        heapq.heapreplace(free, begins + needed)
        if at >= warm:
            waited += begins - arrival
    return waited / (rows - warm)


def draw_times(rng: np.random.Generator, mean: float, scv: float, size: int) -> npt.NDArray[np.float64]:
    """Draw times of a given mean and squared coefficient of variation: constant at 0, gamma below 1, exponential
    at 1, two balanced exponential phases above."""
    if scv == 0.0:
        return np.full(size, mean)
    if scv < 1.0:
        return rng.gamma(1.0 / scv, mean * scv, size)
    if scv == 1.0:
        return rng.exponential(mean, size)
    often = 0.5 * (1.0 + ((scv - 1.0) / (scv + 1.0)) ** 0.5)
    is_often = rng.random(size) < often
    phase: npt.NDArray[np.float64] = np.where(is_often, mean / (2 * often), mean / (2 * (1 - often)))
    return phase * rng.exponential(1.0, size)
