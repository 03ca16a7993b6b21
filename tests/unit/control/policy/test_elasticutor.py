"""elasticutor, naive-ec and resource-centric: what they see, what they do, and when they leave things alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.model.queues import mmk_latency_s
from penstock.control.plan.checking import check_plan
from penstock.control.plan.shards import derive_imbalance, derive_shards
from penstock.control.policy.elasticutor import ElasticutorPolicy, make_naive_ec, make_resource_centric
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.policy.registry import make_policy
from penstock.control.sla import SLA
from penstock.errors import DeclarationError

EVEN = np.full(64, 1000.0 / 64)
"""A thousand rows a second over 64 shards."""


def skewed(share: float) -> np.ndarray:
    """A thousand rows a second, this share of them on the shards of task 0 of four."""
    mine = np.arange(64) % 4 == 0
    return np.where(mine, share * 1000 / 16, (1 - share) * 1000 / 48)


def acted(world: World) -> list[Proposal]:
    return [one for one in world.proposals if one.plan is not None]


def test_what_is_balanced_and_within_the_target_is_left_alone() -> None:
    world = World({"match": make_station(EVEN, 400.0, 4)}, sla=SLA(0.5, scope="operator"))
    world.run(ElasticutorPolicy(), 20)
    assert acted(world) == []
    assert "within 500 ms" in world.proposals[-1].symptom
    assert "no change: δ of match is 1.00, 4 of 64 cores held" in world.proposals[-1].action


def test_a_task_that_holds_too_much_is_relieved_by_moving_shards_alone() -> None:
    world = World({"match": make_station(skewed(0.45), 400.0, 4)}, sla=SLA(0.05, scope="operator"))
    world.run(ElasticutorPolicy(), 10)
    first = acted(world)[0]
    assert "task 0 of match holds 45% of load" in first.symptom
    assert "moved" in first.action and "shards of match to tasks 1, 2, 3" in first.action
    assert world.k("match") == 4
    assert len(acted(world)) == 1
    assert world.proposals[-1].symptom.endswith("within 50 ms")


def test_load_beyond_the_cores_gets_as_many_as_the_target_takes() -> None:
    world = World({"match": make_station(EVEN, 100.0, 4)}, sla=SLA(0.1, scope="operator"))
    world.run(ElasticutorPolicy(), 60)
    assert "match: 4 -> " in acted(world)[0].action
    assert acted(world)[0].urgent
    assert 11 <= world.k("match") <= 20
    assert world.proposals[-1].plan is None
    assert world.estimate().executors["match"].measured_s <= 0.1  # type: ignore[operator]


@pytest.mark.parametrize("model", ["mmk", "gigk", "epoch"])
def test_every_model_serves_a_chain_end_to_end(model: str) -> None:
    world = World(
        {"parse": make_station(EVEN, 500.0, 1), "match": make_station(EVEN, 100.0, 2)},
        edges={("in", "parse"): 1000.0, ("parse", "match"): 1000.0},
        sources={"in": 1000.0},
        sla=SLA(0.5),
    )
    world.run(ElasticutorPolicy(model=model), 60)
    assert world.k("parse") >= 3 and world.k("match") >= 11
    assert world.proposals[-1].plan is None
    found = world.estimate()
    assert found.latency_s is not None and found.latency_s <= 0.5


def test_every_plan_passes_the_check() -> None:
    nodes = {
        name: NodeEstimate(name, 6, speed=speed) for name, speed in [("n0", 1.0), ("n1", 0.5), ("n2", 1.0)]
    }
    world = World(
        {"match": make_station(skewed(0.4), 100.0, 4), "count": make_station(EVEN, 1000.0, 2, "n1")},
        nodes=nodes,
        limits=Limits(max_cores=16, min_nodes=3, max_nodes=3),
        sla=SLA(0.2, scope="operator"),
        noise=0.1,
    )
    policy = ElasticutorPolicy(give_back_s=5.0, settle_s=1.0)
    for turn in range(60):
        world.stations["match"].rates = skewed(0.25 + 0.25 * (turn // 20 % 2)) * (0.5 if turn > 40 else 1.0)
        before = world.estimate()
        found = world.turn(policy)
        if found.plan is not None:
            check_plan(found.plan, before, world.limits)
    assert acted(world)


def test_a_steady_noisy_load_leads_to_no_action() -> None:
    world = World(
        {"match": make_station(EVEN, 100.0, 4), "count": make_station(EVEN, 600.0, 1)},
        sla=SLA(0.2, scope="operator"),
        noise=0.05,
    )
    policy = ElasticutorPolicy()
    world.run(policy, 200)
    settled = len(acted(world))
    world.run(policy, 1800)
    assert len(acted(world)) == settled


def test_load_that_nothing_can_serve_is_diagnosed_once_and_is_no_storm() -> None:
    world = World(
        {"match": make_station(EVEN, 50.0, 2), "count": make_station(EVEN, 100.0, 2)},
        nodes={"n0": NodeEstimate("n0", 8)},
        limits=Limits(max_cores=8),
        sla=SLA(0.2, scope="operator"),
        noise=0.05,
    )
    world.run(ElasticutorPolicy(), 120)
    assert len(acted(world)) <= 2
    assert world.k("match") + world.k("count") == 8
    assert world.k("match") > world.k("count")
    assert "predicted unbounded" in acted(world)[0].action
    said = {one.action for one in world.proposals[-20:]}
    assert all(one.startswith("no change: 8 cores cannot serve the load: give at least 3") for one in said)


def test_a_shard_hotter_than_a_core_is_named() -> None:
    rates = np.where(np.arange(64) == 5, 380.0, 620.0 / 63)
    world = World({"match": make_station(rates, 300.0, 6)}, sla=SLA(0.2, scope="operator"))
    world.run(ElasticutorPolicy(), 60)
    assert "one shard of match, 5, is 38% of the load" in world.proposals[-1].action
    assert world.proposals[-1].plan is None
    assert world.k("match") <= 8
    assert len(acted(world)) <= 4


@pytest.mark.parametrize("scope", ["operator", "end-to-end"])
def test_nobody_else_is_fed_for_a_hot_shard_of_another_executor(scope: str) -> None:
    hot = np.full(64, 1.0)
    hot[5] = 399.0
    even = np.full(64, 1000 / 64)
    world = World(
        {"alert": make_station(hot, 400.0, 4), "match": make_station(even, 400.0, 4)},
        sla=SLA(0.05, scope=scope),
        edges={("in", "alert"): float(hot.sum()), ("in", "match"): 1000.0},
        sources={"in": 1000.0},
    )
    found = world.run(ElasticutorPolicy(give_back_s=None), 60)
    assert world.k("match") == 4
    assert "task 1 of alert" in found[-1].symptom
    assert "one shard of alert, 5, is" in found[-1].action


@pytest.mark.parametrize("make", [ElasticutorPolicy, make_naive_ec, make_resource_centric])
def test_more_cores_than_there_are_left_are_given_up(make: Callable[[], ElasticutorPolicy]) -> None:
    world = World(
        {"match": make_station(np.full(64, 1000 / 64), 150.0, 8)},
        nodes={"n0": NodeEstimate("n0", 4)},
        limits=Limits(max_cores=4, max_nodes=2, cores_per_node=4),
        sla=SLA(0.1, scope="operator"),
    )
    policy = make()
    first = world.turn(policy)
    assert world.k("match") == 4 and "8 cores are held and 4 may be" in first.symptom
    assert first.plan is not None and first.plan.global_pause is policy.pauses
    world.run(policy, 3)
    assert len(world.nodes) == 2, "the load needs more, so a node is asked for"


@pytest.mark.parametrize("max_nodes", [1, 2])
def test_fewer_cores_than_executors_are_a_matter_of_nodes_and_no_failure(max_nodes: int) -> None:
    even = np.full(64, 250 / 64)
    world = World(
        {name: make_station(even, 100.0, 1) for name in ("a", "b", "c")},
        nodes={"n0": NodeEstimate("n0", 2)},
        limits=Limits(max_cores=2, max_nodes=max_nodes, cores_per_node=2),
        sla=SLA(0.1),
        edges={("in", "a"): 250.0, ("a", "b"): 250.0, ("b", "c"): 250.0},
        sources={"in": 250.0},
    )
    found = ElasticutorPolicy().propose(world.estimate(), world.sla, world.limits)
    asked = found.plan.add_nodes if found.plan is not None else 0
    assert asked == max_nodes - 1 and "cores cannot serve the load" in found.action


def test_cores_that_have_long_been_too_many_are_given_back_and_the_target_holds() -> None:
    world = World({"match": make_station(EVEN, 100.0, 30)}, sla=SLA(0.1, scope="operator"))
    policy = ElasticutorPolicy(give_back_s=10.0)
    world.run(policy, 9)
    assert world.k("match") == 30
    world.run(policy, 100)
    assert 11 <= world.k("match") <= 20
    assert world.proposals[-1].plan is None
    assert "30 cores held" in acted(world)[0].symptom


def test_a_core_passes_to_the_executor_that_needs_it_when_none_is_free() -> None:
    world = World(
        {"match": make_station(EVEN, 200.0, 4), "count": make_station(EVEN / 10, 200.0, 6)},
        nodes={"n0": NodeEstimate("n0", 10)},
        limits=Limits(max_cores=10),
        sla=SLA(0.2, scope="operator"),
    )
    world.run(ElasticutorPolicy(give_back_s=None), 60)
    assert world.k("match") >= 6
    assert world.k("match") + world.k("count") == 10


def three_nodes(policy: ElasticutorPolicy) -> World:
    nodes = {f"n{at}": NodeEstimate(f"n{at}", 12) for at in range(3)}
    world = World(
        {"match": make_station(EVEN, 200.0, 2, "n1")},
        nodes=nodes,
        limits=Limits(max_cores=36),
        sla=SLA(0.2, scope="operator"),
    )
    world.turn(policy)
    return world


def test_elasticutor_grows_at_home_and_the_naive_variants_anywhere() -> None:
    at_home = three_nodes(ElasticutorPolicy())
    assert set(at_home.stations["match"].tasks.values()) == {"n1"}
    for name in ("naive-ec", "resource-centric"):
        spread = three_nodes(make_policy(name))  # type: ignore[arg-type]
        assert len(set(spread.stations["match"].tasks.values())) == 3


def test_only_the_resource_centric_baseline_stops_all_rows() -> None:
    for name, pauses in [("elasticutor", False), ("naive-ec", False), ("resource-centric", True)]:
        world = three_nodes(make_policy(name))  # type: ignore[arg-type]
        assert [plan.global_pause for plan in world.plans] == [pauses]


def test_nodes_are_asked_for_when_cores_run_out() -> None:
    world = World(
        {"match": make_station(EVEN, 100.0, 2)},
        nodes={"n0": NodeEstimate("n0", 4)},
        limits=Limits(max_cores=4, max_nodes=5, cores_per_node=4),
        sla=SLA(0.2, scope="operator"),
    )
    found = world.turn(ElasticutorPolicy())
    assert found.plan is not None and found.plan.add_nodes == 2
    assert "asked for 2 nodes" in found.action


def test_nothing_is_decided_while_a_plan_is_carried_out_or_nothing_is_known() -> None:
    world = World({"match": make_station(EVEN, 100.0, 4)}, sla=SLA(0.1, scope="operator"))
    policy = ElasticutorPolicy()
    assert world.turn(policy, treating=True).plan is None
    assert world.turn(policy, invalid="no sample").plan is None
    world.stations["match"].service_per_s = math.nan
    assert "no service rate of match" in policy.propose(world.estimate(), world.sla, world.limits).symptom


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "magic"}, "model must be one of"),
        ({"theta": 1.0}, "theta must be above 1"),
        ({"margin": 1.0}, "margin"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        make_policy("elasticutor", **options)


@pytest.mark.parametrize(("make", "moves"), [(ElasticutorPolicy, True), (make_resource_centric, False)])
def test_while_rows_are_late_a_little_imbalance_on_one_node_is_worth_moves_that_stop_nobody(
    make: Callable[[], ElasticutorPolicy], moves: bool
) -> None:
    world = World(
        {"match": make_station(skewed(0.2875), 200.0, 4)},
        nodes={"n0": NodeEstimate("n0", 4)},
        limits=Limits(max_cores=4),
        sla=SLA(0.1, scope="operator"),
    )
    world.run(make(), 10)
    assert bool(acted(world)) is moves
    if moves:
        assert derive_imbalance(derive_shards(world.estimate().executors["match"])) < 1.05


def test_what_is_late_end_to_end_is_named_where_rows_spend_most_time() -> None:
    stations = {
        "keep": make_station(np.full(64, 2.0), 100.0, 3),
        "sess": make_station(np.full(64, 2.0), 100.0, 2),
    }
    world = World(
        stations, limits=Limits(5), sla=SLA(0.3), edges={("keep", "sess"): 1.0}, sources={"in": 128.0}
    )
    slow = {"keep": 6.9, "sess": 0.07}
    executors = {
        name: replace(one, measured_s=slow[name]) for name, one in world.estimate().executors.items()
    }
    found = world.turn(ElasticutorPolicy(), executors=executors, latency_s=7.0)
    assert found.symptom.startswith("mean 7000 ms over 300 ms, 6900 ms in keep: task "), found.symptom
    assert "of keep holds" in found.symptom and "tasks of sess" not in found.action


def late_chain(
    first: str, measured_s: dict[str, float], second: np.ndarray, cores: int
) -> tuple[World, dict[str, object]]:
    """Two executors in a row of which rows spend nearly all of their time in the first; and how that is told."""
    stations = {first: make_station(np.full(16, 40.0), 200.0, 4), "b": make_station(second, 400.0, 4)}
    rows = float(second.sum())
    world = World(
        stations,
        sla=SLA(0.3),
        limits=Limits(max_cores=cores),
        edges={("in", first): 640.0, (first, "b"): rows},
        sources={"in": 640.0},
    )
    seen = world.estimate().executors
    told = {name: replace(one, measured_s=measured_s[name]) for name, one in seen.items()}
    return world, {"executors": told, "latency_s": sum(measured_s.values())}


def test_shards_of_an_executor_that_nobody_waits_in_are_not_moved_for_one_that_is_late() -> None:
    rates = np.full(128, 1.25)
    rates[::4] *= 1.15
    world, told = late_chain("a", {"a": 0.62, "b": 0.01}, rates, cores=8)
    assert 1.08 < derive_imbalance(derive_shards(world.estimate().executors["b"])) < 1.2
    policy = ElasticutorPolicy()
    for _ in range(14):
        found = world.turn(policy, **told)
        assert found.plan is None or "b" not in found.plan.executors, found.action


def test_a_core_more_goes_to_the_executor_that_rows_spend_their_time_in() -> None:
    stations = {
        "keep": make_station(np.full(64, 2.0), 100.0, 2),
        "sess": make_station(np.full(64, 2.0), 85.0, 2),
    }
    edges = {("in", "keep"): 128.0, ("keep", "sess"): 128.0}
    world = World(stations, limits=Limits(8), sla=SLA(0.3), edges=edges, sources={"in": 128.0})
    policy, measured_s = ElasticutorPolicy(), {"keep": 6.9, "sess": 0.07}
    for _ in range(30):
        seen = world.estimate().executors
        told = {name: replace(one, measured_s=measured_s[name]) for name, one in seen.items()}
        world.turn(policy, executors=told, latency_s=7.0)
    assert world.k("keep") > 2 and world.k("sess") == 2


def measured(world: World, policy: ElasticutorPolicy, latency_s: float) -> Proposal:
    """One turn in which this latency is measured, whatever the model says."""
    seen = {name: replace(one, measured_s=latency_s) for name, one in world.estimate().executors.items()}
    return world.turn(policy, executors=seen)


def test_where_the_model_errs_one_more_core_is_tried_each_time_the_last_one_had_time_to_settle() -> None:
    world = World({"match": make_station(EVEN, 300.0, 4)}, sla=SLA(0.2, scope="operator"))
    policy = ElasticutorPolicy(settle_s=5.0, coarse=None)
    held = []
    for _ in range(11):
        found = measured(world, policy, 0.4)
        held.append(world.k("match"))
    assert held == [5] * 5 + [6] * 5 + [7]
    assert "cores changed less than 5 s ago" in world.proposals[3].action and found.plan is not None


def test_cores_that_were_too_few_are_not_tried_again_until_the_load_is_a_tenth_lower() -> None:
    world = World({"match": make_station(EVEN, 300.0, 4)}, sla=SLA(0.2, scope="operator"))
    policy = ElasticutorPolicy(give_back_s=5.0)
    measured(world, policy, 0.4)
    world.run(policy, 30)
    assert world.k("match") == 5, "the model calls four enough, and they were not"
    world.stations["match"].rates = EVEN * 0.95
    world.run(policy, 30)
    assert world.k("match") == 5
    world.stations["match"].rates = EVEN * 0.85
    world.run(policy, 30)
    assert world.k("match") == 4


@pytest.mark.parametrize(("load", "changes"), [(420.0, False), (460.0, True)])
def test_among_executors_that_all_lack_cores_one_passes_only_for_a_tenth_less_load_per_core(
    load: float, changes: bool
) -> None:
    """At 5 and 3 cores: 4 and 4 take the most loaded one from 140 or 153 rows/s a core to 130."""
    stations = {"a": make_station(EVEN * 0.52, 100.0, 5), "b": make_station(EVEN * load / 1000, 100.0, 3)}
    nodes = {"n0": NodeEstimate("n0", 8)}
    world = World(stations, nodes, Limits(max_cores=8), SLA(0.2, scope="operator"))
    world.turn(ElasticutorPolicy(coarse=None))
    assert world.k("b") == (4 if changes else 3)


def test_cores_that_serve_no_load_are_not_dealt_anew_before_the_last_change_has_settled() -> None:
    stations = {"a": make_station(EVEN * 0.5, 100.0, 5), "b": make_station(EVEN * 0.5, 100.0, 3)}
    world = World(stations, {"n0": NodeEstimate("n0", 8)}, Limits(max_cores=8), SLA(0.2, scope="operator"))
    policy = ElasticutorPolicy(settle_s=5.0, coarse=None)
    world.turn(policy)
    assert world.k("a") == world.k("b") == 4
    world.stations["a"].rates = EVEN * 0.9
    held = []
    for _ in range(5):
        found = world.turn(policy)
        held.append(world.k("a"))
    assert held[:4] == [4] * 4 and held[4] > 4 and found.plan is not None
    assert "cores changed less than 5 s ago" in world.proposals[1].action


def test_no_core_is_added_for_lateness_where_tasks_are_mostly_idle() -> None:
    world = World({"match": make_station(EVEN, 600.0, 4)}, sla=SLA(0.2, scope="operator"))
    found = measured(world, ElasticutorPolicy(coarse=None), 0.4)
    assert found.plan is None and "tasks of match are 42% busy" in found.action


@pytest.mark.parametrize("ratio", [0.12, 0.5, 1.0])
def test_cores_are_given_back_only_as_far_as_a_share_of_the_target_holds(ratio: float) -> None:
    world = World({"match": make_station(EVEN, 100.0, 30)}, sla=SLA(0.1, scope="operator"))
    world.run(ElasticutorPolicy(give_back_s=3.0, give_back_ratio=ratio), 20)
    enough = next(k for k in range(12, 30) if mmk_latency_s(1000.0, 100.0, k, 0.1) <= ratio * 0.1)
    assert world.k("match") == enough


def test_a_late_turn_makes_the_time_begin_anew_after_which_cores_are_given_back() -> None:
    world = World({"match": make_station(EVEN, 200.0, 30)}, sla=SLA(0.2, scope="operator"))
    policy = ElasticutorPolicy(give_back_s=10.0, coarse=None)
    world.run(policy, 8)
    measured(world, policy, 0.4)
    world.run(policy, 8)
    assert world.k("match") == 30
    world.run(policy, 5)
    assert world.k("match") < 30


@pytest.mark.parametrize(("service_per_s", "turns"), [(2000.0, 3), (500.0, 1)])
def test_imbalance_is_answered_at_once_near_the_limit_of_a_task_and_after_patience_elsewhere(
    service_per_s: float, turns: int
) -> None:
    """Task 0 has 450 rows/s of a thousand, and rows are late in neither case."""
    world = World({"match": make_station(skewed(0.45), service_per_s, 4)}, sla=SLA(1.0, scope="operator"))
    found = world.run(ElasticutorPolicy(patience=3), turns)
    assert [one.plan is not None for one in found] == [False] * (turns - 1) + [True]
    assert "within 1000 ms" in found[-1].symptom


def two_in_a_row(rate: float, other: float, k: int, **more: object) -> World:
    """Rows pass `a`, one task of which has most of them, then `c`, whose tasks are equally busy."""
    return World(
        {
            "a": make_station(skewed(0.65) * rate / 1000, 100.0, 2),
            "c": make_station(EVEN * other / 1000, 100.0, k),
        },
        edges={("in", "a"): rate, ("a", "c"): other},
        sources={"in": rate},
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("make", [ElasticutorPolicy, make_naive_ec])
@pytest.mark.parametrize(
    ("world", "seen_s", "why"),
    [
        (
            two_in_a_row(100.0, 60.0, 1, sla=SLA(0.028)),
            0.01,
            "a core more lowers the predicted latency most in c",
        ),
        (
            two_in_a_row(100.0, 60.0, 1, sla=SLA(0.024, scope="operator")),
            0.01,
            "the model has c over the bound",
        ),
        (
            two_in_a_row(
                220.0, 240.0, 2, nodes={"n0": NodeEstimate("n0", 5)}, limits=Limits(5), sla=SLA(0.5)
            ),
            0.01,
            "cores go by load, to c first",
        ),
    ],
)
def test_where_another_executor_than_the_busiest_gets_a_core_it_is_said_why(
    make: Callable[[], ElasticutorPolicy], world: World, seen_s: float, why: str
) -> None:
    found = make().propose(world.estimate(latency_s=seen_s), world.sla, world.limits)
    assert "task 0 of a holds 77% of load" in found.symptom
    assert "a: moved 8 shards" in found.action and "c: " in found.action
    assert f"; {why}" in found.action
