"""How numbers and "no change" read in symptoms and actions, the same in every policy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.mapping import is_known
from penstock.control.policy.protocol import Option, Proposal
from penstock.control.sla import SLA

_NAMED = 8
"""Tasks that are named one by one in a sentence; more are counted."""

_IN_US, _IN_S = 1e-4, 100.0
"""Latencies that are shorter, and longer, are written in another unit than milliseconds."""


def in_ms(seconds: float) -> str:
    """Return a latency for people: `84 ms`, `3.5 ms`, `20 µs`, `500,000 s`, or `unbounded`."""
    if not math.isfinite(seconds):
        return "unbounded"
    if seconds > _IN_S:
        return f"{seconds:,.0f} s"
    if 0 < seconds < _IN_US:
        us = seconds * 1e6
        return f"{us:.0f} µs" if us >= 10 else f"{us:.2g} µs"
    ms = seconds * 1e3
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def name_measure(sla: SLA) -> str:
    """Return of what a bound is: `mean`, `p99`."""
    return "mean" if sla.is_mean else f"p{100 * float(sla.quantile):g}"


def count(number: int, word: str) -> str:
    """Return `1 shard`, `5 shards`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def describe_moves(before: npt.NDArray[np.int32], after: npt.NDArray[np.int32]) -> str:
    """Return which shards change their task: `moved 5 shards from task 3 to task 1`, `moved 7 shards to tasks 1, 2`.

    Args:
        before, after: shard -> index of its task.
    """
    changed = np.flatnonzero(before != after)
    moved = f"moved {count(len(changed), 'shard')}"
    if not len(changed):
        return moved
    sources, targets = (sorted({*one[changed].tolist()}) for one in (before, after))
    start = f" from task {sources[0]}" if len(sources) == 1 else ""
    return f"{moved}{start} to {name_tasks(targets)}"


def name_tasks(indexes: Sequence[int]) -> str:
    """Return `task 1`, `tasks 1, 2`, or how many where they are too many to name."""
    if len(indexes) > _NAMED:
        return f"{len(indexes)} tasks"
    return f"{'task' if len(indexes) == 1 else 'tasks'} {', '.join(map(str, indexes))}"


def no_change(
    symptom: str, why: str, options: tuple[Option, ...] = (), predicted_s: float | None = None
) -> Proposal:
    """Return the decision to leave everything as it is. What errors say ends with a full stop, a part of a sentence not."""
    return Proposal(None, symptom.rstrip("."), f"no change: {why.rstrip('.')}", options, predicted_s)


def propose_waiting(now: Estimate) -> Proposal | None:
    """Return why nothing may be decided on this estimate (StreamSwitch 4.3), None where something may."""
    if now.invalid is not None:
        return no_change(f"the estimate does not hold: {now.invalid}", "wait for a whole one")
    if now.treating:
        return no_change("a plan is still being carried out", "decide when it is done")
    if not any(executor.k for executor in now.executors.values()):
        return no_change("no executor has a task yet", "nothing is measured")
    return None


def propose_unmeasured(now: Estimate) -> Proposal | None:
    """Return why a policy that needs every service rate waits; None where all are known."""
    unknown = sorted(name for name, one in now.executors.items() if one.k and not is_known(one.service_per_s))
    if not unknown:
        return None
    return no_change(f"no service rate of {', '.join(unknown)} yet", "wait until rows were processed")
