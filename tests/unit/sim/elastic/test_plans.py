"""What acting costs in a simulation: moves, new tasks, pauses, lost nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.sla import SLA
from penstock.errors import PlanError
from penstock.sim.elastic.arrivals import poisson_arrivals
from penstock.sim.elastic.setting import (
    Costs,
    EpochTiming,
    NodeLost,
    NodeSpeed,
    Setting,
    SimExecutor,
    SimNode,
    SimOperator,
    spread_evenly,
)
from penstock.sim.elastic.simulation import Simulation

NODES = (SimNode("a", 4), SimNode("b", 4))
COSTS = Costs(move_fixed_s=0.5, move_bytes_per_s=1e6, task_start_s=0.3)
SHARDS = 16


def start(
    tasks: int = 4,
    rate: float = 10.0,
    *,
    seconds: float = 60.0,
    costs: Costs = COSTS,
    seed: int = 1,
    **more: object,
) -> Simulation:
    setting = Setting(
        NODES,
        (SimOperator("op", SHARDS, 100.0, state_bytes=250_000),),
        {"op": SimExecutor("op", spread_evenly(SHARDS, NODES, tasks))},
        costs=costs,
        **more,  # type: ignore[arg-type]
    )
    feed = poisson_arrivals(np.full(SHARDS, rate), seconds, seed)
    return Simulation(setting, {"op": feed}, SLA(0.2, 1.0), seconds, seed)


def moved(sim: Simulation, shard: int, task: int) -> Plan:
    now = sim.current()["op"]
    task_of = now.task_of.copy()
    task_of[shard] = task
    return Plan({"op": ExecutorPlan(now.tasks, task_of)})


def finish_and_count(sim: Simulation, seconds: float) -> None:
    """Every row is there exactly once, whatever was done."""
    sim.advance(seconds)
    sample = sim.sample().executors["op"]
    waiting = np.bincount(sim.waiting("op")[1], minlength=SHARDS)
    np.testing.assert_array_equal(sample.completed + waiting, sample.arrived)
    np.testing.assert_array_equal(sim.truth["op"].completed(), sample.completed)


@pytest.mark.parametrize("epochs", [None, EpochTiming()])
def test_a_move_to_another_node_holds_up_only_its_shard(epochs: EpochTiming | None) -> None:
    sim = start(epochs=epochs)
    sim.advance(20.0)
    ticket = sim.apply(moved(sim, 0, 1))  # tasks 0 and 1 are on different nodes
    assert sim.sample().treating
    assert sim.status(ticket) is None
    sim.advance(22.0)
    outcome = sim.status(ticket)
    assert outcome is not None and outcome.ok
    assert outcome.held_up_s == pytest.approx(0.75)  # 0.5 s and 250 kB at 1 MB/s
    assert (outcome.moved_shards, outcome.moved_bytes) == (1, 250_000)
    assert not sim.sample().treating
    finish_and_count(sim, 60.0)
    met = sim.success("op")
    assert met[0] < 1.0
    assert (met[1:] == 1.0).all()


def test_rows_of_a_held_shard_wait_and_are_served_in_order_at_its_new_task() -> None:
    sim = start(rate=2.0)
    sim.advance(20.0)
    before = sim.sample().executors["op"].completed[0]
    sim.apply(moved(sim, 0, 1))
    sim.advance(20.7)
    held = sim.sample().executors["op"]
    assert held.completed[0] == before
    assert held.task_of[0] == 0
    sim.advance(21.5)
    after = sim.sample().executors["op"]
    assert after.task_of[0] == 1
    assert after.arrived[0] - after.completed[0] <= 1
    assert sim.truth["op"].quantile_s(1.0) < 0.9


def test_a_move_inside_a_node_costs_nearly_nothing() -> None:
    sim = start()
    sim.advance(20.0)
    ticket = sim.apply(moved(sim, 0, 2))  # tasks 0 and 2 share a node
    finish_and_count(sim, 60.0)
    outcome = sim.status(ticket)
    assert outcome is not None
    assert outcome.held_up_s == pytest.approx(COSTS.within_node_s)
    assert outcome.moved_bytes == 0
    assert (sim.success("op") == 1.0).all()


def test_a_new_task_is_paid_for_at_once_and_takes_shards_once_it_is_up() -> None:
    sim = start(tasks=4)
    sim.advance(10.0)
    now = sim.current()["op"]
    task_of = now.task_of.copy()
    task_of[:2] = 4
    sim.apply(Plan({"op": ExecutorPlan({**now.tasks, 4: "a"}, task_of)}))
    assert sim.usage.steps()[1][-1] == 5
    sim.advance(10.2)
    assert len(sim.sample().executors["op"].tasks) == 4
    sim.advance(12.0)
    sample = sim.sample().executors["op"]
    assert [task.index for task in sample.tasks] == [0, 1, 2, 3, 4]
    assert (sample.task_of[:2] == 4).all()
    finish_and_count(sim, 40.0)
    assert sim.usage.mean_tasks() == pytest.approx((10 * 4 + 30 * 5) / 40)


def test_a_task_that_is_taken_away_ends_after_its_shards_have_left() -> None:
    sim = start(tasks=4)
    sim.advance(10.0)
    now = sim.current()["op"]
    task_of = np.where(now.task_of == 3, 1, now.task_of).astype(np.int32)
    sim.apply(Plan({"op": ExecutorPlan({k: n for k, n in now.tasks.items() if k != 3}, task_of)}))
    assert len(sim.current()["op"].tasks) == 4
    finish_and_count(sim, 30.0)
    assert len(sim.current()["op"].tasks) == 3
    assert not (sim.current()["op"].task_of == 3).any()


def test_a_global_pause_holds_every_shard_up() -> None:
    sim = start()
    sim.advance(20.0)
    ticket = sim.apply(replace(moved(sim, 0, 1), global_pause=True))
    finish_and_count(sim, 60.0)
    outcome = sim.status(ticket)
    assert outcome is not None
    assert outcome.held_up_s >= 0.75 + 2 * COSTS.sync_s
    assert (sim.success("op") < 1.0).all()


def test_a_plan_that_cannot_be_carried_out_changes_nothing_and_says_why() -> None:
    sim = start()
    sim.advance(1.0)
    now = sim.current()["op"]
    wrong = {
        "no node elsewhere": Plan({"op": ExecutorPlan({**now.tasks, 4: "elsewhere"}, now.task_of)}),
        "has 4 cores": Plan({"op": ExecutorPlan(dict.fromkeys(range(5), "a"), now.task_of)}),
        "no executor other": Plan({"other": now}),
        "task 9": Plan({"op": ExecutorPlan(now.tasks, np.full(SHARDS, 9, np.int32))}),
        "exactly the shards": Plan({"op": ExecutorPlan(now.tasks, now.task_of[:-1])}),
        "cannot be released": Plan(release_nodes=("a",)),
    }
    for reason, plan in wrong.items():
        with pytest.raises(PlanError, match=reason):
            sim.apply(plan)
    assert not sim.sample().treating
    assert sim.current()["op"].tasks == now.tasks


def test_a_second_plan_is_refused_while_the_first_is_carried_out() -> None:
    sim = start()
    sim.advance(1.0)
    sim.apply(moved(sim, 0, 1))
    with pytest.raises(PlanError, match="still being carried out"):
        sim.apply(moved(sim, 1, 0))


def test_moves_out_of_one_node_share_its_link() -> None:
    sim = start()
    sim.advance(1.0)
    now = sim.current()["op"]
    task_of = now.task_of.copy()
    task_of[[0, 4, 8]] = 1
    ticket = sim.apply(Plan({"op": ExecutorPlan(now.tasks, task_of)}))
    sim.advance(5.0)
    outcome = sim.status(ticket)
    assert outcome is not None
    assert outcome.held_up_s == pytest.approx(0.75)
    assert outcome.took_s == pytest.approx(0.75 + 2 * 0.25)


@pytest.mark.parametrize("epochs", [None, EpochTiming(max_work_s=0.05)])
def test_the_shards_of_a_lost_node_come_back_on_free_cores_with_nothing_lost(
    epochs: EpochTiming | None,
) -> None:
    sim = start(disturbances=(NodeLost(20.0, "a"),), epochs=epochs)
    sim.advance(20.1)
    assert set(sim.sample().nodes) == {"b"}
    finish_and_count(sim, 60.0)
    after = sim.current()["op"]
    assert set(after.tasks.values()) == {"b"}
    assert len(after.tasks) == 4
    met = sim.success("op")
    lost = np.isin(np.arange(SHARDS) % 4, (0, 2))
    assert (met[lost] < 1).all()
    assert (met[~lost] == 1).all()


def test_a_node_lost_in_the_middle_of_a_move_leaves_one_task_for_each_shard() -> None:
    sim = start(disturbances=(NodeLost(20.3, "b"),))
    sim.advance(20.0)
    ticket = sim.apply(moved(sim, 0, 1))
    finish_and_count(sim, 60.0)
    outcome = sim.status(ticket)
    assert outcome is not None and not outcome.ok
    after = sim.current()["op"]
    assert set(after.task_of.tolist()) <= set(after.tasks)
    assert len(sim.waiting("op")[0]) < 20


def test_a_node_that_slows_down_lengthens_the_latency_of_its_shards_only() -> None:
    sim = start(disturbances=(NodeSpeed(20.0, "a", 0.3),))
    finish_and_count(sim, 60.0)
    met = sim.success("op")
    slow = np.isin(np.arange(SHARDS) % 4, (0, 2))
    assert (met[slow] < 1).all()
    assert (met[~slow] == 1).all()


def test_a_node_that_is_added_can_be_used_after_its_start() -> None:
    sim = start()
    sim.apply(Plan(add_nodes=1))
    sim.advance(5.0)
    assert len(sim.sample().nodes) == 2
    sim.advance(11.0)
    assert len(sim.sample().nodes) == 3
    name = (set(sim.sample().nodes) - {"a", "b"}).pop()
    now = sim.current()["op"]
    sim.apply(Plan({"op": ExecutorPlan({**now.tasks, 4: name}, np.full(SHARDS, 4, np.int32))}))
    finish_and_count(sim, 40.0)
    assert (sim.current()["op"].task_of == 4).all()


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_rows_and_shards_are_conserved_under_any_plans(data: st.DataObject) -> None:
    epochs = data.draw(st.sampled_from([None, EpochTiming()]))
    sim = start(rate=data.draw(st.sampled_from([5.0, 40.0])), seconds=10.0, epochs=epochs)
    for turn in range(1, 20):
        sim.advance(turn * 0.5)
        names = data.draw(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=8).filter(
            lambda found: max(found.count("a"), found.count("b")) <= 4
        ))  # fmt: skip
        tasks = dict(enumerate(names))
        task_of = data.draw(st.lists(st.sampled_from(sorted(tasks)), min_size=SHARDS, max_size=SHARDS))
        pause = data.draw(st.booleans())
        if not sim.sample().treating:
            sim.apply(Plan({"op": ExecutorPlan(tasks, np.array(task_of, np.int32))}, global_pause=pause))
    finish_and_count(sim, 30.0)
    assert not sim.sample().treating


def test_a_node_that_is_gone_changes_its_speed_for_nobody() -> None:
    sim = start(2, disturbances=(NodeLost(2.0, "b"), NodeSpeed(3.0, "b", 0.5)))
    sim.advance(5.0)
    assert set(sim.current()["op"].tasks.values()) == {"a"}


def test_a_plan_whose_node_is_lost_on_the_way_is_given_up_and_every_shard_has_a_task() -> None:
    sim = start(2, disturbances=(NodeLost(5.05, "b"),))
    now = sim.current()["op"]
    sim.apply(Plan({"op": ExecutorPlan(dict.fromkeys(now.tasks, "a"), now.task_of)}))
    sim.advance(5.0)
    assert set(sim.current()["op"].tasks.values()) == {"a"}
    ticket = sim.apply(Plan({"op": ExecutorPlan({0: "b", 1: "a"}, now.task_of)}))
    sim.advance(10.0)
    outcome, after = sim.status(ticket), sim.current()["op"]
    assert outcome is not None and not outcome.ok and "lost" in outcome.reason
    assert set(after.tasks.values()) == {"a"} and set(after.task_of.tolist()) <= set(after.tasks)
    assert sim.sample().executors["op"].completed.sum() > 0
