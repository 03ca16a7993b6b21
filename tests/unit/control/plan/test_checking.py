"""What a plan is refused for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from penstock.control.measure.estimate import Estimate, ExecutorEstimate, NodeEstimate, TaskEstimate
from penstock.control.plan.checking import check_plan
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.protocol import Limits
from penstock.errors import PlanError

LIMITS = Limits(max_cores=5, min_nodes=1, max_nodes=3)


def executor(name: str, tasks: dict[int, str], task_of: list[int]) -> ExecutorEstimate:
    zeros = np.zeros(len(task_of))
    return ExecutorEstimate(
        name,
        name,
        np.array(task_of, dtype=np.int32),
        tuple(TaskEstimate(index, node, 1.0) for index, node in tasks.items()),
        zeros,
        zeros,
        zeros,
        zeros,
        np.zeros(len(task_of), dtype=np.int64),
        1.0,
    )


NOW = Estimate(
    0.0,
    {
        "match": executor("match", {0: "a", 1: "a"}, [0, 1, 0, 1, -1, -1]),
        "count": executor("count", {0: "b"}, [0, 0, 0, 0, 0, 0]),
    },
    {"a": NodeEstimate("a", 3), "b": NodeEstimate("b", 3)},
)


def planned(tasks: dict[int, str], task_of: list[int]) -> ExecutorPlan:
    return ExecutorPlan(tasks, np.array(task_of, dtype=np.int32))


def of_match(tasks: dict[int, str], task_of: list[int]) -> Plan:
    return Plan({"match": planned(tasks, task_of)})


def test_a_plan_that_can_be_carried_out_passes() -> None:
    check_plan(of_match({0: "a", 1: "b", 2: "b"}, [0, 1, 2, 2, -1, -1]), NOW, LIMITS)
    check_plan(Plan(), NOW, LIMITS)
    check_plan(Plan(add_nodes=1), NOW, LIMITS)
    check_plan(Plan({"count": planned({0: "a"}, [0] * 6)}, release_nodes=("b",)), NOW, LIMITS)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (lambda: Plan({"mach": planned({0: "a"}, [0] * 6)}), "no executor 'mach'; there is count, match"),
        (lambda: of_match({0: "c"}, [0, 0, 0, 0, -1, -1]), "node 'c', which does not exist; there is a, b"),
        (lambda: of_match({}, [-1] * 6), "'match' would have 0 tasks: give it at least 1"),
        (lambda: of_match({-1: "a"}, [-1] * 6), "an index is 0 or more"),
        (lambda: of_match(dict.fromkeys(range(5), "a"), [0, 1, 2, 3, -1, -1]), "5 tasks for 4 shards"),
        (
            lambda: of_match({0: "a"}, [0, 0, 1, 1, -1, -1]),
            r"shard 2 of executor 'match' \(2 in all\) has task 1",
        ),
        (lambda: of_match({0: "a"}, [0, 0, 0, -1, -1, -1]), "shard 3 of executor 'match'"),
        (lambda: of_match({0: "a"}, [0, 0, 0, 0, 0, -1]), "shard 4 .* is not of executor 'match'"),
        (lambda: of_match({0: "a"}, [0] * 4), "maps 4 shards and its operator has 6"),
        (
            lambda: of_match(dict.fromkeys(range(4), "a"), [0, 1, 2, 3, -1, -1]),
            "'a' would give 4 cores and has 3",
        ),
        (lambda: of_match({0: "a", 1: "b", 2: "b", 3: "b"}, [0, 1, 2, 3, -1, -1]), "'b' would give 4 cores"),
        (lambda: Plan(release_nodes=("a",)), "'match', which the plan does not name, has task 0 there"),
        (
            lambda: Plan({"match": planned({0: "a"}, [0, 0, 0, 0, -1, -1])}, release_nodes=("a",)),
            "put it on a node",
        ),
        (lambda: Plan(release_nodes=("z",)), "'z' is to be released and does not exist"),
        (lambda: Plan(add_nodes=2), "leave 4 nodes where 1 to 3 are allowed"),
        (lambda: Plan(add_nodes=-1), "-1 nodes are to be added"),
    ],
)
def test_a_plan_that_cannot_is_refused_with_the_numbers(plan: Callable[[], Plan], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        check_plan(plan(), NOW, LIMITS)


def test_more_cores_in_all_than_are_allowed_are_refused() -> None:
    plan = of_match({0: "a", 1: "a", 2: "b"}, [0, 1, 2, 2, -1, -1])
    with pytest.raises(PlanError, match="would hold 4 cores and may hold 3: take 1 away"):
        check_plan(plan, NOW, Limits(max_cores=3))


def test_where_more_is_held_than_may_be_a_plan_that_holds_no_more_passes() -> None:
    """A limit was lowered, and a node has lost cores: each step on the way down is one."""
    low = Limits(max_cores=1)
    small = replace(NOW, nodes={"a": NodeEstimate("a", 1), "b": NodeEstimate("b", 3)})
    check_plan(of_match({0: "a"}, [0, 0, 0, 0, -1, -1]), NOW, low)
    check_plan(of_match({0: "a", 1: "a"}, [1, 1, 0, 0, -1, -1]), small, LIMITS)
    with pytest.raises(PlanError, match="would hold 4 cores and may hold 1"):
        check_plan(of_match({0: "a", 1: "a", 2: "a"}, [0, 1, 2, 2, -1, -1]), NOW, low)
    with pytest.raises(PlanError, match="'a' would give 3 cores and has 1"):
        check_plan(of_match({0: "a", 1: "a", 2: "a"}, [0, 1, 2, 2, -1, -1]), small, LIMITS)


def test_a_task_that_stays_on_a_node_that_is_not_known_passes() -> None:
    gone = replace(NOW, nodes={"b": NodeEstimate("b", 3)})
    check_plan(of_match({0: "a", 1: "a"}, [1, 1, 0, 0, -1, -1]), gone, LIMITS)
    with pytest.raises(PlanError, match="node 'a', which does not exist"):
        check_plan(of_match({0: "a", 1: "a", 2: "a"}, [0, 1, 2, 2, -1, -1]), gone, LIMITS)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            ExecutorPlan({0: "a"}, [0, 0, 0, 0, -1, -1]),  # type: ignore[arg-type]
            "task_of of executor 'match' is a list: give an array of 6 whole numbers, the task of each shard",
        ),
        (
            ExecutorPlan({0: "a"}, np.zeros(6)),  # type: ignore[arg-type]
            "task_of of executor 'match' is an array of 1 dimensions of float64: give an array of 6 whole numbers",
        ),
        (
            ExecutorPlan({0: "a"}, np.zeros((2, 3), np.int32)),
            "task_of of executor 'match' is an array of 2 dimensions of int32",
        ),
        (
            ExecutorPlan({0: "a"}, np.zeros(4, np.int32)),
            "'match' maps 4 shards and its operator has 6: map every shard",
        ),
        ({0: "a"}, "'match' has a dict: give an ExecutorPlan"),
    ],
)
def test_a_plan_of_the_wrong_shape_is_refused_with_what_is_needed(wanted: ExecutorPlan, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        check_plan(Plan({"match": wanted}), NOW, LIMITS)
