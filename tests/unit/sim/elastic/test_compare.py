"""The comparison, driven by policies that do one thing each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.measure.estimate import EpochCosts, Estimate
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.sla import OPERATOR, SLA
from penstock.errors import DeclarationError
from penstock.sim.elastic.arrivals import poisson_arrivals
from penstock.sim.elastic.cases import Case, order_stream_case
from penstock.sim.elastic.compare import NO_GUARDS, Contender, compare, run, run_oracle, static, summarise
from penstock.sim.elastic.setting import (
    EpochTiming,
    Setting,
    SimExecutor,
    SimNode,
    SimOperator,
    spread_evenly,
)
from penstock.sim.elastic.simulation import Simulation
from penstock.sim.elastic.truth import Truth

NODES = (SimNode("a", 4), SimNode("b", 4))


def small_case(seed: int = 1) -> Case:
    operator = SimOperator("op", 16, 100.0)

    def setting(tasks: int) -> Setting:
        return Setting(NODES, (operator,), {"op": SimExecutor("op", spread_evenly(16, NODES, tasks))})

    return Case(
        "small",
        seed,
        setting,
        lambda: {"op": poisson_arrivals(np.full(16, 15.0), 60.0, seed)},
        SLA(0.5, 1.0, scope=OPERATOR),
        60.0,
        Limits(8),
        "op",
        2,
        0.5,
    )


class OnceToFour:
    """Asks for four tasks at ten seconds."""

    name = "once"

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        if now.at_s < 10 or now.executors["op"].k == 4 or now.treating:
            return Proposal(None, "", "no change")
        placed = spread_evenly(16, NODES, 4)
        return Proposal(Plan({"op": ExecutorPlan(placed.tasks, placed.task_of)}), "ten seconds", "four tasks")

    def note_failure(self, reason: str) -> None:
        raise AssertionError(reason)


def test_a_policy_that_adds_tasks_is_carried_out_counted_and_pays_for_them() -> None:
    case = small_case()
    two, once = run(case, static(2)), run(case, Contender("once", OnceToFour, guards=NO_GUARDS))
    assert two.success < once.success < 1
    assert (two.actions, once.actions) == (0, 1)
    assert once.decisions[0].at_s == 10
    assert two.mean_tasks == 2
    assert once.mean_tasks == pytest.approx((10 * 2 + 50 * 4) / 60, abs=0.1)
    assert once.moved_shards == 8
    assert once.series.tasks[5] == 2
    assert once.series.tasks[-1] == 4


def test_the_oracle_comes_first_and_bounds_the_others() -> None:
    results = compare([small_case(1), small_case(2)], [static(2), static(4)])
    table = summarise(results)
    assert [one.policy for one in table] == ["oracle", "static_2", "static_4"]
    assert all(one.seeds == 2 for one in table)
    assert table[0].success == max(one.success for one in table)


def test_runs_of_one_seed_are_equal() -> None:
    one, other = (run(small_case(), static(3)) for _ in range(2))
    assert (one.success, one.mean_s, one.rows) == (other.success, other.mean_s, other.rows)


def test_the_oracle_of_an_order_day_loses_little_more_than_the_openings() -> None:
    result = run_oracle(order_stream_case(1))
    assert 0.99 < result.success < 0.9975  # 75,000 orders take at least 19 s of 20 tasks, twice in 14,400


def test_the_first_minute_of_an_order_day_runs_with_its_opening() -> None:
    result = run(order_stream_case(1, seconds=60.0), static(20))
    assert result.success < 0.5
    assert result.rows > 100_000


# What the truth says


def judged(at: list[float], done: list[float], sla: SLA, waiting: list[float] | None = None) -> float:
    truth = Truth(1, sla, 10.0)
    truth.add(np.array(at), np.array(done), np.zeros(len(at), np.int64))
    late = np.array(waiting or [])
    return float(truth.success(10.0, (late, np.zeros(len(late), np.int64)))[0])


def test_a_window_is_met_when_the_mean_of_the_rows_completed_in_it_is_within_the_bound() -> None:
    assert judged([0.0, 0.0], [0.4, 0.8], SLA(0.5)) == 0.9  # mean 0.6
    assert judged([0.0, 0.3], [0.4, 0.8], SLA(0.5)) == 1.0


def test_a_quantile_is_met_by_the_share_of_rows_over_the_bound() -> None:
    at = [0.0] * 10
    done = [0.1] * 9 + [0.9]
    assert judged(at, done, SLA(0.5, 1.0, 0.9)) == 1.0
    assert judged(at, done, SLA(0.5, 1.0, 0.95)) == 0.9


def test_a_shard_that_is_held_up_fails_every_window_in_which_its_rows_wait_too_long() -> None:
    # The row arrives at 1.5 and leaves at 5.2: the windows that end at 3, 4 and 5 pass without it, and 6 has it.
    assert judged([1.5], [5.2], SLA(1.0)) == pytest.approx(0.6)
    # One that never leaves: from the window that ends at 9 on.
    assert judged([], [], SLA(1.0), waiting=[7.5]) == pytest.approx(0.8)


def test_longer_windows_are_judged_from_shorter_ones() -> None:
    truth = Truth(1, SLA(1.0, 1.0), 10.0)
    truth.add(np.array([0.0, 1.9]), np.array([1.5, 2.1]), np.zeros(2, np.int64))
    none = np.empty(0), np.empty(0, np.int64)
    assert truth.success(10.0, none)[0] == 0.9
    assert truth.success(10.0, none, SLA(1.0, 5.0))[0] == 1.0
    with pytest.raises(DeclarationError, match="multiple of 1 s"):
        truth.success(10.0, none, SLA(1.0, 1.5))


def test_a_case_can_be_judged_by_another_bound() -> None:
    loose = replace(small_case(), sla=SLA(5.0, 1.0, scope=OPERATOR))
    assert run(loose, static(3)).success >= run(small_case(), static(3)).success


def test_samples_have_the_quantile_that_the_sla_bounds() -> None:
    case = order_stream_case(1, seconds=20.0)
    sim = Simulation(case.setting(5), case.feeds(), SLA(1.0, quantile=0.5), 20.0)
    sim.advance(5.0)
    sample = sim.sample()
    (found,) = sample.latency_quantiles_s.items()
    assert found[0] == 0.5 and sample.latency_p99_s is not None and 0 < found[1] < sample.latency_p99_s
    assert all(one.latency_quantiles_s.keys() == {0.5} for one in sample.executors.values())


def test_where_the_engine_steps_in_epochs_their_costs_are_fitted() -> None:
    """What a policy is given is near what the simulated engine really costs, and far from what is assumed at first."""
    timing, seen = EpochTiming(0.05, 0.002, 0.0001), list[EpochCosts]()

    class Look(OnceToFour):
        def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
            seen.append(now.executors["op"].epoch)
            return Proposal(None, "", "no change")

    case = small_case()
    case = replace(case, setting=lambda tasks: replace(small_case().setting(tasks), epochs=timing))
    run(case, Contender("look", Look, tasks=4))
    told = seen[-1]
    told_s, real_s = (one.o0_s + 4 * one.o1_s + 16 * one.o2_s for one in (told, timing))
    assert told_s == pytest.approx(real_s, rel=0.1)
    assert 1.0 < told.c < 2.0
