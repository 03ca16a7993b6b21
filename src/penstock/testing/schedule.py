"""Checks a whole run from its checkpoint: is the committed schedule free of gaps and overlaps?

Looks at the records alone, with arithmetic of its own, none of it the engine's; `penstock.testing.tiling` has that of
ranges and rows. `penstock.testing.replay` then proves that state and outputs follow from the schedule. Nothing is written
here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from penstock.dataplane import records
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import Disk
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.records import Base, Record, TaskPart, unpack_u16
from penstock.testing.line import CheckFailure, Line, LinePart, read_line
from penstock.testing.tiling import Consumer, Tiling


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
        if records.encode(_alone(mine, base)) != records.encode(_alone(theirs, folded))
    ]


def _alone(chain: records.ChainBase, base: Base) -> Base:
    frontiers = {name: one for name, one in base.frontiers.items() if name == chain.chain}
    return Base(0, "", 0, 0, b"", 0, [chain], frontiers=frontiers)


class _Schedule:
    """Folds records one by one and notes every fault. Uses none of the engine's arithmetic."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.faults: list[str] = []
        self.heads: dict[str, bytes] = {}
        self.epochs: dict[str, int] = {}
        self.last: dict[str, Record] = {}
        self.intents: dict[str, Record] = {}
        self.offsets = dict.fromkeys(program.stages, 0)
        self.batches: dict[str, records.Batch] = {}
        self.tiling = Tiling(program, self.epochs, self._fault)
        self.consumers = self.tiling.consumers

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
        self.tiling.hear(chain)

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
            self.tiling.redeal(one, epoch)

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
        self.tiling.publish(spec, record)
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
                self.tiling.consume(self.consumers[record.chain], open_intent)
        else:
            self._fault(record, "is no legal kind of a sink")

    def _check_operator(self, spec: StageSpec, record: Record) -> None:
        if record.kind != "epoch":
            self._fault(record, "is no legal kind of an operator")
        consumer = self.consumers[spec.name]
        for part in record.parts:
            self._check_snapshots(consumer, record, part)
        rows = self.tiling.consume(consumer, record)
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

    def _check_snapshots(self, consumer: Consumer, record: Record, part: TaskPart) -> None:
        for snapshot in part.snapshots:
            known = consumer.versions[snapshot.shard], consumer.digests[snapshot.shard]
            if (snapshot.version, snapshot.digest) != known:
                self._fault(
                    record, f"has a snapshot of shard {snapshot.shard} with another version or digest"
                )

    def _check_changes(
        self, consumer: Consumer, record: Record, part: TaskPart, rows: Mapping[int, int]
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
            self.faults.extend(self.tiling.left_by(consumer))
