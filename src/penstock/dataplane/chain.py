"""What the committed records of one chain add up to: positions, versions, digests, snapshots and unconsumed segments.

A pure function of the log: the live driver and start-up apply records through the same code. Nothing here starts work, and
nothing that is not durable is ever applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.dataplane import records
from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.eventtimes import EventTimes
from penstock.dataplane.frontier import Frontier, Tracks
from penstock.dataplane.positions import START, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.program import StageSpec
from penstock.dataplane.records import (
    END_US,
    IDLE_US,
    ChainBase,
    DeltaFrame,
    EdgeBase,
    FrontierBase,
    Group,
    Position,
    Published,
    Range,
    Reached,
    Record,
)
from penstock.dataplane.standing import Moved, advance
from penstock.dataplane.state.protocol import U16, U64
from penstock.dataplane.watermarks import Channels, is_idle
from penstock.errors import CorruptFileError

NO_TRACKS = Tracks()


class Chain:
    """The committed state of one stage."""

    def __init__(self, spec: StageSpec, share: U16 | None = None, tracks: Tracks = NO_TRACKS) -> None:
        """`share` are the shards of the operator that this chain begins with, None for all."""
        shards = spec.shards
        self.spec = spec
        self.name = spec.name
        self.epoch = 0
        self.hash = records.NO_HASH
        at = {ChannelKey(given.edge, given.producer): START for given in spec.inputs}
        mine = np.arange(shards, dtype=np.uint16) if share is None else share
        self.groups = [ShardGroup(mine, at)] if len(mine) else []
        self.versions: U64 = np.zeros(shards, np.uint64)
        self.digests: U64 = np.zeros((shards, 2), np.uint64)
        self.dirty_since: U64 = np.zeros(shards, np.uint64)
        self.delta_bytes: U64 = np.zeros(shards, np.uint64)
        self.snapshot_bytes: U64 = np.zeros(shards, np.uint64)
        self.written_at_dirty: U64 = np.zeros(shards, np.uint64)
        self.written = 0
        self.snapshots: dict[int, records.Snapshot] = {}
        self.deltas: deque[DeltaFrame] = deque()
        self.out: dict[int, deque[PublishedRows]] = {edge.edge: deque() for edge in spec.edges}
        self.out_bytes = 0
        self.channels = _channels_of(spec)
        self.edge_bytes: dict[int, int] = dict.fromkeys(self.out, 0)
        self.times = EventTimes()
        """Latest event times of its rows; of rows of the operator's other executors too, so that one without rows holds up
        nobody."""
        self.frontier = Frontier(spec, tracks)
        self.said: dict[int, int | None] = {}
        """By edge: what was last said of event time."""
        self.offset = 0
        self.batch: records.Batch | None = None
        self.intent: Record | None = None
        self.watermark_us: int | None = None
        self.time_us = 0
        """Latest epoch time; it never goes back, whatever the clock of the next driver says."""
        self.ended = False
        """Of a source: whether nothing comes any more."""
        self.idle = False
        """Of a source: whether its last record said that nothing comes for now."""
        self.rows_in = 0
        self.rows_out = 0
        self.late_rows = 0
        self.dead_rows = 0

    def apply(
        self,
        record: Record,
        encoded: bytes,
        siblings: Collection[Chain] = (),
        waiting: Mapping[ChannelKey, Sequence[PublishedRows]] | None = None,
    ) -> list[tuple[EdgeSpec, PublishedRows]]:
        """Fold in the next record of this chain; return what it published, by edge.

        Args:
            siblings: chains of the operator's other executors.
            waiting: what was published for this chain, with what the record took.
        """
        self._check_next(record)
        self.time_us = max(self.time_us, record.time_us)
        self.hash = records.hash_of(encoded)
        self.epoch = record.epoch
        if record.kind == "intent":
            self.intent = record
            return []
        groups = self.intent.groups if record.kind == "done" and self.intent is not None else record.groups
        self.intent = None
        self._advance(groups, waiting or {})
        if record.offsets is not None:
            self.offset = record.offsets[1]
        if record.batch is not None:
            self.batch = record.batch
        self.ended = self.ended or record.watermark_us == END_US
        self.idle = record.idle or self._hears_nothing()
        for part in record.parts:
            self._apply_part(record.epoch, part)
        self._count_times(record.parts, siblings)
        self.trim_deltas()
        return self._publish(record, bool(siblings))

    def _check_next(self, record: Record) -> None:
        expected = self.epoch if record.kind == "done" else self.epoch + 1
        if record.epoch != expected or record.previous != self.hash:
            raise CorruptFileError(
                f"epoch {record.epoch} of '{record.chain}' does not follow epoch {self.epoch}: the log was put together "
                "from others, restore it from a copy."
            )

    def _advance(
        self, groups: Iterable[Group], waiting: Mapping[ChannelKey, Sequence[PublishedRows]]
    ) -> None:
        moved = [self._on_all_channels(Moved(*_place(group))) for group in groups]
        if moved:
            self.groups = advance(self.groups, moved)
            self.frontier.follow(self.groups, [one.at for one in moved], waiting)
            self.watermark_us = _least([group.watermark_us for group in self.groups])

    def _on_all_channels(self, moved: Moved) -> Moved:
        """An executor that was added while an epoch was in flight is not in its ranges: nothing of it was taken."""
        if len(moved.at) == len(self.spec.inputs):
            return moved
        keys = [ChannelKey(given.edge, given.producer) for given in self.spec.inputs]
        fresh = [key for key in keys if key not in moved.at]
        return replace(
            moved,
            at={**moved.at, **dict.fromkeys(fresh, START)},
            marks={**moved.marks, **dict.fromkeys(fresh, END_US)},
        )

    def _apply_part(self, epoch: int, part: records.TaskPart) -> None:
        self.rows_in += part.rows_in
        self.rows_out += part.rows_out
        self.late_rows += part.late_rows
        self.dead_rows += part.dead_rows
        extents = [segment.extent for segment in part.segments] + ([part.delta] if part.delta else [])
        for snapshot in part.snapshots:
            self._apply_snapshot(snapshot)
        if part.delta is not None:
            changed = records.unpack_u16(part.changed)
            fresh = changed[self.dirty_since[changed] == 0]
            self.dirty_since[fresh] = epoch
            self.written_at_dirty[fresh] = self.written
            self.versions[changed] = epoch
            self.digests[changed] = np.frombuffer(part.digests, "<u8").reshape(-1, 2)
            self.delta_bytes[changed] += records.unpack_u32(part.delta_bytes)
            self.deltas.append(DeltaFrame(epoch, part.task, part.delta))
        self.written += sum(extent.length for extent in extents)

    def _count_times(self, parts: Collection[records.TaskPart], siblings: Collection[Chain]) -> None:
        """Let event times count that all shards are past, as nothing this chain puts out from now on comes before them."""
        for edge in self.spec.edges:
            if edge.delay_us is None:
                continue
            reached = [
                Reached(event_us, through=self.frontier.reach)
                for part in parts
                for number, event_us in part.event_us
                if number == edge.edge
            ]
            theirs = [chain.times.counted.get(edge.edge) for chain in siblings]
            self.times.count(
                edge.edge, self.frontier, [*reached, *(one for one in theirs if one is not None)]
            )

    def lags_behind(self, sibling: Chain) -> bool:
        """Whether another executor says a later event time that counts here too."""
        return bool(self.groups) and any(
            self.times.lags_behind(edge.edge, sibling.times, self.frontier)
            for edge in self.spec.edges
            if edge.delay_us is not None
        )

    def _apply_snapshot(self, snapshot: records.Snapshot) -> None:
        shard = snapshot.shard
        self.snapshots[shard] = snapshot
        self.snapshot_bytes[shard] = snapshot.size
        self.dirty_since[shard] = 0
        self.delta_bytes[shard] = 0

    def trim_deltas(self) -> None:
        """Forget deltas that no shard needs any more."""
        dirty = self.dirty_since[self.dirty_since > 0]
        low = int(dirty.min()) if len(dirty) else self.epoch + 1
        while self.deltas and self.deltas[0].epoch < low:
            self.deltas.popleft()

    def _publish(self, record: Record, has_siblings: bool) -> list[tuple[EdgeSpec, PublishedRows]]:
        published: list[tuple[EdgeSpec, PublishedRows]] = []
        for edge in self.spec.edges:
            segments = [
                segment for part in record.parts for segment in part.segments if segment.edge == edge.edge
            ]
            mark = self._mark(edge, self.idle) if edge.marked else None
            news = self.frontier.has_news(edge.edge, has_siblings, bool(record.parts))
            if segments or mark != self.said.get(edge.edge) or news:
                stamp = record.stamp if segments else None
                made = Published(record.epoch, segments, stamp, mark, [], *self.frontier.tell(edge.edge))
                item = self._checked(PublishedRows(made, edge.shards), edge.edge, edge.shards)
                self.said[edge.edge] = mark
                self.out[edge.edge].append(item)
                self.out_bytes += item.bytes
                self.edge_bytes[edge.edge] += item.bytes
                published.append((edge, item))
        return published

    def _checked(self, item: PublishedRows, edge: int, shards: int) -> PublishedRows:
        if len(item.counts) != shards:
            raise CorruptFileError(
                f"epoch {item.epoch} of '{self.name}' has rows for {len(item.counts)} shards on edge {edge}, not {shards}; "
                "restore the log from a copy."
            )
        return item

    def pass_barrier(self, epoch: int, edges: Collection[int], between: list[str]) -> None:
        """Stand at this epoch, with what shards there are now, and put up a barrier on edges: nobody takes what comes
        after it before all that came before it, on all of these chains."""
        self.epoch = epoch
        self.watermark_us = _least([group.watermark_us for group in self.groups])
        self.idle = self._hears_nothing()
        for edge in self.spec.edges:
            if edge.edge in edges:
                mark = self._mark(edge, self.idle) if edge.marked else None
                self.said[edge.edge] = mark
                made = Published(epoch, [], None, mark, between, *self.frontier.tell(edge.edge))
                self.out[edge.edge].append(PublishedRows(made, edge.shards))

    def _mark(self, edge: EdgeSpec, idle: bool) -> int | None:
        """What is said of event time on an edge as of now."""
        if self.ended or not self.groups:  # an executor without shards says nothing, and holds nobody up
            return END_US
        if idle:
            return IDLE_US
        if edge.delay_us is None or self.watermark_us == END_US:
            return self.watermark_us
        reached = self.times.counted.get(edge.edge)
        return None if reached is None else reached.event_us - edge.delay_us

    def _hears_nothing(self) -> bool:
        """Of an operator: whether all that it takes rows from is idle."""
        return (
            self.spec.kind == "operator"
            and bool(self.groups)
            and all(is_idle(group, self.channels) for group in self.groups)
        )

    def has_said_its_end(self) -> bool:
        """Whether those who read event time know that a bounded source has ended."""
        return self.ended or not self.spec.bounded or not any(edge.marked for edge in self.spec.edges)

    def drop_consumed(self, edge: int, before: Position) -> None:
        """Forget what no consumer needs any more."""
        queue = self.out[edge]
        while queue and queue[0].epoch < before.epoch:
            gone = queue.popleft().bytes
            self.out_bytes -= gone
            self.edge_bytes[edge] -= gone

    def behind(self, edge: int) -> Range:
        """An empty range behind all that is committed."""
        at = Position(self.epoch + 1, 0)
        return Range(edge, self.name, at, at, self.said.get(edge))

    def shards(self) -> U16:
        """Return the shards of the operator that this chain has."""
        held = [group.shards for group in self.groups]
        return np.sort(np.concatenate(held)) if held else np.empty(0, np.uint16)

    def is_mine(self) -> npt.NDArray[np.bool_]:
        """Return for every shard of the operator whether this chain has it."""
        mine = np.zeros(self.spec.shards, np.bool_)
        mine[self.shards()] = True
        return mine

    def snapshot_of(self, shard: int) -> records.Snapshot | None:
        return self.snapshots.get(shard)

    def digest(self, shard: int) -> bytes:
        return bytes(self.digests[shard].astype("<u8").tobytes())

    def to_base(self) -> ChainBase:
        return ChainBase(
            chain=self.name,
            epoch=self.epoch,
            hash=self.hash,
            groups=[_position_group(group) for group in self.groups],
            edges=[self._edge_base(edge, queue) for edge, queue in self.out.items()],
            versions=records.pack_u64(self.versions),
            digests=records.pack_u64(self.digests),
            dirty_since=records.pack_u64(self.dirty_since),
            snapshots=list(self.snapshots.values()),
            deltas=list(self.deltas),
            offset=self.offset,
            batch=self.batch,
            intent=self.intent,
            watermark_us=self.watermark_us,
            rows_in=self.rows_in,
            rows_out=self.rows_out,
            late_rows=self.late_rows,
            dead_rows=self.dead_rows,
            ended=self.ended,
            time_us=self.time_us,
        )

    def _edge_base(self, edge: int, queue: Iterable[PublishedRows]) -> EdgeBase:
        counted = self.times.counted.get(edge)
        through, reach = self.frontier.said.get(edge, ({}, {}))
        return EdgeBase(
            edge,
            [item.published for item in queue],
            counted.event_us if counted is not None else None,
            self.said.get(edge),
            event_through=counted.through if counted is not None else {},
            pending=self.times.pending.get(edge, []),
            through=through,
            reach=reach,
        )

    def load_base(self, base: ChainBase, frontier: FrontierBase | None = None) -> None:
        self.epoch, self.hash = base.epoch, base.hash
        self.groups = [ShardGroup(*_place(group)) for group in base.groups]
        widths = {edge.edge: edge.shards for edge in self.spec.edges}
        self.out = {
            edge.edge: deque(PublishedRows(item, widths.get(edge.edge, 1)) for item in edge.published)
            for edge in base.edges
        }
        for edge, shards in widths.items():
            for item in self.out.get(edge, ()):
                self._checked(item, edge, shards)
        self.times.load(base.edges)
        self.frontier.load(frontier, base.edges, self.groups)
        self.said = {edge.edge: edge.watermark_us for edge in base.edges}
        self.edge_bytes = {edge: sum(item.bytes for item in queue) for edge, queue in self.out.items()}
        self.out_bytes = sum(self.edge_bytes.values())
        self.versions = records.unpack_u64(base.versions)
        self.digests = records.unpack_u64(base.digests).reshape(-1, 2)
        self.dirty_since = records.unpack_u64(base.dirty_since)
        self._check_shards()
        for snapshot in base.snapshots:
            self.snapshots[snapshot.shard] = snapshot
            self.snapshot_bytes[snapshot.shard] = snapshot.size
        self.deltas = deque(base.deltas)
        self.written = sum(frame.extent.length for frame in base.deltas)
        self.offset, self.batch, self.intent = base.offset, base.batch, base.intent
        self.watermark_us, self.rows_in, self.rows_out = base.watermark_us, base.rows_in, base.rows_out
        self.late_rows, self.dead_rows, self.ended = base.late_rows, base.dead_rows, base.ended
        self.time_us = base.time_us
        self.idle = IDLE_US in self.said.values()

    def _check_shards(self) -> None:
        """Refuse a base that speaks of other shards than there are."""
        there = self.spec.shards
        if {len(self.versions), len(self.digests), len(self.dirty_since)} != {there}:
            raise CorruptFileError(
                f"the base says of '{self.name}' what cannot be of {there} shards; restore the log from a copy."
            )

    def be(self, name: str, spec: StageSpec, tracks: Tracks) -> None:
        """Have another name and spec, with the same edges."""
        self.name, self.spec, self.channels = name, spec, _channels_of(spec)
        self.frontier.be(spec, tracks)

    def take_on(self, spec: StageSpec, tracks: Tracks) -> dict[int, deque[PublishedRows]]:
        """Be of another spec from now on; return the output edges that it lacks, with what waits on them.

        On an edge that is new all that was said of event time is said already: it begins behind it.
        """
        self.be(self.name, spec, tracks)
        gone = {edge: queue for edge, queue in self.out.items() if edge not in {e.edge for e in spec.edges}}
        for edge in spec.edges:
            if edge.edge not in self.out:
                self.said[edge.edge] = self._mark(edge, self.idle) if edge.marked else None
        self.out = {edge.edge: self.out.get(edge.edge, deque()) for edge in spec.edges}
        self.edge_bytes = {edge: sum(item.bytes for item in queue) for edge, queue in self.out.items()}
        self.out_bytes = sum(self.edge_bytes.values())
        # A source that has ended says so again to those who have not been told.
        self.ended = self.ended and all(self.said.get(e.edge) == END_US for e in spec.edges if e.marked)
        return gone

    def stand_at(self, inputs: Mapping[ChannelKey, Range]) -> None:
        """Have exactly these inputs; those that are new begin where their range says, which holds nothing."""
        self.groups = [
            ShardGroup(*_place(msgspec.structs.replace(group, ranges=_ranges_on(inputs, group.ranges))))
            for group in map(_position_group, self.groups)
        ]
        self.frontier.stand(self.groups)
        if self.intent is not None:
            groups = [
                msgspec.structs.replace(group, ranges=_ranges_on(inputs, group.ranges))
                for group in self.intent.groups
            ]
            self.intent = msgspec.structs.replace(self.intent, groups=groups)

    def live_files(self) -> set[str]:
        """Names of all data files that this chain still needs."""
        live = {frame.extent.file for frame in self.deltas} | records.files_of_batch(self.batch)
        live.update(
            snapshot.extent.file for snapshot in self.snapshots.values() if snapshot.extent is not None
        )
        for queue in self.out.values():
            live.update(segment.extent.file for item in queue for segment in item.published.segments)
        return live


def _channels_of(spec: StageSpec) -> Channels:
    return Channels(
        {ChannelKey(given.edge, given.producer) for given in spec.inputs if given.marked},
        {ChannelKey(given.edge, given.producer) for given in spec.inputs if given.timed},
        {ChannelKey(given.edge, given.producer) for given in spec.inputs if given.feedback},
    )


def _ranges_on(inputs: Mapping[ChannelKey, Range], ranges: Iterable[Range]) -> list[Range]:
    """Ranges in their order, without inputs that are gone; on those that are new they hold nothing."""
    kept = {ChannelKey(r.edge, r.chain): r for r in ranges if ChannelKey(r.edge, r.chain) in inputs}
    return [*kept.values(), *(taken for key, taken in inputs.items() if key not in kept)]


def _position_group(group: ShardGroup) -> Group:
    ranges = [
        Range(key.edge, key.chain, at, at, group.marks.get(key)) for key, at in sorted(group.at.items())
    ]
    return Group(records.pack_u16(group.shards), ranges, group.watermark_us)


def _place(
    group: Group,
) -> tuple[U16, dict[ChannelKey, Position], dict[ChannelKey, int | None], int | None]:
    """Where the shards of a recorded group stand after its ranges."""
    keys = [ChannelKey(taken.edge, taken.chain) for taken in group.ranges]
    at = {key: taken.end for key, taken in zip(keys, group.ranges, strict=True)}
    marks = {key: taken.watermark_us for key, taken in zip(keys, group.ranges, strict=True)}
    return records.unpack_u16(group.shards), at, marks, group.watermark_us


def _least(marks: list[int | None]) -> int | None:
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None
