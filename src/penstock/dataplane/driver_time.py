"""The time of one driver, which no step of the system's clock moves: the wall's at the start, or the last recorded where
that is later, plus what a clock that nobody can set has gone since.

Arrivals and latencies go by it. Epoch times, and with them timers, also follow the wall where it is set ahead, and never
go back. Times that drivers or people of other processes compare (claims, heartbeats, reports) are the system's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 0.5
"""Change of the wall clock against the steady one from which on it was set, and not read a little later."""
_HELD_UP_S = 0.05
"""Time between two readings from which on they say nothing about each other."""
_STEADY = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)


def steady_s() -> float:
    """Return seconds by a clock that nobody can set and that goes on while the machine sleeps, as the wall does."""
    return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)


class DriverTime:
    """The time of one driver, in seconds since 1970.

    Args:
        wall: the system's clock, which may be set at any moment.
        steady: seconds since some moment, which only ever go on.
        recorded_s: the latest time that an earlier driver of this checkpoint has recorded, 0 where there was none.
    """

    def __init__(
        self, wall: Callable[[], float], steady: Callable[[], float], recorded_s: float = 0.0
    ) -> None:
        self._wall, self._steady = wall, steady
        began = wall()
        self._known = began - steady()
        self._offset = self._epochs = self._known + max(0.0, recorded_s - began)

    def now(self) -> float:
        """Return the time by which rows arrive and latency is measured. Any thread."""
        return self._steady() + self._offset

    def epoch_time(self) -> float:
        """Return the time by which timers fire: never before the last one, `now` or the wall. One thread."""
        # The wall first: being held up between the two readings then looks like no step ahead.
        wall = self._wall()
        steady = self._steady()
        self._epochs = max(self._epochs, wall - steady)
        return steady + self._epochs

    def look(self) -> float | None:
        """Return by how many seconds the system's clock was set since the last look (negative: back), None where it was
        not. One thread."""
        before = self._steady()
        wall = self._wall()
        steady = self._steady()
        if steady - before > _HELD_UP_S:
            return None
        step = wall - steady - self._known
        self._known += step
        return step if abs(step) >= STEP_S else None


def describe_step(step_s: float) -> str:
    """Say that the clock was set, by how much, and what follows."""
    if step_s < 0:
        return (
            f"the system's clock was set back by {-step_s:,.1f} s; arrivals, latencies and timers go on as if it had not "
            "been."
        )
    return (
        f"the system's clock was set ahead by {step_s:,.1f} s; arrivals and latencies go on as if it had not been, timers "
        "by processing time follow it."
    )
