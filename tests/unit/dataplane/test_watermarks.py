"""What shards make of what their channels say of event time."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.dataplane.test_taking import KEY, OTHER, shards

from penstock.dataplane.positions import START, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.records import END_US, IDLE_US, Position, Published
from penstock.dataplane.taking import Budget, take_epoch
from penstock.dataplane.watermarks import Channels

SECOND = ChannelKey(0, "source#2")


def _said(epoch: int, mark: int | None, *barrier: str) -> PublishedRows:
    return PublishedRows(Published(epoch, [], None, mark, list(barrier)), 2)


@pytest.mark.parametrize("before", [END_US, IDLE_US, 50])
def test_a_chain_that_says_nothing_at_a_barrier_is_no_longer_held_to_what_it_said(before: int) -> None:
    both = ("source", "source#2")
    takes = take_epoch(
        [ShardGroup(shards(0, 1), {KEY: Position(5), SECOND: START}, {KEY: 40, SECOND: before}, 40)],
        np.array([True, True]),
        {KEY: [_said(7, 100, *both)], SECOND: [_said(7, None, *both)]},
        Budget(100),
        Channels({KEY, SECOND}, {KEY, SECOND}),
    )
    assert [one.watermark_us for one in takes[0].ranges] == [100, None]
    assert takes[0].watermark_us == 40


@pytest.mark.parametrize(
    ("marks", "expected", "apart"),
    [
        ((100, IDLE_US), 40, 100),
        ((IDLE_US, 100), 40, 100),
        ((100, END_US), 100, 100),
        ((IDLE_US, END_US), 40, 40),
        ((100, 90), 90, 90),
    ],
)
def test_of_two_executors_an_idle_one_is_behind_while_the_other_is_not_idle(
    marks: tuple[int, int], expected: int, apart: int
) -> None:
    def watermark(other: ChannelKey) -> int | None:
        takes = take_epoch(
            [ShardGroup(shards(0, 1), {KEY: START, other: START}, {}, 40)],
            np.array([True, True]),
            {KEY: [_said(1, marks[0])], other: [_said(1, marks[1])]},
            Budget(100),
            Channels({KEY, other}, {KEY, other}),
        )
        return takes[0].watermark_us

    assert watermark(SECOND) == expected
    assert watermark(OTHER) == apart, "inputs of different operators"
