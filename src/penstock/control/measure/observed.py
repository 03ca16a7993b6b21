"""The one number that an SLA bounds, as measured. Pure."""

from __future__ import annotations

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.sla import END_TO_END, SLA


def derive_observed_s(now: Estimate, sla: SLA) -> float | None:
    """Return the latency that the SLA bounds, as measured: end to end, or of the slowest operator.

    Where the data plane measured none end to end, the slowest executor stands for it, which is less; None where
    nothing was completed.
    """
    if sla.scope == END_TO_END:
        measured = _choose(now.latency_s, now.latency_p99_s, sla)
        if measured is not None:
            return measured
    found = [
        one for executor in now.executors.values() if (one := derive_executor_s(executor, sla)) is not None
    ]
    return max(found, default=None)


def derive_executor_s(executor: ExecutorEstimate, sla: SLA) -> float | None:
    """Return the latency of one executor in the sense of the SLA; what counters tell where none was measured."""
    measured = _choose(executor.measured_s, executor.measured_p99_s, sla)
    if measured is not None:
        return measured
    known = np.isfinite(executor.latency_s)
    if not known.any():
        return None
    weights = np.maximum(executor.arrival_per_s[known], 1e-9)
    return float(np.average(executor.latency_s[known], weights=weights))


def _choose(mean_s: float | None, p99_s: float | None, sla: SLA) -> float | None:
    return mean_s if sla.is_mean or p99_s is None else p99_s
