"""Cores and nodes for a bound: enough of them, no more than it takes, and a clear word where nothing is enough."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.model.queues import mmk_latency_s
from penstock.control.plan.capacity import Capacity, OperatorRate, derive_rates, name_model, plan_capacity
from penstock.control.sla import SLA
from penstock.errors import DeclarationError


@given(st.floats(1.0, 5_000.0), st.floats(10.0, 2_000.0), st.floats(1.5, 20.0))
def test_one_operator_gets_the_fewest_cores_that_hold_the_bound(
    rate: float, service: float, slack: float
) -> None:
    bound = slack / service
    (found,) = plan_capacity([OperatorRate("op", rate, service)], SLA(bound), 4, factors=(1.0,))
    k = found.cores["op"]
    assert mmk_latency_s(rate, service, k, 0.2) <= bound * (1 + 1e-9)
    assert k == 1 or mmk_latency_s(rate, service, k - 1, 0.2) > bound
    assert found.nodes == math.ceil(k / 4)


def test_more_load_takes_more_cores_and_a_quantile_more_than_the_mean() -> None:
    operators = [OperatorRate("a", 900, 100), OperatorRate("b", 400, 100, visits=0.5)]
    rows = plan_capacity(operators, SLA(0.05), 8)
    assert [row.factor for row in rows] == [1.0, 1.5, 10.0]
    assert rows[0].total < rows[1].total < rows[2].total
    tail = plan_capacity(operators, SLA(0.05, quantile=0.99), 8)
    assert all("bound" in row.problem or row.total > mean.total for row, mean in zip(tail, rows, strict=True))


def test_a_bound_below_the_service_time_is_refused_with_the_one_that_can_be_held() -> None:
    (found,) = plan_capacity([OperatorRate("op", 10, 100)], SLA(0.001), 8, factors=(1.0,))
    assert found.problem and found.total == 0


def test_an_operator_with_too_few_shards_is_named() -> None:
    (found,) = plan_capacity([OperatorRate("op", 1_000, 100, shards=4)], SLA(1.0), 8, factors=(1.0,))
    assert "op" in found.problem


@pytest.mark.parametrize("executors", [2, 4])
def test_an_operator_takes_about_the_same_however_many_executors_share_it(executors: int) -> None:
    def planned(count: int) -> Capacity:
        stations = {}
        for number in range(count):
            rates = np.zeros(64)
            rates[number * 64 // count : (number + 1) * 64 // count] = 1000 / 64
            station = make_station(rates, 200.0, 8 // count)
            station.task_of = np.where(rates > 0, station.task_of, -1).astype(np.int32)
            station.operator = "a"
            stations["a" if number == 0 else f"a#{number + 1}"] = station
        world = World(stations, sla=SLA(1.0), edges={("in", "a"): 1000.0}, sources={"in": 1000.0})
        rates = derive_rates(world.estimate())
        assert sum(one.visits for one in rates) == pytest.approx(1.0)
        return plan_capacity(rates, SLA(0.02), 8, factors=(1.0,))[0]

    one, shared = planned(1), planned(executors)
    assert not one.problem and not shared.problem
    assert one.total <= shared.total <= one.total + executors


@pytest.mark.parametrize(("rows", "known"), [(60.0, False), (6000.0, True)])
def test_no_shard_is_called_hot_for_what_chance_makes_of_few_rows(rows: float, known: bool) -> None:
    random = np.random.default_rng(1)
    rates = random.poisson(rows * np.where(np.arange(256) == 7, 0.02, 0.98 / 255)).astype(float)
    (found,) = derive_rates(World({"a": make_station(rates, 10.0, 2)}).estimate())
    assert found.hottest_ratio == (pytest.approx(rates[7] / rates.sum() if known else 1 / 256))
    told = plan_capacity(
        [replace(found, rate_per_s=90.0 * 256, service_per_s=10.0, visits=1.0)], SLA(1.0), 8
    )[2].problem
    assert told.startswith("one shard of a is ")


def test_executors_that_nothing_arrives_at_share_evenly() -> None:
    world = World({"a": make_station(np.zeros(4), 200.0, 1), "a#2": make_station(np.zeros(4), 200.0, 1)})
    world.stations["a#2"].operator = world.stations["a"].operator = "a"
    assert [one.visits for one in derive_rates(world.estimate())] in ([0.5, 0.5], [0.0, 0.0])


def test_what_is_predicted_is_what_the_bound_is_of() -> None:
    operators = [OperatorRate("a", 900, 100)]
    (mean,) = plan_capacity(operators, SLA(0.1), 8, factors=(1.0,))
    (tail,) = plan_capacity(operators, SLA(0.1, quantile=0.99), 8, factors=(1.0,))
    assert mean.predicted_s <= 0.1 and tail.predicted_s <= 0.1 < 4.7 * mean.predicted_s
    (few,) = plan_capacity(operators, SLA(0.01, quantile=0.99), 8, factors=(1.0,))
    assert "10 ms cannot be reached" in few.problem and "57.56 ms" in few.problem


def test_a_load_past_all_cores_is_refused_before_it_is_computed() -> None:
    started = time.monotonic()
    rows = plan_capacity([OperatorRate("a", 1e12, 10.0), OperatorRate("b", 1e308, 1e-3)], SLA(1.0), 8)
    assert all("is the most planned for" in row.problem and not row.cores for row in rows)
    assert time.monotonic() - started < 1.0


@pytest.mark.parametrize(
    ("operators", "says"),
    [
        ([OperatorRate("a", math.nan, 10.0)], "operator a: its rate is nan"),
        ([OperatorRate("a", 10.0, math.nan)], "operator a: one core serves nan"),
        ([OperatorRate("a", 10.0, 10.0, math.inf)], "operator a: its visits is inf"),
        (
            [OperatorRate("a", 10.0, 10.0, 0.0)],
            "operator a: 10 rows a second arrive, so its visits cannot be 0",
        ),
        ([OperatorRate("a", 10.0, 10.0), OperatorRate("a", 10.0, 10.0)], "operator a is there 2 times"),
    ],
)
def test_rates_that_cannot_be_are_refused_by_name(operators: list[OperatorRate], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        plan_capacity(operators, SLA(1.0), 8)
    for cores in (0, -3):
        with pytest.raises(DeclarationError, match="at least one core"):
            plan_capacity([OperatorRate("a", 10.0, 10.0)], SLA(1.0), cores)


@pytest.mark.parametrize(
    "text",
    [
        "match",
        "match:1",
        "match:1:0",
        ":1:2",
        "match:a:2",
        "match:1:2:3:4",
        "match:nan:2",
        "match:1:inf",
        "match:-1:2",
    ],
)
def test_an_operator_that_cannot_be_read_is_refused_with_the_form(text: str) -> None:
    from penstock.cli.plan import read_operator

    with pytest.raises(DeclarationError, match="NAME:RATE:SERVICE"):
        read_operator(text)


def test_a_bound_on_operators_is_held_by_each_for_itself() -> None:
    operators = [OperatorRate(name, 500.0, 100.0) for name in "abcde"]
    (whole,) = plan_capacity(operators, SLA(0.05), 8, factors=(1.0,))
    assert "raise it past 62.5 ms" in whole.problem
    (each,) = plan_capacity(operators, SLA(0.05, scope="operator"), 8, factors=(1.0,))
    (alone,) = plan_capacity(operators[:1], SLA(0.05), 8, factors=(1.0,))
    assert not each.problem and each.cores == dict.fromkeys("abcde", alone.cores["a"])
    assert each.predicted_s == alone.predicted_s <= 0.05 and each.nodes == math.ceil(each.total / 8)


def test_a_shard_that_no_core_serves_is_named_instead_of_cores() -> None:
    rates = np.full(256, 400.0 / 255)
    rates[17] = 600.0
    world = World({"match": make_station(rates, 500.0, 4)}, edges={("in", "match"): 1000.0})
    (measured,) = derive_rates(world.estimate())
    assert measured.hottest_ratio == pytest.approx(0.6)
    (found,) = plan_capacity([measured], SLA(0.1), 8, factors=(1.0,))
    assert "one shard of match is 60% of its load and alone takes 1.20 cores" in found.problem
    assert "no number of cores helps" in found.problem and not found.cores


@pytest.mark.parametrize(("hottest_ratio", "held"), [(0.0, [True, True]), (0.3, [True, False])])
def test_a_shard_grows_with_the_load_and_must_leave_the_margin_free(
    hottest_ratio: float, held: list[bool]
) -> None:
    operator = OperatorRate("match", 1_000.0, 500.0, hottest_ratio=hottest_ratio)
    rows = plan_capacity([operator], SLA(0.1), 8, factors=(1.0, 1.5))
    assert [not row.problem for row in rows] == held


def test_the_model_of_the_predictions_has_its_name() -> None:
    plain, varied = OperatorRate("a", 10.0, 20.0), OperatorRate("b", 10.0, 20.0, scv_service=2.0)
    assert name_model([plain]) == "M/M/k with 20% of every core left free"
    assert name_model([plain, varied]) == "GI/G/k with 20% of every core left free"
