"""drs and drs-lb: where they end up from anywhere, which model decides right, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.model.queues import ModelError, mmk_latency_s
from penstock.control.plan.balancing import THETA
from penstock.control.policy.drs import DrsPolicy, make_drs_lb
from penstock.control.policy.following import Followed
from penstock.control.policy.protocol import Limits
from penstock.control.policy.realizing import derive_theta, plan_cores
from penstock.control.policy.registry import make_policy, make_policy_for
from penstock.control.sla import SLA
from penstock.errors import DeclarationError

CHAIN = {("in", "extract"): 13.0, ("extract", "match"): 130.0, ("match", "aggregate"): 30.0}


def video(extract: int, match: int, aggregate: int, **more: object) -> World:
    """The three operators of DRS V-A: 13 frames a second, 10 features each."""
    return World(
        {
            "extract": make_station(np.full(32, 13.0 / 32), 1.75, extract),
            "match": make_station(np.full(64, 130.0 / 64), 12.0, match),
            "aggregate": make_station(np.full(16, 30.0 / 16), 200.0, aggregate),
        },
        edges=CHAIN,
        sources={"in": 13.0},
        **more,  # type: ignore[arg-type]
    )


def cores(world: World) -> dict[str, int]:
    return {name: world.k(name) for name in world.stations}


def best_split(total: int) -> dict[str, int]:
    found = None
    for first, second in product(range(1, total), range(1, total)):
        third = total - first - second
        if third >= 1:
            t = mmk_latency_s(13, 1.75, first) + 10 * mmk_latency_s(130, 12, second)
            t += 30 / 13 * mmk_latency_s(30, 200, third)
            found = min(found, (t, first, second, third)) if found else (t, first, second, third)
    assert found is not None
    return {"extract": found[1], "match": found[2], "aggregate": found[3]}


def test_three_starts_end_at_the_same_allocation_which_is_the_best() -> None:
    ends = []
    for start in [(8, 12, 2), (11, 9, 2), (10, 11, 1)]:
        world = video(*start)
        world.run(DrsPolicy(k_max=22, min_gain=0.0), 5)
        ends.append(cores(world))
        assert len(world.plans) <= 1
    assert ends == [best_split(22)] * 3


def simulate(k: int, rate: float, service_per_s: float, scv_service: float, rows: int, seed: int) -> float:
    """Return the mean sojourn time of a FIFO station with k servers: Poisson arrivals, service of a given variability."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, rows))
    mean = 1 / service_per_s
    if scv_service > 1:
        p = 0.5 * (1 + math.sqrt((scv_service - 1) / (scv_service + 1)))
        fast = random.random(rows) < p
        service = random.exponential(1.0, rows) * np.where(fast, mean / (2 * p), mean / (2 * (1 - p)))
    else:
        service = np.full(rows, mean)
    free = [0.0] * k
    total = 0.0
    for at, need in zip(arrivals.tolist(), service.tolist(), strict=True):
        server = min(range(k), key=free.__getitem__)
        end = max(at, free[server]) + need
        free[server] = end
        total += end - at
    return total / rows


def test_gigk_chooses_right_where_mmk_does_not() -> None:
    """Figure 10: seven cores for a steady and a highly variable operator; a simulation says which split is best."""
    edges = {("in", "calm"): 5.0, ("calm", "wild"): 5.0}
    chosen = {}
    for model in ("mmk", "gigk"):
        calm = make_station(np.full(32, 5.0 / 32), 2.2, 3, scv_service=0.0)
        wild = make_station(np.full(32, 5.0 / 32), 2.4, 4, scv_service=12.0)
        world = World({"calm": calm, "wild": wild}, edges=edges, sources={"in": 5.0})
        world.run(DrsPolicy(k_max=7, model=model, min_gain=0.0), 3)
        chosen[model] = cores(world)
    truth = {
        (calm_k, 7 - calm_k): simulate(calm_k, 5, 2.2, 0.0, 40_000, 1)
        + simulate(7 - calm_k, 5, 2.4, 12.0, 40_000, 2)
        for calm_k in (3, 4)
    }
    assert chosen["mmk"] == {"calm": 4, "wild": 3}
    assert chosen["gigk"] == {"calm": 3, "wild": 4}
    assert truth[3, 4] < truth[4, 3]


