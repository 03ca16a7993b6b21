"""Cores that may be taken, nodes asked for once, nodes given back in order."""

from __future__ import annotations

import numpy as np
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.policy.negotiation import Negotiator, derive_free_cores, derive_usable_cores
from penstock.control.policy.protocol import Limits


def world_of(*nodes: str) -> World:
    return World({"a": make_station(np.ones(4), 10.0, 2)}, {name: NodeEstimate(name, 4) for name in nodes})


def test_free_cores_keep_the_limit_of_all_and_of_each_node() -> None:
    world = world_of("n0", "n1")
    free = derive_free_cores(world.estimate(), Limits(5))
    assert free.usable == 3 and free.choose("n0") == "n0"
    for _ in range(2):
        free.take("n0")
    assert free.choose("n0") == "n1"
    free.take("n1")
    assert free.choose("n0") is None and free.usable == 0
    free.give_back("n1")
    assert free.choose("n0") == "n1"
    assert derive_usable_cores(world.estimate(), Limits(50)) == 8


def test_a_new_task_goes_near_only_where_the_near_node_is_about_as_fast_as_the_best_that_is_free() -> None:
    world = world_of("n0", "n1", "n2")
    speeds = {"n0": 0.25, "n1": 1.0, "n2": 0.9}
    world.nodes = {name: NodeEstimate(name, 4, speed=speeds[name]) for name in speeds}
    free = derive_free_cores(world.estimate(), Limits(12))
    assert free.choose("n0") == "n1" and free.choose("n2") == "n2"
    for _ in range(4):
        free.take("n1")
    assert free.choose("n1") == "n2"
    for _ in range(4):
        free.take("n2")
    assert free.choose("n1") == "n0", "a slow core is better than none"


def test_one_shortage_leads_to_one_request_until_it_had_time_to_be_answered() -> None:
    world, limits = world_of("n0"), Limits(64, 1, 4, 4, node_start_s=10)
    negotiator = Negotiator()
    asked = []
    for at_s in range(30):
        now = world.estimate(at_s=float(at_s))
        negotiator.look(now)
        asked.append(negotiator.ask(now, limits, 5))
    assert [at for at, nodes in enumerate(asked) if nodes] == [0, 20] and asked[0] == 2
    assert negotiator.ask(world.estimate(at_s=30.0), limits, 0) == 0
    assert negotiator.ask(world.estimate(at_s=40.0), limits, 50) == 3


def test_nodes_that_came_later_are_given_back_first_and_the_least_number_stays() -> None:
    negotiator, limits = Negotiator(idle_s=5), Limits(64, 2, 4)
    negotiator.look(world_of("n0", "n1").estimate(at_s=0.0))
    later = world_of("n0", "n1", "a2")
    negotiator.look(later.estimate(at_s=1.0))
    assert negotiator.release(later.estimate(at_s=4.0), limits) == ()
    negotiator.look(later.estimate(at_s=9.0))
    assert negotiator.release(later.estimate(at_s=9.0), limits) == ("a2",)


def test_free_cores_are_offered_by_need_where_they_are_short_and_all_but_the_needed_where_not() -> None:
    world = World({"a": make_station(np.ones(4), 10.0, 2)}, {"n0": NodeEstimate("n0", 12)})
    free = derive_free_cores(world.estimate(), Limits(12))
    assert free.offer(14, 6).usable == 7 and free.offer(6, 14).usable == 3
    assert free.offer(2, 3).usable == 7 and free.offer(0, 4).usable == 6 and free.offer(0, 30).usable == 0
    assert free.offer(1, 300).usable == 1
    free.offer(5, 5).take("n0")
    assert free.usable == 10


def test_a_plan_that_was_refused_later_leaves_an_earlier_request_as_it_is() -> None:
    world = World({"a": make_station([50.0] * 8, 100.0, 4)}, nodes={"n0": NodeEstimate("n0", 4)})
    limits = Limits(64, 1, 8, 4, node_start_s=60.0)
    negotiator = Negotiator()
    for turn, (wanted, refused) in enumerate([(1, False), (0, True), (0, False)]):
        world.at_s = float(turn)
        negotiator.look(world.estimate())
        assert negotiator.ask(world.estimate(), limits, 4) == wanted
        if refused:
            negotiator.forget()


def test_a_request_that_was_refused_itself_is_made_again() -> None:
    world = World({"a": make_station([50.0] * 8, 100.0, 4)}, nodes={"n0": NodeEstimate("n0", 4)})
    limits, negotiator = Limits(64, 1, 8, 4, node_start_s=60.0), Negotiator()
    for turn in range(2):
        world.at_s = float(turn)
        negotiator.look(world.estimate())
        assert negotiator.ask(world.estimate(), limits, 4) == 1
        negotiator.forget()
