"""More cores are held than may be: the next plan holds no more, whatever the policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.policy.protocol import Limits
from penstock.control.policy.registry import make_policy
from penstock.control.policy.shrinking import propose_within


@pytest.mark.parametrize("policy", ["penstock", "streamswitch", "elasticutor", "drs", "esstream"])
def test_a_limit_below_what_is_held_is_kept_by_the_first_plan(policy: str) -> None:
    world = World({"a": make_station(np.full(16, 10.0), 100.0, 6)}, limits=Limits(2))
    chosen = make_policy(policy)
    acted = next(one for one in (world.turn(chosen) for _ in range(30)) if one.plan is not None)
    assert acted.plan is not None and acted.plan.executors["a"].k <= 2
    world.run(chosen, 10)
    assert world.k("a") <= 2


@pytest.mark.parametrize("policy", ["penstock", "streamswitch"])
def test_it_is_said_with_the_numbers_and_done_at_once(policy: str) -> None:
    world = World({"a": make_station(np.full(16, 10.0), 100.0, 6)}, limits=Limits(2))
    found = world.turn(make_policy(policy))
    assert found.symptom == "6 cores are held and 2 may be" and found.urgent
    assert found.action == "gave up cores: a 6 -> 2 cores"


def test_tasks_on_a_node_that_lost_its_cores_go_first() -> None:
    station = make_station(np.full(16, 10.0), 100.0, 6)
    station.tasks = {0: "n0", 1: "n0", 2: "n0", 3: "n1", 4: "n1", 5: "n1"}
    world = World({"a": station}, {"n0": NodeEstimate("n0", 4), "n1": NodeEstimate("n1", 1)}, Limits(8))
    found = propose_within(world.estimate(), world.limits)
    assert found is not None and found.plan is not None
    assert found.plan.executors["a"].cores_by_node() == {"n0": 3, "n1": 2}


def test_nothing_is_given_up_while_a_plan_is_carried_out_or_below_one_core_each() -> None:
    world = World({n: make_station(np.full(8, 10.0), 100.0, 1) for n in "ab"}, limits=Limits(1))
    assert propose_within(world.estimate(), world.limits) is None
    world = World({"a": make_station(np.full(8, 10.0), 100.0, 4)}, limits=Limits(1))
    assert propose_within(world.estimate(treating=True), world.limits) is None


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.0, 50.0)), min_size=1, max_size=5), st.integers(0, 30)
)
def test_the_limit_is_used_up_and_nobody_gets_more_than_it_had(
    executors: list[tuple[int, float]], limit: int
) -> None:
    stations = {f"e{at}": make_station(np.full(8, rate), 100.0, k) for at, (k, rate) in enumerate(executors)}
    world = World(stations, limits=Limits(limit))
    held = sum(k for k, _ in executors)
    found = propose_within(world.estimate(), world.limits)
    if held <= limit or all(k == 1 for k, _ in executors):
        assert found is None
        return
    assert found is not None and found.plan is not None
    then = {
        name: found.plan.executors[name].k if name in found.plan.executors else world.k(name)
        for name in stations
    }
    assert all(1 <= then[name] <= world.k(name) for name in stations)
    assert sum(then.values()) == max(limit, len(stations))
