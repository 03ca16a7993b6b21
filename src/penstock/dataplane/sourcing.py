"""Open-loop arrivals of a native source: which row is due when, whatever the engine does. Pure arithmetic on
a given clock.

Row i has a scheduled arrival time that depends only on the rate profile, so waiting inside the engine counts
as latency. After a restart the schedule goes on from the committed row.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from penstock.dataplane.records import Stamp
from penstock.errors import DeclarationError


class Arrivals:
    """The schedule of one native source.

    Args:
        steps: (seconds, rows per second); the last step holds for ever. A rate of 0 pauses.
        limit: number of rows after which the source ends, None for never.
    """

    def __init__(self, steps: Sequence[tuple[float, float]], limit: int | None = None) -> None:
        if not steps or any(seconds < 0 or rate < 0 for seconds, rate in steps):
            raise DeclarationError(
                "rate must be a number or a list of (seconds, rows_per_s) with no negative entries."
            )
        self.limit = limit
        self._rates = [float(rate) for _, rate in steps]
        self._times = [0.0]
        self._rows = [0.0]
        for seconds, rate in list(steps)[:-1]:
            self._times.append(self._times[-1] + seconds)
            self._rows.append(self._rows[-1] + seconds * rate)
        self._origin: float | None = None

    @property
    def running(self) -> bool:
        """Whether the schedule has begun."""
        return self._origin is not None

    def resume(self, offset: int, now: float) -> None:
        """Let the schedule stand at row `offset` now."""
        # The first row may come after a pause; that pause is still ahead when no row has come.
        self._origin = now - (self._time_of(offset) if offset else 0.0)

    def due(self, now: float) -> int:
        """Return how many rows have arrived by `now`; none before the schedule has begun."""
        if self._origin is None:
            return 0
        elapsed = now - self._origin
        step = max(0, bisect.bisect_right(self._times, elapsed) - 1)
        rows = int(self._rows[step] + (elapsed - self._times[step]) * self._rates[step] + 1e-6)
        return max(0, rows if self.limit is None else min(rows, self.limit))

    def next_due_in(self, offset: int, now: float, at_least: float) -> float:
        """Return the seconds until the row `offset` is due, between `at_least` and one second."""
        if self.limit is not None and offset >= self.limit:
            return 1.0
        if self._origin is None:
            return 1.0
        due = self._origin + self._time_of(offset + 1)
        return min(1.0, max(at_least, due - now))

    def length_s(self) -> float:
        """Return the seconds from the beginning to the last row of a source that ends."""
        return self._time_of(self.limit) if self.limit else 0.0

    def stamp(self, start: int, end: int) -> Stamp:
        """Return the scheduled arrival times of rows [start, end)."""
        origin = self._origin or 0.0
        first = origin + self._time_of(start + 1)
        last = origin + self._time_of(end)
        return Stamp(end - start, round(first * 1e6), (first + last) / 2 * 1e6, round(last * 1e6))

    def _time_of(self, row: int) -> float:
        """Seconds after the origin at which the row-th row (counted from 1) arrives."""
        step = max(0, bisect.bisect_left(self._rows, row) - 1)
        rate = self._rates[step]
        if rate == 0:
            return self._times[step + 1] if step + 1 < len(self._times) else self._times[step] + 1e9
        return self._times[step] + (row - self._rows[step]) / rate
