"""Rows in a simulation, as columns of one array, and the long queue that a task keeps when it cannot follow."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.control.measure.sample import F64

AT: Final = 0
"""When it arrived at the operator: what latency counts from, and the order of service."""
READY: Final = 1
"""When it can be served: its arrival, or the end of what held its shard up."""
SHARD: Final = 2
NEED: Final = 3
"""Seconds it takes on a node of speed 1."""
ROOT: Final = 4
"""Number of the input row that it derives from."""
COLUMNS: Final = 5

NO_ROWS: Final[F64] = np.empty((COLUMNS, 0))


class LongQueue:
    """A queue of rows from whose head as many can be taken as fit into a given time, without looking at the rest."""

    def __init__(self) -> None:
        self._rows: F64 = np.empty((COLUMNS, 1024))
        self._needs: F64 = np.empty(1024)
        self._head = self._tail = 0

    def __len__(self) -> int:
        return self._tail - self._head

    def append(self, rows: F64) -> None:
        """Add rows behind the last one."""
        count = rows.shape[1]
        if self._tail + count > self._rows.shape[1]:
            self._make_room(count)
        before = self._needs[self._tail - 1] if self._tail else 0.0
        self._rows[:, self._tail : self._tail + count] = rows
        self._needs[self._tail : self._tail + count] = before + rows[NEED].cumsum()
        self._tail += count

    def take(self, need_s: float) -> F64:
        """Take the head rows that together need this long, and one more."""
        if not len(self):
            return NO_ROWS
        before = self._needs[self._head - 1] if self._head else 0.0
        to = int(self._needs[self._head : self._tail].searchsorted(before + need_s)) + self._head + 1
        return self._cut(min(to, self._tail))

    def peek(self) -> F64:
        """Look at all rows without taking them."""
        return self._rows[:, self._head : self._tail]

    def take_all(self) -> F64:
        return self._cut(self._tail)

    def _cut(self, to: int) -> F64:
        found = self._rows[:, self._head : to].copy()
        self._head = to
        return found

    def _make_room(self, count: int) -> None:
        rows, kept = self._rows[:, self._head : self._tail], len(self)
        size = max(1024, 2 * (kept + count))
        grown = np.empty((COLUMNS, size))
        grown[:, :kept] = rows
        needs = np.empty(size)
        needs[:kept] = np.cumsum(rows[NEED])
        self._rows, self._needs, self._head, self._tail = grown, needs, 0, kept
