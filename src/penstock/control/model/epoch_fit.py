"""Fits the coefficients of the epoch model to what epochs were seen to take.

Recursive least squares with forgetting on relative errors, every coefficient inside its bounds, drawn to a prior where
the observations say nothing (with k constant they cannot tell o0 from o1). Keeps sums only, never the observations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from penstock.control.measure.estimate import EpochCosts
from penstock.control.measure.sample import F64, ExecutorSample

UPPER = EpochCosts(o0_s=10.0, o1_s=1.0, o2_s=0.1, c=50.0)
"""No coefficient is believed beyond this; none is below zero, nor c below a half."""
LEAST_C = 0.5
"""Rows that arrive evenly during an epoch wait half of it; nothing commits sooner."""
_NOISE = 0.1
"""Relative error of one observation that is taken for noise."""
_PRIOR_SPREAD = 1.0
"""Relative spread of the prior: a coefficient may well be twice what was assumed."""
_HUBER = 3 * _NOISE
"""Relative error past which an observation (a pause, a page fault) pulls with bounded force."""


@dataclass(frozen=True)
class EpochObservation:
    """Means over the epochs between two samples of one executor."""

    k: int
    touched: float
    """Shards with rows, in an epoch."""
    largest_load: float
    """Share of the epoch that its busiest task was at work."""
    duration_s: float
    latency_s: float | None = None
    """Mean latency of rows from their arrival at the executor to their commit; None where not known."""


def derive_observation(
    before: ExecutorSample, now: ExecutorSample, latency_s: float | None = None
) -> EpochObservation | None:
    """Return what lies between two samples; None where no epoch ended or the number of tasks changed."""
    epochs, spent_s = now.epochs - before.epochs, now.epochs_s - before.epochs_s
    if epochs <= 0 or spent_s <= 0 or len(now.tasks) != len(before.tasks) or not now.tasks:
        return None
    return EpochObservation(
        k=len(now.tasks),
        touched=(now.touched_shards - before.touched_shards) / epochs,
        largest_load=min(max((now.longest_task_s - before.longest_task_s) / spent_s, 0.0), 1.0),
        duration_s=spent_s / epochs,
        latency_s=latency_s,
    )


@dataclass
class EpochFit:
    """Coefficients of one executor, learnt as it runs. One observation a turn; forgetting 0.98 remembers about 50."""

    prior: EpochCosts = field(default_factory=EpochCosts)
    forgetting: float = 0.98
    observations: int = 0
    """Observations taken in, ever."""
    weight: float = 0.0
    """Observations that still count, after forgetting."""
    error_ratio: float = 1.0
    """Smoothed relative error of latency (of duration where latency is not known), each predicted before it was seen;
    1 before there was any."""
    least_k: int = 0
    most_k: int = 0
    """Cores over which it has been seen to work; beyond them it extrapolates."""
    costs: EpochCosts = field(init=False)
    _gram: F64 = field(init=False, repr=False)
    _moment: F64 = field(init=False, repr=False)
    _c_weight: float = field(default=0.0, repr=False)
    _c_sum: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self.costs = self.prior
        self._gram, self._moment = np.zeros((3, 3)), np.zeros(3)

    def observe(self, seen: EpochObservation) -> bool:
        """Learn from one observation; return whether it could be used (a saturated or empty one cannot)."""
        free = 1.0 - seen.largest_load
        if not (seen.k >= 1 and seen.touched >= 0 and free > 1e-3 and 0 < seen.duration_s < math.inf):
            return False
        overhead_s = seen.duration_s * free
        # Relative errors: each row divided by what was seen, so that the target is 1.
        row = np.array([1.0, seen.k, seen.touched]) * self._scale() / overhead_s
        off = abs(float(row @ (self._vector() / self._scale())) - 1.0)
        pull = min(1.0, _HUBER / off) if self.weight > 10 and off > 0 else 1.0
        self._note_error(seen, off)
        self._gram = self.forgetting * self._gram + pull * np.outer(row, row)
        self._moment = self.forgetting * self._moment + pull * row
        self.weight = self.forgetting * self.weight + pull
        self.observations += 1
        self.least_k = min(self.least_k or seen.k, seen.k)
        self.most_k = max(self.most_k, seen.k)
        self._learn_c(seen)
        self._solve()
        return True

    @property
    def confidence(self) -> float:
        """From 0 (nothing seen) to 1 (much seen, and all of it predicted): n / (n + 10) times (1 - error)."""
        return self.weight / (self.weight + 10.0) * max(0.0, 1.0 - self.error_ratio)

    def uncertainty_ratio(self, k: int, touched: float) -> float:
        """Return the relative standard error of the overhead predicted at (k, touched): it grows with the distance from
        what was seen, up to the spread of the prior."""
        row = np.array([1.0, k, touched]) * self._scale()
        predicted = float(row @ (self._vector() / self._scale()))
        noise = max(min(self.error_ratio, 1.0), 0.01) if self.observations else _NOISE
        covariance = np.linalg.inv(self._gram / noise**2 + np.eye(3) / _PRIOR_SPREAD**2)
        return float(math.sqrt(row @ covariance @ row)) / max(predicted, 1e-12)

    def _note_error(self, seen: EpochObservation, off: float) -> None:
        if seen.latency_s is not None and seen.latency_s > 0:
            overhead_s = self.costs.o0_s + self.costs.o1_s * seen.k + self.costs.o2_s * seen.touched
            predicted_s = self.costs.c * overhead_s / (1.0 - seen.largest_load)
            off = abs(predicted_s - seen.latency_s) / seen.latency_s
        rate = max(1.0 - self.forgetting, 1.0 / (self.observations + 1))
        self.error_ratio += rate * (min(off, 1.0) - self.error_ratio)

    def _learn_c(self, seen: EpochObservation) -> None:
        """c is the mean of latency over duration, forgetting, with the prior as one observation."""
        self._c_weight *= self.forgetting
        self._c_sum *= self.forgetting
        if seen.latency_s is not None and 0 < seen.latency_s < math.inf:
            self._c_weight += 1.0
            self._c_sum += min(seen.latency_s / seen.duration_s, UPPER.c)

    def _solve(self) -> None:
        """Minimise the forgetting sum of squares plus the pull of the prior, inside the bounds."""
        ridge = (_NOISE / _PRIOR_SPREAD) ** 2
        gram = self._gram + ridge * np.eye(3)
        moment = (
            self._moment
            + ridge * np.array([self.prior.o0_s, self.prior.o1_s, self.prior.o2_s]) / self._scale()
        )
        upper = np.array([UPPER.o0_s, UPPER.o1_s, UPPER.o2_s]) / self._scale()
        o0, o1, o2 = (_bounded_minimum(gram, moment, upper) * self._scale()).tolist()
        pull = 0.1
        c = (self._c_sum + pull * self.prior.c) / (self._c_weight + pull)
        self.costs = EpochCosts(o0, o1, o2, min(max(c, LEAST_C), UPPER.c))

    def _scale(self) -> F64:
        """The prior, above zero: coefficients are solved for as multiples of it."""
        least = EpochCosts()
        return np.array(
            [
                self.prior.o0_s or least.o0_s,
                self.prior.o1_s or least.o1_s,
                self.prior.o2_s or least.o2_s,
            ]
        )

    def _vector(self) -> F64:
        return np.array([self.costs.o0_s, self.costs.o1_s, self.costs.o2_s])


def _bounded_minimum(gram: F64, moment: F64, upper: F64) -> F64:
    """Return the x in [0, upper] with the least ½ xᵀ G x - mᵀ x; G is positive definite.

    Three coefficients: where the free minimum lies outside, all 27 ways of fixing some at a bound are tried.
    """
    free = np.asarray(np.linalg.solve(gram, moment), dtype=np.float64)
    if (free >= 0).all() and (free <= upper).all():
        return free
    best, least = np.clip(free, 0.0, upper), math.inf
    for fixed in product((None, 0.0, 1.0), repeat=3):
        x = np.array([0.0 if share is None else share * upper[at] for at, share in enumerate(fixed)])
        loose = [at for at, share in enumerate(fixed) if share is None]
        if loose:
            rest = moment[loose] - gram[loose] @ x
            x[loose] = np.linalg.solve(gram[np.ix_(loose, loose)], rest)
        if (x < -1e-12).any() or (x > upper * (1 + 1e-12)).any():
            continue
        height = float(0.5 * x @ gram @ x - moment @ x)
        if height < least:
            best, least = np.clip(x, 0.0, upper), height
    return np.asarray(best, dtype=np.float64)
