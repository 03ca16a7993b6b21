"""How rows flow in a simulation: from sources to operators, along edges and round loops; and when an input row is done
with, the last row derived from it included (DRS III: total sojourn time)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from penstock.control.measure.sample import F64, I64
from penstock.sim.elastic.arrivals import Arrivals
from penstock.sim.elastic.rows import AT, COLUMNS, NEED, NO_ROWS, READY, ROOT, SHARD
from penstock.sim.elastic.setting import EXPONENTIAL, SimEdge, SimOperator


class Roots:
    """Input rows whose derived rows are not all completed."""

    def __init__(self) -> None:
        self._at_s: F64 = np.empty(1024)
        self._open: I64 = np.zeros(1024, np.int64)
        self._last_s: F64 = np.zeros(1024)
        self._count = 0

    def add(self, at_s: F64) -> F64:
        """Take in input rows; return their numbers."""
        start, end = self._count, self._count + len(at_s)
        while end > len(self._at_s):
            self._at_s = np.concatenate([self._at_s, np.empty_like(self._at_s)])
            self._open = np.concatenate([self._open, np.zeros_like(self._open)])
            self._last_s = np.concatenate([self._last_s, np.zeros_like(self._last_s)])
        self._at_s[start:end] = at_s
        self._open[start:end] = 1
        self._count = end
        return np.arange(start, end, dtype=np.float64)

    def go_on(self, root: F64, done_s: F64, derived: I64) -> tuple[F64, F64]:
        """Note completed rows and how many each led to; return arrival and end of the input rows that are done with."""
        number = root.astype(np.int64)
        np.add.at(self._open, number, derived - 1)
        np.maximum.at(self._last_s, number, done_s)
        over = np.unique(number)
        over = over[self._open[over] == 0]
        return self._at_s[over], self._last_s[over]

    def unfinished(self) -> F64:
        """Return the arrival of input rows that are not done with."""
        found: F64 = self._at_s[: self._count][self._open[: self._count] > 0]
        return found


class Flow:
    """Rows on their way to operators.

    Args:
        operators: all of them.
        edges: between them.
        feeds: operator -> the rows that its source sends.
        rng: for service times and for where rows go.
    """

    def __init__(
        self,
        operators: Mapping[str, SimOperator],
        edges: tuple[SimEdge, ...],
        feeds: Mapping[str, Arrivals],
        rng: np.random.Generator,
    ) -> None:
        self._operators, self._feeds, self._rng = operators, feeds, rng
        self._out: dict[str, list[SimEdge]] = defaultdict(list)
        for edge in edges:
            self._out[edge.producer].append(edge)
        self._way: dict[str, list[F64]] = {edge.consumer: [] for edge in edges}
        self.roots = Roots() if edges else None
        self.edge_rows: dict[tuple[str, str], int] = {(edge.producer, edge.consumer): 0 for edge in edges}
        self.source_rows: dict[str, int] = dict.fromkeys(feeds, 0)
        self.order = _order(operators, edges, feeds)

    def take(self, operator: str, until_s: float) -> F64:
        """Take the rows that arrive at an operator by then, in order of arrival."""
        parts = []
        if operator in self._feeds:
            parts.append(self._from_source(operator, until_s))
        if self._way.get(operator):
            rows = np.concatenate(self._way[operator], axis=1)
            here = rows[AT] < until_s
            self._way[operator] = [] if here.all() else [rows[:, ~here]]
            rows = rows[:, here]
            parts.append(rows[:, np.argsort(rows[AT], kind="stable")])
        if len(parts) < 2:
            return parts[0] if parts else NO_ROWS
        rows = np.concatenate(parts, axis=1)
        return rows[:, np.argsort(rows[AT], kind="stable")]

    def _from_source(self, operator: str, until_s: float) -> F64:
        at, shard = self._feeds[operator].take(until_s)
        self.source_rows[operator] += len(at)
        return self._make(operator, at, shard, self.roots.add(at) if self.roots else 0.0)

    def _make(self, operator: str, at: F64, shard: I64, root: F64 | float) -> F64:
        about = self._operators[operator]
        rows = np.empty((COLUMNS, len(at)))
        rows[AT] = rows[READY] = at
        rows[SHARD] = shard
        rows[NEED] = 1.0 / about.service_per_s
        if about.service == EXPONENTIAL:
            rows[NEED] *= self._rng.standard_exponential(len(at))
        rows[ROOT] = root
        return rows

    def send(self, operator: str, rows: F64, done_s: F64) -> tuple[F64, F64]:
        """Send on what completed rows lead to; return arrival and end of the input rows that are done with."""
        assert self.roots is not None
        derived = np.zeros(rows.shape[1], np.int64)
        for edge in self._out[operator]:
            bursts = edge.selectivity / edge.burst
            times = np.full(rows.shape[1], int(bursts), np.int64)
            times += self._rng.random(len(times)) < bursts - int(bursts)
            times *= edge.burst
            derived += times
            which = np.repeat(np.arange(len(times)), times)
            shard = self._shards(edge, len(which))
            self._way[edge.consumer].append(
                self._make(edge.consumer, done_s[which] + edge.network_s, shard, rows[ROOT, which])
            )
            self.edge_rows[edge.producer, edge.consumer] += len(which)
        return self.roots.go_on(rows[ROOT], done_s, derived)

    def _shards(self, edge: SimEdge, count: int) -> I64:
        shards = self._operators[edge.consumer].shards
        if edge.in_turn:
            sent = self.edge_rows[edge.producer, edge.consumer]
            return np.arange(sent, sent + count) % shards
        if edge.weights is None:
            return self._rng.integers(0, shards, count)
        share = np.cumsum(edge.weights / edge.weights.sum())
        return np.minimum(np.searchsorted(share, self._rng.random(count), "right"), shards - 1)


def _order(
    operators: Mapping[str, SimOperator], edges: tuple[SimEdge, ...], feeds: Mapping[str, Arrivals]
) -> list[str]:
    """Return operators such that rows go forward where they can; only an edge that closes a loop goes back."""
    after = defaultdict(list)
    for edge in edges:
        after[edge.producer].append(edge.consumer)
    found: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        seen.add(name)
        for one in after[name]:
            if one not in seen:
                visit(one)
        found.append(name)

    for name in [*feeds, *operators]:
        if name not in seen:
            visit(name)
    return found[::-1]
