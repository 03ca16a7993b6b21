"""static, and that every policy here is known by its name."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.policy.protocol import Limits
from penstock.control.policy.registry import make_policy
from penstock.control.policy.static import StaticPolicy
from penstock.errors import DeclarationError


@pytest.mark.parametrize("tasks", [1, 3, 8])
def test_shards_are_dealt_evenly_once_and_then_left_alone(tasks: int) -> None:
    rates = np.arange(1.0, 65.0)
    world = World({"match": make_station(rates, 200.0, 2)}, noise=0.2)
    world.run(StaticPolicy(tasks=tasks), 50)
    counts = np.bincount(world.stations["match"].task_of)
    assert world.k("match") == tasks and counts.max() - counts.min() <= 1 and len(world.plans) == 1


def test_cores_that_are_not_there_are_not_taken() -> None:
    world = World({"match": make_station(np.ones(16), 200.0, 1)}, {"n0": NodeEstimate("n0", 3)}, Limits(8))
    world.run(StaticPolicy(tasks=6), 5)
    assert world.k("match") == 3


def test_without_a_number_everything_stays_as_it_was_declared() -> None:
    stations = {"a": make_station(np.arange(16.0), 200.0, 1), "b": make_station(np.ones(16), 200.0, 3)}
    stations["b"].task_of = np.repeat([2, 0, 1], [9, 6, 1]).astype(np.int32)
    world = World(stations, limits=Limits(8))
    world.run(StaticPolicy(), 5)
    assert not world.plans and world.k("a") == 1 and world.k("b") == 3


def test_what_was_declared_comes_back_where_a_task_was_lost() -> None:
    world = World({n: make_station(np.ones(16), 200.0, 4) for n in "ab"}, limits=Limits(8))
    policy = StaticPolicy()
    world.run(policy, 2)
    del world.stations["a"].tasks[2]
    world.run(policy, 3)
    (plan,) = world.plans
    assert set(plan.executors) == {"a"} and world.k("a") == 4


def test_shards_of_a_lost_task_are_dealt_again() -> None:
    world = World({"match": make_station(np.ones(16), 200.0, 4)})
    policy = StaticPolicy(tasks=4)
    world.run(policy, 3)
    del world.stations["match"].tasks[2]
    world.run(policy, 2)
    assert world.k("match") == 4 and not world.proposals[-1].plan


def test_no_task_is_refused() -> None:
    with pytest.raises(DeclarationError, match="at least 1"):
        StaticPolicy(tasks=0)


@pytest.mark.parametrize("name", ["drs", "drs-lb", "esstream", "static", "streamswitch"])
def test_every_policy_is_known_by_its_name_and_also_as_advice(name: str) -> None:
    assert make_policy(name).name == name
    advice = make_policy(f"advise:{name}", **({"tasks": 4} if name == "static" else {}))
    world = World({"match": make_station(np.full(64, 20.0), 200.0, 2)})
    world.stations["match"].backlog[:] = 50
    for _ in range(5):
        found = world.turn(advice)
        assert found.plan is None
    assert "not done" in found.action
