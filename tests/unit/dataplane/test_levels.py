"""How far each task goes: against a count of every row, and by what tasks learn of their rates."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.dataplane.test_taking import KEY, OTHER, published, shards

from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.levels import APART_RATIO, READ_S, TaskRates, derive_levels, is_uneven, late_shards
from penstock.dataplane.positions import START, ChannelKey, ShardGroup
from penstock.dataplane.program import Program, StageSpec
from penstock.dataplane.records import Position, TaskPart
from penstock.dataplane.rowtimes import POOLED_EPOCHS
from penstock.dataplane.standing import Moved, advance, waiting_rows
from penstock.dataplane.taking import Budget, take_epoch
from penstock.dataplane.watermarks import Channels

TASKS = 3
SHARDS = 6
TASK_OF = np.arange(SHARDS, dtype=np.uint16) % TASKS
EVERYONE = np.ones(SHARDS, np.bool_)

counts = st.lists(st.integers(0, 9), min_size=SHARDS, max_size=SHARDS)
budgets = st.lists(st.floats(0.3, 40.0), min_size=TASKS, max_size=TASKS)
places = st.tuples(st.integers(1, 4), st.integers(0, 9))


def rows_until(items: list, at: Position, level: Position | None, mine: np.ndarray) -> int:
    """Rows of some shards from where they stand to a level, counted one by one."""
    found = 0
    for item in items:
        for shard in mine.tolist():
            for row in range(int(item.counts[shard])):
                place = Position(item.epoch, row)
                found += place >= at and (level is None or place < level)
    return found


def levels_of(groups, waiting, task_rows, turns=([KEY],), ready=EVERYONE):  # type: ignore[no-untyped-def]
    """Levels with a backlog as it is: shard -> positions that it does not go past."""
    backlog = waiting_rows(groups, waiting, SHARDS)
    found = derive_levels(groups, ready, waiting, TASK_OF, task_rows, turns, backlog, 9.0)
    return {shard: dict(level.at) for level in found for shard in level.shards.tolist()}


@settings(max_examples=300, deadline=None)
@given(st.lists(counts, min_size=1, max_size=6), st.lists(places, min_size=SHARDS, max_size=SHARDS), budgets)
def test_a_task_takes_what_its_time_allows_and_not_much_less(
    epochs: list[list[int]], stands: list[tuple[int, int]], allowed: list[float]
) -> None:
    items = [published(number, rows) for number, rows in enumerate(epochs, 1)]
    at = [Position(*place) for place in stands]
    groups = [ShardGroup(shards(shard), {KEY: place}) for shard, place in enumerate(at)]
    levels = levels_of(groups, {KEY: items}, dict(enumerate(allowed)))
    for task, most in enumerate(allowed):
        mine = np.flatnonzero(task == TASK_OF).tolist()
        bounds = {levels[shard][KEY] for shard in mine if shard in levels}
        assert len(bounds) <= 1, "those of a task that are late rise to one level"
        late = [shard for shard in mine if shard in levels]

        def rows(of: list[int], to: Position | None) -> int:
            return sum(rows_until(items, at[shard], to, np.array([shard])) for shard in of)

        free = rows([shard for shard in mine if shard not in levels], None)
        if not late:
            assert free <= max(most, 1.0), "everything is taken, and fits"
            continue
        (level,) = bounds
        taken = free + rows(late, level)
        further = free + rows(late, Position(level.epoch, level.row + 1))
        step = rows(late, Position(level.epoch, level.row - 1)) == 0 if level.row else False
        assert taken <= max(most, 1.0) or step, "more than fits"
        assert taken > most - 1 or further > most, "less than fits"
        assert taken > 0, "a task with rows takes some"
        least = min(rows([shard], None) for shard in late)
        assert all(rows([shard], None) <= least for shard in mine if shard not in levels), (
            "the hottest are late"
        )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.floats(1.0, 200.0))
def test_the_rows_that_late_shards_share_are_those_that_an_even_share_leaves(
    waits: list[int], rows: float
) -> None:
    every = np.arange(len(waits), dtype=np.uint16)
    late, left = late_shards(every, np.array(waits, np.int64), rows)
    if sum(waits) <= rows:
        assert not len(late)
        return
    # Water filling by bisection: the share q with sum(min(w, q)) = rows.
    low, high = 0.0, float(max(waits))
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(min(w, middle) for w in waits) <= rows else (low, middle)
    assert set(late.tolist()) == {shard for shard, wait in enumerate(waits) if wait > high + 1e-6} or any(
        abs(wait - high) < 1e-5 for wait in waits
    )
    assert left == pytest.approx(
        max(1.0, rows - sum(w for s, w in enumerate(waits) if s not in late.tolist()))
    )


def test_a_hot_shard_is_late_itself_and_nobody_else_is() -> None:
    items = [published(number, [90, 4, 4, 2, 2, 2]) for number in range(1, 5)]
    groups = [ShardGroup(np.arange(SHARDS, dtype=np.uint16), {KEY: START})]
    backlog = waiting_rows(groups, {KEY: items}, SHARDS)
    rows = dict.fromkeys(range(3), 40.0)
    levels = derive_levels(groups, EVERYONE, {KEY: items}, TASK_OF, rows, [[KEY]], backlog, 9.0)
    assert [(level.shards.tolist(), level.at) for level in levels] == [([0], {KEY: Position(1, 32)})]
    takes = take_epoch(groups, EVERYONE, {KEY: items}, Budget(1), Channels(), TASK_OF, levels)
    ends = {shard: take.ends()[KEY] for take in takes for shard in take.shards.tolist()}
    assert {shard for shard, end in ends.items() if end == Position(5, 0)} == {1, 2, 3, 4, 5}
    assert sorted(int(take.shard_rows.sum()) for take in takes) == [32, 56]


def test_the_hot_shard_is_passed_by_until_it_has_caught_up_and_then_all_stand_together() -> None:
    items = [published(1, [90, 4, 4, 2, 2, 2])]
    groups = [ShardGroup(np.arange(SHARDS, dtype=np.uint16), {KEY: START})]
    epochs = 0
    while any(group.at[KEY] < Position(5, 0) for group in groups):
        epochs += 1
        if epochs in (2, 3, 4):
            items.append(published(epochs, [1, 1, 1, 1, 1, 1]))
        backlog = waiting_rows(groups, {KEY: items}, SHARDS)
        rows = dict.fromkeys(range(3), 40.0)
        levels = derive_levels(groups, EVERYONE, {KEY: items}, TASK_OF, rows, [[KEY]], backlog, 9.0)
        takes = take_epoch(groups, EVERYONE, {KEY: items}, Budget(1), Channels(), TASK_OF, levels)
        groups = advance(groups, [Moved(take.shards, take.ends()) for take in takes])
        assert epochs < 9
    assert len(groups) == 1
    assert epochs == 4, "the 90 rows of shard 0 take three epochs, beside what comes meanwhile"


def test_a_shard_that_came_with_a_backlog_does_not_make_the_others_of_its_new_task_late() -> None:
    items = [published(number, [30, 0, 0, 2, 0, 0]) for number in range(1, 7)]
    groups = [ShardGroup(shards(3), {KEY: Position(6, 0)}), ShardGroup(shards(0), {KEY: START})]
    assert levels_of(groups, {KEY: items}, {0: 32.0}) == {0: {KEY: Position(2, 0)}}, (
        "2 rows, and 30 of the late one"
    )


def test_those_that_are_late_rise_together_the_last_first() -> None:
    items = [published(number, [5, 0, 0, 5, 0, 0]) for number in range(1, 7)]
    groups = [ShardGroup(shards(0), {KEY: Position(3, 0)}), ShardGroup(shards(3), {KEY: START})]
    for rows, level in ((10.0, Position(3, 0)), (20.0, Position(4, 0)), (30.0, Position(5, 0))):
        assert levels_of(groups, {KEY: items}, {0: rows}) == {0: {KEY: level}, 3: {KEY: level}}
    assert levels_of(groups, {KEY: items}, {0: 45.0}) == {3: {KEY: Position(6, 0)}}, (
        "20 of one, 25 of the other"
    )
    assert levels_of(groups, {KEY: items}, {0: 50.0}) == {}


def test_channels_of_loops_come_first_and_others_share_what_is_left() -> None:
    loop, rest = [published(1, [6] * SHARDS)], [published(1, [50] * SHARDS)]
    groups = [ShardGroup(np.arange(SHARDS, dtype=np.uint16), {KEY: START, OTHER: START})]
    waiting = {KEY: rest, OTHER: loop}
    levels = levels_of(groups, waiting, {0: 32.0}, [[OTHER], [KEY]])
    assert levels[0] == levels[3] == {KEY: Position(1, 10)}, "12 rows of the loop, then 20 of the others"
    levels = levels_of(groups, waiting, {0: 16.0}, [[KEY, OTHER]])
    assert levels[0] == levels[3] == {KEY: Position(1, 4), OTHER: Position(1, 4)}


@pytest.mark.parametrize("rows", [1.0, 2.5, 12.0])
def test_where_rows_are_slow_a_few_shards_rise_in_turn_and_none_is_forgotten(rows: float) -> None:
    many, task_of = 64, np.zeros(64, np.uint16)
    ready = np.ones(many, np.bool_)
    items = [published(number, [2] * 40 + [0] * 20 + [1] * 4) for number in (1, 2)]
    groups = [ShardGroup(np.arange(many, dtype=np.uint16), {KEY: START})]
    waiting, taken, apart = {KEY: items}, np.zeros(many, np.int64), []
    while (backlog := waiting_rows(groups, waiting, many)).any():
        levels = derive_levels(groups, ready, waiting, task_of, {0: rows}, [[KEY]], backlog, 9.0)
        takes = take_epoch(groups, ready, waiting, Budget(1), Channels(), task_of, levels)
        found = np.sum([take.shard_rows for take in takes], axis=0)
        assert 1 <= found.sum() <= max(APART_RATIO * rows, 1)
        taken += found
        apart.append(int(taken[:40].max() - taken[:40].min()))
        groups = advance(groups, [Moved(take.shards, take.ends()) for take in takes])
        assert len(groups) <= 5
    assert (taken == sum(item.counts for item in items)).all()
    assert max(apart) <= 2, "those behind come first"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(counts, min_size=1, max_size=4), min_size=1, max_size=2),
    st.lists(st.tuples(places, places), min_size=SHARDS, max_size=SHARDS),
    st.lists(st.floats(0.3, 6.0), min_size=1, max_size=2),
)
def test_every_task_with_rows_takes_some_in_every_epoch_until_all_are_done(
    channels: list[list[list[int]]],
    stands: list[tuple[tuple[int, int], tuple[int, int]]],
    allowed: list[float],
) -> None:
    tasks, task_of = len(allowed), np.arange(SHARDS, dtype=np.uint16) % len(allowed)
    waiting = {
        key: [published(number, rows) for number, rows in enumerate(epochs, 1)]
        for key, epochs in zip([KEY, OTHER], channels, strict=False)
    }
    groups = [
        ShardGroup(shards(shard), {key: Position(*place) for key, place in zip(waiting, at, strict=False)})
        for shard, at in enumerate(stands)
    ]
    task_rows = dict(enumerate(allowed))
    while (backlog := waiting_rows(groups, waiting, SHARDS)).any():
        levels = derive_levels(groups, EVERYONE, waiting, task_of, task_rows, [[*waiting]], backlog, 9.0)
        takes = take_epoch(groups, EVERYONE, waiting, Budget(1), Channels(), task_of, levels)
        taken = np.bincount(task_of, np.sum([take.shard_rows for take in takes], axis=0), tasks)
        has = np.bincount(task_of, backlog, tasks) > 0
        assert (taken[has] > 0).all()
        groups = advance(groups, [Moved(take.shards, take.ends()) for take in takes])


@pytest.mark.parametrize("chains", [1, 2, 4])
def test_channels_without_rows_leave_their_share_to_those_that_have_some(chains: int) -> None:
    keys = [KEY, *(ChannelKey(KEY.edge, f"m#{number}") for number in range(2, 1 + chains))]
    groups = [ShardGroup(np.arange(SHARDS, dtype=np.uint16), dict.fromkeys(keys, START))]
    waiting = {KEY: [published(number, [50] * SHARDS) for number in range(1, 9)]}
    levels = levels_of(groups, waiting, {0: 200.0}, [keys])
    assert levels[0] == levels[3] == {KEY: Position(3, 0)}, "200 rows of two shards"
    (take,) = take_epoch(groups, EVERYONE, waiting, Budget(600))
    assert take.shard_rows.sum() == 600


def test_what_takes_less_time_than_to_read_it_twice_is_not_cut() -> None:
    items = [published(1, [10, 0, 0, 0, 0, 0]), published(2, [10, 0, 0, 0, 0, 0])]
    groups = [ShardGroup(np.arange(SHARDS, dtype=np.uint16), {KEY: START})]
    backlog = waiting_rows(groups, {KEY: items}, SHARDS)
    for epoch_s, level in ((20 * READ_S, Position(2, 6)), (2 * READ_S, Position(2, 0))):
        found = derive_levels(groups, EVERYONE, {KEY: items}, TASK_OF, {0: 16.0}, [[KEY]], backlog, epoch_s)
        assert [dict(one.at) for one in found] == [{KEY: level}]


def test_nothing_is_bounded_while_all_that_waits_fits_everywhere() -> None:
    items = [published(1, [3] * SHARDS)]
    groups = [ShardGroup(np.arange(SHARDS, dtype=np.uint16), {KEY: START})]
    assert levels_of(groups, {KEY: items}, dict.fromkeys(range(3), 18.0)) == {}
    assert levels_of(groups, {KEY: items}, dict.fromkeys(range(3), 6.0)) == {}


def test_shards_that_sit_out_do_not_hold_their_task_back() -> None:
    items = [published(number, [10, 0, 0, 10, 0, 0]) for number in range(1, 5)]
    groups = [ShardGroup(np.arange(SHARDS, dtype=np.uint16), {KEY: START})]
    ready = EVERYONE.copy()
    ready[0] = False
    assert levels_of(groups, {KEY: items}, {0: 20.0}, ready=ready) == {3: {KEY: Position(3, 0)}}


@pytest.mark.parametrize(
    ("waits", "rows", "uneven"),
    [
        ([1e6] * 6, 1e5, False),
        ([1e6] * 6, 80.0, True),
        ([2e6, 1e6, 1e6, 1e6, 1e6, 1e6], 1e5, False),
        ([9e6, 1e6, 1e6, 1e6, 1e6, 1e6], 1e5, True),
        ([2e6, 1e6, 1e6, 1e6, 1e6, 1e6], 4e3, True),
        ([0] * 6, 80.0, False),
    ],
    ids=[
        "many rows, even",
        "few rows",
        "many rows, uneven",
        "many rows, hot",
        "some rows, uneven",
        "nothing waits",
    ],
)
def test_tasks_go_their_own_way_where_waiting_for_one_another_costs_more_than_reading_apart(
    waits: list[float], rows: float, uneven: bool
) -> None:
    backlog = np.array(waits, np.int64)
    assert is_uneven(TASK_OF, EVERYONE, backlog, dict.fromkeys(range(TASKS), rows)) == uneven


def part(task: int, rows: int, busy_s: float, lease: str = "a") -> TaskPart:
    return TaskPart(task, lease, b"", rows, rows, [], busy_us=round(busy_s * 1e6))


def test_a_rate_is_that_of_useful_time_and_a_new_task_has_the_mean_of_the_others() -> None:
    rates = TaskRates()
    assert rates.rows_in(1.0, [0, 1]) is None
    rates.learn([part(0, 100, 9.0), part(1, 100, 9.0)], 0.2, 10)
    assert rates.rows_in(1.0, [0, 1]) is None, "the first epoch on a lease loads code"
    rates.learn([part(0, 100, 0.1), part(1, 100, 0.2)], 0.2, 10)
    assert rates.rows_in(0.5, [0, 1, 7]) == pytest.approx({0: 500.0, 1: 250.0, 7: 375.0})
    rates.learn([part(0, 100, 5.0, "b")], 0.2, 10)
    assert rates.rows_in(1.0, [0]) == pytest.approx({0: 1000.0}), "a task on another lease begins anew"


def test_a_few_rows_tell_nothing_unless_they_took_long() -> None:
    rates = TaskRates()
    rates.learn([part(0, 5, 0.001)], 0.2, 10)
    rates.learn([part(0, 5, 0.001)], 0.2, 10)
    assert rates.rows_in(1.0, [0]) is None
    rates.learn([part(0, 5, 0.1)], 0.2, 10)
    assert rates.rows_in(1.0, [0]) == pytest.approx({0: 50.0})


def test_a_task_that_only_timers_keep_busy_keeps_what_is_known_of_its_rows() -> None:
    rates = TaskRates()
    for rows in (100, 100):
        rates.learn([part(0, rows, 0.1)], 0.2, 10)
    for _ in range(60):
        rates.learn([part(0, 0, 0.015), part(1, 0, 0.015)], 0.2, 10)
    assert rates.rows_in(1.0, [0, 1]) == pytest.approx({0: 1_000.0, 1: 1_000.0})


def test_a_task_may_take_few_rows_however_little_is_known_of_it_unless_they_are_slow() -> None:
    rates = TaskRates()
    for _ in range(4):
        rates.learn([part(0, 100, 0.001), part(1, 2, 1.0)], 0.2, 10)
    assert rates.least(0, 64.0, 0.2) == rates.least(7, 64.0, 0.2) == 64.0
    assert rates.least(1, 64.0, 0.2) == 1.0
    for _ in range(POOLED_EPOCHS - 1):
        rates.learn([part(1, 1, 0.002)], 0.2, 10)
    assert rates.least(1, 64.0, 0.2) < 5, "one that is fast may have been a cheap one"
    rates.learn([part(1, 1, 0.002)], 0.2, 10)
    assert rates.least(1, 64.0, 0.2) > 40, "some tell so"


def test_cheap_rows_among_dear_ones_do_not_make_all_of_them_seem_fast() -> None:
    """Rows of 10 ms on average that come one or two at a time: their burst is to take no longer than an epoch may."""
    rng, rates = np.random.default_rng(3), TaskRates()
    believed = []
    for _ in range(2_000):
        rows = int(rng.integers(1, 3))
        rates.learn([part(0, rows, float(rng.exponential(0.01, rows).sum()))], 0.2, 60)
        known = rates.rows_in(1.0, [0])
        believed.append(known[0] if known is not None else 0.0)
    assert 80 < np.mean(believed[100:]) < 160 and np.quantile(believed[100:], 0.99) < 250


def test_a_task_that_has_ended_leaves_nothing_to_the_next_of_its_number() -> None:
    rates = TaskRates()
    for _ in range(3):
        rates.learn([part(0, 100, 0.5), part(1, 100, 0.05), part(2, 100, 0.5)], 0.2, 10)
    assert rates.rows_in(1.0, [0, 1, 2, 3]) == pytest.approx({0: 200.0, 1: 2_000.0, 2: 200.0, 3: 200.0})
    rates.forget(1)
    assert rates.rows_in(1.0, [0, 1]) == pytest.approx({0: 200.0, 1: 200.0})


def test_growth_is_believed_sooner_than_decline() -> None:
    rates = TaskRates()
    for rows in (100, 100, 200):
        rates.learn([part(0, rows, 0.1)], 0.2, 10)
    assert rates.rows_in(1.0, [0]) == pytest.approx({0: 1_600.0})
    rates.learn([part(0, 60, 0.1)], 0.2, 10)
    assert rates.rows_in(1.0, [0]) == pytest.approx({0: 1_400.0})


def test_stages_ahead_of_a_declared_watermark_keep_in_step() -> None:
    schema = pa.schema([("k", pa.int64())])

    def edge(number: int, consumer: str, delay_us: int | None = None) -> EdgeSpec:
        return EdgeSpec(number, ("k",), 4, consumer, delay_us=delay_us)

    stages = [
        StageSpec("rows", "source", schema, edges=[edge(0, "first")]),
        StageSpec("first", "operator", schema, edges=[edge(1, "second"), edge(2, "aside")]),
        StageSpec("second", "operator", schema, edges=[edge(3, "third", 1_000)]),
        StageSpec("third", "operator", schema, edges=[edge(4, "out")]),
        StageSpec("aside", "operator", schema),
        StageSpec("out", "sink", schema),
    ]
    program = Program({stage.name: stage for stage in stages})
    assert program.ahead_of_watermarks() == {"rows", "first", "second"}
