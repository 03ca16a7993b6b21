"""Which rows the next epoch takes: ranges of channels for groups of shards. Pure decisions over what was published.

A group that is behind takes its own, longer range, and merges again when it has caught up. Within a producer epoch a cut
at row q means the first q rows of every shard's slice, so that one number serves all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock.dataplane.passing import Passed, Passing
from penstock.dataplane.positions import ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.records import Position, Range, Stamp, combine_stamps
from penstock.dataplane.state.protocol import I64, U16
from penstock.dataplane.watermarks import NO_TIME, Channels, derive_late_us, derive_watermark


@dataclass(frozen=True)
class Budget:
    """What one epoch may take in at most."""

    rows: int
    bytes: int = 1 << 62

    def shared_by(self, channels: int) -> Budget:
        return Budget(max(1, self.rows // max(1, channels)), max(1, self.bytes // max(1, channels)))

    def without(self, rows: int, row_bytes: float) -> Budget:
        """What is left after some rows of this size, at least one."""
        return Budget(max(1, self.rows - rows), max(1, self.bytes - int(rows * row_bytes)))

    def rows_of(self, row_bytes: float) -> int:
        """Rows of this size that fit, at least one."""
        return max(1, min(self.rows, int(self.bytes / max(row_bytes, 1e-9))))


@dataclass(frozen=True)
class Level:
    """A bound for some shards: positions that they do not go past, on the channels that have one."""

    shards: U16
    at: Mapping[ChannelKey, Position]


@dataclass(frozen=True)
class PieceTaken:
    """Rows [start, end) of each shard's slice of one producer epoch; end -1 for all."""

    key: ChannelKey
    start: int
    end: int
    source: PublishedRows
    late_us: int | None = None
    """Rows whose event time is not after this are late."""

    def rows(self) -> int:
        """How many rows of all shards these are."""
        return _rows_between(self.source.counts, self.start, self.end)


@dataclass(frozen=True)
class GroupTake:
    """What one group takes in one epoch."""

    shards: U16
    ranges: Sequence[Range]
    pieces: Sequence[PieceTaken]
    shard_rows: I64
    """Rows per shard of the operator, zero outside the group."""
    watermark_us: int | None = None
    """Of the group after these ranges."""
    moved: bool = False
    """Whether the watermark moves with them."""

    def members(self) -> npt.NDArray[np.bool_]:
        """Whether each shard of the operator is in the group."""
        inside = np.zeros(len(self.shard_rows), np.bool_)
        inside[self.shards] = True
        return inside

    def ends(self) -> dict[ChannelKey, Position]:
        return {ChannelKey(taken.edge, taken.chain): taken.end for taken in self.ranges}


def take_epoch(
    groups: Sequence[ShardGroup],
    ready: npt.NDArray[np.bool_],
    waiting: Mapping[ChannelKey, Sequence[PublishedRows]],
    budget: Budget,
    channels: Channels = NO_TIME,
    task_of: U16 | None = None,
    levels: Sequence[Level] | None = None,
    absent: npt.NDArray[np.bool_] | None = None,
) -> list[GroupTake]:
    """Choose the ranges of the next epoch: every group with ready shards takes up to the budget, oldest rows
    first.

    A group that is behind never overtakes the one in front, so that they meet. Groups without ready shards
    take nothing.

    Args:
        task_of: shard -> task. With it a group that only some tasks work on takes that part of the budget: else a few
            shards that are behind would take as many rows as all others, and keep everybody waiting for one task.
        levels: where some shards stop; the others take all there is, and the budget is not looked at. None where the budget
            decides.
        absent: which shards sit out and have nothing to do but with rows: they are taken along over ranges that hold none
            for them, so that nobody waits for them.
    """
    if levels is not None:
        return _take_to_levels(groups, ready, waiting, channels, levels, absent)
    tasks = len(np.unique(task_of[ready])) if task_of is not None and len(groups) > 1 else 0
    takes: list[GroupTake] = []
    caps: dict[ChannelKey, Position] = {}
    passing: Passing | None = None
    for group in sorted(groups, key=lambda g: [g.at[key] for key in sorted(g.at)], reverse=True):
        present = group.shards[ready[group.shards]]
        if len(present) == 0:
            out = group.shards[absent[group.shards]] if absent is not None and caps else group.shards[:0]
            if len(out):
                passing = passing or Passing(waiting, caps, partial(_is_reached, waiting))
                takes.extend(_pass_alone(group, out, passing, len(ready), channels))
            continue
        here = replace(group, shards=present)
        share = budget
        if task_of is not None and tasks:
            part = len(np.unique(task_of[present])) / tasks
            share = Budget(max(1, round(budget.rows * part)), budget.bytes)
        take = _take_group(here, waiting, share, len(ready), caps, channels)
        takes.append(_take_along(take, group, absent))
        caps = caps or take.ends()
    return takes


