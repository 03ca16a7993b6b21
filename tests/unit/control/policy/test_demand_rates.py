"""Rates that policies count on: those of the traffic equations, whatever arrives while a backlog comes or goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.demand import derive_demand
from penstock.control.policy.drs import DrsPolicy


def loop(faster: float) -> World:
    """100 rows a second enter a chain with a loop, of which `a` completes so many times what lasts: 125 a second there,
    half as many at `b`, which sends two on to `c` and 0.4 back for each."""
    a, b = 125.0 * faster, 62.5 * faster
    arriving = {"a": 100.0 + 0.4 * b, "b": b, "c": 2 * b}
    edges = {("in", "a"): 100.0, ("a", "b"): b, ("b", "a"): 0.4 * b, ("b", "c"): 2 * b}
    world = World(
        {name: make_station(np.full(32, rate / 32), 60.0, 3) for name, rate in arriving.items()},
        edges=edges,
        sources={"in": 100.0},
    )
    world.stations["a"].service_per_s = a / 3
    return world


def seen(world: World) -> Estimate:
    """All tasks are busy with what arrives, those of `a` all the time."""
    now = world.estimate()
    found = {}
    for name, one in now.executors.items():
        ratio = 1.0 if name == "a" else one.rate_per_s / (one.k * one.service_per_s)
        found[name] = replace(one, tasks=tuple(replace(task, useful_ratio=ratio) for task in one.tasks))
    return replace(now, executors=found)


@pytest.mark.parametrize("faster", [1.0, 2.0, 4.0])
def test_what_a_backlog_that_is_worked_off_sends_on_is_no_load_that_lasts(faster: float) -> None:
    demand = derive_demand(seen(loop(faster)))
    assert demand.rate_per_s == pytest.approx({"a": 125.0, "b": 62.5, "c": 125.0})


def test_drs_asks_for_no_more_cores_while_a_backlog_is_worked_off_than_before() -> None:
    def asked(faster: float) -> str:
        world, policy = loop(faster), DrsPolicy(k_max=3)
        now = replace(seen(world), latency_s=5.0)
        policy.propose(now, world.sla, world.limits)
        found = policy.propose(replace(now, at_s=1.0), world.sla, world.limits)
        return found.symptom + found.action

    assert "b 2, c 3" in asked(1.0) and "b 2, c 3" in asked(4.0)


def test_without_a_backlog_the_greater_of_what_arrives_and_what_will_counts() -> None:
    world = loop(1.0)
    world.stations["c"].rates *= 1.2
    assert derive_demand(seen(world)).rate_per_s["c"] == pytest.approx(150.0)
