"""The oracle: all tasks at work all day, and the load on them balanced perfectly at every moment.

It has one queue for all tasks, so no task is idle while a row waits anywhere: a fluid bound on what placing shards can
reach. A row waits for the work in front of it, shared by all tasks, and then takes one task's time for itself.
"""

from __future__ import annotations

import numpy as np

from penstock.control.sla import SLA
from penstock.sim.elastic.arrivals import Arrivals
from penstock.sim.elastic.truth import Truth


def derive_oracle(
    arrivals: Arrivals, service_per_s: float, tasks: int, sla: SLA, seconds: float
) -> tuple[Truth, float]:
    """Return the truth of the oracle and its success rate.

    Args:
        arrivals: rows of one operator.
        service_per_s: μ, rows a second of one task.
        tasks: how many there are.
        sla: what is judged.
        seconds: how long.
    """
    truth = Truth(arrivals.shards, sla, seconds)
    pooled_s = 1.0 / (service_per_s * tasks)
    free_s = 0.0
    waiting = np.empty(0), np.empty(0, np.int64)
    for minute in range(int(np.ceil(seconds / 60.0))):
        at, shard = arrivals.take(min(seconds, 60.0 * (minute + 1)))
        if not len(at):
            continue
        before = pooled_s * np.arange(len(at))
        ready = at - before
        ready[0] = max(ready[0], free_s)
        end = np.maximum.accumulate(ready) + before + pooled_s
        free_s = float(end[-1])
        end += 1.0 / service_per_s - pooled_s
        late = end > seconds
        truth.add(at[~late], end[~late], shard[~late])
        waiting = np.append(waiting[0], at[late]), np.append(waiting[1], shard[late])
    return truth, float(truth.success(seconds, waiting).mean())