def _take_to_levels(
    groups: Sequence[ShardGroup],
    ready: npt.NDArray[np.bool_],
    waiting: Mapping[ChannelKey, Sequence[PublishedRows]],
    channels: Channels,
    levels: Sequence[Level],
    absent: npt.NDArray[np.bool_] | None,
) -> list[GroupTake]:
    level_of = np.zeros(len(ready), np.int64)
    for number, level in enumerate(levels, 1):
        level_of[level.shards] = number
    takes = []
    for group in groups:
        present = group.shards[ready[group.shards]]
        for number in np.unique(level_of[present]).tolist():
            here = replace(group, shards=present[level_of[present] == number])
            caps = levels[number - 1].at if number else {}
            take = _take_group(here, waiting, Budget(1 << 62), len(ready), caps, channels)
            takes.append(take if number else _take_along(take, group, absent))
    return takes


def _take_along(take: GroupTake, group: ShardGroup, absent: npt.NDArray[np.bool_] | None) -> GroupTake:
    """Let shards of a group that sit out pass what others of it take, where it holds no rows for them."""
    if absent is None or not take.pieces:
        return take
    out = group.shards[absent[group.shards]]
    for piece in take.pieces:
        out = out[rows_by_shard(piece.source.counts[out], piece.start, piece.end) == 0]
    return replace(take, shards=np.sort(np.concatenate([take.shards, out]))) if len(out) else take


def _pass_alone(
    group: ShardGroup, out: U16, passing: Passing, shards: int, channels: Channels
) -> list[GroupTake]:
    """Let shards that all sit out, behind others, pass what waits for them up to those or to the first rows for one of
    them."""
    takes = []
    for part in passing.split(group, out):
        passed = passing.passes(group, part)
        pieces = [_last_piece(group, key, one) for key, one in sorted(passed.items()) if one.last is not None]
        if pieces:
            watermark = derive_watermark(group, channels, {key: one.mark for key, one in passed.items()})
            ranges = [
                Range(key.edge, key.chain, group.at[key], one.end, one.mark)
                for key, one in sorted(passed.items())
            ]
            none, moved = np.zeros(shards, np.int64), watermark != group.watermark_us
            takes.append(GroupTake(part, ranges, pieces, none, watermark, moved))
    return takes


def _last_piece(group: ShardGroup, key: ChannelKey, passed: Passed) -> PieceTaken:
    """The last of the pieces that shards pass stands for all of them: nothing in them is for these."""
    assert passed.last is not None
    at, end, epoch = group.at[key], passed.end, passed.last.epoch
    return PieceTaken(
        key, at.row if epoch == at.epoch else 0, end.row if epoch == end.epoch else -1, passed.last
    )


def _take_group(
    group: ShardGroup,
    waiting: Mapping[ChannelKey, Sequence[PublishedRows]],
    budget: Budget,
    shards: int,
    caps: Mapping[ChannelKey, Position],
    channels: Channels,
) -> GroupTake:
    shard_rows = np.zeros(shards, np.int64)
    ranges: dict[ChannelKey, Range] = {}
    pieces: list[PieceTaken] = []
    left = budget
    for keys in in_turns(group.at, channels):
        waits = {key: _wait(waiting.get(key, ()), group, key, left.rows) for key in keys}
        for sharing, key in zip(range(len(keys), 0, -1), sorted(keys, key=waits.__getitem__), strict=True):
            end, taken = take_range(
                waiting.get(key, ()),
                group.at[key],
                group.shards,
                left.shared_by(sharing),
                caps.get(key),
                partial(_is_reached, waiting, group, key),
            )
            mark = group.marks.get(key)
            for number, low, high in taken:
                source = waiting[key][number]
                pieces.append(PieceTaken(key, low, high, source, derive_late_us(group, channels, key, mark)))
                counts = source.counts[group.shards]
                top = counts if high < 0 else np.minimum(counts, high)
                rows = np.maximum(top - low, 0)
                shard_rows[group.shards] += rows
                left = left.without(int(rows.sum()), source.row_bytes)
                if end.epoch > source.epoch:  # what is said with an epoch holds after all of its rows
                    said = source.published.watermark_us
                    # at a barrier nothing said is nothing known: what came before it is of other shards
                    mark = said if said is not None or source.barrier else mark
            ranges[key] = Range(key.edge, key.chain, group.at[key], end, mark)
    watermark = derive_watermark(group, channels, {key: taken.watermark_us for key, taken in ranges.items()})
    moved = watermark != group.watermark_us
    order = {key: at for at, key in enumerate(sorted(group.at))}
    pieces.sort(key=lambda piece: order[piece.key])
    return GroupTake(
        group.shards, [ranges[key] for key in sorted(ranges)], pieces, shard_rows, watermark, moved
    )


def _wait(items: Sequence[PublishedRows], group: ShardGroup, key: ChannelKey, enough: int) -> int:
    """Count the rows that wait for a group on a channel, as far as it matters."""
    if len(group.at) == 1:
        return 0
    found, at = 0, group.at[key]
    for item in items:
        if found >= enough:
            break
        if item.epoch >= at.epoch:
            low = at.row if item.epoch == at.epoch else 0
            found += _rows_between(item.counts[group.shards], low, -1)
    return found