@pytest.mark.parametrize("model", ["mmk", "gigk", "epoch"])
def test_the_fewest_cores_for_the_bound_are_found_from_below_and_above(model: str) -> None:
    ends = []
    for start in (1, 12):
        world = World(
            {"match": make_station(np.full(64, 1000 / 64), 200.0, start)}, sla=SLA(0.1, scope="operator")
        )
        policy = DrsPolicy(model=model, margin=0.1, reallocation_s=5)
        world.run(policy, 60)
        ends.append(world.k("match"))
        assert world.proposals[-1].plan is None
    assert 6 <= ends[1] <= 8 and ends[0] >= ends[1]


def test_cores_are_given_up_only_under_t_min() -> None:
    for t_min_s, expected in ((0.001, 12), (0.05, 6)):
        world = World(
            {"match": make_station(np.full(64, 1000 / 64), 200.0, 12)}, sla=SLA(0.1, scope="operator")
        )
        world.run(DrsPolicy(t_min_s=t_min_s), 10)
        assert world.k("match") == expected


def test_two_reallocations_are_at_least_t_ra_apart() -> None:
    world = World({"match": make_station(np.full(64, 1000 / 64), 200.0, 1)})
    policy = DrsPolicy(reallocation_s=30)
    world.run(policy, 3)
    assert len(world.plans) == 1
    world.stations["match"].rates = np.full(64, 3000 / 64)
    world.run(policy, 20)
    assert len(world.plans) == 1 and "30 s old" in world.proposals[-1].action
    world.run(policy, 20)
    assert len(world.plans) == 2


def test_unit_migration_goes_by_one_task_a_turn_to_the_same_number() -> None:
    world = World({"match": make_station(np.full(64, 1000 / 64), 200.0, 1)})
    world.run(DrsPolicy(migration="unit", reallocation_s=30), 5)
    assert world.k("match") == 6 and len(world.plans) == 5
    world.stations["match"].rates = np.full(64, 300 / 64)
    world.stations["match"].backlog[:] = 0
    world.run(DrsPolicy(migration="unit"), 20)
    assert world.k("match") == 2


def test_a_better_split_of_as_many_cores_is_taken() -> None:
    world = video(12, 13, 4, sla=SLA(10.0))
    policy = DrsPolicy(t_min_s=0.0, min_gain=0.0)
    world.run(policy, 10)
    assert not world.plans, "a gain of a few turns may be chance"
    world.run(policy, 20)
    assert cores(world) == best_split(29)


def test_a_lagging_producer_does_not_hide_its_consumers_need() -> None:
    world = video(1, 2, 1, sla=SLA(5.0))
    world.stations["match"].rates = np.full(64, 17.5 / 64)
    world.edges = {**CHAIN, ("extract", "match"): 17.5}
    now = world.estimate()
    busy = now.executors["extract"]
    tasks = tuple(replace(task, useful_ratio=1.0) for task in busy.tasks)
    seen = replace(now, executors={**now.executors, "extract": replace(busy, tasks=tasks)})
    found = DrsPolicy().propose(seen, world.sla, world.limits)
    assert found.plan is not None and found.plan.executors["match"].k >= 11


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6), st.floats(0.3, 15.0), st.integers(2, 20), st.sampled_from(["mmk", "gigk", "epoch"])
)
def test_every_plan_is_feasible(seed: int, load: float, cap: int, model: str) -> None:
    random = np.random.default_rng(seed)
    rates = random.zipf(1.9, 24).clip(1, 500).astype(float)
    rates *= 100 * load / rates.sum()
    nodes = {"n0": NodeEstimate("n0", cap), "n1": NodeEstimate("n1", 3, speed=0.5)}
    edges = {("in", "a"): 100 * load, ("a", "b"): 100 * load}
    for scope in ("operator", "end-to-end"):
        stations = {"a": make_station(rates, 100.0, 1), "b": make_station(rates[::-1].copy(), 150.0, 1)}
        world = World(
            stations,
            dict(nodes),
            Limits(cap + 2, 1, 3, 4),
            SLA(0.5, scope=scope),
            edges,
            noise=0.1,
            seed=seed,
        )
        for policy in (DrsPolicy(model=model, reallocation_s=2), make_drs_lb(model=model, reallocation_s=2)):
            world.run(policy, 20)


def test_a_steady_noisy_load_within_the_sla_leads_to_no_action() -> None:
    for policy in (DrsPolicy(margin=0.2), make_drs_lb(margin=0.2)):
        world = World({"match": make_station(np.full(64, 560 / 64), 200.0, 4)}, noise=0.1)
        world.run(policy, 1000)
        assert not world.plans


