"""Forges checkpoints, to prove that the checks notice: a row dropped, doubled, or two rows of a key swapped.

A forged checkpoint is a copy in another folder. Checksums, hashes of records and bases are made to fit again,
so that only what the run means is wrong. Never changes the checkpoint it reads.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pyarrow as pa

from penstock.dataplane import paths, records
from penstock.dataplane.chains import Chains
from penstock.dataplane.channel import DataWriter, EdgeSpec, read_segment, write_rows
from penstock.dataplane.disk import Disk, PosixDisk
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import RecordBatch, frame_bytes
from penstock.dataplane.records import Group, Position, Record, Segment, TaskPart, unpack_u16, unpack_u32
from penstock.testing.line import Line, read_line

Edit = Callable[[Record], Record]


class Tampering(enum.StrEnum):
    """What is done to the rows of a key."""

    DROP = "a row dropped"
    DOUBLE = "a row doubled"
    SWAP = "two rows of a key swapped"


def tamper_rows(checkpoint: str, program: Program, target: str, stage: str, how: Tampering) -> str:
    """Copy a checkpoint to `target` with rows that `stage` published tampered with; return what was done.

    Takes the first two unlike rows of one key in a segment; for an operator that puts out one row per key, of two keys.
    Records are adapted as far as a forger could: rows per shard and rows put out follow the new segment.
    """
    line = read_line(checkpoint)
    spec = program.stages[stage]
    edge = spec.edges[0]
    # Rows of two keys may lie in two shards, where swapping them changes nothing: look for two rows of one key first.
    for keys in (edge.keys or spec.keys, ()):
        for record in line.of(stage):
            for part in record.parts:
                for number, segment in enumerate(part.segments):
                    if segment.edge != edge.edge:
                        continue
                    batch = read_segment(
                        line.disk, checkpoint, segment.extent, edge.schema_of(spec.schema)
                    ).batch
                    pair = _two_rows_of_a_key(batch, keys)
                    if pair is not None:
                        forged = _tampered(batch, pair, how)
                        place = _Place(stage, record.epoch, part.task, number)
                        _forge_segment(line, program, target, place, edge, forged)
                        return f"{how} in epoch {record.epoch} of '{stage}'"
    raise ValueError(
        f"'{stage}' published no two different rows of one key in one segment; make a longer run"
    )


def tamper_schedule(checkpoint: str, program: Program, target: str, stage: str, how: Tampering) -> str:
    """Copy a checkpoint to `target` with ranges that `stage` consumed tampered with; say what was done."""
    line = read_line(checkpoint)
    kind = "intent" if program.stages[stage].kind == "sink" else "epoch"
    found = [record for record in line.of(stage) if record.kind == kind and record.groups]
    pairs = [(a, b) for a, b in pairwise(found) if _can_swap(a, b)]
    if not pairs:
        raise ValueError(f"'{stage}' has no two epochs in a row over the same shards; make a longer run")
    plain = [pair for pair in pairs if _ends_whole(*pair)]  # a row earlier may be a row of none of the shards
    if how is Tampering.DOUBLE:
        plain = [pair for pair in plain if _follows_rows(line, pair[1])] or plain
    first, second = (plain or pairs)[len(plain or pairs) // 2]
    if how is Tampering.SWAP:
        edits = {first.epoch: second.groups, second.epoch: first.groups}
    else:
        edits = {second.epoch: [_shifted(group, how) for group in second.groups]}

    def edit(record: Record) -> Record:
        if record.chain == stage and record.kind == kind and record.epoch in edits:
            return msgspec.structs.replace(record, groups=edits[record.epoch])
        return record

    rewrite(line, program, target, edit)
    return f"{how} between epochs {first.epoch} and {second.epoch} of '{stage}'"


def _can_swap(first: Record, second: Record) -> bool:
    return [g.shards for g in first.groups] == [g.shards for g in second.groups] and all(
        r.start < r.end for record in (first, second) for g in record.groups for r in g.ranges
    )


def _ends_whole(first: Record, second: Record) -> bool:
    """Whether the second epoch begins with a producer's epoch, and both have rows."""
    rows = [sum(part.rows_in for part in record.parts) for record in (first, second)]
    begins = all(r.start.row == 0 for group in second.groups for r in group.ranges)
    return begins and (all(rows) or first.kind == "intent")


