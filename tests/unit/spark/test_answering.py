"""What the handle of a query is asked for by a request from outside its process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.dataplane.requests import Request
from penstock.errors import PlanError
from penstock.spark.answering import carry_out
from penstock.spark.node_draining import NotDrained
from penstock.topology.sla import OPERATOR, SLA


@pytest.mark.parametrize(
    ("given", "waits_s"),
    [
        pytest.param({"wait_s": 295.0}, 295.0, id="as long as the asker does"),
        pytest.param({}, 60.0, id="an asker of an older release does not say"),
    ],
)
def test_a_drain_is_waited_for_as_long_as_the_asker_waits(given: dict[str, float], waits_s: float) -> None:
    seen: list[tuple[Any, ...]] = []
    query: Any = SimpleNamespace(drain=lambda *asked: seen.append(asked) or "node 2 drained")
    line = msgspec.json.encode({"verb": "drain", "asked_at": 100.0, "node": "2", "release": True, **given})
    answer = carry_out(query, msgspec.json.decode(line, type=Request))
    assert answer.ok and answer.text == "node 2 drained"
    assert seen == [("2", True, waits_s)]


def test_a_drain_that_was_begun_is_no_refusal() -> None:
    def refuse(error: PlanError) -> Any:
        raise error

    query: Any = SimpleNamespace(
        drain=lambda *asked: refuse(NotDrained("node 2 was not drained: a task stays."))
    )
    answer = carry_out(query, Request("drain", 100.0, node="2"))
    assert not answer.ok and not answer.refused and answer.text == "node 2 was not drained: a task stays."
    query.drain = lambda *asked: refuse(PlanError("there is no node 2"))
    with pytest.raises(PlanError, match="no node"):
        carry_out(query, Request("drain", 100.0, node="2"))


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        pytest.param({}, SLA(0.5), id="an asker of an older release means the mean, end to end"),
        pytest.param(
            {"window_s": 5.0, "quantile": 0.99, "scope": OPERATOR},
            SLA(0.5, 5.0, 0.99, OPERATOR),
            id="another",
        ),
    ],
)
def test_the_bound_that_was_asked_for_is_held(given: dict[str, Any], bound: SLA) -> None:
    seen: list[tuple[Any, ...]] = []
    query: Any = SimpleNamespace(elasticity=SimpleNamespace(hold=lambda *asked: seen.append(asked)))
    line = msgspec.json.encode(
        {"verb": "hold", "asked_at": 100.0, "latency_s": 0.5, "policy": "drs", **given}
    )
    answer = carry_out(query, msgspec.json.decode(line, type=Request))
    assert seen == [(bound, "drs")] and answer.text == f"holds a {bound} by policy drs"
