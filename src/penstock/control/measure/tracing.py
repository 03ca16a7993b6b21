"""How long rows took, from counters alone: arrivals and completions of a shard are in the same order, so the slot in
which a completed row arrived can be found (StreamSwitch 4.1). Counts only; no rates, no opinion.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64, I64


@dataclass(frozen=True)
class _Slot:
    end_s: float
    latency_s: F64
    """Per shard, the sum over the rows completed in the slot."""
    rows: I64


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
        self._recent: deque[_Slot] = deque()

    def add(self, at_s: float, arrived: I64, completed: I64) -> None:
        """Close a slot. `at_s` is later than before, and no count is lower."""
        first = np.maximum(self._completed, self._untraced)
        last = np.maximum(completed, self._untraced)
        self._put(at_s, arrived)
        # Of the rows completed now, those that were there at the end of slot j waited through slot j + 1.
        there = np.minimum(np.maximum(self._arrived[self._from : self._to - 1], first), last) - first
        self._recent.append(_Slot(at_s, np.diff(self._ends_s[self._from : self._to]) @ there, last - first))
        self._completed = completed.copy()
        self._forget()

    def forget_shards(self, where: npt.NDArray[np.bool_], arrived: I64, completed: I64) -> None:
        """Begin again for some shards, at the counts that the next slot will end with."""
        self._arrived[self._from : self._to, where] = completed[where]
        self._untraced[where] = arrived[where]
        self._completed[where] = completed[where]
        for slot in self._recent:
            slot.latency_s[where] = 0.0
            slot.rows[where] = 0

    def derive_latency_s(self, window_s: float) -> F64:
        """Return l per shard over the rows completed in the last `window_s`, at least the last slot.

        Where none was completed although rows wait, it is how long the first of them has waited, which is less than
        what it will need; where that is not known either, NaN.
        """
        if not self._recent:
            return np.full(len(self._completed), np.nan)
        now_s = self._recent[-1].end_s
        while len(self._recent) > 1 and self._recent[0].end_s <= now_s - window_s:
            self._recent.popleft()
        rows = np.sum([slot.rows for slot in self._recent], axis=0)
        total_s = np.sum([slot.latency_s for slot in self._recent], axis=0)
        traced = np.divide(total_s, rows, out=np.full(len(rows), np.nan), where=rows > 0)
        return traced if rows.all() else np.where(rows > 0, traced, self._derive_age_s(now_s))

    def derive_mean_s(self) -> float | None:
        """Return the mean over all rows completed in the last slot; None where there were none."""
        if not self._recent or not (rows := int(self._recent[-1].rows.sum())):
            return None
        return float(self._recent[-1].latency_s.sum() / rows)

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
