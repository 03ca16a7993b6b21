"""How long rows stayed at a stage, from their arrival there to the commit that holds them; and, where there is a bound,
the share of (shard, window) pairs that met it. No clock of its own, no opinion about what to do.

Rows from a source arrive when the source says so, those of another stage when it publishes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.dataplane import records
from penstock.dataplane.latency import LatencyLog
from penstock.dataplane.records import Record, Stamp, combine_stamps
from penstock.dataplane.state.protocol import I64
from penstock.dataplane.taking import GroupTake, rows_by_shard

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stay:
    """Rows of one producer epoch that one commit completed."""

    rows: I64
    """By shard."""
    arrival: Stamp
    """When they arrived at the stage."""
    root: Stamp
    """When they, or what they were derived from, arrived at a source."""


def stays_of(takes: Sequence[GroupTake], record: Record) -> list[Stay]:
    """Return what a commit completed of what its epoch took in; rows of tasks that were lost are taken again later."""
    found: list[Stay] = []
    done: npt.NDArray[np.bool_] | None = None
    for take in takes:
        if done is None:
            done = np.zeros(len(take.shard_rows), np.bool_)
            for part in record.parts:
                done[records.unpack_u16(part.shards)] = True
        inside = take.members() & done
        for piece in take.pieces:
            root = piece.source.stamp
            if root is None:
                continue
            rows = np.where(inside, rows_by_shard(piece.source.counts, piece.start, piece.end), 0)
            at_us = piece.source.arrived_us
            if rows.any():
                arrival = root if at_us is None else Stamp(0, at_us, float(at_us), at_us)
                found.append(Stay(rows, arrival, root))
    return found


@dataclass(frozen=True)
class Bound:
    """What a window of a shard must meet: the mean of its latencies, or a quantile of them."""

    latency_s: float
    window_s: float
    quantile: float | None = None
    """None for the mean."""
    from_source: bool = False
    """Whether latency runs from the arrival at the source."""


@dataclass(frozen=True)
class Success:
    """(shard, window) pairs that were judged, and those that met the bound."""

    met: int
    judged: int

    @property
    def ratio(self) -> float | None:
        return self.met / self.judged if self.judged else None


class Pairs:
    """Judges a stage by shard and window (StreamSwitch 6): a window by the rows committed in it; one without such rows
    fails where a row had waited longer than the bound by its end, and is met otherwise.

    Windows are counted from `began_s`. One without rows is judged when the shard's next rows are committed, which tell
    since when they waited, or once nothing waits any more.
    """

    def __init__(self, shards: int, bound: Bound, began_s: float) -> None:
        self.bound = bound
        self._began_s = began_s
        self._window = 0
        self._count: I64 = np.zeros(shards, np.int64)
        self._sum_s, self._over = np.zeros(shards), np.zeros(shards)
        self._empty_from: I64 = np.zeros(shards, np.int64)
        """First window since the shard's last committed rows."""
        self._met = self._judged = 0

    def add(self, at_s: float, commit_us: int, stays: Iterable[Stay]) -> None:
        """Note a commit at clock time `at_s` (wall time `commit_us`)."""
        self._turn_to(at_s)
        rows, sum_s, over = (np.zeros(len(self._count)) for _ in range(3))
        oldest_s = np.zeros(len(self._count))
        for stay in stays:
            stamp = stay.root if self.bound.from_source else stay.arrival
            rows += stay.rows
            sum_s += stay.rows * ((commit_us - stamp.mean_us) / 1e6)
            over += stay.rows * _share_over(commit_us, stamp, self.bound.latency_s)
            np.maximum(oldest_s, (commit_us - stamp.first_us) / 1e6, out=oldest_s, where=stay.rows > 0)
        back = (rows > 0) & (self._count == 0)
        self._judge_empty(back, at_s - self._began_s - oldest_s[back])
        self._count += rows.astype(np.int64)
        self._sum_s += sum_s
        self._over += over

    def success(self, at_s: float, waiting: npt.NDArray[np.bool_]) -> Success:
        """Return what was judged by now; windows without rows count for shards for which nothing waits."""
        self._turn_to(at_s)
        empty = int((self._window - self._empty_from)[(self._count == 0) & ~waiting].sum())
        return Success(self._met + empty, self._judged + empty)

    def _turn_to(self, at_s: float) -> None:
        window = int((at_s - self._began_s) / self.bound.window_s)
        if window <= self._window:
            return
        had = self._count > 0
        if self.bound.quantile is None:
            met = self._sum_s <= self.bound.latency_s * self._count
        else:
            met = self._over <= (1 - self.bound.quantile) * self._count + 1e-9
        self._judged += int(had.sum())
        self._met += int((met & had).sum())
        self._empty_from[had] = self._window + 1
        self._window = window
        self._count[:], self._sum_s[:], self._over[:] = 0, 0.0, 0.0

    def _judge_empty(self, back: npt.NDArray[np.bool_], arrived_s: F64) -> None:
        """Judge the windows in which shards committed nothing, by when the first of their next rows had arrived."""
        start = self._empty_from[back]
        failing = np.floor((arrived_s + self.bound.latency_s) / self.bound.window_s).astype(np.int64)
        failed = np.maximum(self._window - np.maximum(start, failing), 0)
        empty = self._window - start
        self._judged += int(empty.sum())
        self._met += int((empty - failed).sum())
        self._empty_from[back] = self._window


class Sojourns:
    """What one stage keeps of its rows' stays."""

    def __init__(self) -> None:
        self.log = LatencyLog()
        self.pairs: Pairs | None = None
        """None where no bound is held."""

    def add(self, at_s: float, commit_us: int, takes: Sequence[GroupTake], record: Record) -> None:
        """Note a commit of what an epoch took in."""
        stamp = _arrival_of(takes, record)
        if stamp is not None:
            self.log.add(at_s, commit_us, stamp)
        if self.pairs is not None:
            self.pairs.add(at_s, commit_us, stays_of(takes, record))


def _arrival_of(takes: Sequence[GroupTake], record: Record) -> Stamp | None:
    """Return when the rows of an epoch arrived at the stage, as one; what the record says where sources sent them all."""
    if all(piece.source.arrived_us is None for take in takes for piece in take.pieces):
        return record.stamp
    found = []
    for take in takes:
        for piece in take.pieces:
            at_us, root = piece.source.arrived_us, piece.source.stamp
            rows = int(rows_by_shard(piece.source.counts[take.shards], piece.start, piece.end).sum())
            if at_us is not None:
                found.append(Stamp(rows, at_us, float(at_us), at_us))
            elif root is not None:
                found.append(Stamp(rows, root.first_us, root.mean_us, root.last_us))
    return combine_stamps(found)


def _share_over(commit_us: int, stamp: Stamp, bound_s: float) -> float:
    """Return the share of rows that took longer, if they arrived evenly between the first and the last."""
    late_us = commit_us - bound_s * 1e6 - stamp.first_us
    if late_us <= 0:
        return 0.0
    return min(1.0, late_us / max(stamp.last_us - stamp.first_us, 1))