def _is_reached(
    waiting: Mapping[ChannelKey, Sequence[PublishedRows]],
    group: ShardGroup,
    key: ChannelKey,
    item: PublishedRows,
) -> bool:
    """Whether a group has taken all that came before a barrier, on every chain it concerns.

    Rows that a shard of the producer published before it changed chain are so taken before those it published after, and
    the watermarks of the chains change together.
    """
    for chain in item.barrier:
        other = ChannelKey(key.edge, chain)
        first = group.at[other].epoch
        if any(first <= one.epoch < item.epoch for one in waiting.get(other, ())):
            return False
    return True


def in_turns(keys: Collection[ChannelKey], channels: Channels) -> list[list[ChannelKey]]:
    """Channels in the order in which they are taken from: those of loops before the others."""
    first = [key for key in sorted(keys) if key in channels.first]
    rest = [key for key in sorted(keys) if key not in channels.first]
    return [keys for keys in (first, rest) if keys]


def take_range(
    published: Sequence[PublishedRows],
    start: Position,
    shards: U16,
    budget: Budget,
    cap: Position | None,
    is_reached: Callable[[PublishedRows], bool] = lambda _: True,
) -> tuple[Position, list[tuple[int, int, int]]]:
    """Return where the range ends and its pieces (index, first row, end row or -1).

    Whole producer epochs while they fit; the first one is cut inside when it alone is larger than the budget. It does
    not go past a barrier that is not reached on all its chains.
    """
    end = start
    pieces: list[tuple[int, int, int]] = []
    if cap is not None and cap <= start:
        return end, pieces  # with several channels a group may be behind on one and in front on another
    rows_left, bytes_left = budget.rows, float(budget.bytes)
    for number, item in enumerate(published):
        if item.epoch < end.epoch:
            continue
        if (cap is not None and item.epoch > cap.epoch) or (item.barrier and not is_reached(item)):
            break
        low = end.row if item.epoch == end.epoch else 0
        limit = cap.row if cap is not None and item.epoch == cap.epoch else -1
        if limit == 0:
            break
        counts = item.counts if len(shards) == len(item.counts) else item.counts[shards]
        rows = (
            item.rows
            if low == 0 and limit < 0 and len(shards) == len(item.counts)
            else _rows_between(counts, low, limit)
        )
        if rows <= rows_left and rows * item.row_bytes <= bytes_left:
            pieces.append((number, low, limit))
            rows_left -= rows
            bytes_left -= rows * item.row_bytes
            end = Position(item.epoch + 1, 0) if limit < 0 else Position(item.epoch, limit)
            if limit >= 0:
                break
            continue
        if not pieces:
            cut = cut_at(counts, low, budget.rows_of(item.row_bytes))
            whole = cut >= int(counts.max())
            pieces.append((number, low, limit if whole else cut))
            end = (
                Position(item.epoch + 1, 0)
                if whole and limit < 0
                else Position(item.epoch, cut if not whole else limit)
            )
        break
    if (
        cap is not None
        and not pieces
        and end < cap
        and not any(p.epoch >= end.epoch for p in published if p.epoch < cap.epoch)
    ):
        end = cap if cap.row == 0 else end
    return end, pieces


def rows_by_shard(counts: I64, low: int, high: int) -> I64:
    """Return the rows [low, high) of each shard's slice; high -1 for all that come after."""
    top = counts if high < 0 else np.minimum(counts, high)
    found: I64 = np.maximum(top - low, 0)
    return found


def _rows_between(counts: I64, low: int, high: int) -> int:
    return int(rows_by_shard(counts, low, high).sum())


def cut_at(counts: I64, low: I64 | int, budget_rows: int) -> int:
    """Return the largest q for which rows [low, q) of all shards fit the budget, at least one row further than the least
    `low`.

    Args:
        counts: rows of each shard.
        low: where each shard stands, or all of them.
    """
    below = int(np.min(low)) + 1
    above = max(int(counts.max()), below)
    while below < above:
        middle = (below + above + 1) // 2
        if int(np.maximum(np.minimum(counts, middle) - low, 0).sum()) <= budget_rows:
            below = middle
        else:
            above = middle - 1
    return below


def stamps_of(takes: Sequence[GroupTake]) -> list[Stamp]:
    """Arrival stamps of the rows taken, weighted by how many of each producer epoch's rows were taken."""
    found: list[Stamp] = []
    for take in takes:
        for piece in take.pieces:
            stamp = piece.source.stamp
            if stamp is None:
                continue
            rows = _rows_between(piece.source.counts[take.shards], piece.start, piece.end)
            found.append(Stamp(rows, stamp.first_us, stamp.mean_us, stamp.last_us))
    return found


def stamp_of(takes: Sequence[GroupTake]) -> Stamp | None:
    """Arrival stamps of the rows taken, as one."""
    return combine_stamps(stamps_of(takes))
