"""Shards that sit out pass what holds no rows for them, as far as it goes, at a cost that groups do not multiply."""

from __future__ import annotations

import numpy as np

from penstock.dataplane.positions import ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.records import Position, Published
from penstock.dataplane.taking import Budget, GroupTake, take_epoch

KEY, OTHER = ChannelKey(0, "rows"), ChannelKey(0, "side")
SHARDS = 8


def _item(
    epoch: int, rows: dict[int, int], said: int | None = None, between: list[str] | None = None
) -> PublishedRows:
    item = PublishedRows(Published(epoch, [], None, said, between or []), SHARDS)
    item.counts = np.array([rows.get(shard, 0) for shard in range(SHARDS)], np.int64)
    item.rows = int(item.counts.sum())
    return item


def _group(shards: list[int], *places: Position) -> ShardGroup:
    return ShardGroup(np.array(shards, np.uint16), dict(zip((KEY, OTHER), places, strict=False)))


def _take(groups: list[ShardGroup], *items: list[PublishedRows]) -> list[GroupTake]:
    ready = np.arange(SHARDS) == 0
    waiting = dict(zip((KEY, OTHER), items, strict=False))
    return [
        take
        for take in take_epoch(groups, ready, waiting, Budget(100), absent=~ready)
        if 0 not in take.shards
    ]


def _passed(takes: list[GroupTake]) -> list[tuple[list[int], list[Position]]]:
    return sorted((take.shards.tolist(), [one.end for one in take.ranges]) for take in takes)


def test_shards_that_sit_out_pass_up_to_the_first_rows_for_one_of_them() -> None:
    items = [_item(epoch, {0: 5}) for epoch in range(1, 9)] + [_item(9, {0: 1, 2: 1}, said=7)]
    takes = _take([_group([0], Position(10)), _group([1, 2, 3], Position(2))], items)
    assert _passed(takes) == [([1, 3], [Position(10)]), ([2], [Position(9)])]
    assert sorted(str(take.ranges[0].watermark_us) for take in takes) == ["7", "None"]
    assert not any(take.shard_rows.any() for take in takes)


def test_a_producer_epoch_that_was_cut_is_passed_by_those_that_have_all_their_rows_of_it() -> None:
    items = [_item(3, {1: 4, 2: 9}), _item(4, {0: 2})]
    takes = _take([_group([0], Position(4)), _group([1, 2], Position(3, 4))], items)
    assert _passed(takes) == [([1], [Position(5)])]
    (take,) = _take([_group([0], Position(4, 1)), _group([3], Position(3))], items)
    assert take.ranges[0].end in (Position(4, 1), Position(5)), "as far as those that work come"


def test_on_several_channels_each_is_passed_as_far_as_it_goes() -> None:
    items, more = [_item(1, {}), _item(2, {1: 1})], [_item(1, {0: 1}), _item(2, {0: 1})]
    groups = [_group([0], Position(3), Position(3)), _group([1], Position(1), Position(1))]
    assert _passed(_take(groups, items, more)) == [([1], [Position(2), Position(3)])]
    ahead = [_group([0], Position(3), Position(2)), _group([1], Position(1), Position(7))]
    assert _passed(_take(ahead, items, more)) == [([1], [Position(2), Position(7)])]


def test_nobody_passes_a_barrier_before_what_came_ahead_of_it() -> None:
    items, more = [_item(1, {}), _item(2, {}, between=["side"]), _item(3, {})], [_item(1, {1: 1})]
    groups = [_group([0], Position(4), Position(2)), _group([1], Position(1), Position(1))]
    assert _passed(_take(groups, items, more)) == [([1], [Position(2), Position(1)])]


def test_items_are_looked_at_once_an_epoch_however_many_groups_sit_out() -> None:
    looked: list[object] = []

    class Looked(PublishedRows):
        def __getattribute__(self, name: str) -> object:
            if name == "counts":
                looked.append(self)
            return super().__getattribute__(name)

    items: list[PublishedRows] = [Looked(Published(epoch, [], None), SHARDS) for epoch in range(1, 200)]
    looked.clear()
    front = _group([0], Position(200))
    behind = [_group([shard], Position(2 * shard)) for shard in range(1, SHARDS)]
    assert len(_take([front, *behind], items)) == len(behind)
    assert len(looked) <= len(items)