def test_missing_metrics_lead_to_no_change_and_then_to_normal_decisions() -> None:
    world = World({"match": make_station(np.full(64, 1000 / 64), 200.0, 2)})
    policy = DrsPolicy()
    assert all(world.turn(policy, invalid="no sample").plan is None for _ in range(5))
    assert world.turn(policy).plan is not None


@pytest.mark.parametrize("scope", ["operator", "end-to-end"])
def test_a_load_that_nothing_can_serve_leads_to_one_diagnosis(scope: str) -> None:
    world = video(1, 1, 1, limits=Limits(9), sla=SLA(3.0, scope=scope), noise=0.05)
    world.run(DrsPolicy(reallocation_s=2), 400)
    assert sum(cores(world).values()) == 9
    assert len(world.plans) <= 5 and "nothing can help" in world.proposals[-1].action


@pytest.mark.parametrize("scope", ["operator", "end-to-end"])
def test_an_overload_shared_by_two_equals_is_not_dealt_back_and_forth(scope: str) -> None:
    world = World(
        {"a": make_station(np.full(16, 200.0), 200.0, 1), "b": make_station(np.full(16, 225.0), 300.0, 1)},
        limits=Limits(8),
        sla=SLA(1.0, scope=scope),
        sources={"in": 3200.0},
        noise=0.1,
    )
    world.run(DrsPolicy(reallocation_s=2), 300)
    assert len(world.plans) <= 3 and "nothing can help" in world.proposals[-1].action


def test_drs_lb_does_not_move_shards_back_and_forth_in_an_overload() -> None:
    world = World({"a": make_station(np.full(64, 37.5), 200.0, 1)}, limits=Limits(8), noise=0.1)
    world.run(make_drs_lb(reallocation_s=2, margin=0.2), 300)
    assert world.k("a") == 8 and len(world.plans) <= 6


def test_bad_configuration_is_refused_with_the_bound_that_makes_it_possible() -> None:
    with pytest.raises(DeclarationError, match=r"t_min_s of 2 s must lie under the bound of 1 s"):
        DrsPolicy(t_min_s=2.0, t_max_s=1.0)
    with pytest.raises(DeclarationError, match="model must be one of mmk, gigk, epoch"):
        DrsPolicy(model="mm1")
    world = video(8, 12, 2, sla=SLA(2.0))
    with pytest.raises(ModelError, match="give at least 20"):
        DrsPolicy(k_max=12).check(world.estimate(), world.sla, world.limits)
    with pytest.raises(ModelError, match="lies above 1416 ms"):
        DrsPolicy(t_max_s=1.0).check(world.estimate(), world.sla, world.limits)
    with pytest.raises(DeclarationError, match="t_min_s"):
        DrsPolicy(t_min_s=4.0).check(world.estimate(), SLA(3.0), world.limits)
    DrsPolicy(k_max=20).check(world.estimate(), world.sla, world.limits)


def test_an_unreachable_bound_is_said_with_the_least_that_can_be_asked_for() -> None:
    world = video(10, 14, 2, sla=SLA(1.0))
    found = world.turn(DrsPolicy())
    assert found.plan is None and "lies above 1416 ms" in found.action
    assert "configuration is refused" in found.symptom and "latency of the SLA" in found.action


@pytest.mark.parametrize("start", [1, 2])
def test_fewer_cores_than_the_load_takes_are_refused_once_and_never_exceeded(start: int) -> None:
    world = World({"a": make_station(np.full(64, 10.0), 100.0, start)}, limits=Limits(32), sla=SLA(1.0))
    policy = DrsPolicy(k_max=2, reallocation_s=1)
    first = world.turn(policy)
    assert first.plan is None and "k_max: 2 cores cannot serve the load: give at least 7" in first.action
    world.run(policy, 20)
    assert world.k("a") == 2
    assert sum("configuration is refused" in one.symptom for one in world.proposals) == 1


def test_more_than_k_max_is_given_up_even_where_it_serves_the_load_and_k_max_does_not() -> None:
    world = World({"a": make_station(np.full(64, 10.0), 100.0, 12)}, limits=Limits(32), sla=SLA(1.0))
    policy = DrsPolicy(k_max=6)
    found = world.run(policy, 3)
    assert world.k("a") == 6
    given_up = next(one for one in found if one.plan is not None)
    assert given_up.urgent and given_up.predicted_s is None, (
        "no guard may hold it for the latency it leads to"
    )


