"""MinProcessors for many queueing stations at once: what `allocation.min_processors` gives, in arrays.

For GI/G/k every core gains less than the one before (DRS, Theorem 1), so the greedy run takes the largest gains of all
stations in order: they are computed in one sweep of the Erlang-B recursion, sorted, and cut where the bound holds. A
thousand stations take milliseconds. Models with plateaus need the walk along their hull in `allocation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.model.queues import ModelError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_FIRST_LOOK = 8
"""Cores beyond the stable minimum that are looked at first; doubled for as long as a station takes all of them."""


@dataclass(frozen=True)
class Stations:
    """Stations by number. Squared coefficients of variation of 1 make M/M/k."""

    rate_per_s: F64
    service_per_s: F64
    visits: F64
    """λ_j / λ0: weight of each in the total sojourn time."""
    variability: F64 | float = 1.0
    """(scv of arrivals + scv of service) / 2, Allen-Cunneen's factor (DRS, equation 5)."""
    at_most: I64 | None = None
    """Cores that each can use."""

    @property
    def min_k(self) -> I64:
        """Fewest cores that serve each load: ⌊λ/μ⌋ + 1."""
        return np.floor(self.rate_per_s / self.service_per_s).astype(np.int64) + 1


@dataclass(frozen=True)
class Cores:
    """Cores per station and what is predicted of them."""

    cores: I64
    latency_s: float
    """E[T]: expected total sojourn time."""
    reached: bool
    """Whether the bound holds; False where cores ran out first and all were given by the same rule."""


def min_cores(stations: Stations, t_max_s: float, k_max: int) -> Cores:
    """Find the fewest cores with an expected total sojourn time of at most t_max_s, k_max at most (Elasticutor 4.1).

    Raises:
        ModelError: k_max is below the stable minimum, or a station can use fewer cores than its load needs.
    """
    start = stations.min_k
    if stations.at_most is not None and (start > stations.at_most).any():
        at = int((start > stations.at_most).argmax())
        raise ModelError(
            f"station {at} needs at least {start[at]} cores for its load and can use at most {stations.at_most[at]}; "
            "give it more shards, or spread its hottest."
        )
    if int(start.sum()) > k_max:
        raise ModelError(f"{k_max} cores cannot serve the load: give at least {int(start.sum())}.")
    look = _FIRST_LOOK
    while True:
        waits = derive_waits_s(stations, look)
        found = _take(stations, waits, t_max_s, k_max - int(start.sum()))
        if found.cores.max(initial=0) < look:
            return Cores(start + found.cores, found.latency_s, found.reached)
        look *= 2


def _take(stations: Stations, waits: F64, t_max_s: float, room: int) -> Cores:
    """Take the largest gains until the bound holds or there is no room; cores are those beyond the minimum."""
    latency = float((stations.visits * (waits[:, 0] + 1 / stations.service_per_s)).sum())
    gains = stations.visits[:, None] * (waits[:, :-1] - waits[:, 1:])
    if stations.at_most is not None:
        gains[np.arange(gains.shape[1]) >= (stations.at_most - stations.min_k)[:, None]] = 0.0
    flat = gains.ravel()
    order = np.argsort(-flat, kind="stable")
    order = order[flat[order] > 0][:room]
    after = latency - np.cumsum(flat[order])
    wanted = 0 if latency <= t_max_s else int((after > t_max_s).sum()) + 1
    taken = order[:wanted]
    cores = np.bincount(taken // gains.shape[1], minlength=len(gains))
    reached = latency if not len(taken) else float(after[len(taken) - 1])
    return Cores(cores, reached, reached <= t_max_s)


def derive_waits_s(stations: Stations, look: int) -> F64:
    """Return the mean wait of each station on its fewest cores and on up to `look` more, one row a station.

    Erlang B by its recursion, B_k = a B_{k-1} / (k + a B_{k-1}); Erlang C = k B / (k - a + a B); wait = C / (kμ - λ).
    """
    order = np.argsort(stations.min_k, kind="stable")
    start = stations.min_k[order]
    service = stations.service_per_s[order]
    load = stations.rate_per_s[order] / service
    found = np.zeros((len(order), look + 1))
    blocked = np.ones(len(order))
    for k in range(1, int(start.max(initial=0)) + look + 1):
        first, last = np.searchsorted(start, (k - look - 1, k), side="right")
        offered = load[first:] * blocked[first:]
        blocked[first:] = offered / (k + offered)
        if last > first:
            some, b = slice(first, last), blocked[first:last]
            room = k - load[some]
            erlang_c = k * b / (room + load[some] * b)
            found[np.arange(first, last), k - start[some]] = erlang_c / (service[some] * room)
    waits = np.empty_like(found)
    waits[order] = found
    factor = np.broadcast_to(np.asarray(stations.variability, dtype=np.float64), len(order))
    return waits * factor[:, None]