def _follows_rows(line: Line, record: Record) -> bool:
    """Whether the producer's epoch before a range has rows for the shards that take it."""
    return any(
        unpack_u32(segment.shard_rows)[unpack_u16(group.shards)].any()
        for group in record.groups
        for taken in group.ranges
        for before in line.of(taken.chain)
        if before.epoch == taken.start.epoch - 1
        for part in before.parts
        for segment in part.segments
        if segment.edge == taken.edge
    )


def _shifted(group: Group, how: Tampering) -> Group:
    """The same range, begun a row later or a row (or producer epoch) earlier."""
    ranges = []
    for taken in group.ranges:
        start = taken.start
        if how is Tampering.DROP:
            moved = Position(start.epoch, start.row + 1)
        else:
            moved = Position(start.epoch, start.row - 1) if start.row else Position(start.epoch - 1, 0)
        ranges.append(msgspec.structs.replace(taken, start=moved))
    return Group(group.shards, ranges)


def rewrite(line: Line, program: Program, target: str, edit: Edit, disk: Disk | None = None) -> None:
    """Write a copy of a checkpoint to `target`: records edited and linked again, bases folded again."""
    disk = disk or PosixDisk()
    for folder in ("", "/drivers", "/log", "/data"):
        disk.make_dirs(target + folder)
    for folder in ("", "/drivers", "/data"):
        for name in line.disk.list(line.checkpoint + folder):
            if not os.path.isdir(f"{line.checkpoint}{folder}/{name}"):
                disk.create_exclusive(
                    f"{target}{folder}/{name}", line.disk.read(f"{line.checkpoint}{folder}/{name}")
                )
    heads = dict.fromkeys(program.stages, records.NO_HASH)
    chains = Chains(program)
    for part in line.parts:
        old = part.base
        base = chains.to_base(old.query, old.generation, old.part, old.identity, old.time_us)
        frames = [frame_bytes(FrameKind.BASE, records.encode(base))]
        for record, _ in part.records:
            forged = msgspec.structs.replace(edit(record), previous=heads[record.chain])
            encoded = records.encode(forged)
            heads[record.chain] = records.hash_of(encoded)
            chains.apply(forged, encoded)
            frames.append(frame_bytes(FrameKind.RECORD, msgspec.msgpack.encode(RecordBatch([encoded]))))
        disk.create_exclusive(paths.log(target, part.part), b"".join(frames))


@dataclass(frozen=True)
class _Place:
    stage: str
    epoch: int
    task: int
    segment: int


def _two_rows_of_a_key(batch: pa.RecordBatch, keys: Sequence[str]) -> tuple[int, int] | None:
    rows = batch.to_pylist()
    first: dict[tuple[object, ...], int] = {}
    for number, row in enumerate(rows):
        key = tuple(row[name] for name in keys)
        if key in first and rows[first[key]] != row:
            return first[key], number
        first.setdefault(key, number)
    return None


def _tampered(batch: pa.RecordBatch, pair: tuple[int, int], how: Tampering) -> pa.Table:
    order = list(range(batch.num_rows))
    left, right = pair
    if how is Tampering.DROP:
        del order[right]
    elif how is Tampering.DOUBLE:
        order.insert(right, right)
    else:
        order[left], order[right] = order[right], order[left]
    return pa.Table.from_batches([batch]).take(pa.array(order, pa.int64()))


def _forge_segment(
    line: Line, program: Program, target: str, place: _Place, edge: EdgeSpec, rows: pa.Table
) -> None:
    disk = PosixDisk()
    disk.make_dirs(paths.data(target))
    writer = DataWriter(disk, target, 1, "forged", "seg")
    as_it_is = dataclasses.replace(edge, steps=())  # the rows have gone through them already
    forged = write_rows(writer, as_it_is, rows, program.stages[place.stage].schema, place.stage).segment
    writer.sync()
    writer.close()

    def edit(record: Record) -> Record:
        if (record.chain, record.epoch) != (place.stage, place.epoch):
            return record
        return msgspec.structs.replace(
            record, parts=[_with_segment(part, place, forged) for part in record.parts]
        )

    rewrite(line, program, target, edit)


def _with_segment(part: TaskPart, place: _Place, forged: Segment | None) -> TaskPart:
    if part.task != place.task:
        return part
    segments = list(part.segments)
    change = (forged.rows if forged else 0) - segments[place.segment].rows
    segments[place.segment : place.segment + 1] = [forged] if forged else []
    return msgspec.structs.replace(part, segments=segments, rows_out=part.rows_out + change)
