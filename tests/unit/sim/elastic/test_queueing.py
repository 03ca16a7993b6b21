"""The simulator against queueing theory: what must hold before any policy is believed on it."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.measure.sample import F64
from penstock.control.sla import SLA
from penstock.sim.elastic.arrivals import poisson_arrivals
from penstock.sim.elastic.oracle import derive_oracle
from penstock.sim.elastic.setting import (
    EXPONENTIAL,
    FIXED,
    EpochTiming,
    Setting,
    SimEdge,
    SimExecutor,
    SimNode,
    SimOperator,
    spread_evenly,
)
from penstock.sim.elastic.simulation import Simulation

NODES = (SimNode("a", 8), SimNode("b", 8))
MU = 100.0


def simulate(
    rates: F64,
    seconds: float,
    service: str = FIXED,
    tasks: int = 1,
    epochs: EpochTiming | None = None,
    seed: int = 1,
) -> Simulation:
    shards = len(rates)
    setting = Setting(
        NODES,
        (SimOperator("op", shards, MU, service),),
        {"op": SimExecutor("op", spread_evenly(shards, NODES, tasks))},
        epochs=epochs,
        step_s=2.0,
    )
    sim = Simulation(setting, {"op": poisson_arrivals(rates, seconds, seed)}, SLA(1.0, 1.0), seconds, seed)
    sim.advance(seconds)
    return sim


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_a_task_with_exponential_service_is_an_mm1_queue(rho: float) -> None:
    sim = simulate(np.full(4, rho * MU / 4), 1500.0, EXPONENTIAL)
    assert sim.truth["op"].mean_s() == pytest.approx(1 / (MU * (1 - rho)), rel=0.06)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_a_task_with_fixed_service_is_an_md1_queue(rho: float) -> None:
    sim = simulate(np.full(4, rho * MU / 4), 1500.0)
    assert sim.truth["op"].mean_s() == pytest.approx((1 + rho / (2 * (1 - rho))) / MU, rel=0.05)


def test_the_length_of_a_step_does_not_change_when_rows_leave() -> None:
    found = []
    for step_s in (0.01, 0.1, 3.0):
        setting = Setting(
            NODES,
            (SimOperator("op", 8, MU),),
            {"op": SimExecutor("op", spread_evenly(8, NODES, 3))},
            step_s=step_s,
        )
        sim = Simulation(setting, {"op": poisson_arrivals(np.full(8, 35.0), 60.0, 5)}, SLA(1.0), 60.0)
        sim.advance(60.0)
        found.append((sim.truth["op"].mean_s(), int(sim.truth["op"].completed().sum())))
    assert [count for _, count in found] == [found[0][1]] * 3
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-9)
    assert found[2][0] == pytest.approx(found[0][0], rel=1e-9)


def test_an_epoch_under_light_load_costs_one_and_a_half_times_its_length() -> None:
    # Rows wait half an epoch on average for the next to begin: the c of the epoch model.
    timing = EpochTiming(o0_s=0.05, o1_s=0.0, o2_s=0.0)
    setting = Setting(
        NODES,
        (SimOperator("op", 4, 1e5),),
        {"op": SimExecutor("op", spread_evenly(4, NODES, 2))},
        epochs=timing,
    )
    sim = Simulation(setting, {"op": poisson_arrivals(np.full(4, 200.0), 60.0)}, SLA(1.0), 60.0)
    sim.advance(60.0)
    assert sim.truth["op"].mean_s() == pytest.approx(1.5 * 0.05, rel=0.05)
    sample = sim.sample().executors["op"]
    assert sample.epochs_s / sample.epochs == pytest.approx(0.05, rel=0.05)


def test_a_steady_load_gives_a_steady_latency() -> None:
    sim = simulate(np.full(16, 20.0), 600.0, tasks=5)
    _, mean, _ = sim.truth["op"].series()
    assert np.nanmean(mean[:300]) == pytest.approx(np.nanmean(mean[300:]), rel=0.1)
    assert sim.success("op").mean() == 1.0


def test_every_row_that_arrives_is_completed_or_waits() -> None:
    sim = simulate(np.full(16, 20.0), 100.0, tasks=3)  # 320/s on 300/s: a backlog that grows
    totals = sim.sample().executors["op"]
    waiting = np.bincount(sim.waiting("op")[1], minlength=16)
    assert waiting.sum() > 1000
    np.testing.assert_array_equal(totals.completed + waiting, totals.arrived)
    np.testing.assert_array_equal(totals.completed, sim.truth["op"].completed())


def test_useful_time_is_what_the_rows_needed() -> None:
    sim = simulate(np.full(8, 20.0), 100.0, tasks=4)
    sample = sim.sample().executors["op"]
    assert sample.busy_s.sum() == pytest.approx(sample.completed.sum() / MU)
    assert sum(task.busy_s for task in sample.tasks) == pytest.approx(sample.busy_s.sum())
    assert sum(task.rows for task in sample.tasks) == sample.completed.sum()


@pytest.mark.parametrize("epochs", [None, EpochTiming()])
def test_the_same_seed_gives_the_same_run_and_another_one_does_not(epochs: EpochTiming | None) -> None:
    def once(seed: int) -> tuple[float, int]:
        sim = simulate(np.full(8, 30.0), 50.0, EXPONENTIAL, 3, epochs, seed)
        return sim.truth["op"].mean_s(), int(sim.truth["op"].completed().sum())

    assert once(3) == once(3)
    assert once(3) != once(4)


def test_a_slow_node_serves_in_proportion_to_its_speed() -> None:
    nodes = (SimNode("slow", 1, 0.5),)
    setting = Setting(
        nodes, (SimOperator("op", 2, MU),), {"op": SimExecutor("op", spread_evenly(2, nodes, 1))}, step_s=2.0
    )
    sim = Simulation(setting, {"op": poisson_arrivals(np.full(2, 15.0), 800.0)}, SLA(1.0), 800.0)
    sim.advance(800.0)
    assert sim.truth["op"].mean_s() == pytest.approx((1 + 0.6 / (2 * 0.4)) / (0.5 * MU), rel=0.05)


def test_end_to_end_latency_counts_until_the_last_derived_row_and_a_loop_has_the_jackson_mean() -> None:
    # Half of the rows of `op` go round again: it sees twice the rate, and a row passes it twice on average.
    operators = (SimOperator("op", 4, MU, EXPONENTIAL), SimOperator("back", 4, MU, EXPONENTIAL))
    placed = spread_evenly(4, NODES, 1)
    setting = Setting(
        NODES,
        operators,
        {"op": SimExecutor("op", placed), "back": SimExecutor("back", placed)},
        (SimEdge("op", "back", 0.5), SimEdge("back", "op")),
        step_s=0.02,
    )
    sim = Simulation(setting, {"op": poisson_arrivals(np.full(4, 7.0), 200.0)}, SLA(1.0), 200.0)
    sim.advance(200.0)
    assert sim.truth["op"].completed().sum() == pytest.approx(2 * 28 * 200, rel=0.05)
    expected = 2 / (MU - 56) + 1 / (MU - 28)
    assert 0.93 * expected < sim.end_to_end.mean_s() < 1.15 * expected  # a step is up to 0.02 s late


def test_a_row_that_leads_to_two_is_done_with_when_the_slower_one_is() -> None:
    operators = tuple(SimOperator(name, 1, mu) for name, mu in (("op", 1e6), ("fast", 1e3), ("slow", 10.0)))
    placed = spread_evenly(1, NODES, 1)
    setting = Setting(
        NODES,
        operators,
        {one.name: SimExecutor(one.name, placed) for one in operators},
        (SimEdge("op", "fast"), SimEdge("op", "slow")),
    )
    sim = Simulation(setting, {"op": poisson_arrivals(np.full(1, 0.2), 1000.0)}, SLA(1.0), 1000.0)
    sim.advance(1000.0)
    assert sim.end_to_end.mean_s() == pytest.approx(0.1, rel=0.05)


def test_the_oracle_is_a_pooled_queue_and_no_placement_beats_it() -> None:
    rates = np.full(16, 20.0)
    truth, success = derive_oracle(poisson_arrivals(rates, 500.0, 1), MU, 4, SLA(0.05, 1.0), 500.0)
    sim = simulate(rates, 500.0, tasks=4)
    assert success >= sim.success("op", SLA(0.05, 1.0)).mean()
    pooled = 0.8 / (2 * 0.2 * 4 * MU) + 1 / MU
    assert truth.mean_s() == pytest.approx(pooled, rel=0.05)
