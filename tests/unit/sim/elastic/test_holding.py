"""Every policy in the closed loop, on loads that ask for little: a steady one, one that nothing can serve, and one whose
samples are lost for a while."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from penstock.control.apply.journal import Decision, Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import Sample
from penstock.control.policy.protocol import Limits
from penstock.control.policy.registry import make_policy
from penstock.control.sla import OPERATOR, SLA
from penstock.sim.elastic.arrivals import poisson_arrivals
from penstock.sim.elastic.compare import make_guards
from penstock.sim.elastic.setting import Setting, SimExecutor, SimNode, SimOperator, spread_evenly
from penstock.sim.elastic.simulation import Simulation

SHARDS, SERVICE_PER_S, MAX_TASKS = 64, 200.0, 8
BOUND = SLA(1.0, 1.0, scope=OPERATOR)
NODES = (SimNode("a", 4), SimNode("b", 4))
POLICIES = (
    "drs",
    "drs-lb",
    "elasticutor",
    "esstream",
    "naive-ec",
    "penstock",
    "resource-centric",
    "static",
    "streamswitch",
)


@dataclass
class Loop:
    """A policy at the head of a simulated executor."""

    policy: str
    rate_per_s: float
    tasks: int
    seconds: float
    service_per_s: float = SERVICE_PER_S
    every_s: float = 1.0

    def __post_init__(self) -> None:
        weights = 1.0 + np.arange(SHARDS) % 3
        feed = poisson_arrivals(self.rate_per_s * weights / weights.sum(), self.seconds, seed=7)
        placed = SimExecutor("op", spread_evenly(SHARDS, NODES, self.tasks))
        setting = Setting(NODES, (SimOperator("op", SHARDS, self.service_per_s),), {"op": placed})
        self.sim = Simulation(setting, {"op": feed}, BOUND, self.seconds)
        self.journal = Journal(capacity=100_000)
        chosen = make_policy(self.policy)
        limits = Limits(MAX_TASKS, len(NODES), len(NODES), 4)
        measurer, guards = Measurer(Measuring(BOUND.window)), make_guards(chosen)
        self.control = ControlLoop(measurer, chosen, BOUND, limits, guards, self.sim, self.journal)

    def run(self, until_s: float, losing: bool = False) -> list[Decision]:
        """Go on; return the decisions that acted in between."""
        found = []
        while self.sim.now_s < until_s - 1e-9:
            self.sim.advance(self.sim.now_s + self.every_s)
            sample = self.sim.sample()
            decision = self.control.turn(_emptied(sample) if losing else sample)
            found += [decision] if decision.acted else []
        return found

    @property
    def k(self) -> int:
        return self.sim.current()["op"].k


def _emptied(sample: Sample) -> Sample:
    return replace(sample, executors={})


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_a_steady_load_leads_to_no_action_for_ten_hours(policy: str) -> None:
    loop = Loop(policy, 360.0, 4, 10 * 3600.0 + 600.0, service_per_s=160.0, every_s=5.0)
    settling = loop.run(600.0)
    assert len(settling) <= 3, [str(one) for one in settling]
    assert [str(one) for one in loop.run(10 * 3600.0 + 600.0)] == []
    assert loop.sim.success("op").min() > 0.999


@pytest.mark.parametrize("policy", POLICIES)
def test_a_steady_load_does_not_make_it_swing(policy: str) -> None:
    loop = Loop(policy, 500.0, 5, 90.0)
    loop.run(30.0)
    assert [str(one) for one in loop.run(90.0)] == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_that_nothing_can_serve_is_diagnosed_and_is_no_storm(policy: str) -> None:
    loop = Loop(policy, 1.6 * MAX_TASKS * SERVICE_PER_S, 4, 60.0)
    acted = loop.run(25.0)
    assert loop.run(60.0) == [] and len(acted) <= (0 if policy == "static" else 5)
    assert loop.k == (4 if policy == "static" else MAX_TASKS)
    last = loop.journal.decisions()[-1]
    assert last.count > 35, "one entry tells of all the turns since"
    if policy != "static":
        assert "nothing can help" in str(last) or "cannot serve the load" in str(last), str(last)


@pytest.mark.parametrize("policy", [one for one in POLICIES if one != "static"])
def test_it_waits_while_samples_are_lost_and_then_goes_on(policy: str) -> None:
    loop = Loop(policy, 1100.0, 4, 40.0)
    assert loop.run(6.0, losing=True) == []
    loop.run(40.0)
    assert loop.k > 4
