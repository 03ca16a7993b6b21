"""Traffic equations against loops solved by hand, and what an estimate says about a network."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.estimate import Estimate, ExecutorEstimate, TaskEstimate
from penstock.control.model.jackson import (
    Network,
    derive_network,
    find_flushed,
    network_latency_s,
    solve_traffic,
)
from penstock.control.model.queues import ModelError, mmk_latency_s
from penstock.control.model.stations import QueueStation


def executor(name: str, rate: float, *, operator: str | None = None, useful: float = 0.0) -> ExecutorEstimate:
    """An executor of two shards and one task that completes 100 rows a second of useful time."""
    halves = np.array([rate / 2, rate / 2])
    return ExecutorEstimate(
        name=name,
        operator=operator or name,
        task_of=np.zeros(2, dtype=np.int32),
        tasks=(TaskEstimate(0, "node", 100.0, useful),),
        arrival_per_s=halves,
        load=halves / 100.0,
        backlog_rows=np.zeros(2),
        latency_s=np.full(2, math.nan),
        state_bytes=np.zeros(2, dtype=np.int64),
        service_per_s=100.0,
    )


def test_a_chain_passes_on_what_each_operator_makes_of_a_row() -> None:
    found = solve_traffic(Network(("a", "b", "c"), {"a": 10.0}, {("a", "b"): 3.0, ("b", "c"): 0.5}))
    assert found.rate_per_s == pytest.approx({"a": 10.0, "b": 30.0, "c": 15.0})
    assert found.visits == pytest.approx({"a": 1.0, "b": 3.0, "c": 1.5})


def test_a_loop_of_one_operator_is_a_geometric_series() -> None:
    found = solve_traffic(Network(("a",), {"a": 6.0}, {("a", "a"): 0.25}))
    assert found.rate_per_s["a"] == pytest.approx(8.0)


def test_the_split_join_and_loop_of_drs_figure_2() -> None:
    # A -> B, A -> C, both join in D, D -> E, E feeds back to A. λA = λ0 + 0.2 λE, λE = 0.5 λD, λD = λB + 2 λC,
    # λB = 0.6 λA, λC = 0.4 λA: λD = 1.4 λA, λE = 0.7 λA, λA = λ0 / (1 - 0.14).
    ratios = {
        ("A", "B"): 0.6, ("A", "C"): 0.4, ("B", "D"): 1.0, ("C", "D"): 2.0, ("D", "E"): 0.5, ("E", "A"): 0.2,
    }  # fmt: skip
    found = solve_traffic(Network(("A", "B", "C", "D", "E"), {"A": 43.0}, ratios))
    assert found.rate_per_s == pytest.approx({"A": 50.0, "B": 30.0, "C": 20.0, "D": 70.0, "E": 35.0})


def test_two_nested_loops() -> None:
    # b <-> c with product 0.5, and c back to a with 0.1: λa = 10 + 0.1 λc, λb = λa + λc / 2, λc = λb.
    ratios = {("a", "b"): 1.0, ("b", "c"): 1.0, ("c", "b"): 0.5, ("c", "a"): 0.1}
    found = solve_traffic(Network(("a", "b", "c"), {"a": 10.0}, ratios))
    assert found.rate_per_s == pytest.approx({"a": 12.5, "b": 25.0, "c": 25.0})


def test_a_loop_that_makes_more_than_it_takes_is_refused_by_its_operators() -> None:
    ratios = {("in", "a"): 1.0, ("a", "b"): 2.0, ("b", "a"): 0.5, ("b", "out"): 1.0, ("c", "c"): 0.9}
    with pytest.raises(ModelError, match=r"the loop of a, b makes 1 rows"):
        solve_traffic(Network(("in", "a", "b", "out", "c"), {"in": 1.0}, ratios))


def test_a_large_ratio_outside_a_loop_is_no_instability() -> None:
    found = solve_traffic(Network(("a", "b"), {"a": 1.0}, {("a", "b"): 1000.0}))
    assert found.rate_per_s["b"] == pytest.approx(1000.0)


def test_a_row_that_feeds_two_operators_is_one_row_of_the_source() -> None:
    found = solve_traffic(Network(("a", "b"), {"a": 5.0, "b": 5.0}, {}, source_per_s=5.0))
    assert found.visits == pytest.approx({"a": 1.0, "b": 1.0})


def test_nothing_arrives_and_nothing_is_visited() -> None:
    found = solve_traffic(Network(("a", "b"), {}, {("a", "b"): 2.0}))
    assert found.rate_per_s == {"a": 0.0, "b": 0.0}
    assert found.visits == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize(
    "network",
    [
        Network(("a",), {"a": 1.0}, {("a", "gone"): 1.0}),
        Network(("a",), {"gone": 1.0}, {}),
        Network(("a",), {"a": -1.0}, {}),
        Network(("a", "b"), {"a": 1.0}, {("a", "b"): math.nan}),
    ],
)
def test_a_network_that_cannot_be_meant_is_refused(network: Network) -> None:
    with pytest.raises(ModelError):
        solve_traffic(network)


@given(st.data())
def test_what_flows_in_flows_on(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    names = tuple("abcdef"[:size])
    share = st.floats(0.0, 0.95 / size)
    ratios = {(one, two): data.draw(share) for one in names for two in names}
    external = {name: data.draw(st.floats(0.0, 100.0)) for name in names}
    found = solve_traffic(Network(names, external, ratios))
    for name in names:
        inflow = external[name] + sum(found.rate_per_s[one] * ratios[one, name] for one in names)
        assert found.rate_per_s[name] == pytest.approx(inflow, abs=1e-9)


def test_total_sojourn_time_is_weighted_by_visits() -> None:
    traffic = solve_traffic(Network(("a", "b"), {"a": 10.0}, {("a", "b"): 2.0, ("b", "b"): 0.5}))
    models = {"a": QueueStation(10.0, 8.0), "b": QueueStation(40.0, 30.0)}
    expected = mmk_latency_s(10.0, 8.0, 2) + 4.0 * mmk_latency_s(40.0, 30.0, 3)
    assert network_latency_s(traffic, models, {"a": 2, "b": 3}) == pytest.approx(expected)
    assert network_latency_s(traffic, models, {"a": 2, "b": 1}) == math.inf


def test_an_operator_that_nothing_visits_counts_nothing() -> None:
    traffic = solve_traffic(Network(("a", "idle"), {"a": 10.0}, {}))
    models = {"a": QueueStation(10.0, 20.0), "idle": QueueStation(50.0, 1.0)}
    assert network_latency_s(traffic, models, {"a": 1, "idle": 1}) == pytest.approx(0.1)


def test_an_estimate_gives_ratios_by_operator_whatever_its_executors() -> None:
    now = Estimate(
        at_s=0.0,
        executors={
            "a-0": executor("a-0", 30.0, operator="a"),
            "a-1": executor("a-1", 10.0, operator="a"),
            "b": executor("b", 120.0),
        },
        nodes={},
        edges={("orders", "a"): 40.0, ("a", "b"): 80.0, ("b", "b"): 40.0, ("b", "sink"): 7.0},
        sources_per_s={"orders": 40.0},
    )
    network = derive_network(now)
    assert network.operators == ("a", "b")
    assert network.ratios == pytest.approx({("a", "b"): 2.0, ("b", "b"): 1 / 3})
    assert solve_traffic(network).rate_per_s == pytest.approx({"a": 40.0, "b": 120.0})


def test_a_producer_that_falls_behind_is_expected_to_send_more_once_it_keeps_up() -> None:
    now = Estimate(
        at_s=0.0,
        executors={"a": executor("a", 200.0, useful=1.0), "b": executor("b", 50.0, useful=0.5)},
        nodes={},
        edges={("in", "a"): 200.0, ("a", "b"): 50.0},
        sources_per_s={"in": 200.0},
    )
    assert solve_traffic(derive_network(now)).rate_per_s == pytest.approx({"a": 200.0, "b": 100.0})


def test_a_producer_that_works_off_a_backlog_is_expected_to_send_less_once_it_has() -> None:
    now = Estimate(
        at_s=0.0,
        executors={
            "a": executor("a", 100.0, useful=3.0),
            "b": executor("b", 600.0, useful=6.0),
            "c": executor("c", 60.0, useful=0.6),
        },
        nodes={},
        edges={("in", "a"): 100.0, ("in", "c"): 60.0, ("a", "b"): 600.0},
        sources_per_s={"in": 160.0},
    )
    assert solve_traffic(derive_network(now)).rate_per_s == pytest.approx({"a": 100.0, "b": 200.0, "c": 60.0})
    assert find_flushed(now) == {"b"}
