"""The one number that an SLA bounds, as measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.sla import END_TO_END, SLA

P99 = 0.99


def derive_observed_s(now: Estimate, sla: SLA) -> float | None:
    """Return the latency that the SLA bounds, as measured: end to end, or of the slowest operator.

    Where the data plane measured none end to end, the slowest executor stands for it, which is less; None where
    nothing was completed, and where another quantile than the SLA's was measured, which says nothing of it.
    """
    if sla.scope == END_TO_END:
        measured = _choose(now.latency_s, now.latency_p99_s, now.latency_quantiles_s, sla)
        if measured is not None:
            return measured
    found = [
        one for executor in now.executors.values() if (one := derive_executor_s(executor, sla)) is not None
    ]
    return max(found, default=None)


def derive_executor_s(executor: ExecutorEstimate, sla: SLA) -> float | None:
    """Return the latency of one executor in the sense of the SLA. Where no quantile was measured at all, the mean stands
    for it, and where no latency was, what counters tell."""
    measured = _choose(executor.measured_s, executor.measured_p99_s, executor.measured_quantiles_s, sla)
    if measured is not None or executor.measured_s is not None:
        return measured
    known = np.isfinite(executor.latency_s)
    if not known.any():
        return None
    weights = np.maximum(executor.arrival_per_s[known], 1e-9)
    return float(np.average(executor.latency_s[known], weights=weights))


def _choose(
    mean_s: float | None, p99_s: float | None, quantiles_s: Mapping[float, float], sla: SLA
) -> float | None:
    if sla.is_mean or (p99_s is None and not quantiles_s):
        return mean_s
    quantile = float(sla.quantile)
    return p99_s if quantile == P99 and p99_s is not None else quantiles_s.get(quantile)
