"""How long rows took, from counters alone: arrivals and completions of a shard are in the same order, so the slot in
which a completed row arrived can be found (StreamSwitch 4.1). Counts only; no rates, no opinion.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64, I64


class ShardTrace:
    """Traces rows of all shards of an executor through a[m] and c[m].

    A row completed in the slot that ends at t_m, and arrived in the one that ends at t_m', is taken to have needed
    t_m - t_m'. Its true latency lies between t_{m-1} - t_m' and t_m - t_{m'-1}: the error of a row, and so of any
    mean, is at most the longest slot. Rows that had arrived before the first sample are not counted.
    """

    def __init__(self, at_s: float, arrived: I64, completed: I64, max_slots: int = 256) -> None:
        self._ends_s = np.empty(2 * max_slots)
        self._arrived = np.empty((2 * max_slots, len(arrived)), dtype=np.int64)
        self._from, self._to = 0, 1
        """Slots that are kept."""
        self._ends_s[0], self._arrived[0] = at_s, arrived
        self._completed = completed.copy()
        self._untraced = arrived.copy()
        self._max_slots = max_slots
        self._recent = _Recent(len(arrived))

    def add(self, at_s: float, arrived: I64, completed: I64) -> None:
        """Close a slot. `at_s` is later than before, and no count is lower."""
        first = np.maximum(self._completed, self._untraced)
        last = np.maximum(completed, self._untraced)
        self._put(at_s, arrived)
        # Of the rows completed now, those that were there at the end of slot j waited through slot j + 1.
        there = np.maximum(self._arrived[self._from : self._to - 1], first)
        np.minimum(there, last, out=there)
        there -= first
        lengths_s = self._ends_s[self._from + 1 : self._to] - self._ends_s[self._from : self._to - 1]
        self._recent.append(at_s, lengths_s @ there, last - first)
        self._completed = completed.copy()
        self._forget()

    def forget_shards(self, where: npt.NDArray[np.bool_], arrived: I64, completed: I64) -> None:
        """Begin again for some shards, at the counts that the next slot will end with."""
        self._arrived[self._from : self._to, where] = completed[where]
        self._untraced[where] = arrived[where]
        self._completed[where] = completed[where]
        self._recent.forget_shards(where)

    def derive_latency_s(self, window_s: float) -> F64:
        """Return l per shard over the rows completed in the last `window_s`, at least the last slot.

        Where none was completed although rows wait, it is how long the first of them has waited, which is less than
        what it will need; where that is not known either, NaN.
        """
        if not len(self._recent):
            return np.full(len(self._completed), np.nan)
        now_s = self._recent.drop(window_s)
        rows, total_s = self._recent.sum()
        some = rows > 0
        if some.all():
            return total_s / rows
        return np.divide(total_s, rows, out=self._derive_age_s(now_s), where=some)

    def derive_mean_s(self) -> float | None:
        """Return the mean over all rows completed in the last slot; None where there were none."""
        if not len(self._recent) or not (rows := int(self._recent.rows[-1].sum())):
            return None
        return float(self._recent.latency_s[-1].sum() / rows)

    def _derive_age_s(self, now_s: float) -> F64:
        waiting = self._arrived[self._from : self._to] > self._completed
        oldest_s = self._ends_s[self._from : self._to][waiting.argmax(axis=0)]
        age_s = np.where(waiting[-1], now_s - oldest_s, 0.0)  # counts never fall: the last slot tells of all
        return np.where(age_s > 0, age_s, np.nan)

    def _put(self, at_s: float, arrived: I64) -> None:
        if self._to == len(self._ends_s):
            kept = self._to - self._from
            self._ends_s[:kept] = self._ends_s[self._from : self._to].copy()
            self._arrived[:kept] = self._arrived[self._from : self._to].copy()
            self._from, self._to = 0, kept
        self._ends_s[self._to], self._arrived[self._to] = at_s, arrived
        self._to += 1

    def _forget(self) -> None:
        # A slot all of whose arrivals are completed adds nothing to later sums.
        while self._from < self._to - 1 and (self._arrived[self._from] <= self._completed).all():
            self._from += 1
        if self._to - self._from > self._max_slots:
            # Old slots are joined two by two: they become longer, and the first one stays where it is.
            joined = np.arange(self._from + 1, self._from + self._max_slots // 2, 2)
            kept = np.setdiff1d(np.arange(self._from, self._to), joined)
            self._ends_s[: len(kept)], self._arrived[: len(kept)] = self._ends_s[kept], self._arrived[kept]
            self._from, self._to = 0, len(kept)


class _Recent:
    """What was completed in the last slots, one line each, in arrays that are moved up when they are full."""

    def __init__(self, shards: int, room: int = 64) -> None:
        self._ends_s = np.empty(room)
        self._latency_s = np.empty((room, shards))
        self._rows = np.empty((room, shards), dtype=np.int64)
        self._from = self._to = 0

    def __len__(self) -> int:
        return self._to - self._from

    @property
    def latency_s(self) -> F64:
        """[slot, shard]: the sum over the rows completed in the slot."""
        return self._latency_s[self._from : self._to]

    @property
    def rows(self) -> I64:
        return self._rows[self._from : self._to]

    def append(self, end_s: float, latency_s: F64, rows: I64) -> None:
        if self._to == len(self._ends_s):
            self._make_room()
        self._ends_s[self._to], self._latency_s[self._to], self._rows[self._to] = end_s, latency_s, rows
        self._to += 1

    def drop(self, window_s: float) -> float:
        """Forget all slots but those of the last `window_s`, and the last; return when that ended."""
        now_s = float(self._ends_s[self._to - 1])
        while self._from < self._to - 1 and self._ends_s[self._from] <= now_s - window_s:
            self._from += 1
        return now_s

    def sum(self) -> tuple[I64, F64]:
        return np.add.reduce(self.rows, axis=0), np.add.reduce(self.latency_s, axis=0)

    def forget_shards(self, where: npt.NDArray[np.bool_]) -> None:
        self.latency_s[:, where] = 0.0
        self.rows[:, where] = 0

    def _make_room(self) -> None:
        kept = slice(self._from, self._to)
        size = max(64, 2 * len(self))
        for name in ("_ends_s", "_latency_s", "_rows"):
            old = getattr(self, name)
            new = np.empty((size, *old.shape[1:]), dtype=old.dtype)
            new[: len(self)] = old[kept]
            setattr(self, name, new)
        self._from, self._to = 0, len(self)
