"""How operators step: when an epoch is due, what each task is told of it, and which shards write a snapshot in it. A part
of the engine; it does no I/O and decides nothing about other stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataplane import messages, paths, records
from penstock.dataplane.channel import Deal
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.levels import derive_levels, is_uneven
from penstock.dataplane.positions import ChannelKey, PublishedRows
from penstock.dataplane.program import operator_of
from penstock.dataplane.run import Run
from penstock.dataplane.snapshots import due_snapshots
from penstock.dataplane.state.protocol import U16
from penstock.dataplane.taking import GroupTake, Level, in_turns

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine


class OperatorSteps:
    """The operators of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._in_step = engine.program.ahead_of_watermarks()

    def keeps_in_step(self, run: Run) -> bool:
        """Whether a stage is ahead of a declared watermark, which the latest event time of all its rows moves."""
        return operator_of(run.spec.name) in self._in_step

    def levels(self, run: Run, waiting: Mapping[ChannelKey, Sequence[PublishedRows]]) -> list[Level] | None:
        """How far shards of tasks that cannot take everything may go in the next epoch; None where one budget is for all.

        Ahead of a declared watermark tasks keep in step: an event time counts when every shard is past it, and a task that
        stayed behind would hold it up.
        """
        if run.spec.kind != "operator" or self.keeps_in_step(run):
            return None
        items = [item for found in waiting.values() for item in found]
        row_bytes = sum(item.bytes for item in items) / max(1, sum(item.rows for item in items))
        task_rows = run.task_rows(row_bytes)
        if task_rows is None:
            return None
        chain = run.chain
        turns = in_turns(waiting, chain.channels)
        backlog = run.counts.arrived - run.counts.completed
        if not is_uneven(run.task_of, run.ready, backlog, task_rows):
            return None
        return derive_levels(
            chain.groups,
            run.ready,
            waiting,
            run.task_of,
            task_rows,
            turns,
            backlog,
            self._engine.settings.max_epoch_s,
        )

    def step(self, run: Run, now: float) -> float:
        """Start an epoch when rows wait, time moves or a boundary is asked for; return the seconds until a timer is due."""
        engine = self._engine
        timer_us = run.next_timer_us()
        wait = 1.0 if timer_us is None else max(0.0, timer_us / 1e6 - engine.epoch_time())
        run.force_empty = run.force_empty or (timer_us is not None and wait <= 0)
        takes = engine.takes(run)
        rows = sum(int(take.shard_rows.sum()) for take in takes)
        # A range without rows for its shards is passed all the same, or nobody could let go of it.
        if rows == 0 and not run.force_empty and not any(take.pieces for take in takes):
            self._commit_idle(run)
            return min(1.0, wait)
        run.force_empty = False
        self._start_epoch(run, takes, now)
        return 1.0

    def _start_epoch(self, run: Run, takes: Sequence[GroupTake], now: float) -> None:
        engine = self._engine
        epoch = run.chain.epoch + 1
        shard_rows = (
            np.sum([take.shard_rows for take in takes], axis=0)
            if takes
            else np.zeros(run.spec.shards, np.int64)
        )
        snapshots = self._due_snapshots(run)
        run.begin(epoch, takes, int(shard_rows.sum()), now, engine.epoch_time())
        for slot in run.slots.values():
            mine = run.shards_of(slot)
            asked = snapshots[run.task_of[snapshots] == slot.index] if len(snapshots) else snapshots
            if slot.lease is None or not (
                shard_rows[mine].any() or len(asked) or run.is_moved_by_time(slot, mine)
            ):
                continue
            work = run.work(slot, mine, asked, self.lanes(run, slot))
            run.counts.remote_bytes += self._remote_bytes(work, slot.lease)
            engine.send(slot.lease, work)
        engine.committing.settle(run)

    def _remote_bytes(self, work: messages.Work, lease: str) -> int:
        """Bytes that a task will read of what leases on other nodes wrote; it reads segments as a whole."""
        if len({held.node for held in self._engine.leases.values()}) < 2:
            return 0
        node = self._engine.leases[lease].node
        extents = {
            (extent.file, extent.offset): extent
            for group in work.groups
            for piece in group.pieces
            for extent in piece.segments
        }
        found = 0
        for extent in extents.values():
            file = paths.parse_data(extent.file)
            writer = self._engine.leases.get(file.writer) if file is not None else None
            found += extent.length if writer is not None and writer.node != node else 0
        return found

    def lanes(self, run: Run, slot: TaskSlot) -> list[tuple[int, bytes]]:
        """For every edge that keeps rows on their node: the consumer's shards on the node of this task."""
        node = self._engine.leases[slot.lease].node if slot.lease in self._engine.leases else None
        found = []
        for edge in run.spec.edges:
            if edge.deal is Deal.LOCAL:
                near = [
                    consumer.assigned_to(other)
                    for consumer in self._engine.runs_of(edge.consumer)
                    for other in consumer.slots.values()
                    if other.lease in self._engine.leases and self._engine.leases[other.lease].node == node
                ]
                if near:
                    found.append((edge.edge, records.pack_u16(np.sort(np.concatenate(near)))))
        return found

    def _due_snapshots(self, run: Run) -> U16:
        settings = self._engine.settings
        retain = max(settings.retain_bytes, 2 * run.state_bytes)
        ready = np.flatnonzero(run.ready).astype(np.uint16)
        due = due_snapshots(run.chain, ready, retain, settings.retain_epochs, settings.snapshot_min_bytes)
        sizes = np.cumsum(run.chain.snapshot_bytes[due] + run.chain.delta_bytes[due])
        fits = int(np.searchsorted(sizes, settings.snapshot_bytes_per_epoch, side="right"))
        return due[: max(1, min(fits, settings.snapshots_per_epoch))] if len(due) else due

    def _commit_idle(self, run: Run) -> None:
        """Tell tasks of an idle executor that their last epoch has its record."""
        if run.unconfirmed:
            for slot in run.slots.values():
                if slot.lease is not None and slot.index in run.unconfirmed:
                    self._engine.send(slot.lease, messages.Commit(run.spec.name, slot.index, run.chain.epoch))
            run.unconfirmed.clear()
