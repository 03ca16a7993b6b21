"""Dealing shards when tasks come and go."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.plan.balancing import THETA
from penstock.control.plan.dealing import deal_shards
from penstock.control.plan.shards import Shards


def even_shards(count: int, nodes: dict[int, str], load: float = 1.0) -> Shards:
    task_of = np.array([sorted(nodes)[shard % len(nodes)] for shard in range(count)], dtype=np.int32)
    return Shards("match", np.full(count, load), task_of, nodes, np.full(count, 100))


@st.composite
def changes(draw: st.DrawFn) -> tuple[Shards, dict[int, str]]:
    count = draw(st.integers(1, 50))
    nodes = {index: f"n{index % 3}" for index in range(draw(st.integers(1, 6)))}
    task_of = draw(st.lists(st.sampled_from([-1, *nodes]), min_size=count, max_size=count))
    loads = draw(st.lists(st.floats(0, 5, allow_subnormal=False), min_size=count, max_size=count))
    wanted = draw(st.sets(st.integers(0, 9), min_size=1, max_size=8))
    after = {index: nodes.get(index, f"n{draw(st.integers(0, 3))}") for index in wanted}
    return Shards("match", np.array(loads), np.array(task_of, dtype=np.int32), nodes), after


@given(changes())
def test_every_shard_has_exactly_one_of_the_new_tasks(change: tuple[Shards, dict[int, str]]) -> None:
    shards, tasks = change
    found = deal_shards(shards, tasks)
    mine = shards.task_of >= 0
    assert set(found.task_of[mine].tolist()) <= set(tasks)
    assert (found.task_of[~mine] == -1).all()


@given(changes())
def test_dealing_again_moves_nothing(change: tuple[Shards, dict[int, str]]) -> None:
    shards, tasks = change
    once = deal_shards(shards, tasks)
    again = deal_shards(Shards("match", shards.load, once.task_of, tasks), tasks)
    assert again.moves == ()


def test_with_the_same_tasks_balanced_shards_stay() -> None:
    shards = even_shards(64, {0: "a", 1: "a", 2: "b"})
    assert deal_shards(shards, shards.tasks).moves == ()


def test_shards_of_a_task_that_goes_are_spread_and_no_others_move() -> None:
    shards = even_shards(60, {0: "a", 1: "a", 2: "a", 3: "a"})
    found = deal_shards(shards, {0: "a", 1: "a", 3: "a"})
    assert {move.source for move in found.moves} == {2}
    assert np.bincount(found.task_of).tolist() == [20, 20, 0, 20]


def test_shards_of_a_task_that_goes_stay_on_their_node_where_that_is_within_the_bound() -> None:
    shards = even_shards(60, {0: "a", 1: "b", 2: "b", 3: "b", 4: "b", 5: "b"})
    found = deal_shards(shards, {0: "a", 2: "b", 3: "b", 4: "b", 5: "b"})
    assert found.moved_bytes == 0
    assert found.delta_after <= THETA


def test_a_new_task_is_filled_though_the_others_were_balanced() -> None:
    shards = even_shards(100, dict.fromkeys(range(10), "a"))
    found = deal_shards(shards, dict.fromkeys(range(11), "a"))
    assert np.bincount(found.task_of)[10] >= (2 - THETA) * 100 / 11
    assert {move.destination for move in found.moves} == {10}
    assert len(found.moves) <= 9


def test_shards_without_load_are_dealt_by_their_number() -> None:
    shards = even_shards(64, {0: "a"}, load=0.0)
    found = deal_shards(shards, {0: "a", 1: "a", 2: "a", 3: "a"})
    assert max(np.bincount(found.task_of)) <= 64 / 4 * THETA


def test_idle_shards_do_not_all_go_to_one_task() -> None:
    shards = even_shards(90, {0: "a", 1: "a", 2: "a"})
    load = np.where(shards.task_of == 2, 0.0, 1.0)
    found = deal_shards(Shards("match", load, shards.task_of, shards.tasks), {0: "a", 1: "a"})
    assert np.bincount(found.task_of).tolist() == [45, 45]


def test_new_tasks_get_their_part_of_shards_without_load_those_of_their_node_first() -> None:
    load = np.zeros(240)
    load[40:88] = 1.0
    before = Shards("extract", load, (np.arange(240) % 2).astype(np.int32), {0: "a", 1: "b"})
    found = deal_shards(before, {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"})
    counts = np.bincount(found.task_of)
    assert counts.min() >= 45 and counts.max() <= 51
    assert found.delta_after <= THETA
    moved_on = before.task_of[(found.task_of == 3) & (load == 0)]
    assert (moved_on == 1).all(), "idle shards of the same node are moved without copying state"
