"""Cores and nodes for a bound: enough of them, no more than it takes, and a clear word where nothing is enough."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.model.queues import mmk_latency_s
from penstock.control.plan.capacity import OperatorRate, plan_capacity
from penstock.control.sla import SLA


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


@pytest.mark.parametrize("text", ["match", "match:1", "match:1:0", ":1:2", "match:a:2", "match:1:2:3:4"])
def test_an_operator_that_cannot_be_read_is_refused_with_the_form(text: str) -> None:
    from penstock.cli.plan import read_operator
    from penstock.errors import DeclarationError

    with pytest.raises(DeclarationError, match="NAME:RATE:SERVICE"):
        read_operator(text)