def test_cores_that_a_burst_needed_are_given_up_once_it_is_worked_off() -> None:
    world = World({"a": make_station(np.full(64, 1000 / 64), 300.0, 6)}, sla=SLA(0.5, scope="operator"))
    policy = DrsPolicy()
    world.run(policy, 100)
    before = world.k("a")
    world.stations["a"].rates *= 2
    world.run(policy, 5)
    world.stations["a"].rates *= 2.5
    world.run(policy, 95)
    world.stations["a"].rates /= 5
    assert any("17 -> 18" in one.action for one in world.run(policy, 300)), "one more while it is worked off"
    assert world.k("a") <= before + 1


def test_cores_that_were_too_few_are_tried_again_after_an_hour_and_not_before() -> None:
    """A model that errs: it calls two cores enough, and one shard of them makes rows late."""
    followed = Followed()
    followed.look(100.0, 0.0, {"a": 1.5})
    followed.note_too_few(2, 100.0)
    assert followed.floor(3600.0) == 3 and followed.floor(3701.0) == 1
    followed.look(200.0, 0.0, {"a": 1.3})
    assert followed.floor(200.0) == 1, "for another load they may be enough"


def test_cores_are_not_given_up_where_shards_cannot_be_dealt_to_fewer() -> None:
    """Six shards for 0.75 of a core each: five cores serve the load, but one of them would have two shards."""
    world = World({"a": make_station(np.full(6, 150.0), 200.0, 6)})
    world.run(DrsPolicy(), 30)
    assert not world.plans and world.k("a") == 6


def test_shards_are_dealt_finely_to_cores_that_hardly_serve_the_load() -> None:
    rates = np.random.default_rng(3).uniform(1.0, 12.0, 240)
    rates *= 100.0 * 9.6 / rates.sum()
    world = World({"a": make_station(rates, 100.0, 14)})
    for loads, most in (({"a": 9.6}, 1.0), (None, 1.2)):
        (found,) = plan_cores(world.estimate(), world.limits, {"a": 10}, loads).values()
        assert 0.96 * found.balance.delta_after <= most
    assert derive_theta(0.5) == derive_theta(1.2) == THETA and 1.02 <= derive_theta(0.95) < 1.03


@pytest.mark.parametrize("scope", ["operator", "end-to-end"])
def test_where_the_bound_is_out_of_reach_all_cores_that_help_are_assigned_once(scope: str) -> None:
    world = video(8, 12, 2, sla=SLA(0.5, scope=scope))
    world.run(DrsPolicy(reallocation_s=5), 200)
    assert 1 <= len(world.plans) <= 3 and "cannot be reached" in world.proposals[-1].action
    assert sum(cores(world).values()) < 64, "what is no gain stays free"
    least_s = mmk_latency_s(13, 1.75, 60)
    assert mmk_latency_s(13, 1.75, world.k("extract")) < 1.1 * least_s


@pytest.mark.parametrize("scope", ["operator", "end-to-end"])
@pytest.mark.parametrize("make", [DrsPolicy, make_drs_lb])
def test_no_core_is_added_for_a_shard_that_none_can_help_and_the_shard_is_named(
    make: type[DrsPolicy], scope: str
) -> None:
    rates = np.full(64, 2.0)
    rates[7] = 450.0
    world = World({"a": make_station(rates, 300.0, 3)}, sla=SLA(0.5, scope=scope))
    policy = make(reallocation_s=5)
    found = world.run(policy, 60)
    assert world.k("a") == 3
    assert "one shard of a, 7, is 78% of the load and alone needs 1.5 cores" in found[-1].action
    assert found[-1].predicted_s == math.inf


@pytest.mark.parametrize(("k", "changed_at_s"), [(8, None), (4, 0.0)])
def test_drs_lb_says_whether_the_number_fits_or_t_ra_holds_another_back(
    k: int, changed_at_s: float | None
) -> None:
    station = make_station(np.full(64, 700 / 64), 200.0, k)
    station.task_of = np.where(np.arange(64) < 20, 0, station.task_of).astype(np.int32)
    world, policy = World({"a": station}), make_drs_lb(margin=0.2, t_min_s=0.0)
    policy._changed_at_s = changed_at_s
    moved = next(one for one in world.run(policy, 5) if one.plan is not None)
    held = "while the last re-allocation is less than 60 s old, which holds 5 cores back"
    assert moved.symptom.endswith("while the number of cores fits" if changed_at_s is None else held)


