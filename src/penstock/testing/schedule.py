"""Checks a whole run from its checkpoint: is the committed schedule free of gaps and overlaps?

Looks at the records alone, with arithmetic of its own, none of it the engine's. `penstock.testing.replay` then
proves that state and outputs follow from the schedule. Nothing is written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.dataplane import records
from penstock.dataplane.chains import Chains
from penstock.dataplane.channel import Deal, EdgeSpec
from penstock.dataplane.disk import Disk
from penstock.dataplane.logic.protocol import MAIN
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.records import (
    Base,
    Position,
    Record,
    Redeal,
    Segment,
    TaskPart,
    unpack_u16,
    unpack_u32,
)
from penstock.dataplane.state.protocol import I64
from penstock.testing.line import CheckFailure, Line, LinePart, read_line

Channel = tuple[int, str]
"""Edge and producer chain."""
FIRST = Position(1, 0)


def check_schedule(
    checkpoint: str, program: Program, *, complete: bool = False, disk: Disk | None = None
) -> Line:
    """Prove from the records alone that every row was taken in, published and consumed once, in order.

    Args:
        complete: the run was drained: everything published must have been consumed and every sink epoch done.

    Raises:
        CheckFailure: says what is wrong, fault by fault.
    """
    line = read_line(checkpoint, disk)
    faults = find_schedule_faults(line, program, complete)
    if faults:
        raise CheckFailure(faults)
    return line


def find_schedule_faults(line: Line, program: Program, complete: bool = False) -> list[str]:
    """Return every fault of the schedule, in words; empty when there is none."""
    seen = _Schedule(program)
    for number, part in enumerate(line.parts):
        if number:
            seen.redeal(part.base)
            seen.check_base(part.base)
            seen.faults.extend(_fold_faults(program, line.parts[number - 1], part.base))
        else:
            seen.begin(part.base)
        for record, encoded in part.records:
            seen.add(record, encoded)
    if complete:
        seen.check_complete()
    return seen.faults


def _fold_faults(program: Program, before: LinePart, base: Base) -> list[str]:
    chains = Chains(program)
    try:
        chains.load(before.base, before.records)
        for one in base.redeals:
            chains.redeal(one)
    except Exception as error:
        return [f"part {before.part}: its records do not fold: {error}"]
    folded = chains.to_base(base.query, base.generation, base.part, base.identity, base.time_us, base.redeals)
    if [one.chain for one in base.chains] != [one.chain for one in folded.chains]:
        return [f"part {base.generation}-{base.part}: its base is of other chains than the last part"]
    return [
        f"part {base.generation}-{base.part}: the base of '{mine.chain}' is not the fold of the last part"
        for mine, theirs in zip(base.chains, folded.chains, strict=True)
        if records.encode(_alone(mine)) != records.encode(_alone(theirs))
    ]


def _alone(chain: records.ChainBase) -> Base:
    return Base(0, "", 0, 0, b"", 0, [chain])


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


class _Consumer:
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


class _Schedule:
    """Folds records one by one and notes every fault. Uses none of the engine's arithmetic."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.faults: list[str] = []
        self.heads: dict[str, bytes] = {}
        self.epochs: dict[str, int] = {}
        self.barriers: list[tuple[Redeal, int]] = []
        """How shards were dealt anew, and at which epoch of both chains."""
        self.last: dict[str, Record] = {}
        self.intents: dict[str, Record] = {}
        self.offsets = dict.fromkeys(program.stages, 0)
        self.batches: dict[str, records.Batch] = {}
        self.published: dict[Channel, dict[int, I64]] = defaultdict(dict)
        self.consumers = {name: _Consumer(spec) for name, spec in program.stages.items()}
        self.consumer_of = {given.edge: spec for spec in program.stages.values() for given in spec.inputs}

    def begin(self, base: Base) -> None:
        """The first base says which chains there are, and which shards each has."""
        for chain in base.chains:
            stage = operator_of(chain.chain)
            if stage in self.program.stages:
                self._hear(chain.chain)
                for group in chain.groups:
                    for shard in unpack_u16(group.shards).tolist():
                        self.consumers[stage].owners[shard] = chain.chain
        self._check_owners(base)

    def _hear(self, chain: str) -> None:
        self.heads.setdefault(chain, records.NO_HASH)
        self.epochs.setdefault(chain, 0)
        for consumer in self.consumers.values():
            consumer.hear(operator_of(chain), chain)

    def _check_owners(self, base: Base) -> None:
        held: dict[str, list[int]] = defaultdict(list)
        for chain in base.chains:
            for group in chain.groups:
                held[operator_of(chain.chain)] += unpack_u16(group.shards).tolist()
        for name, consumer in self.consumers.items():
            if sorted(held[name]) != list(range(consumer.spec.shards)):
                self.faults.append(
                    f"part {base.generation}-{base.part}: not every shard of '{name}' is in exactly one chain"
                )

    def redeal(self, base: Base) -> None:
        """Let shards be in other chains, as a base says; where they stand and what they hold does not change."""
        for one in base.redeals:
            where = f"part {base.generation}-{base.part}: shards of '{one.giver}' for '{one.taker}'"
            consumer = self.consumers.get(operator_of(one.giver))
            if consumer is None or operator_of(one.taker) != operator_of(one.giver):
                self.faults.append(f"{where} are not of one operator")
                continue
            self._hear(one.taker)
            for shard in unpack_u16(one.shards).tolist():
                if consumer.owners[shard] != one.giver:
                    self.faults.append(f"{where}: shard {shard} is in '{consumer.owners[shard]}'")
                consumer.owners[shard] = one.taker
            epoch = 1 + max(self.epochs[one.giver], self.epochs[one.taker])
            self.epochs[one.giver] = self.epochs[one.taker] = epoch
            self.barriers.append((one, epoch))

    def add(self, record: Record, encoded: bytes) -> None:
        if record.chain not in self.epochs:
            self._fault(record, "is of a stage that the topology lacks")
            return
        self._check_chain(record, encoded)
        spec = self.program.stages[operator_of(record.chain)]
        if spec.kind == "source":
            self._check_source(record)
        elif spec.kind == "sink":
            self._check_sink(record)
        else:
            self._check_operator(spec, record)
        self._publish(spec, record)
        self.last[record.chain] = record

    def _fault(self, record: Record, what: str) -> None:
        self.faults.append(f"'{record.chain}' epoch {record.epoch} ({record.kind}) {what}")

    def _check_chain(self, record: Record, encoded: bytes) -> None:
        chain = record.chain
        expected = self.epochs[chain] + (0 if record.kind == "done" else 1)
        if record.epoch != expected:
            self._fault(record, f"stands where epoch {expected} belongs")
        if record.previous != self.heads[chain]:
            self._fault(record, "does not carry the hash of its predecessor")
        before = self.last.get(chain)
        if before is not None and record.generation < before.generation:
            self._fault(record, f"is of generation {record.generation}, after one of {before.generation}")
        if before is not None and record.generation == before.generation and record.time_us < before.time_us:
            self._fault(record, "has an earlier epoch time than its predecessor")
        if len({part.task for part in record.parts}) != len(record.parts):
            self._fault(record, "has two parts of one task")
        self.epochs[chain] = record.epoch
        self.heads[chain] = records.hash_of(encoded)

    def _check_source(self, record: Record) -> None:
        rows = sum(part.rows_in for part in record.parts)
        if record.offsets is not None:
            start, end = record.offsets
            if start != self.offsets[record.chain]:
                self._fault(record, f"takes in rows from {start}, not from {self.offsets[record.chain]}")
            if end - start != rows:
                self._fault(record, f"takes in {end - start} rows, but its tasks made {rows}")
            self.offsets[record.chain] = end
        elif record.batch is not None:
            known = self.batches.get(record.chain)
            if (
                known is not None
                and known.query == record.batch.query
                and record.batch.number != known.number + 1
            ):
                self._fault(record, f"holds batch {record.batch.number} after batch {known.number}")
            self.batches[record.chain] = record.batch
        elif record.parts or not (record.idle or record.watermark_us == records.END_US):
            self._fault(record, "names neither offsets nor a batch")
        for part in record.parts:
            if part.rows_out != part.rows_in:
                self._fault(record, f"took in {part.rows_in} rows and put out {part.rows_out}")

    def _check_sink(self, record: Record) -> None:
        open_intent = self.intents.pop(record.chain, None)
        if record.kind == "intent":
            if open_intent is not None:
                self._fault(record, f"is intended though epoch {open_intent.epoch} is not done")
            self.intents[record.chain] = record
        elif record.kind == "done":
            if open_intent is None or open_intent.epoch != record.epoch:
                self._fault(record, "is done but was not intended")
            else:
                self._consume(self.consumers[record.chain], open_intent)
        else:
            self._fault(record, "is no legal kind of a sink")

    def _check_operator(self, spec: StageSpec, record: Record) -> None:
        if record.kind != "epoch":
            self._fault(record, "is no legal kind of an operator")
        consumer = self.consumers[spec.name]
        for part in record.parts:
            self._check_snapshots(consumer, record, part)
        rows = self._consume(consumer, record)
        owner: dict[int, int] = {}
        for part in record.parts:
            for shard in unpack_u16(part.shards).tolist():
                if shard in owner:
                    self._fault(record, f"has shard {shard} in two tasks")
                owner[shard] = part.task
            mine = sum(rows.get(shard, 0) for shard in unpack_u16(part.shards).tolist())
            if mine != part.rows_in:
                self._fault(record, f"task {part.task} worked on {part.rows_in} rows, its ranges hold {mine}")
            self._check_changes(consumer, record, part, rows)
        for shard, count in rows.items():
            if count and shard not in owner:
                self._fault(record, f"consumes {count} rows of shard {shard}, which no task worked on")

    def _check_snapshots(self, consumer: _Consumer, record: Record, part: TaskPart) -> None:
        for snapshot in part.snapshots:
            known = consumer.versions[snapshot.shard], consumer.digests[snapshot.shard]
            if (snapshot.version, snapshot.digest) != known:
                self._fault(
                    record, f"has a snapshot of shard {snapshot.shard} with another version or digest"
                )

    def _check_changes(
        self, consumer: _Consumer, record: Record, part: TaskPart, rows: Mapping[int, int]
    ) -> None:
        changed = unpack_u16(part.changed).tolist()
        if (part.delta is not None) != bool(changed):
            self._fault(record, f"task {part.task} has a delta without changes, or changes without a delta")
        if len(part.digests) != 16 * len(changed) or changed != sorted(set(changed)):
            self._fault(record, f"task {part.task} lists changed shards and digests that do not fit")
            return
        for number, shard in enumerate(changed):
            if shard not in rows or not (rows[shard] or consumer.spec.clocked):
                self._fault(record, f"changes shard {shard}, which had no rows")
            if consumer.versions[shard] >= record.epoch:
                self._fault(record, f"changes shard {shard} twice")
            consumer.versions[shard] = record.epoch
            consumer.digests[shard] = part.digests[16 * number : 16 * number + 16]

    def _consume(self, consumer: _Consumer, record: Record) -> dict[int, int]:
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
        consumer: _Consumer,
        record: Record,
        shards: list[int],
        taken: records.Range,
        rows: dict[int, int],
    ) -> None:
        channel = (taken.edge, taken.chain)
        at = consumer.at[channel]
        top = self.epochs[taken.chain]
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
        for epoch, counts in self.published[channel].items():
            if taken.start.epoch <= epoch <= taken.end.epoch:
                low = taken.start.row if epoch == taken.start.epoch else 0
                high = taken.end.row if epoch == taken.end.epoch else None
                for shard in shards:
                    count = int(counts[shard])
                    rows[shard] += max(0, (count if high is None else min(high, count)) - low)

    def _check_barriers(self, record: Record, shards: list[int], ranges: Sequence[records.Range]) -> None:
        """Rows that a chain published after it was given shards come after those that the giver published before."""
        spans = {(taken.edge, taken.chain): taken for taken in ranges}
        for deal, epoch in self.barriers:
            for (edge, chain), taken in spans.items():
                before = spans.get((edge, deal.giver))
                if chain != deal.taker or before is None or taken.end.epoch <= epoch:
                    continue
                later = _rows_in(
                    self.published[(edge, chain)], max(taken.start, Position(epoch + 1, 0)), taken.end
                )
                earlier = _rows_in(self.published[(edge, deal.giver)], before.start, Position(epoch, 0))
                wrong = [shard for shard in shards if later.get(shard) and earlier.get(shard)]
                if wrong:
                    self._fault(
                        record,
                        f"takes rows that '{chain}' published after it was given shards before what '{deal.giver}' had "
                        f"published until then, for shard {wrong[0]}",
                    )

    def _publish(self, spec: StageSpec, record: Record) -> None:
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
            shards = self.consumer_of[edge.edge].shards
            counts = [
                unpack_u32(s.shard_rows).astype(np.int64) for s in found if len(s.shard_rows) == 4 * shards
            ]
            if counts:
                self.published[(edge.edge, record.chain)][record.epoch] = np.sum(counts, axis=0)

    def _check_segments(self, record: Record, edge: EdgeSpec, segments: Sequence[Segment]) -> None:
        for segment in segments:
            shards = self.consumer_of[edge.edge].shards
            expected = segment.rows * (shards if edge.deal is Deal.BROADCAST else 1)
            if len(segment.shard_rows) != 4 * shards or int(unpack_u32(segment.shard_rows).sum()) != expected:
                self._fault(
                    record,
                    f"has a segment on edge {edge.edge} whose rows per shard do not add up to {segment.rows}",
                )

    def check_base(self, base: Base) -> None:
        """A base restates what the records before it said."""
        self._check_owners(base)
        for chain in base.chains:
            if chain.chain not in self.epochs:
                self.faults.append(
                    f"part {base.generation}-{base.part} has a chain '{chain.chain}' that nobody began"
                )
                continue
            consumer = self.consumers[operator_of(chain.chain)]
            mine = set(consumer.of(chain.chain))
            every = range(consumer.spec.shards)
            where = f"part {base.generation}-{base.part}: the base of '{chain.chain}'"
            if (chain.epoch, chain.hash) != (self.epochs[chain.chain], self.heads[chain.chain]):
                self.faults.append(
                    f"{where} stands at epoch {chain.epoch}, the records at {self.epochs[chain.chain]}"
                )
            offset = self.offsets.get(chain.chain, 0)
            if chain.offset != offset:
                self.faults.append(f"{where} has offset {chain.offset}, the records {offset}")
            versions = [consumer.versions[shard] if shard in mine else 0 for shard in every]
            if np.frombuffer(chain.versions, "<u8").tolist() != versions:
                self.faults.append(f"{where} has other versions than the records")
            digests = [consumer.digests[shard] if shard in mine else bytes(16) for shard in every]
            if chain.digests != b"".join(digests):
                self.faults.append(f"{where} has other digests than the records")
            placed = {
                (taken.edge, taken.chain, shard): taken.end
                for group in chain.groups
                for taken in group.ranges
                for shard in unpack_u16(group.shards).tolist()
            }
            stands = {
                (*channel, shard): at
                for channel, ats in consumer.at.items()
                for shard, at in enumerate(ats)
                if shard in mine
            }
            if placed != stands:
                self.faults.append(f"{where} has other positions than the records")

    def check_complete(self) -> None:
        for name, consumer in self.consumers.items():
            if name in self.intents:
                self.faults.append(f"'{name}' epoch {self.intents[name].epoch} was intended and is not done")
            for channel, ats in consumer.at.items():
                for epoch, counts in self.published[channel].items():
                    for shard in np.flatnonzero(counts).tolist():
                        at = ats[shard]
                        left = counts[shard] - (at.row if at.epoch == epoch else 0)
                        if at.epoch <= epoch and left > 0:
                            self.faults.append(
                                f"'{name}' shard {shard} left {left} rows of '{channel[1]}' epoch {epoch}"
                            )
