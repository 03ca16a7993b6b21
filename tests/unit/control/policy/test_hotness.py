"""Shards that are as much as a core can do: how they are found, and that every policy names them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.policy.hotness import find_hot_shard, find_hot_shard_of, with_hot_shard
from penstock.control.policy.protocol import Limits
from penstock.control.policy.registry import make_policy
from penstock.control.sla import SLA

HOT = "one shard of match, 5, is 31% of the load and alone needs 1.9 cores"


def overloaded(cores: int = 4) -> World:
    """1,200 rows a second where four cores do 800, 375 of them on one shard."""
    rates = np.full(64, 825.0 / 63)
    rates[5] = 375.0
    return World(
        {"match": make_station(rates, 200.0, 2)},
        nodes={"n0": NodeEstimate("n0", cores)},
        limits=Limits(max_cores=cores),
        sla=SLA(0.5, scope="operator"),
        sources={"in": 1200.0},
        edges={("in", "match"): 1200.0},
    )


@pytest.mark.parametrize(
    "name", ["streamswitch", "drs", "drs:k_max=4", "elasticutor", "naive-ec", "esstream"]
)
def test_where_cores_are_short_a_shard_that_no_core_can_help_is_named_too(name: str) -> None:
    world, policy = overloaded(), make_policy(name)
    world.run(policy, 60)
    still = [one for one in world.proposals[-20:] if one.plan is None]
    said = [f"{one.symptom}; {one.action}" for one in still]
    assert said and all(HOT in one for one in said), said[-1:]
    assert all(one.count(HOT) == 1 for one in said)


def test_the_hottest_shard_is_held_against_the_fastest_node_there_is() -> None:
    now = overloaded().estimate()
    assert str(find_hot_shard(now, ["match", "gone"])).startswith(HOT)
    assert find_hot_shard_of(now.executors["match"], [2.0]) is None


def test_a_problem_and_a_hot_shard_are_told_once_each() -> None:
    hot = find_hot_shard(overloaded().estimate(), ["match"])
    assert with_hot_shard("6 cores are wanted and 4 can be had", hot).startswith(
        f"6 cores are wanted and 4 can be had; {HOT}"
    )
    assert with_hot_shard(str(hot), hot) == with_hot_shard("", hot) == str(hot)
    assert with_hot_shard("as it is", None) == "as it is" and with_hot_shard("", None) == ""