def test_bounds_that_cross_are_refused_where_the_bound_is_known_and_nothing_is_done_by_them() -> None:
    with pytest.raises(DeclarationError, match="t_min_s of 5 s must lie under the bound of 1 s"):
        make_policy_for(SLA(1.0), "drs:t_min_s=5")
    with pytest.raises(DeclarationError, match="t_min_s of 5 s"):
        make_policy_for(SLA(1.0), "advise:drs-lb", t_min_s=5.0)
    assert make_policy_for(SLA(6.0), "drs:t_min_s=5").name == "drs"
    world = World({"a": make_station(np.full(64, 10.0), 100.0, 10)}, limits=Limits(32), sla=SLA(1.0))
    world.run(DrsPolicy(t_min_s=5.0), 5)
    assert not world.plans and len({(one.symptom, one.action) for one in world.proposals}) == 1
    assert "t_min_s of 5 s" in world.proposals[0].action


def test_a_load_beyond_all_cores_is_no_matter_of_configuration() -> None:
    world = World({"a": make_station(np.full(64, 37.5), 200.0, 1)}, limits=Limits(8))
    assert world.turn(DrsPolicy()).plan is not None


def test_drs_lb_balances_while_t_ra_keeps_the_number_and_drs_waits() -> None:
    worlds = {}
    for policy in (DrsPolicy(margin=0.2), make_drs_lb(margin=0.2)):
        station = make_station(np.full(64, 700 / 64), 200.0, 4)
        station.task_of = np.where(np.arange(64) < 20, 0, station.task_of).astype(np.int32)
        world = worlds[policy.name] = World({"match": station}, limits=Limits(12))
        policy._changed_at_s = 0.0  # a re-allocation has just been; five cores are wanted
        world.run(policy, 20)
    assert not worlds["drs"].plans
    assert "re-allocation is less than 60 s old" in worlds["drs"].proposals[-1].action
    assert 1 <= len(worlds["drs-lb"].plans) <= 5 and worlds["drs-lb"].k("match") == 4


def test_drs_lb_balances_where_the_number_fits_and_drs_does_not() -> None:
    plans = {}
    for policy in (DrsPolicy(margin=0.2), make_drs_lb(margin=0.2)):
        station = make_station(np.full(64, 480 / 64), 200.0, 4)
        station.task_of = np.where(np.arange(64) < 20, 0, station.task_of).astype(np.int32)
        world = World({"match": station}, limits=Limits(4))
        world.run(policy, 10)
        plans[policy.name] = len(world.plans)
    assert plans["drs"] == 0 and 1 <= plans["drs-lb"] <= 3


def test_nodes_are_asked_for_once_and_given_back() -> None:
    world = World(
        {"match": make_station(np.full(64, 1500 / 64), 200.0, 2)},
        {"n0": NodeEstimate("n0", 4)},
        Limits(12, 1, 3, 4, node_start_s=10),
    )
    policy = DrsPolicy(reallocation_s=5)
    world.run(policy, 40)
    assert len(world.nodes) == 3 and world.k("match") >= 8
    world.stations["match"].rates = np.full(64, 100 / 64)
    world.run(policy, 150)
    assert world.k("match") == 1 and len(world.nodes) == 1


@pytest.mark.parametrize(("bound_s", "nodes"), [(0.001, 2), (0.1, 2), (0.0052, 3)])
def test_nodes_are_asked_for_as_many_as_the_bound_takes_or_where_nothing_holds_it_as_serve_the_load(
    bound_s: float, nodes: int
) -> None:
    """A row takes 5 ms. Ten and a half cores serve the load, 15 within 5.2 ms; four are there and a node brings four."""
    world = World(
        {"match": make_station(np.full(64, 2100 / 64), 200.0, 2)},
        {"n0": NodeEstimate("n0", 4)},
        Limits(32, 1, 8, 4),
        SLA(bound_s, scope="operator"),
    )
    world.run(DrsPolicy(), 2)  # the first turn only says that a bound cannot be had
    assert sum(plan.add_nodes for plan in world.plans) == nodes


