"""What chance makes of the mean over a window that holds few independent rows. Formulas only.

A bound on the mean is held in each window, and a window is short: where rows take long, those of one window all met the
same queues, so that their mean varies nearly as the latency of one row does. The mean over all windows must lie lower.
"""

from __future__ import annotations

import math

CERTAIN = 2.33
"""Deviations of a normal one within which 99 windows of 100 lie."""
LONGEST_RELAXATION = 0.95
"""Load past which a queue is taken to forget no more slowly: it would never settle."""


def derive_mean_s(
    bound_s: float, window_s: float, service_per_s: float, load: float, most_tasks: int, margin: float
) -> float:
    """Return the mean latency that asks for the fewest tasks on which 99 windows of 100 hold a bound on their mean: the
    bound itself where those that the margin asks for do.

    Of k tasks at load ρ / k each, whose latency is 1 / (μ (1 - ρ / k)) on the mean (M/M/1), the first is taken whose
    latency times `window_factor` is within the bound; all there can be where none is. A bound of 1 / (μ (1 - ε - ρ / k))
    lets a task be filled to ρ / k, which is k tasks.

    Args:
        load: ρ, core-seconds a second of all tasks together.
        margin: ε, the share of each task's time that is kept free.
    """
    fewest = max(math.ceil(load / (1.0 - margin) - 1e-9), math.floor(load) + 1, 1)
    for tasks in range(fewest, max(most_tasks, fewest) + 1):
        each = load / tasks
        factor = window_factor(count_independent(tasks, service_per_s, each, window_s))
        if factor / (service_per_s * (1.0 - each)) <= bound_s:
            if tasks == fewest:
                return bound_s
            break
    free = 1.0 - margin - each
    return min(bound_s, 1.0 / (service_per_s * free)) if free > 0 else bound_s


def count_independent(tasks: int, service_per_s: float, load: float, window_s: float) -> float:
    """Return how many independent looks at a queue a window has: one for each task, and one more each time it forgets.

    M/M/1 forgets what it was within 1 / (μ (1 - √ρ)²).

    Args:
        load: ρ of one task.
    """
    relaxation_s = 1.0 / (service_per_s * (1.0 - math.sqrt(min(max(load, 0.0), LONGEST_RELAXATION))) ** 2)
    return max(tasks, 1) * (1.0 + window_s / relaxation_s)


def window_factor(looks: float, z: float = CERTAIN) -> float:
    """Return how far the mean over a window may lie over that of all windows, by z deviations of a normal one: the mean of
    so many exponential latencies has a gamma distribution (Wilson and Hilferty's approximation)."""
    ninth = 1.0 / (9.0 * max(looks, 1.0))
    return float((1.0 - ninth + z * math.sqrt(ninth)) ** 3)
