"""Latency of committed rows: from their arrival at the source to the commit that holds them. No clock of its
own."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

import numpy as np

from penstock.dataplane.records import Stamp

KEPT_S = 300.0
"""How far back latency can be asked for; older commits are forgotten, so that memory does not grow with the run."""


@dataclass(frozen=True)
class Latency:
    """Row-weighted latency over some window."""

    rows: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    quantile_ms: float | None = None
    """Of the quantile that was asked for."""


class LatencyLog:
    """Keeps one entry per commit of the last minutes; rows of a commit are taken as spread evenly between their first
    and last arrival."""

    def __init__(self, entries: int = 200_000, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._entries: deque[tuple[float, int, float, float, float]] = deque(maxlen=entries)

    def add(self, at: float, commit_us: int, stamp: Stamp) -> None:
        """Note a commit at clock time `at` (wall time `commit_us`) of rows with this stamp."""
        # A stamp of another machine's clock may lie ahead; no row is through before it was there.
        shortest, mean, longest = (
            max(0.0, commit_us - at_us) for at_us in (stamp.last_us, stamp.mean_us, stamp.first_us)
        )
        self._entries.append((at, stamp.rows, shortest, mean, longest))
        while self._entries[0][0] < at - self._kept_s:
            self._entries.popleft()

    def commits(self, at: float) -> list[float]:
        """Return the clock times of commits at or after clock time `at`, oldest first."""
        return [entry[0] for entry in self._entries if entry[0] >= at]

    def since(self, at: float, *others: LatencyLog, quantile: float | None = None) -> Latency | None:
        """Return the latency of rows committed at or after clock time `at`, here and in others; None when there were
        none. `quantile` asks for one more, between 0 and 1; a quantile is off by at most a twentieth of the time between
        the first and the last arrival of one commit's rows."""
        logs = [self._entries, *(other._entries for other in others)]
        found = [
            entry
            for entries in logs
            for entry in itertools.takewhile(lambda entry: entry[0] >= at, reversed(entries))
        ]
        if not found:
            return None
        table = np.array(found)
        rows, low, mean, high = table[:, 1], table[:, 2], table[:, 3], table[:, 4]
        points = np.linspace(0.05, 0.95, 10)
        spread = (low[:, None] + (high - low)[:, None] * points).ravel()
        weights = np.repeat(rows / len(points), len(points))
        order = np.argsort(spread)
        share = np.cumsum(weights[order]) / weights.sum()
        asked = np.searchsorted(share, [0.5, 0.99, 0.5 if quantile is None else quantile])
        at50, at99, at_quantile = np.minimum(asked, len(order) - 1)
        return Latency(
            rows=int(rows.sum()),
            mean_ms=float((mean * rows).sum() / rows.sum() / 1e3),
            p50_ms=float(spread[order[at50]] / 1e3),
            p99_ms=float(spread[order[at99]] / 1e3),
            max_ms=float(high.max() / 1e3),
            quantile_ms=None if quantile is None else float(spread[order[at_quantile]] / 1e3),
        )
