"""Whether a sample can be believed, before anything is derived from it. Pure; every answer is a reason in words."""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from penstock.control.measure.sample import ExecutorSample


class Sequel(Enum):
    """How a sample of an executor stands to the one before it."""

    FOLLOWS = "follows"
    RESTARTED = "restarted"
    """Totals fell: the counters began again."""


def find_fault(name: str, sample: ExecutorSample) -> str | None:
    """Say why a sample of an executor cannot be used; None where it can."""
    shards = len(sample.task_of)
    arrays = (sample.arrived, sample.completed, sample.busy_s, sample.state_bytes)
    if any(len(array) != shards for array in arrays):
        return f"the sample of {name} has arrays of unequal length"
    lacking = ((sample.arrived < 0) | (sample.completed < 0)) & (sample.task_of >= 0)
    if lacking.any():
        return f"the sample of {name} lacks shard {np.flatnonzero(lacking)[0]}"
    if not _has_numbers(sample):
        return f"a time of {name} is no number"
    indexes = {task.index for task in sample.tasks}
    used = {index for index in set(sample.task_of.tolist()) if index >= 0}
    if used and not indexes:
        return f"no task of {name} is up yet"
    if not used <= indexes:
        return f"a shard of {name} belongs to a task that is not there"
    return None


def _has_numbers(sample: ExecutorSample) -> bool:
    # No number fails every comparison. A sum is finite only where all of its parts are.
    if not (0 <= sample.epochs_s < math.inf and 0 <= sample.longest_task_s < math.inf):
        return False
    for task in sample.tasks:
        if not (0 <= task.busy_s < math.inf and 0 <= task.rows < math.inf):
            return False
    return math.isfinite(float(np.add.reduce(sample.busy_s))) or bool(
        np.isfinite(sample.busy_s[sample.task_of >= 0]).all()
    )


def compare(before: ExecutorSample, after: ExecutorSample) -> Sequel:
    """Say whether totals went on or began again. Shards that changed their executor say nothing."""
    if len(before.task_of) != len(after.task_of):
        return Sequel.RESTARTED
    both = (before.task_of >= 0) & (after.task_of >= 0)
    fell = (after.arrived < before.arrived) | (after.completed < before.completed)
    # Useful time is a sum of measured floats: it may come back a rounding error lower.
    fell |= after.busy_s < before.busy_s - 1e-6
    restarted = bool((fell & both).any()) or after.epochs < before.epochs
    return Sequel.RESTARTED if restarted else Sequel.FOLLOWS
