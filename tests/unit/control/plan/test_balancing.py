"""Balancing inside an executor, against brute force and by its properties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.plan.balancing import THETA, find_move, plan_balance
from penstock.control.plan.plan import Move
from penstock.control.plan.shards import Shards, Table, derive_imbalance


def shards_of(
    loads: list[float],
    task_of: list[int],
    nodes: dict[int, str],
    size: list[int] | None = None,
    **speed: float,
) -> Shards:
    speeds = {index: speed[node] for index, node in nodes.items() if node in speed}
    return Shards(
        "match",
        np.array(loads),
        np.array(task_of, dtype=np.int32),
        nodes,
        None if size is None else np.array(size),
        speeds,
    )


@st.composite
def executors(draw: st.DrawFn) -> Shards:
    tasks = draw(st.integers(1, 6))
    count = draw(st.integers(1, 40))
    loads = draw(st.lists(st.floats(0, 10, allow_subnormal=False), min_size=count, max_size=count))
    task_of = draw(st.lists(st.integers(-1, tasks - 1), min_size=count, max_size=count))
    nodes = {index: f"n{draw(st.integers(0, 2))}" for index in range(tasks)}
    speeds = {index: draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])) for index in range(tasks)}
    mine = np.array(task_of) >= 0
    return Shards(
        "match",
        np.where(mine, loads, 0.0),
        np.array(task_of, dtype=np.int32),
        nodes,
        np.arange(count),
        speeds,
    )


@given(executors())
def test_shards_are_conserved_and_imbalance_never_grows(shards: Shards) -> None:
    found = plan_balance(shards)
    assert ((found.task_of >= 0) == (shards.task_of >= 0)).all()
    assert set(found.task_of[found.task_of >= 0]) <= set(shards.tasks)
    assert found.delta_after <= found.delta_before + 1e-9
    assert found.delta_before == pytest.approx(derive_imbalance(shards))


@given(executors())
def test_the_moves_are_the_difference(shards: Shards) -> None:
    found = plan_balance(shards)
    applied = shards.task_of.copy()
    for move in found.moves:
        assert applied[move.shard] == move.source
        applied[move.shard] = move.destination
    assert (applied == found.task_of).all()
    assert len({move.shard for move in found.moves}) == len(found.moves)


@given(executors())
def test_what_is_balanced_stays_as_it_is(shards: Shards) -> None:
    once = plan_balance(shards)
    if once.delta_before <= THETA:
        assert once.moves == ()
    again = plan_balance(
        Shards("match", shards.load, once.task_of, shards.tasks, shards.state_bytes, shards.speed)
    )
    assert again.moves == ()


@given(executors(), st.integers(0, 3))
def test_no_more_moves_than_are_allowed(shards: Shards, most: int) -> None:
    assert len(plan_balance(shards, max_moves=most).moves) <= most


@given(executors(), st.sampled_from([1.0, 1.2, 3.0]))
def test_every_move_lowers_the_larger_of_the_two_loads(shards: Shards, theta: float) -> None:
    table = Table(shards, shards.tasks, shards.speed)
    for source, target in itertools.product(range(len(shards.tasks)), [None, *range(len(shards.tasks))]):
        found = find_move(table, source, theta, target) if target != source else None
        if found is not None:
            before, back = table.times[source], table.at[found[0]]
            table.move(*found)
            assert max(table.times[source], table.times[found[1]]) < before
            table.move(found[0], int(back))


def brute_force(shards: Shards, theta: float) -> tuple[float, int]:
    """Return the lowest δ of all ways to deal, and the fewest moves to what is within θ (to the lowest, where none is)."""
    count, tasks = len(shards.load), len(shards.tasks)
    ways = np.array(list(itertools.product(range(tasks), repeat=count)))
    loads = np.stack([np.where(ways == task, shards.load, 0).sum(axis=1) for task in range(tasks)], axis=1)
    delta = loads.max(axis=1) / (shards.load.sum() / tasks)
    moves = (ways != shards.task_of).sum(axis=1)
    lowest = float(delta.min())
    return lowest, int(moves[delta <= max(theta, lowest) + 1e-9].min())


@pytest.mark.parametrize(
    ("theta", "reached_share", "mean_gap", "most_gap"), [(1.2, 0.9, 0.01, 0.25), (1.05, 0.55, 0.03, 0.4)]
)
def test_against_brute_force_most_are_within_the_bound_and_few_moves_are_wasted(
    theta: float, reached_share: float, mean_gap: float, most_gap: float
) -> None:
    rng = np.random.default_rng(7)
    possible = reached = extra = fewest_of_all = 0
    gaps = []
    for instance in range(160):
        tasks, count = int(rng.integers(2, 4)), int(rng.integers(5, 8))
        loads = rng.zipf(1.7, count).clip(max=40) + rng.random(count) if instance % 2 else rng.random(count)
        shards = shards_of(list(loads), list(rng.integers(0, tasks, count)), dict.fromkeys(range(tasks), "n"))
        lowest, fewest = brute_force(shards, theta)
        found = plan_balance(shards, theta)
        gaps.append(max(found.delta_after / max(lowest, theta) - 1, 0.0))
        if lowest <= theta:
            possible += 1
        if found.delta_after <= max(theta, lowest):
            reached += lowest <= theta
            extra += len(found.moves) - fewest
            fewest_of_all += fewest
    print(
        f"θ {theta}: reached in {reached} of {possible} where it can be; gap {np.mean(gaps):.4f}, at most {max(gaps):.3f};"
    )
    print(f"{extra} moves more than the fewest, {fewest_of_all}")
    assert possible > 40
    assert reached >= reached_share * possible
    assert np.mean(gaps) < mean_gap
    assert max(gaps) < most_gap
    assert extra < 0.2 * fewest_of_all


def test_the_shard_that_lowers_imbalance_most_goes_from_the_most_to_the_least_loaded() -> None:
    shards = shards_of([5, 3, 2, 4, 1], [0, 0, 0, 1, 2], {0: "a", 1: "a", 2: "a"})
    assert plan_balance(shards, max_moves=1).moves == (Move("match", 0, 0, 2),)


def test_of_equal_moves_the_one_inside_the_node_is_taken() -> None:
    shards = shards_of([1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 2], {0: "b", 1: "a", 2: "b"}, [9] * 6)
    first = plan_balance(shards, max_moves=1)
    assert first.moves[0].destination == 2
    assert first.moved_bytes == 0


def test_of_equal_moves_across_nodes_the_smallest_state_is_taken() -> None:
    shards = shards_of([1, 1, 1, 0], [0, 0, 0, 1], {0: "a", 1: "b"}, [9, 2, 7, 0])
    found = plan_balance(shards, max_moves=1)
    assert found.moves == (Move("match", 1, 0, 1),)
    assert found.moved_bytes == 2


def test_a_slow_node_is_given_less() -> None:
    shards = shards_of([1.0] * 30, [index % 2 for index in range(30)], {0: "fast", 1: "slow"}, slow=0.5)
    found = plan_balance(shards, theta=1.01)
    assert np.bincount(found.task_of).tolist() == [20, 10]
    assert found.delta_after == pytest.approx(1.0)


def test_one_hot_shard_is_named_and_nothing_is_moved_for_it() -> None:
    shards = shards_of([8, 1, 1], [0, 1, 2], {0: "a", 1: "a", 2: "a"})
    found = plan_balance(shards)
    assert found.moves == ()
    assert "shard 0 alone is 80% of the load" in found.reason


def test_a_task_that_cannot_be_relieved_does_not_keep_others_from_it() -> None:
    shards = shards_of([20, 5, 5, 0, 0], [0, 1, 1, 2, 3], {0: "a", 1: "a", 2: "a", 3: "a"})
    found = plan_balance(shards, theta=1.0)
    assert sorted(np.bincount(found.task_of, weights=shards.load, minlength=4)) == [0, 5, 5, 20]


def test_a_thousand_shards_on_sixty_four_tasks_are_balanced() -> None:
    load = 1 / np.arange(1, 1025) ** 0.5
    nodes = {task: f"n{task // 8}" for task in range(64)}
    shards = Shards("match", load, (np.arange(1024) % 64).astype(np.int32), nodes, np.full(1024, 32_768))
    found = plan_balance(shards)
    assert found.delta_after <= THETA < found.delta_before
    assert len(found.moves) <= 64


@given(executors())
def test_going_on_finely_moves_nothing_across_nodes_beyond_what_the_goal_took(shards: Shards) -> None:
    coarse, fine = plan_balance(shards), plan_balance(shards, fine=1.01)
    assert fine.delta_after <= coarse.delta_after + 1e-9
    assert fine.moved_bytes <= coarse.moved_bytes
    if not coarse.moves:
        assert not fine.moves


def test_inside_a_node_balancing_goes_on_to_the_fine_goal() -> None:
    rng = np.random.default_rng(3)
    loads = rng.random(256).tolist()
    shards = shards_of(loads, [0] * 140 + [1] * 60 + [2] * 56, {0: "a", 1: "a", 2: "a"})
    assert plan_balance(shards, THETA).delta_after > 1.02
    assert plan_balance(shards, THETA, fine=1.02).delta_after <= 1.02
