"""Which windows rows belong to, and which rows are late. Pure and vectorised.

The arithmetic is Spark's: the last window that holds time t starts at t - ((t - startTime) mod slide), the others one
slide earlier each. A row is late for a window that ended at or before the row's `late_us`; a row without a time
belongs to no window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.keys import hashing
from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.logic.key_groups import Grouper
from penstock.dataplane.logic.protocol import ShardedRows
from penstock.dataplane.state.protocol import I64, U16, U64
from penstock.topology.windows import Window

START: Final = "\0window"
"""Name of the column with the start of a row's window, in microseconds."""


@dataclass(frozen=True)
class WindowRows:
    """Rows with the start of their window, a row once for each of its windows; and what was left out."""

    rows: ShardedRows
    late: pa.Table | None
    """Rows that were late for at least one of their windows, as they came."""
    late_rows: int
    untimed_rows: int
    """Rows in which the time column is null."""


def assign_windows(window: Window, taken: ShardedRows, columns: Sequence[str]) -> WindowRows:
    """Return rows of `columns` and their windows; rows stay in their order. A session begins with the row itself."""
    times, timed = _times(taken.rows.column(window.column))
    if window.per_row == 1:
        starts, at, late = _one_each(window, times, timed, taken.late_us)
    else:
        starts, at, late = _several(window, times, timed, taken.late_us)
    untimed = 0 if timed is None else int(len(timed) - timed.sum())
    missed = int(late.sum()) if late is not None else 0
    rows = taken.rows.select(list(dict.fromkeys(columns)))
    if at is not None and rows.num_columns:
        rows = rows.take(pa.array(at))
    begun = pa.array(starts)  # a table without columns forgets how many rows are taken of it
    rows = rows.append_column(START, begun) if rows.num_columns else pa.table({START: begun})
    sharded = _sharded(taken, rows, at)
    kept = taken.rows.filter(pa.array(late)) if missed else None
    return WindowRows(sharded, kept, missed, untimed)


def _one_each(
    window: Window, times: I64, timed: npt.NDArray[np.bool_] | None, late_us: I64 | None
) -> tuple[I64, I64 | None, npt.NDArray[np.bool_] | None]:
    starts = times if window.session else times - np.mod(times - window.offset_us, window.slide_us)
    late = None if late_us is None else starts + window.size_us <= late_us
    if late is not None and timed is not None:
        late &= timed
    kept = timed
    if late is not None and late.any():
        kept = ~late if timed is None else timed & ~late
    if kept is None:
        return starts, None, late
    at = np.flatnonzero(kept)
    return starts[at], at, late


def _several(
    window: Window, times: I64, timed: npt.NDArray[np.bool_] | None, late_us: I64 | None
) -> tuple[I64, I64 | None, npt.NDArray[np.bool_] | None]:
    last = times - np.mod(times - window.offset_us, window.slide_us)
    starts = last[:, None] - np.arange(window.per_row, dtype=np.int64) * window.slide_us
    ends = starts + window.size_us
    holds = (
        ends > times[:, None]
    )  # the earliest may not reach that far where the slide does not divide the length
    if timed is not None:
        holds &= timed[:, None]
    late: npt.NDArray[np.bool_] | None = None
    if late_us is not None:
        missed: npt.NDArray[np.bool_] = ends <= late_us[:, None]
        missed &= holds
        late = np.asarray(missed.any(axis=1))
        holds &= ~missed
    at, which = np.nonzero(holds)
    return starts[at, which], at.astype(np.int64, copy=False), late


def _times(column: pa.ChunkedArray) -> tuple[I64, npt.NDArray[np.bool_] | None]:
    """Return event times in microseconds, and where there is one; None when there is one in every row."""
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    if not micros.null_count:
        return micros.to_numpy(), None
    return micros.fill_null(0).to_numpy(), micros.is_valid().to_numpy()


def _sharded(taken: ShardedRows, rows: pa.Table, at: I64 | None) -> ShardedRows:
    """Return rows taken at ascending positions of the rows given, by shard as those are."""
    if at is None:
        return ShardedRows(taken.shards, taken.offsets, rows, taken.late_us)
    offsets = np.searchsorted(at, taken.offsets)
    used = np.diff(offsets) > 0
    late_us = None if taken.late_us is None else taken.late_us[at]
    return ShardedRows(taken.shards[used], np.concatenate(([0], offsets[1:][used])), rows, late_us)


def by_lateness(taken: ShardedRows) -> Iterator[tuple[int | None, ShardedRows]]:
    """Yield the rows that have the same `late_us`, least first: rows of one producer stay in their order."""
    if taken.late_us is None or not len(taken.late_us):
        yield None, taken
        return
    for late_us in np.unique(taken.late_us).tolist():
        at = np.flatnonzero(taken.late_us == late_us)
        yield late_us, _sharded(taken, taken.rows.take(pa.array(at)), at)


def split_sessions(taken: ShardedRows, keys: Sequence[str], gap_us: int, operator: str) -> ShardedRows:
    """Give every row the start of the session that it has among these rows, which come with their own time as START.

    A row belongs to the session before it when it is not later than that session's end: sessions that touch are one.
    """
    times = taken.rows.column(START).to_numpy()
    codes = _codes(taken.rows, keys, operator)
    order = np.lexsort((times, codes))
    ordered = times[order]
    begins = np.ones(len(ordered), np.bool_)
    begins[1:] = (codes[order][1:] != codes[order][:-1]) | (ordered[1:] > ordered[:-1] + gap_us)
    firsts = np.flatnonzero(begins)
    starts = np.empty(len(ordered), np.int64)
    starts[order] = np.repeat(ordered[firsts], np.diff(np.append(firsts, len(ordered))))
    rows = taken.rows.set_column(taken.rows.num_columns - 1, START, pa.array(starts))
    return ShardedRows(taken.shards, taken.offsets, rows)


def _codes(rows: pa.Table, keys: Sequence[str], operator: str) -> npt.NDArray[np.int32]:
    if not keys:
        return np.zeros(rows.num_rows, np.int32)
    encoded = encode_keys([rows.column(key) for key in keys], keys, operator)
    codes: npt.NDArray[np.int32] = pc.dictionary_encode(encoded).indices.to_numpy()
    return codes


class WindowGrouper(Grouper):
    """Groups rows by window and key; windows of a key live in the key's shard."""

    def __init__(self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int) -> None:
        schema = pa.schema([pa.field(START, pa.int64()), *(input_schema.field(key) for key in keys)])
        super().__init__(operator, [START, *keys], schema, shards)
        self._routed = tuple(keys)

    def _dealt(self, keys: list[pa.Array], hashes: U64) -> U16:
        if not self._routed:
            return np.zeros(len(hashes), np.uint16)
        return hashing.shards_of(hashing.hash_keys(keys[1:], self._routed, self._operator), self._shards)

    def _sorted(self, hashes: U64, shards: U16) -> I64:
        return np.lexsort((hashes, shards))


def window_column(starts: pa.Array, ends: pa.Array, field: pa.Field) -> pa.Array:
    """Return starts and ends in microseconds as the output column of a window."""
    time = field.type.field(0).type
    return pa.StructArray.from_arrays([starts.cast(time), ends.cast(time)], fields=list(field.type))
