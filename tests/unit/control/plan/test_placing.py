"""From cores per node to the plan of an executor."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.estimate import Estimate, ExecutorEstimate, NodeEstimate, TaskEstimate
from penstock.control.plan.assignment import plan_assignment
from penstock.control.plan.checking import check_plan
from penstock.control.plan.placing import derive_core_demand, plan_executor, plan_executors
from penstock.control.plan.plan import Plan
from penstock.control.plan.shards import Shards
from penstock.control.policy.protocol import Limits


def executor(
    name: str, nodes: list[str], shards: int = 32, state: int = 1000, flow: float = 0.0
) -> ExecutorEstimate:
    task_of = (np.arange(shards) % len(nodes)).astype(np.int32)
    return ExecutorEstimate(
        name,
        name,
        task_of,
        tuple(TaskEstimate(index, node, 100.0) for index, node in enumerate(nodes)),
        np.full(shards, 5.0),
        np.full(shards, 0.05),
        np.zeros(shards),
        np.full(shards, np.nan),
        np.full(shards, state),
        100.0,
        in_bytes_per_s=flow,
    )


def estimate(executors: list[ExecutorEstimate], cores: dict[str, int]) -> Estimate:
    nodes = {name: NodeEstimate(name, held) for name, held in cores.items()}
    return Estimate(0.0, {one.name: one for one in executors}, nodes)


@st.composite
def wishes(draw: st.DrawFn) -> tuple[Shards, dict[str, int]]:
    count = draw(st.integers(8, 40))
    indexes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    tasks = {index: draw(st.sampled_from("abc")) for index in indexes}
    task_of = draw(st.lists(st.sampled_from(indexes), min_size=count, max_size=count))
    load = draw(st.lists(st.floats(0, 3, allow_subnormal=False), min_size=count, max_size=count))
    cores = {node: draw(st.integers(0, 3)) for node in "abcd"}
    cores["a"] += not any(cores.values())
    size = np.arange(count)
    return Shards("match", np.array(load), np.array(task_of, dtype=np.int32), tasks, size), cores


@given(wishes())
def test_tasks_are_on_the_nodes_assigned_and_every_shard_has_one(wish: tuple[Shards, dict[str, int]]) -> None:
    shards, cores = wish
    found = plan_executor(shards, cores)
    assert found.plan.cores_by_node() == {node: held for node, held in cores.items() if held}
    assert np.isin(found.plan.task_of, list(found.plan.tasks)).all()


@given(wishes())
def test_a_task_that_stays_keeps_index_and_node_and_no_index_is_used_twice(
    wish: tuple[Shards, dict[str, int]],
) -> None:
    shards, cores = wish
    found = plan_executor(shards, cores)
    kept = set(shards.tasks) & set(found.plan.tasks)
    assert all(shards.tasks[index] == found.plan.tasks[index] for index in kept)
    assert set(found.dropped) == set(shards.tasks) - kept
    assert set(found.added) == set(found.plan.tasks) - kept


@given(wishes())
def test_a_plan_carried_out_asks_for_nothing_more(wish: tuple[Shards, dict[str, int]]) -> None:
    shards, cores = wish
    plan = plan_executor(shards, cores).plan
    again = plan_executor(Shards("match", shards.load, plan.task_of, plan.tasks, shards.state_bytes), cores)
    assert again.changes_nothing


def test_new_tasks_take_the_lowest_free_indexes() -> None:
    shards = Shards("match", np.ones(12), np.array([0, 2, 5] * 4, dtype=np.int32), {0: "a", 2: "a", 5: "b"})
    assert plan_executor(shards, {"a": 3, "b": 2}).added == (1, 3)


def test_the_task_goes_whose_state_is_smallest() -> None:
    size = np.array([9, 1, 9, 9, 1, 9])
    shards = Shards(
        "match", np.ones(6), np.array([0, 1, 2] * 2, dtype=np.int32), dict.fromkeys(range(3), "a"), size
    )
    assert plan_executor(shards, {"a": 2}).dropped == (1,)


def test_nothing_changes_when_demands_are_as_they_are() -> None:
    now = estimate([executor("match", ["a", "a", "b"]), executor("count", ["b"])], {"a": 4, "b": 4})
    assert plan_executors(now, plan_assignment(derive_core_demand(now, {}))) == {}


def test_from_an_estimate_and_core_counts_to_a_plan_that_passes_the_check() -> None:
    now = estimate([executor("match", ["a", "a", "b"]), executor("count", ["b", "b"])], {"a": 4, "b": 4})
    found = plan_executors(
        now, plan_assignment(derive_core_demand(now, {"match": 5, "count": 1}), give_back=True)
    )
    plan = Plan({name: one.plan for name, one in found.items()})
    check_plan(plan, now, Limits(max_cores=8))
    assert {name: one.k for name, one in plan.executors.items()} == {"match": 5, "count": 1}


def test_home_is_where_most_state_is_and_a_node_that_is_lost_has_no_cores() -> None:
    one = executor("match", ["a", "b", "b", "gone"])
    state = np.where(one.task_of == 0, 10_000, 10)
    moved = ExecutorEstimate(**{**one.__dict__, "state_bytes": state, "in_bytes_per_s": 800.0})
    demand = derive_core_demand(estimate([moved], {"a": 2, "b": 2}), {"match": 4})
    assert demand.present.tolist() == [[1, 2]]
    assert demand.home.tolist() == [0]
    assert demand.bytes_per_s.tolist() == [200.0]


def test_a_node_is_drained_by_giving_it_no_capacity() -> None:
    now = estimate([executor("match", ["a", "a", "b"]), executor("count", ["b"])], {"a": 4, "b": 4})
    found = plan_executors(now, plan_assignment(derive_core_demand(now, {}, {"a": 4, "b": 0})))
    after = Counter(node for one in found.values() for node in one.plan.tasks.values())
    assert after == {"a": 4}
