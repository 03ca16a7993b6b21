"""The pace rule: epochs per second times measured driver cost stay under a share of one core, by lengthening
epochs."""

from __future__ import annotations

from penstock.dataplane.settings import Settings

_WEIGHT = 0.05


class Pace:
    """Learns what an epoch costs the driver and spaces epochs accordingly."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.driver_s_per_epoch = 0.0

    def note_cost(self, cpu_s: float, epochs: int) -> None:
        """Take in the driver's CPU time over some epochs (exponentially weighted)."""
        if epochs > 0:
            sample = cpu_s / epochs
            known = self.driver_s_per_epoch or sample
            self.driver_s_per_epoch = known + _WEIGHT * (sample - known)

    def next_start(self, started_at: float, active: int) -> float:
        """Return the earliest start of the next epoch of an executor that started its last one at
        `started_at`.

        With n executors at work, each may start one epoch every n * cost / share seconds.
        """
        interval = active * self.driver_s_per_epoch / self._settings.driver_share
        return started_at + max(self._settings.min_epoch_s, interval)