def test_a_bound_on_a_quantile_takes_the_cores_of_the_mean_behind_it() -> None:
    """The p99 of an exponential time is 4.6 times its mean."""
    ends = {}
    for sla in (SLA(0.03, scope="operator"), SLA(0.03, quantile=0.99, scope="operator")):
        world = World({"match": make_station(np.full(64, 1000 / 64), 200.0, 1)}, sla=sla)
        world.turn(DrsPolicy())
        ends[sla.is_mean] = world.k("match")
    for is_mean, bound_s in ((True, 0.03), (False, 0.03 / math.log(100))):
        assert ends[is_mean] == next(k for k in range(6, 20) if mmk_latency_s(1000, 200, k) <= bound_s)
    assert ends[False] > ends[True]


def test_cores_that_turned_out_too_few_are_not_gone_back_to() -> None:
    world = World({"match": make_station(np.full(64, 1000 / 64), 300.0, 5)}, sla=SLA(0.2, scope="operator"))
    policy = DrsPolicy(reallocation_s=1)
    seen = world.estimate().executors["match"]
    world.turn(policy, executors={"match": replace(seen, measured_s=0.4)})
    assert world.k("match") == 6
    world.run(policy, 60)
    assert world.k("match") == 6, "the model calls four enough"


@pytest.mark.parametrize(("min_gain", "stays"), [(0.05, True), (0.0, False)])
def test_a_split_that_gains_too_little_is_left_as_it_is(min_gain: float, stays: bool) -> None:
    """With 25 cores 11:13:1 is 3.5% over the best, 10:14:1."""
    world = video(11, 13, 1)
    world.run(DrsPolicy(k_max=25, min_gain=min_gain), 5)
    assert tuple(cores(world).values()) == ((11, 13, 1) if stays else (10, 14, 1))


def test_what_k_max_cannot_serve_is_said_once_in_every_decision() -> None:
    world, policy = video(4, 3, 1, limits=Limits(8)), DrsPolicy(k_max=8)
    for _ in range(30):
        found = world.turn(policy)
    assert found.plan is None
    assert found.action.startswith("no change: nothing can help: k_max: 8 cores cannot serve"), found.action
    assert "cannot" not in found.symptom and found.symptom.startswith("all: latency ")
    assert not found.symptom.endswith(".") and not found.action.endswith(".")


@pytest.mark.parametrize("policy", ["drs", "drs-lb", "drs:model=epoch"])
@pytest.mark.parametrize("scope", ["operator", "end-to-end"])
def test_a_limit_on_cores_that_fell_is_obeyed_at_once(policy: str, scope: str) -> None:
    stations = {name: make_station([50.0] * 16, 200.0, 5) for name in "ab"}
    edges = {("in", "a"): 800.0, ("a", "b"): 800.0}
    bound = SLA(0.05 if scope == "operator" else 0.1, scope=scope)
    world = World(stations, sla=bound, edges=edges, sources={"in": 800.0})
    made = make_policy(policy)
    world.run(made, 20)
    held = world.k("a") + world.k("b")
    world.limits = Limits(max_cores=held - 1)
    world.run(made, 3)
    assert 8 <= world.k("a") + world.k("b") <= held - 1


def test_of_one_operator_no_ratio_is_told() -> None:
    def said(policy: DrsPolicy, rate: float, k: int, cores: int = 64, **more: object) -> str:
        world = World(
            {"work": make_station(np.full(64, rate / 64), 100.0, k)},
            nodes={"n0": NodeEstimate("n0", cores)},
            limits=Limits(max_cores=cores),
            **more,  # type: ignore[arg-type]
        )
        world.run(policy, 40)
        return "\n".join(
            f"{one.symptom}; {one.action}; {[option.action for option in one.options]}"
            for one in world.proposals
        )

    assert "work: 8 -> 1 core;" in said(DrsPolicy(reallocation_s=0), 10.0, 8)
    assert "all: 2 -> 8 cores;" in (split := said(DrsPolicy(k_max=8), 150.0, 2))
    assert "2 cores, predicted" in split and "'split 8 cores'" in split
    assert "; 1 -> 2 cores;" in (short := said(DrsPolicy(), 500.0, 1, cores=2))
    assert "all: 2 cores by load;" in (least := said(DrsPolicy(k_max=2), 500.0, 1))
    assert " as " not in split + short + least and ", 2;" not in least


def test_of_several_operators_the_ratio_is_told() -> None:
    world = video(8, 12, 1)
    world.run(DrsPolicy(k_max=22), 1)
    assert world.proposals[0].action == "all: split 22 cores as 1:9:12"
