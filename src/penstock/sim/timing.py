"""How long things take in a simulated run: settings that are small enough to meet everything, and bounds of delays."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from penstock.dataplane.levels import TaskRates
from penstock.dataplane.settings import Settings

SMALL = Settings(
    min_epoch_s=0.002,
    sink_epoch_s=0.005,
    min_epoch_rows=4,
    max_epoch_rows=24,
    base_interval_s=0.12,
    retain_epochs=12,
    snapshot_min_bytes=400,
    snapshots_per_epoch=3,
    lease_timeout_s=0.4,
    heartbeat_s=0.4,
)
"""Settings under which a run of a few virtual seconds meets everything: cuts, snapshots, bases, time-outs."""


@dataclass(frozen=True)
class Delays:
    """Bounds, in virtual seconds, between which delays are drawn."""

    message: tuple[float, float] = (0.0002, 0.003)
    work: tuple[float, float] = (0.0005, 0.006)
    copy: tuple[float, float] = (0.001, 0.03)
    append: tuple[float, float] = (0.0005, 0.005)
    sink: tuple[float, float] = (0.001, 0.01)
    lease_start: tuple[float, float] = (0.01, 0.06)
    office_s: float = 0.05
    cleanup_s: float = 0.15
    stall_ratio: float = 0.0
    """Part of the messages and appends that take up to a hundred times as long."""


def quick(settings: Settings = SMALL, **changes: object) -> Settings:
    """Return settings with some numbers changed."""
    return replace(settings, **changes)  # type: ignore[arg-type]


class UnevenRates(TaskRates):
    """Rates far apart, so that the tasks of an executor are hardly ever equally far.

    Odd seeds draw them anew for every epoch; even ones keep what was drawn first, since what is shaken every epoch hides
    that nobody would go on by himself.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._keeps = seed % 2 == 0
        self._drawn: dict[int, float] = {}

    def rows_in(self, seconds: float, tasks: Collection[int]) -> dict[int, float]:
        for task in tasks:
            if task not in self._drawn or not self._keeps:
                self._drawn[task] = self._rng.choice((1.0, 3.0, 10.0, 100.0))
        return {task: seconds * self._drawn[task] for task in tasks}
