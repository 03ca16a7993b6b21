"""The epoch model, which fits this engine: how long an epoch lasts, and what rows wait, as a function of cores.

An epoch's overhead grows with its tasks and touched shards, and is stretched by the busiest task:
D = (o0 + o1 k + o2 touched) / (1 - largest task's load), latency = c D. In k it has plateaus (whole shards) and may
rise, so allocation walks its lower convex hull. Nothing is measured or fitted here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.control.measure.estimate import EpochCosts, EpochSpread, ExecutorEstimate
from penstock.control.measure.sample import F64, I64
from penstock.control.model.queues import ModelError

_TOUCH_ROUNDS = 12
"""Rounds in which the number of touched shards and the length of an epoch settle on each other."""
_MOST_LEFT = 1.2
"""Imbalance that a plan is taken to leave at most: what is beyond that is about to be balanced."""
_GROUPS = 32
"""Groups of shards of nearly equal rate, by which touched shards are counted."""


def epoch_duration_s(costs: EpochCosts, k: int, touched: float, largest_load: float) -> float:
    """Return D = (o0 + o1 k + o2 touched) / (1 - largest task's load); infinite at a load of 1 or more."""
    if largest_load >= 1.0:
        return math.inf
    return (costs.o0_s + costs.o1_s * k + costs.o2_s * touched) / (1.0 - largest_load)


def epoch_latency_s(costs: EpochCosts, k: int, touched: float, largest_load: float) -> float:
    """Return the mean latency c D of rows from their arrival to their commit."""
    return costs.c * epoch_duration_s(costs, k, touched, largest_load)


def largest_load_curve(shard_loads: F64, k_max: int) -> F64:
    """Return, for k = 1 ... k_max tasks, the least load the busiest can have, whatever shards go where.

    No split of whole shards is below their mean, Σ / k, nor below what the pigeonhole principle says: of the j k + 1
    heaviest shards some task has j + 1, which weigh at least as much as the j + 1 lightest of them. For equal shards
    that is exact, for one hot shard it is that shard: the plateaus of the model.
    """
    heavy = np.sort(np.asarray(shard_loads, dtype=np.float64))[::-1]
    heavy = heavy[heavy > 0]
    if not len(heavy):
        return np.zeros(k_max)
    curve: F64 = np.maximum(heavy.sum() / np.arange(1, k_max + 1), heavy[0])
    sums = np.concatenate(([0.0], np.cumsum(heavy)))
    for k in range(1, min(k_max, len(heavy) - 1) + 1):
        last = np.arange(0, len(heavy), k)
        lightest = sums[last + 1] - sums[last - np.arange(len(last))]
        curve[k - 1] = max(curve[k - 1], float(lightest.max()))
    return curve


def lower_convex_hull(values: F64) -> I64:
    """Return the indexes at which the lower convex hull of (index, value) bends, its ends included.

    Infinite values lie above every hull; there are no indexes where all are infinite.
    """
    bends: list[int] = []
    for at in np.flatnonzero(np.isfinite(values)).tolist():
        while len(bends) >= 2 and _is_above(values, bends[-2], bends[-1], at):
            bends.pop()
        bends.append(at)
    return np.asarray(bends, dtype=np.int64)


def _is_above(values: F64, left: int, middle: int, right: int) -> bool:
    """Whether the middle point lies on or above the line between the other two."""
    rise, run = values[right] - values[left], right - left
    return bool((values[middle] - values[left]) * run >= rise * (middle - left))


@dataclass(frozen=True, eq=False)
class EpochStation:
    """One elastic executor under the epoch model; a `StationModel`.

    `largest_load` is by k - 1; past its end the last value holds. `arrival_per_s` by shard makes the number of touched
    shards follow the length of the epoch; without it `touched` stands for every k.
    """

    costs: EpochCosts
    largest_load: F64
    touched: float = 0.0
    arrival_per_s: F64 | None = None

    def __post_init__(self) -> None:
        if not len(self.largest_load):
            raise ModelError("an epoch model needs the largest task's load for at least one core.")

    @cached_property
    def curve_s(self) -> F64:
        """Mean latency by k - 1."""
        return self._latency_s(np.arange(1, len(self.largest_load) + 1), self.largest_load)

    @cached_property
    def bends(self) -> tuple[tuple[int, float], ...]:
        """(k, latency) where the lower convex hull bends, as far as it falls."""
        hull = lower_convex_hull(self.curve_s)
        lowest = int(np.argmin(self.curve_s[hull])) + 1 if len(hull) else 0
        return tuple((int(at) + 1, float(self.curve_s[at])) for at in hull[:lowest])

    @property
    def min_k(self) -> int:
        self._require_served()
        return self.bends[0][0]

    @property
    def floor_s(self) -> float:
        return self.bends[-1][1] if self.bends else math.inf

    def latency_s(self, k: int) -> float:
        if 1 <= k <= len(self.curve_s):
            return float(self.curve_s[k - 1])
        if k < 1:
            return math.inf
        return float(self._latency_s(np.array([k]), self.largest_load[-1:])[0])

    def hull(self) -> Iterator[tuple[int, float]]:
        self._require_served()
        floor_s = self.floor_s
        return ((k, latency_s - floor_s) for k, latency_s in self.bends)

    def _latency_s(self, k: I64, largest: F64) -> F64:
        base: F64 = np.asarray(self.costs.o0_s + self.costs.o1_s * k, dtype=np.float64)
        free = 1.0 - largest
        with np.errstate(divide="ignore"):
            stretch: F64 = np.where(free > 0, 1.0 / np.where(free > 0, free, 1.0), np.inf)
        duration = (base + self.costs.o2_s * self.touched) * stretch
        if self.arrival_per_s is not None:
            duration = self._settled_s(base, stretch)
        return np.asarray(self.costs.c * duration, dtype=np.float64)

    def _settled_s(self, base: F64, stretch: F64) -> F64:
        """Return the D at which the shards touched by Poisson arrivals during D make epochs of length D."""
        assert self.arrival_per_s is not None
        rates, shards = _alike(self.arrival_per_s[self.arrival_per_s > 0])
        duration = np.asarray((base + self.costs.o2_s * shards.sum()) * stretch, dtype=np.float64)
        finite = np.isfinite(duration)
        for _ in range(_TOUCH_ROUNDS if self.costs.o2_s > 0 else 0):
            touched = -np.expm1(-np.outer(duration[finite], rates)) @ shards
            settled = (base[finite] + self.costs.o2_s * touched) * stretch[finite]
            close = np.allclose(settled, duration[finite], rtol=1e-4, atol=0)
            duration[finite] = settled
            if close:
                break
        return duration

    def _require_served(self) -> None:
        if not self.bends:
            raise ModelError(
                f"no number of cores serves the load: the busiest task would be at work {self.largest_load.min():.0%} of "
                "the time; a single shard is too hot, so split its keys over more shards or make the operator faster."
            )


def _alike(rates: F64) -> tuple[F64, F64]:
    """Return mean rate and number of shards in at most `_GROUPS` groups of nearly equal rate."""
    if len(rates) <= _GROUPS:
        return rates, np.ones(len(rates))
    starts = np.linspace(0, len(rates), _GROUPS, endpoint=False).astype(np.int64)
    shards = np.diff(np.append(starts, len(rates))).astype(np.float64)
    return np.add.reduceat(np.sort(rates), starts) / shards, shards


def derive_busiest_load(spread: EpochSpread, load: F64) -> F64:
    """Return the load of the busiest task within epochs, where the largest mean load of a task is `load`.

    The ratio of the two is I at the load ρ that it was seen at. Under more load epochs are longer, and the more rows a task
    has in one, the less it differs from its mean: from ρ on what is left free shrinks by what it shrank there, so that a
    load that is served stays so. min(I x, 1 - (1 - I ρ) / (1 - ρ) (1 - x)).
    """
    ratio, seen = spread.imbalance, spread.largest_load
    if not 0 < ratio * seen < 1:
        return np.asarray(ratio * load, dtype=np.float64)
    kept = (1 - ratio * seen) / (1 - seen)
    return np.asarray(np.minimum(ratio * load, np.maximum(1 - kept * (1 - load), load)), dtype=np.float64)


def _left(executor: ExecutorEstimate, curve: F64) -> float:
    """Return δ as it was seen over that of the best split: loads of shards that are off by chance make the best split look
    better than any is, and balancing stops before it."""
    at = min(executor.k, len(curve)) - 1
    mean = float(executor.load.sum()) / max(executor.k, 1)
    if at < 1 or mean <= 0:
        return 1.0
    return min(max(executor.spread.delta * mean / float(curve[at]), 1.0), _MOST_LEFT)


def derive_epoch_station(
    executor: ExecutorEstimate,
    k_max: int,
    *,
    imbalance: float | None = None,
    costs: EpochCosts | None = None,
) -> EpochStation:
    """Return the model of an executor for up to k_max cores, or as many as it has shards with load.

    Args:
        imbalance: the busiest task's load over the best split's; a balancer that stops at θ leaves up to θ. As epochs
            were seen to be spread where it is None.
        costs: coefficients to use instead of the estimate's.
    """
    shards = int(np.count_nonzero(executor.load > 0))
    curve = largest_load_curve(executor.load, max(1, min(k_max, max(shards, 1))))
    # One task holds everything, so there is no imbalance to count at k = 1.
    if imbalance is None:
        busiest = derive_busiest_load(executor.spread, curve[1:] * _left(executor, curve))
    else:
        busiest = curve[1:] * imbalance
    curve[1:] = np.minimum(busiest, curve[0])
    return EpochStation(
        costs if costs is not None else executor.epoch,
        curve,
        touched=float(shards),
        arrival_per_s=executor.arrival_per_s if shards else None,
    )
