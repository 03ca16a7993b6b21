"""The living part of a stage: the epoch in flight, its tasks, which shards are ready. No I/O, no decisions
about other stages."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.dataplane import messages, records
from penstock.dataplane.chain import Chain
from penstock.dataplane.counting import Counts
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.intake import Intake
from penstock.dataplane.records import Group, Record, Stamp, TaskPart
from penstock.dataplane.resuming import resolve_first
from penstock.dataplane.settings import Settings
from penstock.dataplane.shards import Holding, ShardTable
from penstock.dataplane.state.protocol import U16
from penstock.dataplane.taking import GroupTake, PieceTaken
from penstock.errors import PenstockError


class Phase(enum.StrEnum):
    """Where a stage's epoch stands."""

    IDLE = "idle"
    WORKING = "working"
    COMMITTING = "committing"


LEGAL = {
    (Phase.IDLE, Phase.WORKING),
    (Phase.WORKING, Phase.COMMITTING),
    (Phase.WORKING, Phase.IDLE),
    (Phase.COMMITTING, Phase.IDLE),
}
"""All transitions of an epoch; any other one is a fault in the engine."""


@dataclass
class Lease:
    name: str
    node: str
    heard_at: float
    load: tuple[float, float, float] | None = None
    """Shares of its node's CPU, memory and I/O that its process uses; None before it has said so."""


@dataclass(frozen=True)
class HandedOver:
    """An environment that its last owner closed properly."""

    node: str
    name: str
    version: int


@dataclass(frozen=True)
class SinkWork:
    """Rows of one intended sink epoch."""

    stage: str
    epoch: int
    pieces: Sequence[PieceTaken]


