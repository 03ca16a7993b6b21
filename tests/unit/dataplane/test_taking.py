"""Which rows the next epoch takes, against a model that moves every shard row by row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataplane import taking
from penstock.dataplane.levels import derive_levels
from penstock.dataplane.positions import START, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.records import Extent, Position, Published, Segment, Stamp, pack_u32
from penstock.dataplane.standing import Moved, advance, oldest, waiting_rows
from penstock.dataplane.taking import Budget, GroupTake, stamps_of, take_epoch, take_range

KEY = ChannelKey(0, "source")
OTHER = ChannelKey(1, "other")


def published(epoch: int, *segments: list[int], stamp: Stamp | None = None) -> PublishedRows:
    made = [
        Segment(0, Extent("f", 0, 100 * sum(counts), 0), sum(counts), pack_u32(np.array(counts, np.uint32)))
        for counts in segments
    ]
    return PublishedRows(Published(epoch, made, stamp))


def shards(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint16)


@dataclass
class Model:
    """Every row is a (channel, epoch, place in the shard's slice); a shard must see them in that order, once each."""

    shard_count: int
    channels: list[ChannelKey]
    rows: dict[tuple[ChannelKey, int], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    seen: dict[tuple[ChannelKey, int], int] = field(default_factory=lambda: defaultdict(int))

    def publish(self, key: ChannelKey, item: PublishedRows) -> None:
        for shard in range(self.shard_count):
            self.rows[(key, shard)].extend((item.epoch, row) for row in range(int(item.counts[shard])))

    def consume(self, take: GroupTake, done: np.ndarray) -> None:
        for key in self.channels:
            for shard in done.tolist():
                taken = [
                    (piece.source.epoch, row)
                    for piece in take.pieces
                    if piece.key == key
                    for row in range(
                        piece.start,
                        int(piece.source.counts[shard])
                        if piece.end < 0
                        else min(piece.end, int(piece.source.counts[shard])),
                    )
                ]
                first = self.seen[(key, shard)]
                expected = self.rows[(key, shard)][first : first + len(taken)]
                assert taken == expected, f"shard {shard} took {taken}, next were {expected}"
                self.seen[(key, shard)] += len(taken)

    def is_consumed(self) -> bool:
        return all(self.seen[at] == len(rows) for at, rows in self.rows.items())


@st.composite
def stories(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, object]]]:
    shard_count = draw(st.integers(1, 5))
    channels = draw(st.integers(1, 2))
    counts = st.lists(st.integers(0, 6), min_size=shard_count, max_size=shard_count)
    some_shards = st.lists(st.booleans(), min_size=shard_count, max_size=shard_count)
    publish = st.tuples(
        st.just("publish"),
        st.tuples(st.integers(0, channels - 1), st.integers(1, 2), st.lists(counts, min_size=1, max_size=2)),
    )
    take = st.tuples(st.just("take"), st.tuples(st.integers(1, 12), some_shards, some_shards))
    return shard_count, channels, draw(st.lists(st.one_of(publish, take), max_size=30))


@settings(max_examples=200, deadline=None)
@given(stories(), st.integers(0, 3), st.booleans())
def test_any_sequence_of_takes_consumes_each_row_of_each_shard_once_and_in_order(
    story: tuple[int, int, list[tuple[str, object]]], tasks: int, apart: bool
) -> None:
    shard_count, channels, steps = story
    keys = [KEY, OTHER][:channels]
    model = Model(shard_count, keys)
    waiting: dict[ChannelKey, list[PublishedRows]] = {key: [] for key in keys}
    epochs = dict.fromkeys(keys, 0)
    groups = [ShardGroup(np.arange(shard_count, dtype=np.uint16), dict.fromkeys(keys, START))]
    for kind, what in steps:
        if kind == "publish":
            number, skip, segments = what  # type: ignore[misc]
            key = keys[number]
            epochs[key] += skip
            if any(map(sum, segments)):
                item = published(epochs[key], *segments)
                waiting[key].append(item)
                model.publish(key, item)
            continue
        budget, ready, lost = what  # type: ignore[misc]
        groups = _epoch(groups, np.array(ready), np.array(lost), waiting, budget, model, tasks, apart)
    everyone, nobody = np.ones(shard_count, np.bool_), np.zeros(shard_count, np.bool_)
    for _ in range(sum(len(items) for items in model.rows.values()) + len(steps) + 2):
        if model.is_consumed() and not any(waiting.values()):
            break
        groups = _epoch(groups, everyone, nobody, waiting, 3, model, tasks, apart)
    assert model.is_consumed(), "what was published is never consumed"
    assert not any(waiting.values()), "what everybody consumed is never let go"


