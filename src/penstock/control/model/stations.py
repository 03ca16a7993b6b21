"""What allocation asks of a latency model, and the queueing models in that form.

A model knows its own load; it answers for any number of cores and walks its lower convex hull from the fewest
cores that serve the load. Convexity is what makes the greedy step optimal (DRS, Theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from penstock.control.model.queues import (
    ModelError,
    gigk_latency_s,
    gigk_wait_s,
    iterate_mmk_waits_s,
    mm1_latency_s,
    mmk_min_k,
)


class StationModel(Protocol):
    """Mean latency of one station as a function of its cores k."""

    @property
    def min_k(self) -> int:
        """Fewest cores with a finite latency."""

    @property
    def floor_s(self) -> float:
        """Latency that no number of cores goes below."""

    def latency_s(self, k: int) -> float:
        """Return the mean latency on k cores; infinite where they do not serve the load."""

    def hull(self) -> Iterator[tuple[int, float]]:
        """Yield (k, latency less `floor_s`) on the lower convex hull: first min_k, then each k at which the hull bends,
        while latency falls. Each gain per core is at most the one before; there may be no end.

        Less the floor, because far out the gain of a core is lost in the rounding of the latency itself."""


@dataclass(frozen=True)
class QueueStation:
    """GI/G/k by Allen-Cunneen (DRS, equation 5); with both coefficients 1, the default, M/M/k (equation 1)."""

    rate_per_s: float
    service_per_s: float
    scv_arrival: float = 1.0
    scv_service: float = 1.0
    margin: float = 0.0
    """ε: share of the service rate that is kept free."""

    @property
    def min_k(self) -> int:
        return mmk_min_k(self.rate_per_s, self.service_per_s, self.margin)

    @property
    def floor_s(self) -> float:
        return 1.0 / (self.service_per_s * (1.0 - self.margin))

    def latency_s(self, k: int) -> float:
        return gigk_latency_s(
            self.rate_per_s, self.service_per_s, k, self.scv_arrival, self.scv_service, self.margin
        )

    def wait_s(self, k: int) -> float:
        """Return the mean time in the queue."""
        return gigk_wait_s(
            self.rate_per_s, self.service_per_s, k, self.scv_arrival, self.scv_service, self.margin
        )

    def hull(self) -> Iterator[tuple[int, float]]:
        if not (0.0 <= self.scv_arrival < math.inf and 0.0 <= self.scv_service < math.inf):
            raise ModelError("squared coefficients of variation must be finite and zero or more.")
        factor = (self.scv_arrival + self.scv_service) / 2.0
        for k, wait_s in iterate_mmk_waits_s(self.rate_per_s, self.service_per_s, self.margin):
            yield k, factor * wait_s


@dataclass(frozen=True)
class SplitStation:
    """k queues of one server each, the load dealt evenly: M/M/1 with margin (StreamSwitch 4.2) at λ / k.

    It fits tasks that own their shards better than one shared queue does, and is never below it.
    """

    rate_per_s: float
    service_per_s: float
    margin: float = 0.0

    @property
    def min_k(self) -> int:
        k = mmk_min_k(self.rate_per_s, self.service_per_s, self.margin)
        # A rate that is a whole number of cores but for rounding leaves each of them nothing to spare.
        return k if math.isfinite(self.latency_s(k)) else k + 1

    @property
    def floor_s(self) -> float:
        return 1.0 / (self.service_per_s * (1.0 - self.margin))

    def latency_s(self, k: int) -> float:
        return mm1_latency_s(self.rate_per_s / k, self.service_per_s, self.margin)

    def hull(self) -> Iterator[tuple[int, float]]:
        k, usable = self.min_k, self.service_per_s * (1.0 - self.margin)
        while True:
            each = self.rate_per_s / k
            yield k, each / (usable * (usable - each))
            k += 1
