"""The virtual clock's agenda: what is to happen when. Ties go in the order in which they were put in."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Agenda:
    """Actions in order of time."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()

    def at(self, when_s: float, action: Callable[[float], None]) -> None:
        """Have an action called with its time once the clock gets there."""
        heapq.heappush(self._entries, (when_s, next(self._numbers), action))

    def next_s(self) -> float:
        """Return the time of the next action; infinite where there is none."""
        return self._entries[0][0] if self._entries else float("inf")

    def run_due(self, now_s: float) -> None:
        """Call all actions up to now, those included that they add."""
        while self._entries and self._entries[0][0] <= now_s + 1e-12:
            when, _, action = heapq.heappop(self._entries)
            action(max(when, now_s))
