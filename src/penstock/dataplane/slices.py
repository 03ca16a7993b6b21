"""Slices: the rows of some shards, cut out of segments and put together for one task.

What a consumer makes of segments that `channel` has read, in memory. Reads no file, and never changes the order of the rows
of a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.dataplane.channel import SegmentRows
from penstock.dataplane.logic.protocol import ShardedRows
from penstock.dataplane.state.protocol import I64, U16
from penstock.errors import CorruptFileError

_NEVER_LATE = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Slice:
    """Rows of some shards out of one producer epoch, in shard order, with the shard of each run."""

    shards: U16
    counts: I64
    rows: pa.Table
    late_us: int | None = None


def slice_pieces(
    segments: Sequence[SegmentRows], wanted: U16, start: int, end: int, late_us: int | None = None
) -> list[Slice]:
    """Return the rows [start, end) of each wanted shard's slice, where a slice runs through all segments in
    task order.

    Args:
        segments: of one producer epoch, in task order.
        wanted: shards, ascending.
        end: -1 for no end.
        late_us: of these rows; goes with them.

    Raises:
        CorruptFileError: a segment is of fewer shards.
    """
    found: list[Slice] = []
    before = np.zeros(len(wanted), np.int64)
    for segment in segments:
        if len(wanted) and wanted[-1] >= len(segment.counts):
            raise CorruptFileError(
                f"{segment.path} holds rows of {len(segment.counts)} shards, and shard {wanted[-1]} is to have some; "
                "restore the file from a copy."
            )
        counts = segment.counts[wanted].astype(np.int64)
        low = np.clip(start - before, 0, counts)
        high = counts if end < 0 else np.clip(end - before, 0, counts)
        before += counts
        took = np.maximum(high - low, 0)
        if not took.any():
            continue
        first = segment.firsts[wanted] + low
        found.append(Slice(wanted, took, _rows_at(segment.batch, first, took), late_us))
    return found


def _rows_at(batch: pa.RecordBatch, first: I64, took: I64) -> pa.Table:
    """Rows [first, first + took) of each run, without a copy when the runs touch."""
    used = took > 0
    first, took = first[used], took[used]
    if np.array_equal(first[1:], first[:-1] + took[:-1]):
        return pa.Table.from_batches([batch.slice(int(first[0]), int(took.sum()))])
    starts = np.cumsum(took) - took
    index = np.arange(int(took.sum()), dtype=np.int64) + np.repeat(first - starts, took)
    return pa.Table.from_batches([batch.take(pa.array(index))])


def join_slices(slices: list[Slice], schema: pa.Schema, by_shard: bool) -> ShardedRows:
    """Return the rows of all slices, in the fixed order within each shard, sorted by shard unless that is not
    wanted."""
    if not slices:
        return ShardedRows(np.empty(0, np.uint16), np.zeros(1, np.int64), schema.empty_table())
    shards = np.concatenate([piece.shards for piece in slices])
    counts = np.concatenate([piece.counts for piece in slices])
    table = pa.concat_tables([piece.rows for piece in slices])
    late = _late_of(slices)
    if len(slices) > 1 and by_shard:
        order = np.argsort(shards, kind="stable")
        starts = (np.cumsum(counts) - counts)[order]
        shards, counts = shards[order], counts[order]
        ends = np.cumsum(counts)
        index = np.arange(int(ends[-1]), dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
        table = table.combine_chunks().take(pa.array(index))
        late = late[index] if late is not None else None
    distinct = np.unique(shards) if len(slices) > 1 else shards
    totals = np.bincount(shards, weights=counts, minlength=int(shards.max()) + 1)[distinct].astype(np.int64)
    used = totals > 0
    return ShardedRows(distinct[used], np.concatenate([[0], np.cumsum(totals[used])]), table, late)


def _late_of(slices: list[Slice]) -> I64 | None:
    """For each row of all slices, up to which event time it is late; None where nothing can be."""
    if all(piece.late_us is None for piece in slices):
        return None
    bounds = [_NEVER_LATE if piece.late_us is None else piece.late_us for piece in slices]
    return np.repeat(np.array(bounds, np.int64), [piece.rows.num_rows for piece in slices])
