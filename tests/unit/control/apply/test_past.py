"""What the loop remembers of its actions: which of several is rolled back where latency got worse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.apply.journal import Journal
from penstock.control.apply.past import Beginning, Past, pressure_of
from penstock.control.measure.estimate import Estimate
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan, Plan

GUARDS = Guards(settle_s=3.0, blame_s=30.0)


class Plane:
    """Carries out every plan at once."""

    def __init__(self, world: World) -> None:
        self.world = world

    def current(self) -> Mapping[str, ExecutorPlan]:
        return {name: ExecutorPlan(dict(one.tasks), one.task_of) for name, one in self.world.stations.items()}

    def status(self, ticket: Ticket) -> Outcome | None:
        return Outcome(True)

    def apply(self, plan: Plan) -> Ticket:
        return Ticket(0)


class Run:
    """Two executors, actions that are given, and the latency that is measured."""

    def __init__(self) -> None:
        self.world = World({name: make_station(np.full(4, 10.0), 200.0, 2) for name in ("a", "b")})
        self.plane = Plane(self.world)
        self.past = Past(self.plane, Journal())

    def see(self, latency_s: float) -> Estimate:
        self.world.at_s += 1.0
        for one in self.world.stations.values():
            one.service_per_s = 20.0 + 1.0 / latency_s  # M/M/1: 20 rows a second a task
        now = self.world.estimate()
        self.past.follow_up(now, self.world.sla)
        return now

    def act(self, number: int, name: str, now: Estimate) -> None:
        before = {name: self.plane.current()[name]}
        self.past.begin(
            number, now, Plan(before), Ticket(number), Beginning(before, None, None, GUARDS.settle_s)
        )

    def find(self, now: Estimate) -> int | None:
        found = self.past.find_regret(now, self.world.sla, GUARDS)
        return None if found is None else found[0].number


def test_an_action_for_another_executor_does_not_hide_what_got_worse() -> None:
    run = Run()
    for number, name in ((1, "a"), (2, "b")):
        run.act(number, name, run.see(0.1))
    named = [run.find(run.see(2.0)) for _ in range(6)]
    assert named[:2] == [None, None] and named[-1] == 2, "the newest is named first"
    run.past.settle(2)
    assert run.find(run.see(2.0)) == 1


def test_an_action_for_the_same_executor_supersedes_the_one_before_it() -> None:
    run = Run()
    for number in (1, 2):
        run.act(number, "a", run.see(0.1))
    assert [run.find(run.see(2.0)) for _ in range(6)][-1] == 2
    run.past.settle(2)
    assert run.find(run.see(2.0)) is None


def test_nothing_is_named_while_what_was_done_since_has_not_settled() -> None:
    run = Run()
    run.act(1, "a", run.see(0.1))
    for _ in range(4):
        run.see(0.1)
    run.act(2, "b", run.see(0.1))
    assert run.find(run.see(2.0)) is None and run.find(run.see(2.0)) is None


def with_hot_shard(now: Estimate, name: str) -> Estimate:
    """The same rows, one shard of which takes more than a core."""
    load = now.executors[name].load.copy()
    load[0] = 1.2
    return replace(now, executors={**now.executors, name: replace(now.executors[name], load=load)})


def test_nothing_is_blamed_for_a_shard_that_needs_more_than_a_core() -> None:
    run = Run()
    run.act(1, "a", run.see(0.1))
    assert [run.find(with_hot_shard(run.see(2.0), "b")) for _ in range(6)] == [None] * 6
    assert run.find(run.see(2.0)) == 1


def test_what_chance_makes_of_the_rows_done_is_known_from_how_many_were_counted() -> None:
    now = Run().see(0.1)
    counted = {
        name: replace(one, done_per_s=10.0, done_over_s=2.5 if name == "a" else None)
        for name, one in now.executors.items()
    }
    pressure = pressure_of(replace(now, executors=counted))
    assert pressure.done_per_s == 20.0 and pressure.chance_per_s == pytest.approx(2.0)
    assert not pressure.has_hot_shard


def test_rows_that_are_counted_by_epochs_are_off_by_part_of_one() -> None:
    now = Run().see(0.1)
    counted = {
        name: replace(one, done_per_s=2_400.0, done_over_s=1.0, processing_s=2.5, commit_s=0.5)
        for name, one in now.executors.items()
        if name == "a"
    }
    assert pressure_of(replace(now, executors=counted)).chance_per_s > 2_400.0


@pytest.mark.parametrize(
    ("before_s", "blamed"),
    [
        ([0.02] * 25 + [0.1] * 5, True),
        (list(np.linspace(0.02, 0.1, 30)), True),
        ([0.05, 0.9, 0.02, 0.1] * 8, False),
    ],
    ids=["a burst", "a rise", "few rows a window"],
)
def test_an_action_is_blamed_for_a_rise_unless_latency_always_differs_as_much(
    before_s: list[float], blamed: bool
) -> None:
    run = Run()
    for latency_s in before_s:
        now = run.see(latency_s)
    run.act(1, "a", now)
    for _ in range(6):
        now = run.see(1.5)
    assert (run.find(now) == 1) == blamed
