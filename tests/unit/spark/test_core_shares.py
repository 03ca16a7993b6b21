"""What each of several queries may hold of the cores of one machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.spark.engine_shell import shell_of, started

from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.errors import PlanError
from penstock.spark import core_shares, elasticity
from penstock.spark.applying import SparkActuator
from penstock.spark.core_shares import Held, WithinShare, derive_share, read_held
from penstock.spark.elasticity import Elasticity


@pytest.fixture(autouse=True)
def no_other_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_shares, "_engines", [])


def engine_with(tasks: int, executors: int = 1) -> Any:
    """What an engine holds, as far as shares look at it: a source and some executors with equally many tasks."""
    runs = {"source": SimpleNamespace(spec=SimpleNamespace(kind="source"), slots={0: None})}
    for at in range(executors):
        slots = dict.fromkeys(range(tasks // executors))
        runs[f"e{at}"] = SimpleNamespace(spec=SimpleNamespace(kind="operator"), slots=slots)
    return SimpleNamespace(runs=runs)


def shares(cores: int, *held: Held) -> list[int]:
    return [derive_share(held, at, cores) for at in range(len(held))]


def test_a_query_may_hold_what_the_others_do_not() -> None:
    assert shares(6, Held(2, 1)) == [6]
    assert shares(6, Held(2, 1), Held(1, 1)) == [5, 4]
    assert shares(6, Held(4, 1), Held(2, 1)) == [4, 2]


def test_a_query_that_is_started_where_all_cores_are_held_has_one_for_each_executor() -> None:
    assert shares(6, Held(6, 1), Held(6, 1)) == [5, 1]
    assert shares(6, Held(6, 1), Held(6, 2)) == [4, 2]
    assert shares(6, Held(5, 1), Held(1, 1)) == [5, 1]


def test_what_is_given_back_goes_to_whoever_asks_first() -> None:
    assert shares(6, Held(3, 1), Held(1, 1)) == [5, 3]
    assert shares(6, Held(3, 1), Held(3, 1)) == [3, 3]


def test_with_more_executors_than_cores_each_query_has_one_for_each() -> None:
    assert shares(2, Held(2, 2), Held(2, 2)) == [2, 2]
    assert derive_share([Held(0, 0)], 0, 0) == 1


def test_shares_add_up_to_no_more_cores_than_there_are_whatever_was_held() -> None:
    for first in range(1, 9):
        for second in range(1, 9):
            one, other = shares(6, Held(first, 1), Held(second, 1))
            held = min(one, max(first, 1)) + min(other, max(second, 1))
            assert held <= 6 and one >= 1 and other >= 1


def test_tasks_of_sources_are_not_counted() -> None:
    assert read_held(engine_with(4, executors=2)) == Held(4, 2)


def test_a_policy_is_offered_no_cores_that_other_queries_of_a_local_session_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = shell_of(started(tmp_path, capacity=20))
    shell.node_loads = {}
    monkeypatch.setattr(elasticity, "is_local", lambda spark: True)
    monkeypatch.setattr(elasticity, "real_cores", lambda spark: 12)
    offered = Elasticity(shell, None, "query")  # type: ignore[arg-type]
    core_shares.join(shell.engine)
    assert offered._limits().max_cores == offered._nodes()[0].cores == 12
    other = engine_with(4)
    core_shares.join(other)
    assert offered._limits().max_cores == offered._nodes()[0].cores == 8
    core_shares.leave(other)
    assert offered._limits().max_cores == 12


def test_of_two_policies_that_grow_at_once_the_second_is_refused_what_the_first_took(tmp_path: Path) -> None:
    shell = shell_of(started(tmp_path, capacity=20))
    core_shares.join(shell.engine)
    actuator = WithinShare(SparkActuator(shell), lambda: core_shares.share_of(shell.engine, 6))
    held = read_held(shell.engine).tasks
    now = actuator.current()["fold"]
    tasks = dict(now.tasks) | {10 + more: "n0" for more in range(6 - held)}
    shards = np.array(sorted(tasks), np.int32)[np.arange(len(now.task_of)) % len(tasks)]
    wider = Plan({"fold": ExecutorPlan(tasks, shards)})
    core_shares.join(engine_with(6 - held))
    with pytest.raises(
        PlanError, match=f"6 cores would be held and other queries of the session leave {held}"
    ):
        actuator.apply(wider)
    core_shares._engines.pop()
    assert actuator.status(actuator.apply(wider)) is None
    assert read_held(shell.engine).tasks == 6


def test_a_query_that_is_stuck_while_it_takes_cores_keeps_no_other_from_deciding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_shares, "GIVING_S", 0.05)
    actuator = WithinShare(None, lambda: 4)  # type: ignore[arg-type]
    with core_shares._giving, pytest.raises(PlanError, match=r"taking cores for 0\.05 s; tried again later"):
        actuator.apply(Plan({}))
