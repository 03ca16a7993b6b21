"""What a plan costs: what moves, how far, and how much state goes with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import Estimate, NodeEstimate
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.pricing import MOVE_S, PAUSE_S, WITHIN_NODE_S, derive_cost_s
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.policy.registry import make_policy
from penstock.control.sla import SLA

LIMITS = Limits(8, move_bytes_per_s=1e6)
EACH, WHOLE = SLA(1.0, scope="operator"), SLA(1.0)


def estimate(state_bytes: int = 0, sources: float = 40.0) -> Estimate:
    """Four shards of 10 rows a second: two tasks on n0, one on n1."""
    station = make_station(np.full(4, 10.0), 100.0, 3)
    station.tasks, station.task_of = {0: "n0", 1: "n0", 2: "n1"}, np.array([0, 0, 1, 2], np.int32)
    nodes = {name: NodeEstimate(name, 4) for name in ("n0", "n1")}
    now = World({"a": station}, nodes, LIMITS, sources={"s": sources}).estimate()
    sized = replace(now.executors["a"], state_bytes=np.full(4, state_bytes, np.int64))
    return replace(now, executors={"a": sized})


def plan(*task_of: int, **more: bool) -> Plan:
    then = ExecutorPlan({0: "n0", 1: "n0", 2: "n1"}, np.array(task_of, np.int32))
    return Plan({"a": then}, **more)  # type: ignore[arg-type]


def test_a_shard_that_stays_costs_nothing_and_one_inside_a_node_moves_no_state() -> None:
    now = estimate(state_bytes=10**9)
    assert derive_cost_s(now, plan(0, 0, 1, 2), EACH, LIMITS) == 0
    inside = derive_cost_s(now, plan(0, 1, 1, 2), EACH, LIMITS)
    assert inside == pytest.approx(WITHIN_NODE_S**2 / 2 / 4)


def test_a_shard_that_crosses_nodes_is_held_up_by_its_state() -> None:
    small, large = (derive_cost_s(estimate(size), plan(0, 2, 1, 2), EACH, LIMITS) for size in (0, 10**7))
    assert small == pytest.approx(MOVE_S**2 / 2 / 4)
    assert large == pytest.approx((MOVE_S + 10.0) ** 2 / 2 / 4)


def test_a_task_that_changes_its_node_takes_its_shards_along() -> None:
    there = ExecutorPlan({0: "n1", 1: "n0", 2: "n1"}, np.array([0, 0, 1, 2], np.int32))
    cost_s = derive_cost_s(estimate(10**6), Plan({"a": there}), EACH, LIMITS)
    assert cost_s == pytest.approx(2 * (MOVE_S + 1.0) ** 2 / 2 / 4)


def test_a_pause_of_everything_holds_up_all_rows_for_all_moves() -> None:
    cost_s = derive_cost_s(estimate(10**6), plan(2, 2, 1, 2, global_pause=True), EACH, LIMITS)
    assert cost_s == pytest.approx((PAUSE_S + 2 * (MOVE_S + 1.0)) ** 2 / 2)


def test_end_to_end_the_delay_is_shared_by_the_rows_of_the_sources() -> None:
    one, two = (derive_cost_s(estimate(0, s), plan(0, 2, 1, 2), WHOLE, LIMITS) for s in (40.0, 20.0))
    assert two == pytest.approx(2 * one)


@pytest.mark.parametrize(
    "policy", ["penstock", "elasticutor", "naive-ec", "resource-centric", "streamswitch", "drs", "esstream"]
)
def test_every_policy_prices_its_plans_by_the_state_that_moves(policy: str) -> None:
    def first(state_bytes: int) -> Proposal:
        station = make_station(np.full(32, 20.0), 100.0, 3)
        station.backlog[:] = 20.0
        nodes = {"n0": NodeEstimate("n0", 3), "n1": NodeEstimate("n1", 12)}
        world = World({"a": station}, nodes, Limits(15, min_nodes=2, max_nodes=2))
        chosen = make_policy(policy)
        for _ in range(20):
            world.at_s += 1.0
            now = world.estimate()
            sized = replace(now.executors["a"], state_bytes=np.full(32, state_bytes, np.int64))
            found = chosen.propose(replace(now, executors={"a": sized}), world.sla, world.limits)
            if found.plan is not None:
                return found
        raise AssertionError("no plan")

    small, large = first(1000), first(10**9)
    assert 0 < small.cost_s < 1 < large.cost_s
