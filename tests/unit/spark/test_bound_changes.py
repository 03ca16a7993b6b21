"""Which bound is held where several are asked for in a row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.spark.engine_shell import shell_of, started

from penstock.control.apply.journal import Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.sample import Sample
from penstock.control.plan.guards import Guards
from penstock.control.policy.registry import make_policy
from penstock.control.sla import SLA
from penstock.spark import elasticity


def test_the_bound_that_was_asked_for_last_is_held_after_a_long_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elasticity, "is_local", lambda spark: True)
    monkeypatch.setattr(elasticity, "real_cores", lambda spark: 4)
    nothing: Any = None
    loop = ControlLoop(nothing, make_policy("penstock"), SLA(1.0), nothing, Guards(), nothing, Journal())
    monkeypatch.setattr(elasticity, "ControlLoop", lambda *parts: loop)
    monkeypatch.setattr(elasticity, "Steering", lambda *parts: SimpleNamespace(loop=loop, close=lambda: None))
    shell = shell_of(started(tmp_path))
    shell.node_loads = {}
    held = elasticity.Elasticity(shell, None, "query")  # type: ignore[arg-type]
    monkeypatch.setattr(held, "_ask", lambda verb, work: None)
    held.hold(SLA(1.0))
    first = loop.policy

    def turn(sample: Sample) -> Any:
        held.hold(SLA(2.0))
        held.hold(SLA(1.0))

    monkeypatch.setattr(loop, "_turn", turn)
    loop.turn(nothing)
    assert loop.sla == SLA(1.0) and loop.policy is not first
    second = loop.policy
    held.hold(SLA(1.0))
    assert loop.policy is second, "what is held already goes on"
