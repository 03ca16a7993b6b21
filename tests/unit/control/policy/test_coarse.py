"""The coarse step: what has held for minutes leads to one split or merge, everything else to nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import Estimate, ExecutorEstimate, NodeEstimate, TaskEstimate
from penstock.control.plan.checking import check_plan
from penstock.control.plan.plan import Pass, Plan
from penstock.control.policy.coarse import CoarseStep
from penstock.control.policy.elasticutor import ElasticutorPolicy
from penstock.control.policy.penstock import PenstockPolicy
from penstock.control.policy.protocol import Limits
from penstock.control.policy.registry import make_policy
from penstock.errors import PlanError

LIMITS = Limits(64, max_nodes=8, cores_per_node=4, redeals=True)


def executor(
    name: str, nodes: list[str], shards: list[int], load: float, total: int = 16, operator: str = "match"
) -> ExecutorEstimate:
    """An executor with a task on each of these nodes, its shards dealt in turn, and so much load altogether."""
    task_of = np.full(total, -1, np.int32)
    task_of[shards] = np.arange(len(shards)) % len(nodes)
    held = task_of >= 0
    each = np.where(held, load / max(1, len(shards)), 0.0)
    tasks = tuple(TaskEstimate(index, node, 100.0) for index, node in enumerate(nodes))
    state = np.where(held, 1000, 0).astype(np.int64)
    return ExecutorEstimate(
        name, operator, task_of, tasks, 100 * each, each, np.zeros(total), np.zeros(total), state, 100.0
    )


def estimate(at_s: float, *executors: ExecutorEstimate, nodes: int = 3, cores: int = 4) -> Estimate:
    there = {f"n{number}": NodeEstimate(f"n{number}", cores) for number in range(nodes)}
    return Estimate(at_s, {one.name: one for one in executors}, there)


def outgrown(at_s: float) -> Estimate:
    return estimate(at_s, executor("match", ["n0"] * 4 + ["n1"] * 2, [*range(16)], 5.0))


def test_an_executor_that_holds_more_cores_than_its_home_node_has_is_split_after_minutes() -> None:
    step = CoarseStep(every_s=180)
    assert all(step.propose(outgrown(float(at)), LIMITS) is None for at in range(0, 180, 10))
    found = step.propose(outgrown(180.0), LIMITS)
    assert found is not None and found.plan is not None
    (one,) = found.plan.passes
    assert (one.giver, one.taker) == ("match", "") and len(one.shards) in range(6, 11)
    assert "match holds 6 cores, its home node n0 has 4 for 180 s" in found.symptom
    assert found.action.startswith("split match: ")
    check_plan(found.plan, outgrown(180.0), LIMITS)


def test_a_reason_that_goes_away_in_between_begins_anew() -> None:
    step = CoarseStep(every_s=180)
    step.propose(outgrown(0.0), LIMITS)
    step.propose(estimate(100.0, executor("match", ["n0"] * 4, [*range(16)], 3.0)), LIMITS)
    assert step.propose(outgrown(190.0), LIMITS) is None
    assert step.propose(outgrown(370.0), LIMITS) is not None


def test_another_number_of_cores_is_the_same_reason() -> None:
    step = CoarseStep(every_s=180)
    for at in range(0, 180, 10):
        cores = ["n0"] * 4 + ["n1"] * (2 + at // 10 % 2)
        assert step.propose(estimate(float(at), executor("match", cores, [*range(16)], 5.0)), LIMITS) is None
    assert step.propose(outgrown(180.0), LIMITS) is not None


def test_a_step_that_was_held_back_is_still_due() -> None:
    step = CoarseStep(every_s=60)
    step.propose(outgrown(0.0), LIMITS)
    for at in (60.0, 61.0):
        assert step.propose(outgrown(at), LIMITS) is not None
        step.note_failure()
    assert step.propose(outgrown(62.0), LIMITS) is not None
    assert step.propose(outgrown(63.0), LIMITS) is None
    step.note_failure()  # of something else
    assert step.propose(outgrown(70.0), LIMITS) is None


@pytest.mark.parametrize("policy", [ElasticutorPolicy, PenstockPolicy])
def test_a_policy_passes_a_failure_on_to_its_step(policy: type) -> None:
    step = CoarseStep(every_s=60)
    step.propose(outgrown(0.0), LIMITS)
    assert step.propose(outgrown(60.0), LIMITS) is not None
    policy(coarse=step).note_failure("cooling down")
    assert step.propose(outgrown(61.0), LIMITS) is not None


@pytest.mark.parametrize("name", ["naive-ec", "resource-centric", "static"])
def test_a_baseline_never_splits_nor_merges(name: str) -> None:
    station = make_station(np.full(24, 20.0), 100.0, 6)
    station.tasks.update({4: "n1", 5: "n1"})
    nodes = {name: NodeEstimate(name, 4) for name in ("n0", "n1")}
    limits = Limits(6, max_nodes=2, cores_per_node=4, redeals=True)
    world = World({"match": station}, nodes, limits, turn_s=30.0)
    policy = make_policy(name)
    for _ in range(30):
        found = world.turn(policy)
        assert found.plan is None or not found.plan.passes


def test_two_executors_that_need_little_of_one_node_are_merged_into_the_first() -> None:
    step = CoarseStep(every_s=60)

    def idle(at_s: float, load: float = 0.5) -> Estimate:
        first = executor("match", ["n0"], [*range(8)], load)
        return estimate(at_s, first, executor("match#2", ["n1"], [*range(8, 16)], load))

    step.propose(idle(0.0), LIMITS)
    found = step.propose(idle(60.0, 0.4), LIMITS)
    assert found is not None and found.plan is not None
    assert found.plan.passes == (Pass("match#2", "match", tuple(range(8, 16))),)
    check_plan(found.plan, idle(60.0), LIMITS)
    busy = CoarseStep(every_s=60)
    busy.propose(idle(0.0, 1.5), LIMITS)
    assert busy.propose(idle(60.0, 1.5), LIMITS) is None


@pytest.mark.parametrize(("held", "merged"), [(1, True), (2, False)])
def test_executors_are_merged_only_where_one_node_has_room_for_the_cores_they_hold(
    held: int, merged: bool
) -> None:
    first = executor("match", ["n0"] * 3, [*range(8)], 0.1)
    second = executor("match#2", ["n1"] * held, [*range(8, 16)], 0.1)
    found = CoarseStep(every_s=0).propose(estimate(0.0, first, second, cores=4), LIMITS)
    assert (found is not None) is merged


def test_the_operators_own_executor_takes_though_the_other_one_has_more_to_do() -> None:
    first, second = (
        executor("match", ["n0"], [*range(8)], 0.1),
        executor("match#2", ["n1"], [*range(8, 16)], 0.3),
    )
    found = CoarseStep(every_s=0).propose(estimate(0.0, first, second), LIMITS)
    assert found is not None and found.plan is not None
    assert [(one.giver, one.taker) for one in found.plan.passes] == [("match#2", "match")]


@pytest.mark.parametrize(("heavy", "splits"), [(0, True), (1, False)])
def test_the_home_of_an_executor_is_the_node_with_most_of_its_state(heavy: int, splits: bool) -> None:
    """Two tasks on a node of four cores and four on one of eight."""
    one = executor("match", ["n0"] * 2 + ["n1"] * 4, [*range(18)], 3.0, total=18)
    state = np.where((one.task_of < 2) == (heavy == 0), 9000, 10).astype(np.int64)
    now = estimate(0.0, replace(one, state_bytes=state))
    now = replace(now, nodes={"n0": NodeEstimate("n0", 4), "n1": NodeEstimate("n1", 8)})
    assert (CoarseStep(every_s=0).propose(now, LIMITS) is not None) is splits


def test_executors_of_different_operators_are_never_merged() -> None:
    step = CoarseStep(every_s=0)
    apart = executor("count", ["n1"], [*range(16)], 0.1, operator="count")
    assert step.propose(estimate(0.0, executor("match", ["n0"], [*range(16)], 0.1), apart), LIMITS) is None


def test_there_is_one_step_in_so_many_seconds() -> None:
    step = CoarseStep(every_s=60)
    found = [step.propose(outgrown(float(at)), LIMITS) is not None for at in range(0, 300, 10)]
    assert 1 <= sum(found) <= 4
    steps = [at for at, one in zip(range(0, 300, 10), found, strict=True) if one]
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(steps))


def test_what_is_more_pressing_comes_first_and_the_step_is_not_lost() -> None:
    step = CoarseStep(every_s=60)
    assert all(step.propose(outgrown(float(at)), LIMITS, calm=False) is None for at in range(0, 100, 10))
    assert step.propose(outgrown(100.0), LIMITS) is not None


def test_nothing_is_proposed_where_nobody_can_carry_it_out() -> None:
    step = CoarseStep(every_s=0)
    assert step.propose(outgrown(0.0), Limits(64)) is None


def test_a_pass_of_shards_that_the_giver_lacks_is_refused() -> None:
    now = outgrown(0.0)
    for wrong in (Pass("count", "", (1,)), Pass("match", "other", (1,)), Pass("match", "", ())):
        with pytest.raises(PlanError, match="plan: "):
            check_plan(Plan(passes=(wrong,)), now, LIMITS)
    assert not Plan(passes=(Pass("match", "", (1,)),)).changes_nothing


@pytest.mark.parametrize("policy", [ElasticutorPolicy, PenstockPolicy])
def test_the_policies_take_the_step_when_nothing_else_is_to_be_done(policy: type) -> None:
    station = make_station(np.full(24, 20.0), 100.0, 6)
    station.tasks.update({4: "n1", 5: "n1"})
    nodes = {name: NodeEstimate(name, 4) for name in ("n0", "n1")}
    world = World({"match": station}, nodes, Limits(6, max_nodes=2, cores_per_node=4, redeals=True))
    chosen = policy(coarse=CoarseStep(every_s=10.0))
    found = [world.turn(chosen) for _ in range(16)]
    (split,) = [one for one in found if one.plan is not None and one.plan.passes]
    assert split.plan is not None and split.plan.passes[0].giver == "match" and not split.plan.executors
    world = World({"match": make_station(np.full(24, 20.0), 100.0, 6)}, nodes, Limits(6))
    assert not any(
        one.plan is not None and one.plan.passes for one in [world.turn(policy()) for _ in range(16)]
    )