class Run:
    """One stage at work."""

    def __init__(
        self, chain: Chain, settings: Settings, placed: records.Placed | None = None, begins: bool = True
    ) -> None:
        """With `begins`, the tasks that are placed or declared have its shards; else whoever makes it says which do."""
        spec = chain.spec
        self.chain = chain
        self.spec = spec
        self.phase = Phase.IDLE
        self.epoch = 0
        self.attempt = 0
        self.rows = 0
        self.takes: Sequence[GroupTake] = ()
        self.offsets: tuple[int, int] | None = None
        self.stamp: Stamp | None = None
        self.time_us = chain.time_us
        self.waiting_for: set[int] = set()
        self.asked: set[int] = set()
        self.losses: dict[int, int] = {}
        """Processes that each task lost in a row inside its work."""
        self.parts: dict[int, TaskPart] = {}
        self.unconfirmed: set[int] = set()
        self.started_at = 0.0
        self.committed_at = 0.0
        self.next_start = 0.0
        self.force_empty = False
        self.gathers_since: float | None = None
        """Since when rows wait for a sink that lets them gather."""
        self.flush = False
        """A sink takes what waits, however little it is."""
        self.blocked = False
        self.epochs = 0
        self.sunk_rows = 0
        """Rows that a sink has been handed since this start."""
        self.busy_s = 0.0
        self.sync_s = 0.0
        self.epoch_s = 0.0
        self.epochs_s = 0.0
        """Time from dispatch to commit, of all epochs together."""
        self.state_bytes = 0
        share = chain.shards() if begins else np.empty(0, np.uint16)
        self.slots, task_of = resolve_first(spec, placed, share)
        self.shards = ShardTable(
            spec.name, task_of, Holding.ABSENT if spec.kind == "operator" else Holding.HELD
        )
        self.epoch_tasks: U16 = self.shards.task_of.copy()
        """Task of each shard as the epoch in flight began; a plan may change the table meanwhile."""
        self.epoch_shards: npt.NDArray[np.bool_] = self.shards.ready.copy()
        """Which shards could take part in it."""
        self.handed_over: dict[int, HandedOver] = {}
        self.pausers: set[str] = set()
        """Who wants no epoch to begin: a person, a plan; it goes on when none does."""
        self.counts = Counts(spec.shards)
        self.timers: dict[int, int] = {}
        """Epoch time at which each task wants to be run again, rows or not."""
        self.rows_at = 0.0
        """When a source last had rows."""
        self._task_state_bytes: dict[int, int] = {}
        self._settings = settings
        self.intake = Intake(spec, settings)

    @property
    def task_of(self) -> U16:
        return self.shards.task_of

    def place_as_declared(self) -> None:
        """Have the tasks that the program says, whatever plans have made of it; only before the first lease."""
        self.slots, task_of = resolve_first(self.spec, None, self.chain.shards())
        self.shards.task_of[:] = self.shards.goal[:] = self.epoch_tasks[:] = task_of

    def task_rows(self, row_bytes: float) -> dict[int, float] | None:
        """Rows of this size that each task with shards may take in the next epoch; None where one budget is for all."""
        tasks = np.unique(self.task_of[self.ready]).tolist()
        return self.intake.task_rows(row_bytes, tasks, int(np.count_nonzero(self.ready)))

    @property
    def ready(self) -> npt.NDArray[np.bool_]:
        """Which shards can take part in an epoch."""
        return self.shards.ready

    @property
    def is_whole(self) -> bool:
        """Whether all its shards can take part in an epoch."""
        return self.shards.whole

    @property
    def paused(self) -> bool:
        """Whether it begins no epoch."""
        return bool(self.pausers)

    def free_of_rows(self) -> npt.NDArray[np.bool_]:
        """Which shards sit out and have nothing to do where no rows come for them: they have no state."""
        absent = ~self.ready
        return absent & ~self.chain.digests.any(axis=1) if self.spec.clocked else absent

    def to(self, phase: Phase) -> None:
        """Change phase; an illegal change names both."""
        if (self.phase, phase) not in LEGAL:
            raise PenstockError(f"epoch of '{self.spec.name}' cannot go from {self.phase} to {phase}")
        self.phase = phase

    def begin(self, epoch: int, takes: Sequence[GroupTake], rows: int, now: float, epoch_time: float) -> None:
        """Start an epoch."""
        self.to(Phase.WORKING)
        self.epoch, self.takes, self.rows = epoch, takes, rows
        self.offsets, self.stamp = None, None
        self.time_us = max(round(epoch_time * 1e6), self.time_us + 1)
        self.waiting_for, self.asked, self.parts = set(), set(), {}
        self.epoch_tasks, self.epoch_shards = self.task_of.copy(), self.ready.copy()
        self.started_at = now

    def work(
        self, slot: TaskSlot, mine: U16, snapshots: U16, lanes: list[tuple[int, bytes]]
    ) -> messages.Work:
        """Ask a task for its part of the epoch: the rows of its shards, and snapshots of some."""
        groups = []
        for take in self.takes:
            shards = mine[take.members()[mine]] if len(self.takes) > 1 else mine
            if len(shards):
                packed = records.pack_u16(shards)
                groups.append(messages.TaskGroup(packed, self.pieces_of(take), take.watermark_us))
        self.ask(slot)
        name, asked = self.spec.name, records.pack_u16(snapshots)
        return messages.Work(
            name, slot.index, self.epoch, self.chain.epoch, self.time_us, groups, None, asked, lanes
        )

    def is_moved_by_time(self, slot: TaskSlot, mine: U16) -> bool:
        """Whether a task has something to do in this epoch even without rows: its watermark moves, or a timer is
        due."""
        if not self.spec.clocked or not len(mine):
            return False
        if self.timers.get(slot.index, self.time_us + 1) <= self.time_us:
            return True
        return any(take.moved and take.members()[mine].any() for take in self.takes)

    def next_timer_us(self) -> int | None:
        """Return the epoch time at which some task wants to be run again, None where none does."""
        return min(self.timers.values(), default=None)

    def note_timer(self, task: int, next_timer_us: int | None) -> None:
        if next_timer_us is None:
            self.timers.pop(task, None)
        else:
            self.timers[task] = next_timer_us

    def release(self, slot: TaskSlot, shards: U16, keep: bool = True) -> messages.Release:
        """Ask a task to let some of its shards go; they sit out from now on. Their environments are kept for another
        task of the node, or deleted."""
        self.shards.to(shards, Holding.RELEASING)
        self.unconfirmed.discard(slot.index)
        return messages.Release(self.spec.name, slot.index, records.pack_u16(shards), self.chain.epoch, keep)

    def bring(self, slot: TaskSlot, shards: U16, node: str) -> messages.Bring:
        """Ask a task to make shards of its own present on its node."""
        self.shards.to(shards, Holding.BRINGING)
        wanted = [self._bring_shard(shard, node) for shard in shards.tolist()]
        return messages.Bring(self.spec.name, slot.index, wanted, self.deltas_for(shards))

    def prepare(self, slot: TaskSlot, shards: U16) -> messages.Prepare:
        """Ask a task to copy shards that another one still works on."""
        wanted = [self._wanted(shard) for shard in shards.tolist()]
        return messages.Prepare(self.spec.name, slot.index, wanted, self.deltas_for(shards))

    def _bring_shard(self, shard: int, node: str) -> messages.BringShard:
        local = self.handed_over.pop(shard, None)
        return self._wanted(shard, local if local is not None and local.node == node else None)

    def _wanted(self, shard: int, local: HandedOver | None = None) -> messages.BringShard:
        chain = self.chain
        return messages.BringShard(
            shard,
            int(chain.versions[shard]),
            chain.digest(shard),
            chain.snapshot_of(shard),
            local.name if local is not None else None,
            local.version if local is not None else 0,
        )

    def deltas_for(self, shards: U16) -> list[records.DeltaFrame]:
        """Return what these shards pin themselves: clean-up may take the rest away while they are brought."""
        dirty = self.chain.dirty_since[shards]
        first = int(dirty[dirty > 0].min(initial=np.iinfo(np.uint64).max))
        return [frame for frame in self.chain.deltas if frame.epoch >= first]

    def named_in_epoch(self) -> npt.NDArray[np.bool_]:
        """Return which shards are part of a record that is not durable yet; what they become is known only then."""
        if self.phase is Phase.IDLE or not self.parts:
            return np.zeros(len(self.task_of), np.bool_)
        return self.epoch_shards & np.isin(self.epoch_tasks, list(self.parts))

    def ask(self, slot: TaskSlot) -> None:
        self.waiting_for.add(slot.index)
        self.asked.add(slot.index)

    def groups(self) -> list[Group]:
        """The ranges that are done: all shards that took part but those of tasks that were asked and lost."""
        lost = np.array(sorted(self.asked - set(self.parts)), np.uint16)
        groups = []
        for take in self.takes:
            shards = take.shards[~np.isin(self.epoch_tasks[take.shards], lost)] if len(lost) else take.shards
            if len(shards):
                groups.append(Group(records.pack_u16(shards), list(take.ranges), take.watermark_us))
        return groups

    def pieces_of(self, take: GroupTake) -> list[messages.Piece]:
        # As the declared stage numbers them: chains of one producer are one input.
        edges = dict.fromkeys(given.edge for given in self.spec.inputs)
        inputs = {edge: number for number, edge in enumerate(edges)}
        return [
            messages.Piece(
                inputs[p.key.edge], p.start, p.end, [s.extent for s in p.source.published.segments], p.late_us
            )
            for p in take.pieces
            if p.source.published.segments
        ]

    def finish(self, now: float, record: Record) -> None:
        """The record of the epoch exists."""
        self.to(Phase.IDLE)
        self.committed_at = now
        if record.kind == "intent":
            return
        if self.rows:
            self.rows_at = now
        self.attempt = 0
        self.epochs += 1
        self.unconfirmed = {part.task for part in record.parts if part.delta is not None} | self.unconfirmed
        self.epoch_s = now - self.started_at
        self.epochs_s += self.epoch_s
        self.busy_s += sum(part.busy_us for part in record.parts) / 1e6
        self.sync_s += sum(part.sync_us for part in record.parts) / 1e6
        self.counts.complete(record, self.takes, self.epoch_s)
        for part in record.parts:
            self._task_state_bytes[part.task] = part.state_bytes
        self.state_bytes = sum(self._task_state_bytes.values())
        self.intake.learn(record, self.rows, self.epoch_s)
        if self.spec.kind == "sink":
            self.sunk_rows += self.rows
            self.next_start = self.started_at + (self.spec.min_epoch_s or self._settings.sink_epoch_s)

    def assigned_to(self, slot: TaskSlot) -> U16:
        """Shards that belong to a task by the map."""
        return self.shards.of(slot.index)

    def shards_of(self, slot: TaskSlot) -> U16:
        """Shards of a task that can take part in an epoch."""
        return self.shards.of(slot.index, Holding.HELD)

    def may_move(self, slot: TaskSlot) -> bool:
        """Whether a task can change its lease now: between two epochs, nothing of it under way."""
        return self.phase is Phase.IDLE and not self.shards.is_under_way(slot.index)

    def note_released(self, released: messages.Released, node: str) -> U16:
        """Take note of environments that their owner closed; nothing of them changes while nobody owns them. Returns
        their shards."""
        shards = np.array([shard.shard for shard in released.shards], np.uint16)
        self.shards.to(shards, Holding.ABSENT)
        for shard in released.shards:
            version = int(self.chain.versions[shard.shard])
            self.handed_over[shard.shard] = HandedOver(node, shard.local, version)
        return shards

    def size_of(self, shards: U16) -> int:
        """Return about how many bytes it takes to copy these shards."""
        return int((self.chain.snapshot_bytes[shards] + self.chain.delta_bytes[shards]).sum())
