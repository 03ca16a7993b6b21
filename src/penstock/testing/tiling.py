"""What was published on every channel, and how far each shard has consumed it: do the committed ranges tile it?

A part of `schedule`, with arithmetic of its own, none of it the engine's. Says what is wrong, and goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from penstock.dataplane import records
from penstock.dataplane.channel import Deal, EdgeSpec
from penstock.dataplane.logic.protocol import MAIN
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.records import Position, Record, Redeal, Segment, unpack_u16, unpack_u32
from penstock.dataplane.state.protocol import I64

Channel = tuple[int, str]
"""Edge and producer chain."""
FIRST = Position(1, 0)


class Consumer:
    """Where each shard of one stage stands, by the ranges seen so far, and in which chain it is."""

    def __init__(self, spec: StageSpec) -> None:
        self.spec = spec
        self.at: dict[Channel, list[Position]] = {}
        self.versions = [0] * spec.shards
        self.digests = [bytes(16)] * spec.shards
        self.owners: list[str] = [spec.name] * spec.shards

    def hear(self, stage: str, chain: str) -> None:
        """A stage has one more chain."""
        for given in self.spec.inputs:
            if given.producer == stage:
                self.at.setdefault((given.edge, chain), [FIRST] * self.spec.shards)

    def of(self, chain: str) -> list[int]:
        return [shard for shard, owner in enumerate(self.owners) if owner == chain]


class Tiling:
    """The rows of all channels, and the ranges that were taken from them.

    Args:
        epochs: the last epoch of every chain, as whoever folds the records has it.
        fault: is told what is wrong with a record.
    """

    def __init__(
        self, program: Program, epochs: Mapping[str, int], fault: Callable[[Record, str], None]
    ) -> None:
        self.consumers = {name: Consumer(spec) for name, spec in program.stages.items()}
        self._epochs = epochs
        self._fault = fault
        self._published: dict[Channel, dict[int, I64]] = defaultdict(dict)
        self._barriers: list[tuple[Redeal, int]] = []
        self._consumer_of = {given.edge: spec for spec in program.stages.values() for given in spec.inputs}

    def hear(self, chain: str) -> None:
        """There is one more chain."""
        for consumer in self.consumers.values():
            consumer.hear(operator_of(chain), chain)

    def redeal(self, one: Redeal, epoch: int) -> None:
        """Shards were dealt anew at this epoch of both chains."""
        self._barriers.append((one, epoch))

    def consume(self, consumer: Consumer, record: Record) -> dict[int, int]:
        """Move the shards of a record along its ranges; return the rows of each."""
        rows: dict[int, int] = {}
        for group in record.groups:
            channels = [(taken.edge, taken.chain) for taken in group.ranges]
            # A chain that was added while the epoch was in flight is in no range of it.
            mine = unpack_u16(group.shards).tolist()
            known = {channel for channel, ats in consumer.at.items() if any(ats[s] != FIRST for s in mine)}
            if not known <= set(channels) <= set(consumer.at) or len(set(channels)) != len(channels):
                self._fault(record, f"has ranges on {channels}, not on {list(consumer.at)}")
                continue
            shards = unpack_u16(group.shards).tolist()
            for shard in shards:
                if shard in rows:
                    self._fault(record, f"takes shard {shard} twice")
                if consumer.owners[shard] != record.chain:
                    self._fault(record, f"takes shard {shard}, which is in '{consumer.owners[shard]}'")
                rows[shard] = 0
            self._check_barriers(record, shards, group.ranges)
            for taken in group.ranges:
                self._move(consumer, record, shards, taken, rows)
        return rows

    def _move(
        self,
        consumer: Consumer,
        record: Record,
        shards: list[int],
        taken: records.Range,
        rows: dict[int, int],
    ) -> None:
        channel = (taken.edge, taken.chain)
        at = consumer.at[channel]
        top = self._epochs[taken.chain]
        if taken.end < taken.start:
            self._fault(record, f"has a range that ends before it starts ({taken.start} to {taken.end})")
        if taken.end.epoch > top + 1 or (taken.end.epoch == top + 1 and taken.end.row):
            self._fault(
                record, f"consumes '{taken.chain}' up to {taken.end}, which has committed epoch {top} only"
            )
        for shard in shards:
            if at[shard] != taken.start:
                word = "again" if taken.start < at[shard] else "leaving a gap"
                self._fault(
                    record,
                    f"shard {shard} consumes '{taken.chain}' from {taken.start}, {word}: it is at {at[shard]}",
                )
            at[shard] = taken.end
        for epoch, counts in self._published[channel].items():
            if taken.start.epoch <= epoch <= taken.end.epoch:
                low = taken.start.row if epoch == taken.start.epoch else 0
                high = taken.end.row if epoch == taken.end.epoch else None
                for shard in shards:
                    count = int(counts[shard])
                    rows[shard] += max(0, (count if high is None else min(high, count)) - low)

    def _check_barriers(self, record: Record, shards: list[int], ranges: Sequence[records.Range]) -> None:
        """Rows that a chain published after it was given shards come after those that the giver published before."""
        spans = {(taken.edge, taken.chain): taken for taken in ranges}
        for deal, epoch in self._barriers:
            for (edge, chain), taken in spans.items():
                before = spans.get((edge, deal.giver))
                if chain != deal.taker or before is None or taken.end.epoch <= epoch:
                    continue
                later = _rows_in(
                    self._published[(edge, chain)], max(taken.start, Position(epoch + 1, 0)), taken.end
                )
                earlier = _rows_in(self._published[(edge, deal.giver)], before.start, Position(epoch, 0))
                wrong = [shard for shard in shards if later.get(shard) and earlier.get(shard)]
                if wrong:
                    self._fault(
                        record,
                        f"takes rows that '{chain}' published after it was given shards before what '{deal.giver}' had "
                        f"published until then, for shard {wrong[0]}",
                    )

    def publish(self, spec: StageSpec, record: Record) -> None:
        for edge in spec.edges:
            found = [
                segment for part in record.parts for segment in part.segments if segment.edge == edge.edge
            ]
            self._check_segments(record, edge, found)
            for part in record.parts:
                held = sum(segment.rows for segment in part.segments if segment.edge == edge.edge)
                # Steps may drop rows and make others, and side outputs have rows of their own.
                if held != part.rows_out and not edge.steps and edge.output == MAIN:
                    self._fault(
                        record,
                        f"task {part.task} put out {part.rows_out} rows, {held} of them on edge {edge.edge}",
                    )
            shards = self._consumer_of[edge.edge].shards
            counts = [
                unpack_u32(s.shard_rows).astype(np.int64) for s in found if len(s.shard_rows) == 4 * shards
            ]
            if counts:
                self._published[(edge.edge, record.chain)][record.epoch] = np.sum(counts, axis=0)

    def _check_segments(self, record: Record, edge: EdgeSpec, segments: Sequence[Segment]) -> None:
        for segment in segments:
            shards = self._consumer_of[edge.edge].shards
            expected = segment.rows * (shards if edge.deal is Deal.BROADCAST else 1)
            if len(segment.shard_rows) != 4 * shards or int(unpack_u32(segment.shard_rows).sum()) != expected:
                self._fault(
                    record,
                    f"has a segment on edge {edge.edge} whose rows per shard do not add up to {segment.rows}",
                )

    def left_by(self, consumer: Consumer) -> Iterator[str]:
        """Say which rows a stage has not consumed."""
        for channel, ats in consumer.at.items():
            for epoch, counts in self._published[channel].items():
                for shard in np.flatnonzero(counts).tolist():
                    at = ats[shard]
                    left = counts[shard] - (at.row if at.epoch == epoch else 0)
                    if at.epoch <= epoch and left > 0:
                        yield f"'{consumer.spec.name}' shard {shard} left {left} rows of '{channel[1]}' epoch {epoch}"


def _rows_in(published: Mapping[int, I64], start: Position, end: Position) -> dict[int, int]:
    """Rows of every shard between two positions of a chain."""
    found: dict[int, int] = defaultdict(int)
    for epoch, counts in published.items():
        if start.epoch <= epoch and Position(epoch, 0) < end:
            low = start.row if epoch == start.epoch else 0
            for shard in np.flatnonzero(counts).tolist():
                high = min(int(counts[shard]), end.row) if epoch == end.epoch else int(counts[shard])
                found[shard] += max(0, high - low)
    return found
