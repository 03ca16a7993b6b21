"""The bench of policies: its names, its goal, and that a bench that was cut off goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench import sla, sla_runs
from penstock.bench.result import BenchResult, UnknownPart
from penstock.bench.sla import Plan, derive_goal
from penstock.bench.sla_runs import Done, Run, Runs, make_contender, simulate
from penstock.control.plan.guards import Guards
from penstock.sim.elastic.compare import NO_GUARDS


@pytest.fixture(autouse=True)
def a_short_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "of", staticmethod(lambda quick: Plan(2.0, (1, 2), (3,), (1,), 1.0)))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Runs that are carried out, with the simulator left as it is."""
    found: list[Run] = []

    def count(one: Run) -> object:
        found.append(one)
        return simulate(one)

    monkeypatch.setattr(sla, "simulate", count)
    return found


def test_every_policy_has_its_figures_and_the_static_costs_what_streamswitch_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "of", staticmethod(lambda quick: Plan(1.2, (1, 2), (3,), (1,))))
    result = BenchResult("sla", {}, path=tmp_path / "sla.json")
    assert sla.run(result, True, ["oracle", "streamswitch", "static", "penstock"]) == []
    found = json.loads((tmp_path / "sla.json").read_text())["figures"]["simulated"]
    assert set(found["success"]) == set(found["tasks"]) >= {"oracle", "streamswitch", "penstock"}
    tasks = next(int(name.removeprefix("static_")) for name in found["success"] if name.startswith("static_"))
    assert tasks - 1 < found["tasks"]["streamswitch"] <= tasks
    assert found["seeds"]["penstock"] == [1, 2] and set(found["days"]) == {"1", "2"}
    assert found["success_spread"]["oracle"][0] <= found["success"]["oracle"]
    assert isinstance(found["goal_met"], bool) and found["paper"] == {"success": 0.9628, "tasks": 8.4}


def test_a_bench_that_was_cut_off_does_only_what_is_left(tmp_path: Path, counted: list[Run]) -> None:
    path = tmp_path / "sla.json"
    sla.run(BenchResult("sla", {}, path=path), True, ["oracle"])
    lines = (tmp_path / "sla.runs.jsonl").read_text().splitlines()
    (tmp_path / "sla.runs.jsonl").write_text("\n".join(lines)[:-40])
    counted.clear()
    result = BenchResult("sla", {}, path=path)
    assert sla.run(result, True, ["oracle"]) == []
    assert [one.seed for one in counted] == [2]
    assert result.figures["simulated"]["seeds"]["oracle"] == [1, 2]
    counted.clear()
    result = BenchResult("sla", {}, path=path)
    sla.run(result, True, ["static"])
    assert "oracle" in result.figures["simulated"]["success"]
    assert {one.policy for one in counted} & {"oracle", "penstock"} == set()


def test_a_run_of_other_code_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Run("oracle", 1, 2.0)
    Runs(tmp_path / "runs").add(simulate(one)[0])
    assert Runs(tmp_path / "runs").get(one) is not None
    monkeypatch.setattr(sla_runs, "code", lambda: "another")
    assert Runs(tmp_path / "runs").get(one) is None


def test_unseen_days_stand_apart_and_bounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Run] = []

    def pretend(one: Run) -> tuple[Done, None]:
        counted.append(one)
        return Done(one, 0.9, 6.5, 0.1, 0.5, 3, 9, "day", sla_runs.code()), None

    monkeypatch.setattr(sla, "simulate", pretend)
    result = BenchResult("sla", {})
    sla.run(result, True, ["unseen", "bound_5s"])
    found = result.figures["simulated"]
    assert found["unseen"]["seeds"]["penstock"] == [3] and "success" not in found
    assert {one.latency_s for one in counted} == {1.0, 5.0}


def test_the_first_hour_is_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(one: Run) -> tuple[Done, None]:
        tasks = 6.5 if one.seconds == 2.0 else 9.5
        return Done(one, 0.9, tasks, 0.1, 0.5, 3, 9, "day", sla_runs.code()), None

    monkeypatch.setattr(sla, "simulate", pretend)
    result = BenchResult("sla", {})
    sla.run(result, True, ["streamswitch", "static", "hour", "hour_unseen"])
    found = result.figures["simulated"]
    assert "static_7" in found["success"] and "static_10" in found["hour"]["success"]
    assert found["hour"]["seeds"]["penstock"] == [1, 2] and found["hour_unseen"]["seeds"]["penstock"] == [3]
    assert found["hour"]["goal_met"] is True


def test_the_goal_is_99_percent_or_three_quarters_of_the_way() -> None:
    assert derive_goal(0.96, 0.995) == pytest.approx(0.98625)
    assert derive_goal(0.992, 0.995) == 0.99


def test_a_name_carries_its_margin() -> None:
    assert make_contender("streamswitch").make().margin == 0.2  # type: ignore[misc,attr-defined]
    assert make_contender("drs_e0.4").make().margin == 0.4  # type: ignore[misc,attr-defined]
    assert make_contender("static_8").tasks == 8
    assert make_contender("drs-lb").make().reallocation_s == 60.0  # type: ignore[misc,attr-defined]
    without = make_contender("drs-lb_ra0").make()  # type: ignore[misc]
    assert (without.reallocation_s, without.margin, without.migration) == (0.0, 0.2, "unit")  # type: ignore[attr-defined]
    assert make_contender("drs-lb").guards is NO_GUARDS
    assert make_contender("penstock").guards.max_actions_per_minute == Guards().max_actions_per_minute


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(UnknownPart, match="there is no part nothing; there is oracle, streamswitch"):
        sla.run(BenchResult("sla", {}), True, ["nothing"])
