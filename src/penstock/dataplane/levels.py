"""Levels: how far each task of an executor goes in the next epoch, so that none keeps the others waiting for more than an
epoch's time. Pure decisions over what was published.

While all that waits is done within an epoch's time, an executor takes all of it and its shards stand together. When a task
has more than that, its shards with least waiting take all of it, and the others go as far as the time lasts and no further;
other tasks go their own way. So a hot shard is late itself, and nobody else is. A level is only a bound, so any level keeps
every promise.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from statistics import median

import numpy as np
import numpy.typing as npt

from penstock.dataplane.positions import START, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.records import Position, TaskPart
from penstock.dataplane.rowtimes import RowTime
from penstock.dataplane.standing import Standing, stand
from penstock.dataplane.state.protocol import I64, U16
from penstock.dataplane.taking import Level, cut_at

READ_S = 0.002
"""About what it takes a task to read a producer epoch, and its bytes a second. One that is cut is read again: so tasks stop
before it where less time than that is left."""
READ_BYTES_PER_S = 500e6
WORTH_RATIO = 1.05
"""Work of the busiest task over the mean from which on tasks go their own way: shards that stand apart are read apart,
which costs more than waiting for one another where rows are many and tasks are even."""
HOT_RATIO = 1.5
"""The same where a task does many rows in an epoch: there a row costs little more than it takes to read it."""
MANY_ROWS = 5_000
APART_RATIO = 4.0
"""Times the rows that may be taken from which on not every late shard takes one: shards that stand apart are read apart."""
_CHANCE = 1.5
"""Standard deviations by which the busiest of some tasks is above their mean, about."""


class TaskRates:
    """Rows per second of useful time of each task, learned from what was committed."""

    def __init__(self) -> None:
        self._times: defaultdict[int, RowTime] = defaultdict(RowTime)
        self._leases: dict[int, str] = {}

    def learn(self, parts: Sequence[TaskPart], longest_s: float, few_rows: int) -> None:
        """Take in one epoch; the first one on a lease loads code and tells nothing."""
        for part in parts:
            if self._leases.get(part.task) != part.lease:
                self._leases[part.task] = part.lease
            else:
                self._times[part.task].learn(part.rows_in, part.busy_us / 1e6, longest_s, few_rows)

    def rows_in(self, seconds: float, tasks: Collection[int]) -> dict[int, float] | None:
        """Return how many rows each of some tasks does in so many seconds; a new one as many as most of the others do,
        None while nothing is known of any."""
        rates = {task: self._times[task].rate for task in tasks if task in self._times}
        known = [rate for rate in rates.values() if rate]
        if not known:
            return None
        usual = median(known)
        return {task: (rates.get(task) or usual) * seconds for task in tasks}

    def forget(self, task: int) -> None:
        """Forget a task that has ended: the next one of its number is another."""
        self._times.pop(task, None)
        self._leases.pop(task, None)

    def least(self, task: int, few_rows: float, longest_s: float) -> float:
        """Return how many rows a task may always take in an epoch."""
        return self._times[task].least(few_rows, longest_s) if task in self._times else few_rows


def derive_levels(
    groups: Sequence[ShardGroup],
    ready: npt.NDArray[np.bool_],
    waiting: Mapping[ChannelKey, Sequence[PublishedRows]],
    task_of: U16,
    task_rows: Mapping[int, float],
    turns: Sequence[Sequence[ChannelKey]],
    backlog: I64,
    epoch_s: float,
) -> list[Level]:
    """Return the levels of the tasks that cannot take all that waits for them; every other shard takes all there is.

    Of one task, shards whose rows are within an even share of what it may take have no bound; what they leave is for the
    others, which rise to one level together, those behind first. A task takes at least one row of every shard that is
    furthest behind, or where that would be many times what it may take, of some of them, and the others stay. Channels of
    one turn share what the turn before left; what those with few rows leave is for the others.

    Args:
        task_rows: task -> rows that it may take.
        turns: channels, those whose rows come first in front.
        backlog: rows that wait for each shard.
        epoch_s: time in which a task does the rows that it may take.
    """
    if not task_rows or int(backlog[ready].sum()) <= min(task_rows.values()):
        return []
    stands = {key: stand(groups, key, len(ready)) for keys in turns for key in keys}
    epochs = {key: [item.epoch for item in waiting.get(key, ())] for key in stands}
    found: list[Level] = []
    for task, rows in task_rows.items():
        shards = np.flatnonzero(ready & (task_of == task)).astype(np.uint16)
        late, left = late_shards(shards, backlog, max(rows, 1.0))
        if not len(late):
            continue
        rising, staying = _choose(late, stands, left)
        if len(staying):
            found.append(Level(staying, dict.fromkeys(stands, START)))
        levels: dict[ChannelKey, Position] = {}
        row_s = epoch_s / max(rows, 1.0)
        for keys in turns:
            waits = {key: _wait(stands[key], waiting.get(key, ()), rising, left) for key in keys}
            for sharing, key in zip(
                range(len(keys), 0, -1), sorted(keys, key=waits.__getitem__), strict=True
            ):
                share = left / sharing
                level, used = _rise(stands[key], waiting.get(key, ()), epochs[key], rising, share, row_s)
                left -= used
                if level is not None:
                    levels[key] = level
            left = max(left, 1.0)
        if levels:
            found.append(Level(rising, levels))
    return found


def is_uneven(
    task_of: U16, ready: npt.NDArray[np.bool_], backlog: I64, task_rows: Mapping[int, float]
) -> bool:
    """Whether the busiest task is expected to have so much more to do than the others that they should not wait for it: by
    what waits for each, and by what chance makes of the rows of one epoch."""
    size = 1 + max(task_rows)
    waits = np.bincount(task_of[ready], backlog[ready], size)
    busy = np.array([waits[task] / max(rows, 1e-9) for task, rows in task_rows.items()])
    if not busy.any():
        return False
    chance = _CHANCE / math.sqrt(max(min(task_rows.values()), 1.0))
    worth = WORTH_RATIO if min(task_rows.values()) < MANY_ROWS else HOT_RATIO
    return float(busy.max() / busy.mean()) * (1 + chance) > worth


def late_shards(shards: U16, backlog: I64, rows: float) -> tuple[U16, float]:
    """Return which shards of a task have more waiting than an even share of some rows (max-min fairness), and how many rows
    the others leave to them."""
    order = shards[np.argsort(backlog[shards], kind="stable")]
    waits = backlog[order]
    before = np.cumsum(waits) - waits
    shares = (rows - before) / np.arange(len(order), 0, -1)
    over = np.flatnonzero(waits > shares)
    if not len(over):
        return shards[:0], rows
    first = int(over[0])
    return np.sort(order[first:]), max(rows - float(before[first]), 1.0)


def _choose(late: U16, stands: Mapping[ChannelKey, Standing], rows: float) -> tuple[U16, U16]:
    """Return which late shards rise with so many rows and which stay where they are: those furthest behind rise, at least a
    row each, where one of every shard would take too long."""
    if len(late) <= APART_RATIO * rows:
        return late, late[:0]
    places = [place[late] for one in stands.values() for place in (one.epochs, one.rows)]
    order = late[np.lexsort(places[::-1])]
    most = max(1, int(rows))
    return np.sort(order[:most]), np.sort(order[most:])


def _wait(stands: Standing, items: Sequence[PublishedRows], shards: U16, enough: float) -> int:
    """Count the rows that wait for some shards on a channel, as far as it matters."""
    found = 0
    for item in items:
        if found >= enough:
            break
        found += int(stands.rows_left(item, shards).sum())
    return found


def _rise(
    stands: Standing,
    items: Sequence[PublishedRows],
    epochs: Sequence[int],
    shards: U16,
    rows: float,
    row_s: float,
) -> tuple[Position | None, float]:
    """Return how far some shards can go together with so many rows, None for all the way, and how many they take then."""
    taken = 0.0
    first = bisect.bisect_left(epochs, int(stands.epochs[shards].min()))
    for item in islice(items, first, None):
        left = stands.rows_left(item, shards)
        here = int(left.sum())
        if not here or taken + here <= rows:
            taken += here
            continue
        if taken and (rows - taken) * row_s < READ_S + item.bytes / READ_BYTES_PER_S:
            return Position(item.epoch, 0), taken
        # Those that are past this item, or have nothing in it, must not say where the cut begins: it might be no further
        # than where the others stand, and nobody would ever take a row.
        has = left > 0
        counts = item.counts[shards[has]]
        low = counts - left[has]
        cut = cut_at(counts, low, max(1, int(rows - taken)))
        more = int(np.maximum(np.minimum(counts, cut) - low, 0).sum())
        if taken and taken + more > rows:
            return Position(item.epoch, 0), taken
        return Position(item.epoch, cut), taken + more
    return None, taken