def _epoch(
    groups: list[ShardGroup],
    ready: np.ndarray,
    lost: np.ndarray,
    waiting: dict[ChannelKey, list[PublishedRows]],
    budget: int,
    model: Model,
    tasks: int = 0,
    apart: bool = False,
) -> list[ShardGroup]:
    task_of = (np.arange(len(ready)) % tasks).astype(np.uint16) if tasks else None
    levels = None
    if apart and task_of is not None:
        rows = {task: float(1 + (budget * (task + 1)) % 7) for task in range(tasks)}
        backlog = waiting_rows(groups, waiting, len(ready))
        levels = derive_levels(groups, ready, waiting, task_of, rows, [sorted(waiting)], backlog, 1.0)
    takes = take_epoch(groups, ready, waiting, Budget(budget), task_of=task_of, levels=levels)
    moved = []
    taken_shards = [shard for take in takes for shard in take.shards.tolist()]
    assert len(taken_shards) == len(set(taken_shards)), "a shard was taken twice in one epoch"
    assert all(ready[taken_shards]), "a shard that is not ready was taken"
    for take in takes:
        for taken in take.ranges:
            assert taken.start <= taken.end, "a range runs backwards"
        counted = np.zeros(len(ready), np.int64)
        for shard in take.shards.tolist():
            for piece in take.pieces:
                count = int(piece.source.counts[shard])
                counted[shard] += max(0, (count if piece.end < 0 else min(count, piece.end)) - piece.start)
        assert np.array_equal(counted, take.shard_rows)
        done = take.shards[~lost[take.shards]]
        model.consume(take, done)
        if len(done):
            moved.append(Moved(done, take.ends()))
    after = advance(groups, moved)
    placed = sorted(shard for group in after for shard in group.shards.tolist())
    assert placed == list(range(len(ready))), "a shard stands nowhere or twice"
    places = [tuple(sorted(group.at.items())) for group in after]
    assert len(places) == len(set(places)), "groups at equal positions did not merge"
    for key, queue in waiting.items():
        before = oldest(after, key)
        while queue and queue[0].epoch < before.epoch:
            queue.pop(0)
    return after


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=1, max_size=12),
    st.integers(1, 20),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 3),
    st.booleans(),
)
def test_groups_that_were_apart_meet_again_while_rows_keep_coming(
    epochs: list[list[int]], budget: int, lost: list[bool], tasks: int, apart: bool
) -> None:
    waiting: dict[ChannelKey, list[PublishedRows]] = {KEY: [published(1, [4, 4, 4])]}
    groups = [ShardGroup(shards(0, 1, 2), {KEY: START})]
    model = Model(3, [KEY])
    model.publish(KEY, waiting[KEY][0])
    everyone = np.ones(3, np.bool_)
    groups = _epoch(groups, everyone, np.array(lost), waiting, budget, model, tasks, apart)
    for number, counts in enumerate(epochs, 2):
        waiting[KEY].append(published(number, counts))
        model.publish(KEY, waiting[KEY][-1])
        groups = _epoch(groups, everyone, np.zeros(3, np.bool_), waiting, budget, model, tasks, apart)
    for _ in range(200):
        if len(groups) == 1:
            return
        groups = _epoch(groups, everyone, np.zeros(3, np.bool_), waiting, budget, model, tasks, apart)
    raise AssertionError(f"the groups never met: {groups}")


def test_a_group_that_is_in_front_on_one_channel_and_behind_on_another_never_goes_back() -> None:
    front = ShardGroup(shards(0), {KEY: Position(2, 0), OTHER: Position(1, 1)})
    behind = ShardGroup(shards(1), {KEY: Position(1, 0), OTHER: Position(1, 4)})
    waiting = {KEY: [published(1, [3, 3])], OTHER: [published(1, [6, 6])]}
    for take in take_epoch([front, behind], np.array([True, True]), waiting, Budget(4)):
        for taken in take.ranges:
            assert taken.start <= taken.end


def test_a_range_takes_whole_producer_epochs_while_they_fit() -> None:
    items = [published(1, [2, 1]), published(2, [1, 1]), published(3, [5, 5])]
    end, pieces = take_range(items, START, shards(0, 1), Budget(6), None)
    assert end == Position(3, 0)
    assert pieces == [(0, 0, -1), (1, 0, -1)]


