"""One elastic executor in a simulation: its tasks' queues, and how rows leave them.

A task serves the rows of its shards in order of arrival. In the ideal mode it completes one after the other; in epoch
mode all tasks take a bounded part of what waits and the rows commit together. Times of rows are exact in both: a step
of the clock is only how much is computed at once. It decides nothing: shards are put where the caller says.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64, I64
from penstock.sim.elastic.rows import AT, NEED, NO_ROWS, READY, SHARD, LongQueue
from penstock.sim.elastic.setting import EpochTiming, SimOperator

HELD: Final = -1
_LONG: Final = 512
"""Rows of one task from which on they are kept apart, so that a step does not look at all of them."""


@dataclass
class Totals:
    """What a sample shows; see `ExecutorSample` for the words."""

    arrived: I64
    completed: I64
    busy_s: F64
    task_busy_s: F64
    task_rows: I64
    epochs: int = 0
    epochs_s: float = 0.0
    longest_task_s: float = 0.0
    touched_shards: int = 0


@dataclass(frozen=True)
class Done:
    """Rows that were completed, and when."""

    rows: F64
    at_s: F64


@dataclass(frozen=True)
class _Epoch:
    rows: F64
    lane: npt.NDArray[np.int16]
    work_s: F64
    start_s: float
    end_s: float


class ExecutorQueues:
    """The queues of an executor; a task's number is its lane.

    Args:
        operator: whose rows they are.
        lane_of: shard -> task, `HELD` for shards of other executors.
        speeds: task -> speed of its node.
        epochs: None for the ideal mode.
    """

    def __init__(
        self,
        operator: SimOperator,
        lane_of: npt.NDArray[np.int32],
        speeds: dict[int, float],
        epochs: EpochTiming | None,
    ) -> None:
        self.operator = operator
        self.lane_of = lane_of.astype(np.int16)
        self.lanes: set[int] = set()
        self._epochs = epochs
        self._speed: F64 = np.ones(1)
        self._free_s: F64 = np.zeros(1)
        shards = operator.shards
        self.totals = Totals(
            np.zeros(shards, np.int64),
            np.zeros(shards, np.int64),
            np.zeros(shards),
            np.zeros(1),
            np.zeros(1, np.int64),
        )
        for lane, speed in speeds.items():
            self.open_lane(lane, speed, 0.0)
        self._front: F64 = NO_ROWS
        self._long: dict[int, LongQueue] = {}
        self._held: list[F64] = []
        self.closed = False
        """Whether no new row is let in, while those that wait are served (the first half of a global pause)."""
        self._holding = bool((self.lane_of < 0).any())
        self._epoch: _Epoch | None = None
        self._boundary_s = 0.0

    # Lanes and shards

    def open_lane(self, lane: int, speed: float, now_s: float) -> None:
        """Start a task, or tell it the new speed of its node."""
        while lane >= len(self._speed):
            self._speed = np.append(self._speed, 1.0)
            self._free_s = np.append(self._free_s, 0.0)
            self.totals.task_busy_s = np.append(self.totals.task_busy_s, 0.0)
            self.totals.task_rows = np.append(self.totals.task_rows, 0)
        self._speed[lane] = speed
        if lane not in self.lanes:
            self._free_s[lane] = now_s
            self.lanes.add(lane)

    def close_lane(self, lane: int) -> None:
        """End a task whose shards are all elsewhere."""
        self.lanes.discard(lane)

    def boundary_s(self, now_s: float) -> float:
        """Return when a change can take effect: at the end of the epoch that is on its way."""
        return max(now_s, self._epoch.end_s) if self._epoch else now_s

    def waiting(self) -> F64:
        """Return the rows that have arrived and are not completed, in no order."""
        parts = [self._front, *self._held]
        parts += [queue.peek() for queue in self._long.values()]
        if self._epoch:
            parts.append(self._epoch.rows)
        return np.concatenate(parts, axis=1)

    def backlog_s(self) -> F64:
        """Return by lane the time its waiting rows need."""
        found = np.zeros(len(self._speed))
        rows = np.concatenate([self._front, *(queue.peek() for queue in self._long.values())], axis=1)
        lane = self.lane_of[rows[SHARD].astype(np.int64)]
        inside = lane >= 0
        return found + np.bincount(lane[inside], rows[NEED][inside], len(found)) / self._speed

    def lose_lane(self, lane: int, now_s: float) -> None:
        """End a task at once: its shards are held, and what it worked on waits again."""
        if self._epoch is not None:
            lost = self._epoch.lane == lane
            rows = self._epoch.rows[:, lost]
            kept = self._epoch
            self._epoch = _Epoch(
                kept.rows[:, ~lost], kept.lane[~lost], kept.work_s[~lost], kept.start_s, kept.end_s
            )
            self._front = np.concatenate([rows, self._front], axis=1)
        self.put(np.flatnonzero(self.lane_of == lane), HELD, now_s)
        self.close_lane(lane)

    def put(self, shards: I64, lane: int | npt.NDArray[np.int32], now_s: float) -> None:
        """Give shards and their waiting rows to a task, or one to each, or hold them up.

        A row that its task is at work on stays first; one whose shard leaves starts again elsewhere.
        """
        before = self.lane_of.copy()
        self.lane_of[shards] = lane
        self._holding = bool((self.lane_of < 0).any())
        pool, serving = self._pool({*before[shards].tolist(), *self.lane_of[shards].tolist()}, before, now_s)
        shard = pool[SHARD].astype(np.int64)
        then = self.lane_of[shard]
        moved = then != before[shard]
        pool[READY, moved] = np.maximum(pool[READY, moved], now_s)
        interrupted = before[shard[serving & moved]]
        self._free_s[interrupted] = np.maximum(self._free_s[interrupted], now_s)
        order = np.lexsort((pool[AT], ~(serving & ~moved), then))
        pool, then = pool[:, order], then[order]
        held = int(np.searchsorted(then, 0))
        self._held = [pool[:, :held]] if held else []
        self._set_front(pool[:, held:], then[held:])

    def _pool(
        self, lanes: set[int], before: npt.NDArray[np.int16], now_s: float
    ) -> tuple[F64, npt.NDArray[np.bool_]]:
        """Take out all rows that a change could concern; mark those that tasks are at work on."""
        parts = [self._front, *self._held]
        for lane in lanes & set(self._long):
            parts.append(self._long.pop(lane).take_all())
        pool = np.concatenate(parts, axis=1)
        serving = np.zeros(pool.shape[1], np.bool_)
        if self._epochs is None and self._front.shape[1]:
            lane = before[self._front[SHARD].astype(np.int64)]
            firsts = np.unique(lane, return_index=True)[1]
            begun = np.maximum(self._front[READY, firsts], self._free_s[lane[firsts]]) < now_s
            serving[firsts[begun]] = True
        return pool, serving

    # Rows in

    def offer(self, rows: F64) -> None:
        """Take rows in, in order of arrival."""
        shard = rows[SHARD].astype(np.int64)
        self.totals.arrived += np.bincount(shard, minlength=self.operator.shards)
        if self._holding or self._long or self.closed:
            rows = self._set_apart(rows, self.lane_of[shard])
        self._front = np.concatenate([self._front, rows], axis=1) if self._front.shape[1] else rows

    def _set_apart(self, rows: F64, lane: npt.NDArray[np.int16]) -> F64:
        """Put rows of held shards and of long queues where they wait; return the others."""
        if self.closed:
            self._held.append(rows)
            return NO_ROWS
        order = np.argsort(lane, kind="stable")
        rows, lane = rows[:, order], lane[order]
        ends = np.searchsorted(lane, np.arange(-1, len(self._speed)), "right").tolist()
        if ends[0]:
            self._held.append(rows[:, : ends[0]])
        if not self._long:
            return rows[:, ends[0] :]
        rest = []
        for number, (start, end) in enumerate(pairwise(ends)):
            if end > start:
                queue = self._long.get(number)
                rest.append(rows[:, start:end]) if queue is None else queue.append(rows[:, start:end])
        return np.concatenate(rest, axis=1) if rest else NO_ROWS

    # Rows out

    def advance(self, to_s: float) -> list[Done]:
        """Work until a moment; return what was completed."""
        return self._advance_ideal(to_s) if self._epochs is None else self._advance_epochs(self._epochs, to_s)

    def _advance_ideal(self, to_s: float) -> list[Done]:
        if self._long:
            self._refill((to_s - self._free_s) * self._speed)
        if not self._front.shape[1]:
            return []
        rows, lane, first, length = self._lined_up(self._front)
        work = rows[NEED] / self._speed[lane]
        before = _sum_before(work, first, length)
        end = _ends(rows[READY] - before, self._free_s[lane[first]], first, length)
        end += before
        end += work
        done = end <= to_s
        which = done.nonzero()[0]
        if len(which) == len(done):
            finished, end_s, lane_of, work_s = rows, end, lane, work
            self._front = NO_ROWS
        elif not len(which):
            self._front = rows
            return []
        else:
            rest = (~done).nonzero()[0]
            finished, end_s, lane_of, work_s = rows.take(which, 1), end[which], lane[which], work[which]
            self._set_front(rows.take(rest, 1), lane[rest])
        self._free_s[lane_of] = end_s  # the last of each lane stays
        self._count(finished, lane_of, work_s)
        return [Done(finished, end_s)]

    def _advance_epochs(self, timing: EpochTiming, to_s: float) -> list[Done]:
        found: list[Done] = []
        while True:
            if self._epoch is not None:
                if self._epoch.end_s > to_s:
                    return found
                found.append(self._commit(self._epoch))
                self._epoch = None
            self._refill(timing.max_work_s * self._speed)
            if not self._front.shape[1]:
                return found
            start = max(self._boundary_s, float(self._front[READY].min()))
            if start >= to_s:
                return found
            self._epoch = self._begin(timing, start)

    def _begin(self, timing: EpochTiming, start_s: float) -> _Epoch:
        rows, lane, first, length = self._lined_up(self._front)
        work = rows[NEED] / self._speed[lane]
        work[rows[READY] > start_s] = np.inf  # it and all behind it wait for the next epoch
        with np.errstate(invalid="ignore"):
            taken = np.isfinite(work) & ~(_sum_before_capped(work, first, length) >= timing.max_work_s)
        self._set_front(rows[:, ~taken], lane[~taken])
        rows, lane, work = rows[:, taken], lane[taken], work[taken]
        longest = float(np.bincount(lane, work).max())
        touched = len(np.unique(rows[SHARD]))
        length_s = timing.o0_s + timing.o1_s * len(self.lanes) + timing.o2_s * touched + longest
        self.totals.epochs += 1
        self.totals.epochs_s += length_s
        self.totals.longest_task_s += longest
        self.totals.touched_shards += touched
        return _Epoch(rows, lane, work, start_s, start_s + length_s)

    def _commit(self, epoch: _Epoch) -> Done:
        self._boundary_s = epoch.end_s
        self._count(epoch.rows, epoch.lane, epoch.work_s)
        return Done(epoch.rows, np.full(epoch.rows.shape[1], epoch.end_s))

    def _count(self, rows: F64, lane: npt.NDArray[np.int16], work: F64) -> None:
        shard, totals = rows[SHARD].astype(np.int64), self.totals
        totals.completed += np.bincount(shard, minlength=self.operator.shards)
        totals.busy_s += np.bincount(shard, work, self.operator.shards)
        totals.task_busy_s += np.bincount(lane, work, len(totals.task_busy_s))
        totals.task_rows += np.bincount(lane, minlength=len(totals.task_rows))

    # Order inside the front

    def _refill(self, wanted_s: F64) -> None:
        """Bring as many rows of long queues to the front as their tasks could do.

        Args:
            wanted_s: lane -> what its task could do.
        """
        if not self._long:
            return
        lane = self.lane_of[self._front[SHARD].astype(np.int64)]
        lacking_s = (wanted_s - np.bincount(lane, self._front[NEED], len(self._speed))).tolist()
        parts = [self._front]
        for number in list(self._long):
            if lacking_s[number] > 0:
                parts.append(self._long[number].take(lacking_s[number]))
                if not len(self._long[number]):
                    del self._long[number]
        self._front = np.concatenate(parts, axis=1)

    def _lined_up(self, rows: F64) -> tuple[F64, npt.NDArray[np.int16], I64, I64]:
        """Return rows by lane, each lane in its order of service, their lanes, and where each lane starts and how long
        it is."""
        lane = self.lane_of[rows[SHARD].astype(np.int64)]
        order = lane.argsort(kind="stable")
        lane = lane[order]
        steps = (lane[1:] != lane[:-1]).nonzero()[0]
        bounds = np.empty(len(steps) + 2, np.int64)
        bounds[0], bounds[-1] = 0, len(lane)
        np.add(steps, 1, out=bounds[1:-1])
        return rows.take(order, 1), lane, bounds[:-1], bounds[1:] - bounds[:-1]

    def _set_front(self, rows: F64, lane: npt.NDArray[np.int16]) -> None:
        """Keep rows, given by lane, for later; put lanes with many of them into long queues."""
        self._front = rows
        if rows.shape[1] <= _LONG:
            return
        counts = np.bincount(lane)
        for number in np.flatnonzero(counts > _LONG):
            if int(number) in self._long:
                continue
            mine = self.lane_of[self._front[SHARD].astype(np.int64)] == number
            queue = self._long[int(number)] = LongQueue()
            queue.append(self._front[:, mine])
            self._front = self._front[:, ~mine]


def _sum_before(work: F64, first: I64, length: I64) -> F64:
    """Return for each row the work of those before it in its lane."""
    before: F64 = work.cumsum()
    before -= work
    before -= before[first].repeat(length)
    return before


def _sum_before_capped(work: F64, first: I64, length: I64) -> F64:
    """As `_sum_before`, where infinite work makes all behind it infinite too."""
    late = np.isinf(work)
    before = _sum_before(np.where(late, 0.0, work), first, length)
    blocked = _sum_before(late.astype(np.float64), first, length) > 0.5
    before[blocked] = np.inf
    return before


def _ends(ready: F64, free_s: F64, first: I64, length: I64) -> F64:
    """Return for each row the largest of what it and those before it in its lane have.

    A row's end is D_n = max(ready_n, D_{n-1}) + s_n, which unrolls to the maximum over j <= n of (ready_j - work before j),
    plus the work up to n; the first of a lane also waits for its task. One pass serves all lanes, each lifted above the
    one before.
    """
    ready[first] = np.maximum(ready[first], free_s)
    span = float(np.maximum.reduce(ready) - np.minimum.reduce(ready)) + 1.0
    lift = (np.arange(len(first)) * span).repeat(length)
    found: F64 = np.maximum.accumulate(ready + lift)
    found -= lift
    return found
