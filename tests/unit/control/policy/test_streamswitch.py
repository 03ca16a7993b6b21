"""streamswitch as a whole: what it diagnoses, what it never does, and where it ends up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate, TaskEstimate
from penstock.control.policy.protocol import Limits
from penstock.control.policy.streamswitch import StreamSwitchPolicy
from penstock.control.sla import SLA
from penstock.errors import DeclarationError


def flat(total: float, shards: int = 64) -> np.ndarray:
    return np.full(shards, total / shards)


def test_an_overloaded_task_is_scaled_out_until_all_are_healthy() -> None:
    world = World({"match": make_station(flat(1000), 200.0, 1)})
    world.run(StreamSwitchPolicy(), 40)
    assert world.k("match") in (7, 8)
    assert world.proposals[-1].plan is None
    assert world.proposals[0].urgent and "scaled out" in world.proposals[0].action


def test_skew_is_balanced_without_another_task() -> None:
    station = make_station(flat(480), 200.0, 4)
    station.task_of = np.where(np.arange(64) < 16, 0, station.task_of).astype(np.int32)
    world = World({"match": station})
    world.run(StreamSwitchPolicy(), 10)
    assert world.k("match") == 4 and 1 <= len(world.plans) <= 3
    first = next(found for found in world.proposals if found.plan is not None)
    assert first.action.startswith("match: moved") and "from task 0" in first.action


def test_idle_tasks_are_given_up_while_all_stay_good() -> None:
    world = World({"match": make_station(flat(100), 200.0, 8)})
    world.run(StreamSwitchPolicy(), 20)
    assert world.k("match") == 1 and len(world.plans) == 7


def test_a_moderate_task_is_left_alone() -> None:
    world = World({"match": make_station(flat(165), 200.0, 1)})
    world.run(StreamSwitchPolicy(), 5)
    assert not world.plans and "moderate" in world.proposals[-1].action


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 40), st.floats(0.2, 20.0), st.integers(1, 24))
def test_every_plan_is_feasible_and_moves_between_two_tasks(
    seed: int, shards: int, load: float, cores: int
) -> None:
    random = np.random.default_rng(seed)
    rates = random.zipf(1.8, shards).clip(1, 1000).astype(float)
    rates *= 100 * load / rates.sum()
    nodes = {"n0": NodeEstimate("n0", cores), "n1": NodeEstimate("n1", 4, speed=0.5)}
    world = World(
        {"a": make_station(rates, 100.0, min(3, cores))},
        nodes,
        Limits(cores + 2, 2, 3, 4),
        noise=0.1,
        seed=seed,
    )
    policy = StreamSwitchPolicy()
    for _ in range(40):
        before = dict(world.stations["a"].tasks), world.stations["a"].task_of.copy()
        plan = world.turn(policy).plan
        if plan is not None and plan.executors:
            moved = np.flatnonzero(before[1] != world.stations["a"].task_of)
            was_idle = not len(moved) and world.k("a") == len(before[0]) - 1
            assert len(set(before[1][moved].tolist())) == 1 or was_idle
            assert len(set(world.stations["a"].task_of[moved].tolist())) == 1 or was_idle
            assert abs(len(before[0]) - world.k("a")) <= 1


def test_a_steady_noisy_load_within_the_sla_leads_to_no_action() -> None:
    world = World({"match": make_station(flat(560), 200.0, 4)}, noise=0.1)
    world.run(StreamSwitchPolicy(), 1000)
    assert not world.plans


def test_missing_metrics_lead_to_no_change_and_then_to_normal_decisions() -> None:
    world = World({"match": make_station(flat(1000), 200.0, 2)})
    policy = StreamSwitchPolicy()
    for _ in range(5):
        found = world.turn(policy, invalid="no sample of match for 3 s")
        assert found.plan is None and "no sample of match" in found.symptom
    assert world.turn(policy).plan is not None


def test_nothing_is_decided_during_a_treatment() -> None:
    world = World({"match": make_station(flat(1000), 200.0, 2)})
    assert world.turn(StreamSwitchPolicy(), treating=True).plan is None


def test_a_load_that_nothing_can_serve_leads_to_one_diagnosis() -> None:
    world = World({"match": make_station(flat(5000), 200.0, 1)}, limits=Limits(6), noise=0.05)
    world.run(StreamSwitchPolicy(), 500)
    assert world.k("match") == 6
    assert len(world.plans) <= 25 and not [p for p in world.proposals[-300:] if p.plan is not None]
    assert "nothing can help within the cores there are" in world.proposals[-1].action
    assert "need 32 tasks" in world.proposals[-1].action or "need 31 tasks" in world.proposals[-1].action


def test_in_an_overload_of_every_shard_tasks_are_added_and_not_shuffled() -> None:
    world = World({"match": make_station(np.full(16, 900.0), 200.0, 4)}, limits=Limits(12))
    world.run(StreamSwitchPolicy(), 8)
    assert world.k("match") == 12


def test_one_hot_shard_is_named_and_ends_alone_on_its_task() -> None:
    rates = np.array([400.0] + [5.0] * 15)
    world = World({"match": make_station(rates, 200.0, 2)}, noise=0.02)
    world.run(StreamSwitchPolicy(), 100)
    hot = world.stations["match"].task_of[0]
    assert np.count_nonzero(world.stations["match"].task_of == hot) == 1
    assert world.k("match") == 2 and "one shard is 8" in world.proposals[-1].action


def test_a_plan_that_stopped_halfway_is_followed_by_the_mapping_once() -> None:
    world = World({"match": make_station(flat(600), 200.0, 2)})
    policy = StreamSwitchPolicy()
    before = world.stations["match"].task_of.copy()
    found = world.turn(policy)
    assert found.plan is not None
    moved = np.flatnonzero(before != world.stations["match"].task_of)
    world.stations["match"].task_of[moved[:2]] = before[moved[:2]]
    policy.note_failure("node n1 was lost")
    again = world.turn(policy)
    assert again.plan is not None and "node n1 was lost" in again.symptom
    assert world.stations["match"].task_of.tolist() == before.tolist()
    policy.note_failure("refused again")
    assert "published" not in world.turn(policy).action


def test_a_plan_that_was_done_after_all_is_not_taken_back() -> None:
    world = World({"match": make_station(flat(600), 200.0, 2)})
    policy = StreamSwitchPolicy()
    assert world.turn(policy).plan is not None
    policy.note_failure("no answer")
    assert "published" not in world.turn(policy).action


def test_a_refused_plan_is_decided_anew_and_nothing_is_published() -> None:
    world = World({"match": make_station(flat(600), 200.0, 2)})
    world.stations["match"].backlog[:] = 10
    policy = StreamSwitchPolicy()
    first = policy.propose(world.estimate(at_s=1.0), world.sla, world.limits)
    policy.note_failure("cooling down")
    again = policy.propose(world.estimate(at_s=2.0), world.sla, world.limits)
    assert again.action == first.action and again.plan is not None


def test_shards_of_a_task_that_is_gone_are_given_to_living_ones() -> None:
    world = World({"match": make_station(flat(300), 200.0, 3)})
    del world.stations["match"].tasks[1]
    found = world.turn(StreamSwitchPolicy())
    assert found.plan is not None and found.urgent and set(world.stations["match"].task_of.tolist()) == {0, 2}
    assert np.bincount(world.stations["match"].task_of).tolist() == [32, 0, 32]


def test_a_new_tasks_rate_is_its_sources_until_it_is_measured() -> None:
    policy = StreamSwitchPolicy()
    world = World({"match": make_station(flat(300), 200.0, 1)})
    world.turn(policy)
    seen = world.estimate().executors["match"]
    unknown = replace(seen, tasks=(seen.tasks[0], TaskEstimate(1, "n0", math.nan)))
    assert policy._examine(unknown).service_per_s.tolist() == [200.0, 200.0]
    measured = replace(seen, tasks=(seen.tasks[0], TaskEstimate(1, "n0", 120.0)))
    assert policy._examine(measured).service_per_s.tolist() == [200.0, 120.0]


def test_a_new_task_on_a_slower_node_is_expected_to_be_as_much_slower() -> None:
    nodes = {"fast": NodeEstimate("fast", 1), "slow": NodeEstimate("slow", 4, speed=0.5)}
    world = World({"match": make_station(flat(300), 200.0, 1, "fast")}, nodes, Limits(5, 1, 2))
    policy = StreamSwitchPolicy()
    world.turn(policy)
    assert world.stations["match"].tasks == {0: "fast", 1: "slow"}
    seen = world.estimate().executors["match"]
    unknown = replace(seen, tasks=(seen.tasks[0], TaskEstimate(1, "slow", math.nan)))
    assert policy._examine(unknown).service_per_s.tolist() == [200.0, 100.0]


@pytest.mark.parametrize("furthest", ["a", "b"])
def test_the_last_core_goes_to_one_executor_the_furthest_over_its_bound(furthest: str) -> None:
    loads = {"a": 300.0, "b": 300.0, furthest: 400.0}
    world = World(
        {name: make_station(flat(load), 200.0, 1) for name, load in loads.items()}, limits=Limits(3)
    )
    found = world.turn(StreamSwitchPolicy())
    assert found.plan is not None and list(found.plan.executors) == [furthest]
    assert world.k(furthest) == 2


@pytest.mark.parametrize(
    ("latency_s", "bound_s", "is_pressed"),
    [(0.07, 0.1, True), (0.07, 0.2, False), (0.15, 0.5, True), (0.07, 0.5, False)],
)
def test_a_task_is_pressed_from_the_alert_level_on_and_from_half_of_a_short_bound(
    latency_s: float, bound_s: float, is_pressed: bool
) -> None:
    """All are projected late, so that what they measure decides."""
    station = make_station(flat(200 - 1 / latency_s), 200.0, 1)
    found = World({"match": station}, sla=SLA(bound_s, scope="operator")).turn(
        StreamSwitchPolicy(alert_s=0.1)
    )
    assert ("scaled out" if is_pressed else "moderate") in found.action


def test_who_can_be_cured_is_treated_though_a_hot_shard_is_worse() -> None:
    """Task 0 has one shard that nothing helps, task 1 five that a core more does."""
    station = make_station([600.0] + [60.0] * 5, 200.0, 2)
    station.task_of = np.array([0, 1, 1, 1, 1, 1], dtype=np.int32)
    world = World({"match": station})
    found = world.turn(StreamSwitchPolicy())
    assert "scaled out" in found.action and "task 1 takes" in found.symptom
    assert world.stations["match"].task_of[0] == 0


def test_rates_that_were_assumed_of_new_tasks_are_forgotten_when_the_plan_fails() -> None:
    nodes = {"fast": NodeEstimate("fast", 1), "slow": NodeEstimate("slow", 4, speed=0.5)}
    world = World({"match": make_station(flat(300), 200.0, 1, "fast")}, nodes, Limits(5, 1, 2))
    policy = StreamSwitchPolicy()
    world.turn(policy)
    policy.note_failure("no answer")
    seen = world.estimate().executors["match"]
    unknown = replace(seen, tasks=(seen.tasks[0], TaskEstimate(1, "slow", math.nan)))
    assert policy._examine(unknown).service_per_s.tolist() == [200.0, 200.0]


@pytest.mark.parametrize(
    ("sla", "is_pressed"),
    [
        (SLA(0.1, scope="operator"), False),
        (SLA(0.1, quantile=0.99, scope="operator"), True),
        (SLA(0.1, scope="end-to-end"), True),
    ],
)
def test_a_quantile_and_a_way_through_two_operators_make_the_bound_of_each_tighter(
    sla: SLA, is_pressed: bool
) -> None:
    """Of 100 ms a mean at one operator has all, the mean behind its p99 22 ms, and one of two on the way 50 ms."""
    rates = flat(200 - 1 / 0.03)
    world = World(
        {name: make_station(rates, 200.0, 1) for name in ("a", "b")},
        sla=sla,
        edges={("in", "a"): float(rates.sum()), ("a", "b"): float(rates.sum())},
    )
    found = world.turn(StreamSwitchPolicy())
    assert (found.plan is not None and found.urgent) is is_pressed


def test_no_node_is_asked_for_where_balancing_cures() -> None:
    station = make_station(flat(480), 200.0, 4)
    station.task_of = np.where(np.arange(64) < 16, 0, station.task_of).astype(np.int32)
    world = World({"match": station}, {"n0": NodeEstimate("n0", 4)}, Limits(8, 1, 2, 4))
    world.run(StreamSwitchPolicy(), 10)
    assert world.plans and all(plan.executors and not plan.add_nodes for plan in world.plans)


def test_slow_nodes_are_the_ones_given_up() -> None:
    nodes = {"fast": NodeEstimate("fast", 4), "slow": NodeEstimate("slow", 4, speed=0.5)}
    station = make_station(flat(100), 200.0, 4, "fast")
    station.tasks = {0: "fast", 1: "fast", 2: "slow", 3: "slow"}
    world = World({"match": station}, nodes, Limits(8, 1, 2), sla=SLA(0.05, scope="operator"))
    world.run(StreamSwitchPolicy(alert_s=1.0), 20)
    assert set(world.stations["match"].tasks.values()) == {"fast"}


def test_a_node_is_asked_for_once_and_given_back_when_idle() -> None:
    world = World(
        {"match": make_station(flat(700), 200.0, 2)},
        {"n0": NodeEstimate("n0", 3)},
        Limits(12, 1, 3, 3, node_start_s=10),
    )
    policy = StreamSwitchPolicy()
    world.run(policy, 30)
    assert len(world.nodes) == 2 and sum(plan.add_nodes for plan in world.plans) == 1
    world.stations["match"].rates = flat(50)
    world.run(policy, 120)
    assert world.k("match") == 1 and len(world.nodes) == 1


def test_an_end_to_end_bound_is_split_so_that_the_worst_success_grows() -> None:
    rates = flat(300, 16)
    world = World(
        {"split": make_station(rates, 400.0, 1), "count": make_station(rates, 400.0, 1)},
        limits=Limits(2),
        sla=SLA(0.03, scope="end-to-end"),
        edges={("in", "split"): 300.0, ("split", "count"): 300.0},
    )
    policy = StreamSwitchPolicy(alert_s=1.0)
    world.stations["count"].service_per_s = 352.0
    world.run(policy, 200)
    shares = policy.split.shares(world.estimate(), world.sla)
    assert shares["count"] > shares["split"] and math.isclose(sum(shares.values()), 1.0)
    assert shares["count"] * 0.03 >= 1 / 52


def test_shares_hold_the_bound_on_every_path_and_count_loops_once() -> None:
    rates = flat(100, 4)
    names = ["a", "b", "c", "d"]
    edges = {("in", "a"): 100.0, ("a", "b"): 100.0, ("a", "c"): 100.0, ("b", "d"): 100.0, ("b", "b"): 100.0}
    world = World({name: make_station(rates, 400.0, 1) for name in names}, edges=edges, sla=SLA(1.0))
    world.stations["b"].rates = flat(200, 4)
    shares = StreamSwitchPolicy().split.shares(world.estimate(), world.sla)
    assert math.isclose(shares["a"] + 2 * shares["b"] + shares["d"], 1.0)
    assert shares["a"] + shares["c"] <= 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1.2, 8.0))
def test_scaling_out_is_chosen_only_where_no_balancing_cures(seed: int, load: float) -> None:
    random = np.random.default_rng(seed)
    rates = random.uniform(0.2, 2.0, 12)
    rates *= 100 * load / rates.sum()
    assume(rates.max() < 70)
    world = World({"a": make_station(rates, 100.0, 3)}, seed=seed)
    policy = StreamSwitchPolicy()
    found = world.turn(policy)
    if "scaled out" in found.action:
        cure = [option for option in found.options if option.action == "balance" and option.feasible]
        assert not cure
    world.run(policy, 180)  # a backlog may take a minute or two
    assert world.proposals[-1].plan is None
    least = math.ceil(rates.sum() / 100)
    assert least <= world.k("a") <= 2 * least + 1


@pytest.mark.parametrize("bad", [{"margin": 1.0}, {"margin": -0.1}, {"alert_s": 0.0}])
def test_parameters_that_cannot_be_meant_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(DeclarationError, match="streamswitch: "):
        StreamSwitchPolicy(**bad)  # type: ignore[arg-type]


def test_a_bound_under_what_an_idle_task_takes_is_one_diagnosis_with_the_bound_that_can_be_met() -> None:
    nodes = {"n0": NodeEstimate("n0", 8)}
    world = World(
        {"a": make_station(np.full(64, 0.5), 10.0, 4)},
        nodes=nodes,
        sla=SLA(0.05, scope="operator"),
        limits=Limits(64, 1, 8, 8, node_start_s=5),
    )
    found = world.run(StreamSwitchPolicy(), 60)
    assert 5 <= world.k("a") <= 8 and len(world.nodes) == 1, "as many as serve the load, and no more"
    assert all(one.plan is None for one in found[10:])
    assert "only a bound over 125 ms can be met" in found[-1].action


def test_a_faster_node_that_is_free_brings_a_bound_within_reach() -> None:
    nodes = {"n0": NodeEstimate("n0", 4, speed=0.5), "n1": NodeEstimate("n1", 8, speed=2.0)}
    match = make_station(np.full(32, 20 / 32), 100.0, 2, node="n0")
    world = World({"match": match}, nodes, Limits(12, 2, 2, 8), SLA(0.020, scope="operator"))
    world.run(StreamSwitchPolicy(), 20)
    assert world.plans and "n1" in set(world.stations["match"].tasks.values())
    for free in (Limits(2), Limits(12)):
        slow = {"n0": NodeEstimate("n0", 4, speed=0.5), "n1": NodeEstimate("n1", 8, speed=0.5)}
        match = make_station(np.full(32, 20 / 32), 100.0, 2, node="n0")
        world = World({"match": match}, slow, free, SLA(0.020, scope="operator"))
        world.run(StreamSwitchPolicy(), 20)
        assert not world.plans and "only a bound over 25 ms" in world.proposals[-1].action
