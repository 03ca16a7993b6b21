"""What does not pass: waits that stay over the bound although load and noise do not explain them.

One look at a queue says little; its mean over many looks says whether something is wrong that no model knows of. Remembers
means, decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64
from penstock.control.policy.studying import Study

LOOK_S = 10.0
"""Least time over which waits are averaged."""
LOOK_TURNS = 10
LOOK_NOISE = 40.0
"""Least time in mean latencies of a task: a queue forgets what it was in some of them."""
NOISE = 4.0
"""Mean wait, in mean latencies of a task that is well, that chance does not explain."""
HOLD_S, MOST_HOLD_S = 60.0, 3600.0
"""For how long cores are kept that no model can account for, at first and at most."""
REGRET_S = 600.0
"""Time after cores were given back within which they are missed, where no more rows come than came then."""


@dataclass
class _Mean:
    task_of: npt.NDArray[np.int32]
    since_s: float
    at_s: float
    turns: int
    waits_s: F64


@dataclass
class Lingering:
    """Means of each executor's waits since its shards were last dealt, and since what waits was last explained."""

    _means: dict[str, _Mean] = field(default_factory=dict)

    def take(self, at_s: float, one: Study, panic_ratio: float) -> bool:
        """Return whether a task's waits linger over the bound."""
        mean = self._means.get(one.name)
        dealt = mean is None or not np.array_equal(mean.task_of, one.executor.task_of)
        if mean is None or dealt or at_s <= mean.at_s or not one.calm:
            self._means[one.name] = _Mean(
                one.executor.task_of, at_s, at_s, 0, np.zeros(len(one.tasks.indexes))
            )
            return False
        elapsed_s, mean.at_s = at_s - mean.at_s, at_s
        mean.turns += 1
        look_s = max(LOOK_S, LOOK_TURNS * elapsed_s, LOOK_NOISE * float(one.noise_s.max(initial=0.0)))
        # A plain mean at first, so that what was before does not count; then one that forgets.
        share = max(1.0 / mean.turns, -math.expm1(-elapsed_s / look_s))
        mean.waits_s += share * (one.waits_s - mean.waits_s)
        if at_s - mean.since_s < look_s:
            return False
        limit_s = np.maximum(panic_ratio * one.bound.latency_s, NOISE * one.noise_s)
        return bool(((mean.waits_s > limit_s) & ~one.excused).any())


@dataclass
class Holding:
    """Executors whose cores are kept for a while, as the model knows too little of them: each time for longer."""

    _until_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    _fewer: dict[str, tuple[int, bool, float]] = field(default_factory=dict)
    """Cores before some were given back, whether they were, and against how many rows a second."""
    _gave: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When some were last given back, and against how many rows a second."""

    def until_s(self, name: str) -> float:
        return self._until_s.get(name, (-math.inf, 0.0))[0]

    def note(self, name: str, at_s: float) -> None:
        """Note that an executor needs more cores than the model says."""
        until_s, hold_s = self._until_s.get(name, (-math.inf, HOLD_S / 2))
        if at_s >= until_s:
            hold_s = min(2 * hold_s, MOST_HOLD_S) if at_s < until_s + 2 * hold_s else HOLD_S
            self._until_s[name] = (at_s + hold_s, hold_s)

    def expect(self, name: str, k: int, per_s: float) -> None:
        """Note that an executor of k cores is asked to give some back, as so many rows a second need fewer."""
        self._fewer[name] = (k, False, per_s)

    def regret(self, name: str, at_s: float, per_s: float) -> None:
        """Note that an executor needs more cores: where no more rows come than when it gave some back, that was a
        mistake."""
        gave_s, before_per_s = self._gave.pop(name, (-math.inf, 0.0))
        if at_s - gave_s <= REGRET_S and per_s <= before_per_s:
            self.note(name, at_s)

    def forget(self, name: str) -> None:
        """Note that another plan was made for an executor."""
        self._fewer.pop(name, None)

    def look(self, name: str, at_s: float, k: int) -> None:
        """Take in how many cores an executor has: where it has got back what it gave, that was a mistake."""
        before, gave, per_s = self._fewer.get(name, (0, False, 0.0))
        if k < before:
            self._fewer[name] = (before, True, per_s)
            if not gave:
                self._gave[name] = (at_s, per_s)
        elif gave:
            self.forget(name)
            self.note(name, at_s)
