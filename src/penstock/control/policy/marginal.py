"""Marginal analysis of Es-Stream: the number of tasks at which one more costs as much as the rows it saves."""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock.control.model.queues import iterate_mmk_waits_s, mmk_latency_s
from penstock.control.policy.demand import Demand
from penstock.control.policy.wording import count

_LEAST_BETA, _MOST_BETA = 0.001, 0.95


def derive_best_k(rate_per_s: float, service_per_s: float, beta: float, at_most: int = 1 << 16) -> int:
    """Return k*, the least k with Q(k) - Q(k + 1) <= β / (1 - β): the minimum of βk + (1 - β) Q(k).

    Es-Stream, Algorithm 1 and condition (11); Q(k) = λ E[Q] + λ/μ under M/M/k (equation 18). Q is convex and falling,
    so the first such k is the minimum. The search starts from the least stable k, ⌊λ/μ⌋ + 1: with ⌊λ/μ⌋, as printed,
    the queue has no bound.
    """
    beta = min(max(beta, _LEAST_BETA), _MOST_BETA)
    worth = beta / (1.0 - beta)
    waits = iterate_mmk_waits_s(rate_per_s, service_per_s)
    k, wait_s = next(waits)
    for more, less_s in waits:
        if k >= at_most or rate_per_s * (wait_s - less_s) <= worth:
            break
        k, wait_s = more, less_s
    return k


def predict_mmk_s(demand: Demand, cores: Mapping[str, int]) -> float:
    """Return the mean total sojourn time under M/M/k: Σ (λ_i / λ0) E[T_i](k_i); without any row, that of the first."""
    return math.fsum(
        demand.visits(name) * mmk_latency_s(demand.rate_per_s[name], demand.service_per_s[name], k)
        for name, k in cores.items()
        if demand.visits(name) > 0
    )


def describe_change(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return what changes, in words: `match 2 -> 3 tasks`."""
    changed = [
        f"{name} {before[name]} -> {count(k, 'task')}" for name, k in after.items() if before[name] != k
    ]
    return ", ".join(changed) or "k* as it is"
