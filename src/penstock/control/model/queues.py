"""Latency of one station under the queueing models of the papers: M/M/1 with a margin, M/M/k, GI/G/k.

Pure arithmetic on rates (rows a second) and core counts; waiting and sojourn (waiting plus service) apart. A
station that cannot serve its load has infinite latency, never an exception: a policy compares it like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, islice

from penstock.errors import PenstockError


class ModelError(PenstockError):
    """A latency model was asked for what has no answer; the message names the bound that would make it possible."""


def mm1_latency_s(rate: float, service: float, margin: float = 0.0) -> float:
    """Return the mean sojourn time of M/M/1 with a safety margin.

    One over what is left of the service rate, of which a share ε is kept free:
    L = 1 / ((1 - ε) μ - λ), infinite at or past (1 - ε) μ (StreamSwitch 4.2).

    Raises:
        ModelError: a rate, service rate or margin that cannot be meant.
    """
    usable = _usable(rate, service, margin)
    return 1.0 / (usable - rate) if rate < usable else math.inf


def mm1_wait_s(rate: float, service: float, margin: float = 0.0) -> float:
    """Return the mean time in the queue of M/M/1: the sojourn time less one service at (1 - ε) μ."""
    usable = _usable(rate, service, margin)
    return rate / (usable * (usable - rate)) if rate < usable else math.inf


def mmk_min_k(rate: float, service: float, margin: float = 0.0) -> int:
    """Return the fewest servers that serve the load: ⌊λ / ((1 - ε) μ)⌋ + 1 (DRS Algorithm 1, line 2)."""
    return math.floor(rate / _usable(rate, service, margin)) + 1


def mmk_wait_s(rate: float, service: float, k: int, margin: float = 0.0) -> float:
    """Return the mean queueing delay of M/M/k: E[Q](M/M/k) of DRS, equation (2).

    Its factorials overflow near k = 170, so the delay comes from the recursion of Erlang's loss formula, here
    for its reciprocal I: I(0) = 1, I(k) = 1 + I(k-1) k / a, with a = λ / μ. All terms are positive, so nothing
    cancels, and k = 100,000 is as exact as k = 1. Then P(wait) = 1 / (ρ + I (1 - ρ)) and
    E[Q] = P(wait) / (k μ - λ).
    """
    least = mmk_min_k(rate, service, margin)
    return next(islice(_waits(rate, service * (1.0 - margin), k), 1)) if k >= least else math.inf


def mmk_latency_s(rate: float, service: float, k: int, margin: float = 0.0) -> float:
    """Return the mean sojourn time of M/M/k, waiting plus one service: DRS, equation (1).

    A margin ε scales the service rate, as StreamSwitch 6.1 does when it compares with DRS.
    """
    return mmk_wait_s(rate, service, k, margin) + 1.0 / (service * (1.0 - margin))


def mmk_waiting_rows(rate: float, service: float, k: int) -> float:
    """Return the mean number of rows in the queue of M/M/k: λ E[Q], by Little's law (Ql, Es-Stream, equation 17)."""
    return rate * mmk_wait_s(rate, service, k) if rate else 0.0


def mmk_rows(rate: float, service: float, k: int) -> float:
    """Return the mean number of rows in M/M/k, waiting or in work: Q(k) of Es-Stream, equation 18."""
    return mmk_waiting_rows(rate, service, k) + rate / service


def gigk_wait_s(
    rate: float,
    service: float,
    k: int,
    scv_arrival: float = 1.0,
    scv_service: float = 1.0,
    margin: float = 0.0,
) -> float:
    """Return the mean queueing delay of GI/G/k by the approximation of Allen and Cunneen.

    The delay of M/M/k times the mean of the squared coefficients of variation of inter-arrival and service
    times, (a + s) / 2: the form that DRS uses, equation (5). Exact for M/M/k (a = s = 1) and for M/G/1.
    """
    variability = _variability(scv_arrival, scv_service)
    wait_s = mmk_wait_s(rate, service, k, margin)
    return variability * wait_s if math.isfinite(wait_s) else math.inf


def gigk_latency_s(
    rate: float,
    service: float,
    k: int,
    scv_arrival: float = 1.0,
    scv_service: float = 1.0,
    margin: float = 0.0,
) -> float:
    """Return the mean sojourn time of GI/G/k, waiting (Allen-Cunneen) plus one service: DRS, equation (5)."""
    wait_s = gigk_wait_s(rate, service, k, scv_arrival, scv_service, margin)
    return wait_s + 1.0 / (service * (1.0 - margin))


def iterate_mmk_waits_s(rate: float, service: float, margin: float = 0.0) -> Iterator[tuple[int, float]]:
    """Yield (k, mean queueing delay) of M/M/k for k = the stable minimum, one more, and so on without end.

    Each further k costs one step of the recursion, so that a greedy run over thousands of cores stays linear.
    """
    least = mmk_min_k(rate, service, margin)
    return zip(count(least), _waits(rate, service * (1.0 - margin), least), strict=False)


def _waits(rate: float, service: float, k: int) -> Iterator[float]:
    """Yield the queueing delay at k, k + 1, ...; k must serve the load."""
    offered = rate / service
    if offered == 0.0:
        while True:
            yield 0.0
    inverse = 1.0
    for servers in range(1, k):
        inverse = 1.0 + inverse * servers / offered
    while True:
        inverse = 1.0 + inverse * k / offered
        busy = offered / k
        # A rate that is a whole number of cores to the last bit may leave nothing to spare here.
        spare = max(k * service - rate, 1e-12 * rate)
        yield 1.0 / ((busy + inverse * ((k - offered) / k)) * spare)
        k += 1


def _usable(rate: float, service: float, margin: float) -> float:
    """Return (1 - ε) μ, once all three make sense."""
    if not 0.0 <= rate < math.inf:
        raise ModelError(f"an arrival rate must be zero or more rows a second, not {rate!r}.")
    if not 0.0 < service < math.inf:
        raise ModelError(f"a service rate must be more than zero rows a second, not {service!r}.")
    if not 0.0 <= margin < 1.0:
        raise ModelError(f"a margin must be at least 0 and below 1, not {margin!r}.")
    return float(service * (1.0 - margin))


def _variability(scv_arrival: float, scv_service: float) -> float:
    if not (0.0 <= scv_arrival < math.inf and 0.0 <= scv_service < math.inf):
        raise ModelError(
            "squared coefficients of variation must be finite and zero or more, "
            f"not {scv_arrival!r} and {scv_service!r}."
        )
    return (scv_arrival + scv_service) / 2.0