def test_the_first_producer_epoch_is_cut_inside_when_it_alone_exceeds_the_budget() -> None:
    end, pieces = take_range([published(1, [10, 2])], START, shards(0, 1), Budget(6), None)
    assert end == Position(1, 4), "rows [0, 4) of both shards are 4 + 2 rows"
    assert pieces == [(0, 0, 4)]


def test_a_cut_always_moves_by_one_row_however_small_the_budget() -> None:
    end, pieces = take_range([published(1, [3, 3, 3])], Position(1, 1), shards(0, 1, 2), Budget(1), None)
    assert end == Position(1, 2)
    assert pieces == [(0, 1, 2)]


def test_the_group_behind_stops_where_the_group_in_front_stands() -> None:
    items = [published(1, [2, 2]), published(2, [2, 2]), published(3, [9, 9])]
    front, behind = ShardGroup(shards(0), {KEY: Position(3, 4)}), ShardGroup(shards(1), {KEY: START})
    takes = take_epoch([behind, front], np.array([True, True]), {KEY: items}, Budget(100))
    ends = {take.shards.tolist()[0]: take.ends()[KEY] for take in takes}
    assert ends == {0: Position(4, 0), 1: Position(4, 0)}


def test_shards_behind_take_the_part_of_the_budget_of_the_tasks_that_work_on_them() -> None:
    rows = [published(number, [10, 10, 10, 10]) for number in range(1, 9)]
    front = ShardGroup(shards(0, 1, 2), {KEY: Position(6, 0)})
    behind = ShardGroup(shards(3), {KEY: START})
    groups, ready, task_of = [front, behind], np.ones(4, np.bool_), np.arange(4, dtype=np.uint16)
    evenly, shared = (
        take_epoch(groups, ready, {KEY: rows}, Budget(40), task_of=one) for one in (None, task_of)
    )
    assert [int(take.shard_rows.sum()) for take in evenly] == [30, 40]
    assert [int(take.shard_rows.sum()) for take in shared] == [30, 10], (
        "no task has more to do than the others"
    )
    alone = take_epoch(
        [ShardGroup(shards(0, 1, 2, 3), {KEY: START})], ready, {KEY: rows}, Budget(40), task_of=task_of
    )
    assert int(alone[0].shard_rows.sum()) == 40


def test_a_group_without_ready_shards_takes_nothing_and_caps_nobody() -> None:
    items = [published(1, [2, 2])]
    groups = [ShardGroup(shards(0), {KEY: START}), ShardGroup(shards(1), {KEY: Position(1, 1)})]
    takes = take_epoch(groups, np.array([True, False]), {KEY: items}, Budget(100))
    assert [(take.shards.tolist(), take.ends()[KEY]) for take in takes] == [([0], Position(2, 0))]


def test_stamps_are_weighted_by_the_rows_that_were_taken() -> None:
    stamp = Stamp(10, 100, 150.0, 200)
    takes = take_epoch(
        [ShardGroup(shards(0, 1), {KEY: START})],
        np.array([True, False]),
        {KEY: [published(1, [4, 6], stamp=stamp)]},
        Budget(100),
    )
    assert stamps_of(takes) == [Stamp(4, 100, 150.0, 200)]


@pytest.mark.parametrize("budget", [1, 2, 5, 7, 100])
def test_a_cut_never_takes_more_than_the_budget_unless_one_row_per_shard_does(budget: int) -> None:
    counts = np.array([7, 3, 0, 12], np.int64)
    cut = taking.cut_at(counts, 0, budget)
    rows = int(np.minimum(counts, cut).sum())
    assert rows <= max(budget, 3)
    more = int(np.minimum(counts, cut + 1).sum())
    assert cut >= 12 or more > budget


def test_an_epoch_is_bounded_in_bytes_too() -> None:
    items = [published(1, [3, 3]), published(2, [3, 3]), published(3, [3, 3])]  # 100 bytes a row
    end, pieces = take_range(items, START, shards(0, 1), Budget(1_000, 1_300), None)
    assert (end, len(pieces)) == (Position(3, 0), 2)
    end, pieces = take_range(items, START, shards(0, 1), Budget(1_000, 250), None)
    assert end == Position(1, 1), "cut inside a producer epoch that alone is more"
