"""Running totals of one stage: rows that arrived and were completed, and useful time, by shard and by task.

Filled from what is committed alone, so that it costs no message; nothing here is kept across starts, and nobody but
the control plane and people who look read it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.dataplane import records
from penstock.dataplane.positions import PublishedRows
from penstock.dataplane.records import Record
from penstock.dataplane.rowcosts import RowCosts
from penstock.dataplane.sojourns import Sojourns
from penstock.dataplane.state.protocol import I64, U16
from penstock.dataplane.taking import GroupTake


class Counts:
    """What one stage has been given and has done since this start."""

    def __init__(self, shards: int) -> None:
        self.arrived: I64 = np.zeros(shards, np.int64)
        self.completed: I64 = np.zeros(shards, np.int64)
        self.busy_s: npt.NDArray[np.float64] = np.zeros(shards)
        """Useful time by shard: that of its task in each epoch, by its rows and what a row of it costs."""
        self._costs = RowCosts(shards)
        self.task_busy_s: dict[int, float] = {}
        self.task_rows: dict[int, int] = {}
        self._lease_of: dict[int, str] = {}
        self._owed: dict[int, int] = {}
        self._owed_shards: I64 = np.zeros(shards, np.int64)
        """Rows, by task and by shard, whose time is not counted yet: those of the first epoch on a lease, which loads
        code and fills caches and says nothing of what rows cost."""
        self.arrived_from: dict[str, int] = {}
        """Rows by producer."""
        self.epochs = 0
        self.epochs_s = 0.0
        self.longest_task_s = 0.0
        """Of all epochs, the time of the task that was at work longest."""
        self.touched_shards = 0
        self.in_bytes = 0
        self.out_bytes = 0
        self.remote_bytes = 0
        """Bytes that tasks read of what another node wrote."""
        self.sojourns = Sojourns()

    def arrive(self, producer: str, rows: PublishedRows, mine: npt.NDArray[np.bool_] | None = None) -> None:
        """Rows were published for this stage; `mine` says of which shards, where others have the rest."""
        if rows.rows:
            counts = rows.counts if mine is None else np.where(mine, rows.counts, 0)
            share = 1.0 if mine is None else int(counts.sum()) / rows.rows
            self.arrived += counts
            self.arrived_from[producer] = self.arrived_from.get(producer, 0) + int(counts.sum())
            self.in_bytes += round(rows.bytes * share)

    def pass_on(self, taker: Counts, shards: U16) -> None:
        """Let another executor go on with the totals of some shards."""
        for mine, theirs in (
            (self.arrived, taker.arrived),
            (self.completed, taker.completed),
            (self.busy_s, taker.busy_s),
            (self._owed_shards, taker._owed_shards),
        ):
            theirs[shards] = mine[shards]
            mine[shards] = 0
        self._costs.pass_on(taker._costs, shards)

    def note_costs(self, shard_us: Sequence[tuple[int, int]], takes: Sequence[GroupTake]) -> None:
        """A task has looked at what its shards cost in this epoch."""
        if not shard_us:
            return
        rows = np.sum([take.shard_rows for take in takes], axis=0)
        shards = np.array([shard for shard, _ in shard_us])
        self._costs.look(shards, np.array([us for _, us in shard_us]) / 1e6, rows[shards])

    def complete(self, record: Record, takes: Sequence[GroupTake], epoch_s: float) -> None:
        """An epoch is committed."""
        self.epochs += 1
        self.epochs_s += epoch_s
        self.longest_task_s += max((part.busy_us for part in record.parts), default=0) / 1e6
        rows = np.sum([take.shard_rows for take in takes], axis=0) if takes else None
        warm_s, warm_rows = 0.0, 0
        for part in record.parts:
            self.out_bytes += sum(segment.extent.length for segment in part.segments)
            mine = records.unpack_u16(part.shards)
            if rows is not None and part.rows_in:
                self.completed[mine] += rows[mine]
            if self._lease_of.get(part.task) != part.lease:
                self._lease_of[part.task] = part.lease
                self._owed[part.task] = self._owed.get(part.task, 0) + part.rows_in
                if rows is not None:
                    self._owed_shards[mine] += rows[mine]
                continue
            self._count_time(part.task, part.rows_in, part.busy_us / 1e6)
            if rows is not None and part.rows_in:
                warm_s, warm_rows = warm_s + part.busy_us / 1e6, warm_rows + part.rows_in
                cost = self._costs.row_s[mine]
                usual = cost[cost > 0].mean() if (cost > 0).any() else 1.0
                weight = rows[mine] * np.where(cost > 0, cost, usual)
                self.busy_s[mine] += part.busy_us / 1e6 * weight / max(float(weight.sum()), 1e-12)
        if warm_rows and self._owed:
            self._pay(warm_s / warm_rows)
        if rows is not None:
            self.touched_shards += int(np.count_nonzero(rows))

    def _count_time(self, task: int, rows: int, busy_s: float) -> None:
        self.task_busy_s[task] = self.task_busy_s.get(task, 0.0) + busy_s
        self.task_rows[task] = self.task_rows.get(task, 0) + rows

    def _pay(self, row_s: float) -> None:
        """Count what is owed as if its rows had cost what others cost now."""
        for task, rows in self._owed.items():
            self._count_time(task, rows, rows * row_s)
        self.busy_s += self._owed_shards * row_s
        self._owed.clear()
        self._owed_shards[:] = 0
