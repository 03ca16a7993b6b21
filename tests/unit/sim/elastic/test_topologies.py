from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.sim.elastic.simulation import Simulation
from penstock.sim.elastic.topologies import paper_case, topology_case
from penstock.workloads.paper_topologies import FREQUENT_PATTERNS, LOGO_DETECTION, derive_rates


def test_rows_reach_every_station_at_the_rate_of_the_traffic_equations() -> None:
    case = topology_case(
        FREQUENT_PATTERNS.scaled(0.2),
        {"generator": 6, "detector": 13, "reporter": 3},
        seconds=200.0,
        step_s=0.5,
    )
    sim = Simulation(case.setting(0), case.feeds(), case.sla, case.seconds)
    sim.advance(case.seconds)
    for name, rate in derive_rates(FREQUENT_PATTERNS, 64.0).items():
        assert sim.sample().executors[name].arrived.sum() == pytest.approx(200 * rate, rel=0.05)
    edges = sim.sample().edges
    assert edges["detector", "detector"] == pytest.approx(
        0.1 * sim.truth["detector"].completed().sum(), rel=0.1
    )


def test_a_chain_under_light_load_takes_about_the_sum_of_its_service_times() -> None:
    slow = LOGO_DETECTION.scaled(0.05)
    case = topology_case(slow, {"extract": 10, "match": 10, "aggregate": 1}, seconds=3000.0, step_s=1.0)
    sim = Simulation(case.setting(0), case.feeds(), case.sla, case.seconds)
    sim.advance(350.0)
    # 25 matches of a frame are spread over ten tasks, so the last one waits for some others.
    least = 0.27 / 0.05 + 0.014 / 0.05
    assert least < sim.end_to_end.mean_s() < 6 * least
    assert not np.isnan(sim.end_to_end_success())


def test_rows_in_turn_go_to_every_shard_alike() -> None:
    case = topology_case(
        LOGO_DETECTION, {"extract": 4, "match": 4, "aggregate": 1}, seconds=60.0, step_s=0.5, max_cores=9
    )
    sim = Simulation(case.setting(0), case.feeds(), case.sla, case.seconds)
    sim.advance(60.0)
    for name in ("extract", "match"):
        arrived = sim.sample().executors[name].arrived
        assert arrived.max() - arrived.min() <= 1, "dealt in turn"
    assert np.ptp(sim.sample().executors["aggregate"].arrived) > 1, "by key"


def test_a_burst_sends_all_of_its_rows_or_none() -> None:
    first, second = LOGO_DETECTION.links
    bulky = replace(LOGO_DETECTION, links=(replace(first, burst=100), second))
    case = topology_case(bulky, {"extract": 8, "match": 8, "aggregate": 1}, seconds=100.0, step_s=0.5)
    sim = Simulation(case.setting(0), case.feeds(), case.sla, case.seconds)
    sim.advance(100.0)
    sent = sim.sample().edges["extract", "match"]
    assert sent % 100 == 0
    assert sent == pytest.approx(25 * sim.sample().executors["extract"].completed.sum(), rel=0.25)


def test_a_paper_case_starts_with_what_its_load_needs_or_with_as_many_as_are_asked_for() -> None:
    case = paper_case("commcount", 1, seconds=10.0)
    held = [one.plan.k for one in case.setting(case.tasks).executors.values()]
    assert sum(held) == case.tasks and held == [2, 7, 5]
    assert sum(one.plan.k for one in case.setting(20).executors.values()) == 20
