"""esstream: k* against enumeration, nodes by skewness, and what it never does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.measure.nodes import Need
from penstock.control.model.queues import mmk_rows
from penstock.control.policy.demand import derive_demand
from penstock.control.policy.esstream import EsStreamPolicy
from penstock.control.policy.marginal import derive_best_k
from penstock.control.policy.nodeloads import NodeLoads, derive_node_loads, derive_skewness, place_tasks
from penstock.control.policy.protocol import Limits
from penstock.errors import DeclarationError


def flat(total: float, shards: int = 64) -> np.ndarray:
    return np.full(shards, total / shards)


@given(st.floats(0.1, 400.0), st.floats(1.0, 50.0), st.floats(0.01, 0.9))
def test_best_k_minimises_the_cost_of_tasks_and_rows(rate: float, service: float, beta: float) -> None:
    found = derive_best_k(rate, service, beta)
    least = int(rate / service) + 1
    cost = {k: beta * k + (1 - beta) * mmk_rows(rate, service, k) for k in range(least, least + 60)}
    assert cost[found] <= min(cost.values()) * (1 + 1e-9)


@given(st.floats(0.1, 100.0), st.floats(0.02, 0.5))
def test_best_k_rises_with_load_and_falls_with_the_cost_of_a_task(rate: float, beta: float) -> None:
    assert derive_best_k(rate * 1.5, 10.0, beta) >= derive_best_k(rate, 10.0, beta)
    assert derive_best_k(rate, 10.0, beta * 1.5) <= derive_best_k(rate, 10.0, beta)


def test_skewness_is_defined_for_few_nodes_and_for_equal_ones() -> None:
    assert derive_skewness([]) == derive_skewness([0.2]) == derive_skewness([0.1, 0.9]) == 0.0
    assert derive_skewness([0.5, 0.5, 0.5]) == 0.0
    assert derive_skewness([0.1, 0.1, 0.1, 0.9]) > 1 > -1 > derive_skewness([0.9, 0.9, 0.9, 0.1])


def test_operators_get_their_k_and_keep_it() -> None:
    world = World(
        {"count": make_station(flat(1800), 600.0, 12), "store": make_station(flat(1800), 300.0, 2)},
        edges={("in", "count"): 1800.0, ("count", "store"): 1800.0},
        sources={"in": 1800.0},
    )
    world.run(EsStreamPolicy(), 60)
    beta = 1 / 64
    assert world.k("count") == derive_best_k(1800, 600, beta) < 12
    assert world.k("store") == derive_best_k(1800, 300, beta) > 6
    assert len(world.plans) == 1 and "count 12 -> " in world.proposals[0].action


def test_a_change_under_the_trigger_is_ignored_and_one_over_it_is_not() -> None:
    world = World({"count": make_station(flat(1000), 200.0, 1)})
    policy = EsStreamPolicy()
    world.run(policy, 15)
    settled = world.k("count")
    world.stations["count"].rates = flat(1150)
    world.run(policy, 30)
    assert world.k("count") == settled and len(world.plans) == 1
    world.stations["count"].rates = flat(1300)
    world.run(policy, 15)
    assert world.k("count") > settled and len(world.plans) == 2


def test_adjustments_keep_their_interval() -> None:
    world = World({"count": make_station(flat(1000), 200.0, 1)})
    policy = EsStreamPolicy(interval_s=10)
    world.run(policy, 2)
    world.stations["count"].rates = flat(2000)
    world.run(policy, 5)
    assert len(world.plans) == 1 and "10 s old" in world.proposals[-1].action
    world.run(policy, 10)
    assert len(world.plans) == 2


def test_a_consumer_is_scaled_for_what_its_producer_will_send() -> None:
    world = World(
        {"first": make_station(flat(1000), 200.0, 1), "second": make_station(flat(200), 200.0, 1)},
        edges={("in", "first"): 1000.0, ("first", "second"): 200.0},
        sources={"in": 1000.0},
    )
    found = world.turn(EsStreamPolicy())
    assert found.plan is not None and found.plan.executors["second"].k >= 6


def test_a_loop_is_one_station_and_both_of_its_operators_keep_up() -> None:
    world = World(
        {"a": make_station(flat(200), 100.0, 3), "b": make_station(flat(100), 100.0, 2)},
        edges={("in", "a"): 100.0, ("a", "b"): 100.0, ("b", "a"): 100.0},
        sources={"in": 100.0},
    )
    world.run(EsStreamPolicy(), 20)
    assert world.k("a") >= 3 and world.k("b") >= 2 and len(world.plans) <= 1


def test_new_tasks_go_to_the_least_loaded_node_that_fits() -> None:
    station = make_station(flat(500), 200.0, 3)
    station.tasks = {0: "n0", 1: "n0", 2: "n1"}
    nodes = {"n0": NodeEstimate("n0", 4), "n1": NodeEstimate("n1", 8), "n2": NodeEstimate("n2", 1)}
    world = World({"count": station}, nodes, Limits(13, 3, 3))
    world.turn(EsStreamPolicy())
    added = [node for index, node in world.stations["count"].tasks.items() if index > 2]
    assert added and set(added) == {"n1"}


def test_a_new_task_needs_an_even_share_of_what_its_siblings_use() -> None:
    """Two tasks use half of the only node; four of them use no more."""
    world = World({"count": make_station(flat(400), 200.0, 2)}, {"n0": NodeEstimate("n0", 4)}, Limits(4))
    now, policy = world.estimate(), EsStreamPolicy()
    assert policy._need(now, derive_demand(now), "count", 4) == Need(0.5 / 4)
    assert policy._need(now, derive_demand(now), "count", 2) == Need(0.25)
    tasks = tuple(replace(task, cpu_ratio=0.0) for task in now.executors["count"].tasks)
    unmeasured = replace(now, executors={"count": replace(now.executors["count"], tasks=tasks)})
    assert policy._need(unmeasured, derive_demand(unmeasured), "count", 4) == Need(2 / 4 / 4)
    world.turn(policy)
    assert world.k("count") == 4


def test_a_shard_that_no_number_of_tasks_helps_is_named() -> None:
    rates = np.full(64, 2.0)
    rates[7] = 450.0
    world = World({"count": make_station(rates, 300.0, 3)})
    found = world.run(EsStreamPolicy(), 60)
    assert "nothing can help: one shard of count, 7, is 78% of the load" in found[-1].action
    assert found[-1].predicted_s == np.inf
    assert len({world.k("count")} | {len(plan.executors["count"].tasks) for plan in world.plans[1:]}) <= 1


def test_without_rows_the_latency_of_the_first_one_is_predicted() -> None:
    world = World({"count": make_station(flat(0), 200.0, 1)}, sources={"in": 0.0})
    assert world.turn(EsStreamPolicy()).predicted_s == pytest.approx(1 / 200)


def test_near_a_bottleneck_new_tasks_go_to_other_nodes() -> None:
    station = make_station(flat(1500), 200.0, 8)
    nodes = {"n0": NodeEstimate("n0", 10), "n1": NodeEstimate("n1", 10)}
    world = World({"count": station}, nodes, Limits(20, 2, 2))
    world.turn(EsStreamPolicy(phi=0.7))
    added = [node for index, node in world.stations["count"].tasks.items() if index > 7]
    assert added and set(added) == {"n1"}


def test_nodes_come_with_load_and_the_ones_that_came_go_first() -> None:
    world = World(
        {"count": make_station(flat(400), 200.0, 2)},
        {"n0": NodeEstimate("n0", 4)},
        Limits(20, 1, 3, 8, node_start_s=5),
    )
    policy = EsStreamPolicy()
    world.run(policy, 20)
    world.stations["count"].rates = flat(1600)
    world.run(policy, 80)
    assert len(world.nodes) > 1 and world.k("count") * 200 > 1600
    world.stations["count"].rates = flat(100)
    world.run(policy, 100)
    assert list(world.nodes) == ["n0"] and set(world.stations["count"].tasks.values()) == {"n0"}


def test_in_idle_times_the_node_that_came_later_gives_first_though_it_is_less_loaded() -> None:
    world = World(
        {"count": make_station(flat(20), 200.0, 1)}, {"n0": NodeEstimate("n0", 4)}, Limits(12, 1, 2)
    )
    policy = EsStreamPolicy(interval_s=1)
    world.run(policy, 2)
    world.nodes = {**world.nodes, "n1": NodeEstimate("n1", 8)}
    world.stations["count"] = make_station(flat(20), 200.0, 5)
    world.stations["count"].tasks = {0: "n0", 1: "n0", 2: "n0", 3: "n1", 4: "n1"}
    policy._seen.clear()
    world.run(policy, 3)
    assert set(world.stations["count"].tasks.values()) == {"n0"}


EVEN, LOW, HIGH = (0.0, 0.0, 0.0), (0.0, 0.0, 0.1), (0.1, 0.1, 0.0)
"""What three nodes carry beyond a base: SK = 0, SK > 0 for one above the others, SK < 0 for one below them."""


def nodes_at(*loads: float, idle: int = 0, preempted: tuple[str, ...] = ()) -> NodeLoads:
    """A table of nodes n0, n1 and so on: the first with a task each and these loads, then idle ones."""
    names = [f"n{at}" for at in range(len(loads) + idle)]
    shares = {name: [load] * 3 for name, load in zip(names, [*loads, *[0.0] * idle], strict=True)}
    tasks = Counter(names[: len(loads)])
    limit = Need(0.85, 0.85, 0.85)
    return NodeLoads(dict.fromkeys(names, 4), 64, shares, tasks, limit, preempted)


@pytest.mark.parametrize(
    ("base", "more", "goes"),
    [(0.1, EVEN, True), (0.1, LOW, True), (0.1, HIGH, False), (0.4, LOW, False)],
)
def test_an_idle_node_goes_back_only_where_load_is_skewed_low_and_the_mean_under_zeta(
    base: float, more: tuple[float, ...], goes: bool
) -> None:
    table = nodes_at(*(base + one for one in more), idle=1)
    now = World({}, {name: NodeEstimate(name, 4) for name in table.cores}).estimate()
    assert EsStreamPolicy(zeta=0.3)._release(now, Limits(64, 1, 8), table) == (("n3",) if goes else ())


def test_of_the_idle_nodes_the_ones_that_came_last_go_back_and_the_least_number_stays() -> None:
    table = nodes_at(0.1, idle=4, preempted=("n2", "n1", "n3"))
    now = World({}, {name: NodeEstimate(name, 4) for name in table.cores}).estimate()
    assert EsStreamPolicy()._release(now, Limits(64, 1, 8), table) == ("n3", "n1", "n2", "n4")
    assert EsStreamPolicy()._release(now, Limits(64, 3, 8), table) == ("n3", "n1")


@pytest.mark.parametrize(
    ("base", "more", "taker"),
    [(0.72, EVEN, "n3"), (0.72, HIGH, "n3"), (0.72, LOW, "n0"), (0.6, HIGH, "n2")],
)
def test_a_new_task_goes_to_another_node_only_where_load_is_skewed_high_and_the_mean_over_phi(
    base: float, more: tuple[float, ...], taker: str
) -> None:
    table = nodes_at(*(base + one for one in more), idle=1)
    assert EsStreamPolicy(phi=0.7)._taker(table, Need(0.01)) == taker


@pytest.mark.parametrize(
    ("base", "more", "giver"),
    [(0.1, EVEN, "n1"), (0.1, LOW, "n1"), (0.1, HIGH, "n0"), (0.4, LOW, "n2")],
)
def test_the_node_that_came_later_gives_a_task_first_only_where_there_is_idle_room(
    base: float, more: tuple[float, ...], giver: str
) -> None:
    table = nodes_at(*(base + one for one in more), preempted=("n1",))
    table.loads["n0"] = [load + 0.001 for load in table.loads["n0"]]
    assert EsStreamPolicy(zeta=0.3)._giver(Counter(table.tasks), table) == giver


def test_operators_are_looked_at_from_the_source_on() -> None:
    world = World(
        {name: make_station(flat(1000), 200.0, 1) for name in ("c", "b", "a")},
        edges={("in", "c"): 1000.0, ("c", "b"): 1000.0, ("b", "a"): 1000.0},
        sources={"in": 1000.0},
    )
    now = world.estimate()
    assert list(EsStreamPolicy()._find_best(now, derive_demand(now), {"a": 1, "b": 1, "c": 1})) == [
        "c",
        "b",
        "a",
    ]


def test_a_load_that_its_tasks_do_not_serve_is_answered_whatever_the_trigger() -> None:
    world = World({"count": make_station(flat(1000), 200.0, 1)})
    policy = EsStreamPolicy(trigger=10.0, interval_s=1)
    world.run(policy, 10)
    settled = world.k("count")
    world.stations["count"].rates = flat(200.0 * settled * 0.95)
    world.run(policy, 10)
    assert world.k("count") == settled
    world.stations["count"].rates = flat(200.0 * settled * 1.05)
    world.run(policy, 10)
    assert world.k("count") > settled


@pytest.mark.parametrize(
    ("used", "beta"),
    [
        ({"cpu_ratio": 0.4, "memory_ratio": 0.3, "io_ratio": 0.3}, 0.4),
        ({"cpu_ratio": 0.3, "memory_ratio": 0.4, "io_ratio": 0.3}, 0.4),
        ({"cpu_ratio": 0.3, "memory_ratio": 0.3, "io_ratio": 0.4}, 0.4),
        ({"cpu_ratio": 0.1, "memory_ratio": 0.1, "io_ratio": 0.1}, 0.25),
    ],
)
def test_a_task_costs_the_resource_it_takes_most_of_and_never_less_than_its_core(
    used: dict[str, float], beta: float
) -> None:
    now = World({"count": make_station(flat(100), 200.0, 2)}, {"n0": NodeEstimate("n0", 4)}).estimate()
    tasks = tuple(replace(task, **used) for task in now.executors["count"].tasks)
    seen = replace(now, executors={"count": replace(now.executors["count"], tasks=tasks)})
    assert EsStreamPolicy()._beta(seen, "count") == pytest.approx(beta)
    assert EsStreamPolicy(beta=0.1)._beta(seen, "count") == 0.1


def test_eta_and_chi_say_how_skewed_load_must_be() -> None:
    """SK is below -1 for one node under two others, above 1 for one over them."""
    high, low = nodes_at(0.82, 0.82, 0.72, idle=1), nodes_at(0.1, 0.1, 0.2, idle=1)
    assert EsStreamPolicy(eta=-5.0)._taker(high, Need(0.01)) == "n2"
    assert EsStreamPolicy(eta=5.0)._taker(nodes_at(0.72, 0.72, 0.82, idle=1), Need(0.01)) == "n3"
    now = World({}, {name: NodeEstimate(name, 4) for name in low.cores}).estimate()
    assert EsStreamPolicy(chi=5.0)._release(now, Limits(64, 1, 8), low) == ()
    assert EsStreamPolicy(chi=-5.0)._release(now, Limits(64, 1, 8), nodes_at(0.2, 0.2, 0.1, idle=1)) == (
        "n3",
    )


def test_no_node_goes_back_while_cores_are_wanted_that_cannot_be_had() -> None:
    nodes = {"n0": NodeEstimate("n0", 64), "n1": NodeEstimate("n1", 64)}
    world = World({"count": make_station(flat(2000), 200.0, 2)}, nodes, Limits(4, 1, 2))
    world.run(EsStreamPolicy(interval_s=0), 5)
    assert world.k("count") == 4 and set(world.nodes) == {"n0", "n1"}


def test_a_node_is_asked_for_where_cores_are_free_and_a_task_fits_on_none_of_them() -> None:
    """Memory is short: each of eight tasks would take a fiftieth, and a hundredth is left under alpha."""
    nodes = {"n0": NodeEstimate("n0", 32, memory_ratio=0.84)}
    world = World({"count": make_station(flat(1000), 200.0, 1)}, nodes, Limits(64, 1, 4, 4))
    seen = world.estimate().executors["count"]
    tasks = (replace(seen.tasks[0], memory_ratio=0.16),)
    found = world.turn(EsStreamPolicy(), executors={"count": replace(seen, tasks=tasks)})
    assert found.plan is not None and found.plan.add_nodes > 0 and not found.plan.executors


def test_no_operator_gets_more_tasks_than_it_has_shards_with_rows() -> None:
    rates = np.where(np.arange(16) < 3, 1000.0, 0.0)
    world = World({"count": make_station(rates, 300.0, 1)})
    world.run(EsStreamPolicy(), 8)
    assert world.k("count") == 3


def test_what_one_operator_gives_up_another_gets_in_the_same_plan() -> None:
    world = World(
        {"a": make_station(flat(20), 200.0, 6), "b": make_station(flat(500), 200.0, 2)},
        {"n0": NodeEstimate("n0", 8)},
        Limits(8),
    )
    found = world.turn(EsStreamPolicy())
    assert found.plan is not None and found.plan.executors["a"].k < 6
    assert found.plan.executors["b"].k > 2


def test_the_two_other_placements_differ_as_they_should() -> None:
    nodes = {name: NodeEstimate(name, 8) for name in ("n0", "n1", "n2")}
    station = make_station(flat(10), 200.0, 1)
    world = World({"count": station}, nodes, Limits(24, 1, 3))
    need = [Need(0.05, 0.05, 0.0)] * 6
    limit = Need(0.85, 0.85, 0.85)

    def spread(placement: str) -> list[int]:
        table = derive_node_loads(world.estimate(), world.limits, limit)
        found = place_tasks(table, need, placement)
        return sorted(found.count(name) for name in nodes)

    assert spread("even") == [2, 2, 2] or spread("even") == [1, 2, 3]
    assert spread("r-storm") == [0, 0, 6]
    assert max(spread("least-loaded")) <= 3


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.floats(0.3, 15.0),
    st.integers(2, 20),
    st.sampled_from(["least-loaded", "even", "r-storm"]),
)
def test_every_plan_is_feasible(seed: int, load: float, cap: int, placement: str) -> None:
    random = np.random.default_rng(seed)
    rates = random.zipf(1.9, 24).clip(1, 500).astype(float)
    rates *= 100 * load / rates.sum()
    nodes = {"n0": NodeEstimate("n0", cap), "n1": NodeEstimate("n1", 3, speed=0.5)}
    stations = {"a": make_station(rates, 100.0, 1), "b": make_station(rates[::-1].copy(), 150.0, 1)}
    edges = {("in", "a"): 100 * load, ("a", "b"): 100 * load}
    world = World(stations, nodes, Limits(cap + 2, 1, 3, 4), edges=edges, noise=0.1, seed=seed)
    world.run(EsStreamPolicy(placement=placement, interval_s=2), 30)


def test_a_steady_noisy_load_leads_to_no_action() -> None:
    world = World({"count": make_station(flat(1000), 200.0, 1)}, noise=0.1)
    policy = EsStreamPolicy()
    world.run(policy, 5)
    world.plans.clear()
    world.run(policy, 1000)
    assert not world.plans


def test_missing_metrics_lead_to_no_change_and_then_to_normal_decisions() -> None:
    world = World({"count": make_station(flat(1000), 200.0, 2)})
    policy = EsStreamPolicy()
    assert all(world.turn(policy, invalid="no sample").plan is None for _ in range(5))
    assert world.turn(policy).plan is not None


def test_a_load_that_nothing_can_serve_leads_to_one_diagnosis() -> None:
    world = World(
        {"a": make_station(flat(3200, 16), 200.0, 1), "b": make_station(flat(3600, 16), 300.0, 1)},
        {"n0": NodeEstimate("n0", 32)},
        Limits(8),
        sources={"in": 3200.0},
        noise=0.1,
    )
    world.run(EsStreamPolicy(interval_s=2), 400)
    assert world.k("a") + world.k("b") == 8 and len(world.plans) <= 3
    assert "nothing can help" in world.proposals[-1].action and "8 can be had" in world.proposals[-1].action


@pytest.mark.parametrize("bad", [{"placement": "best"}, {"beta": 1.0}, {"phi": 0.9}, {"zeta": 0.8}])
def test_parameters_that_cannot_be_meant_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(DeclarationError, match="esstream: "):
        EsStreamPolicy(**bad)  # type: ignore[arg-type]
