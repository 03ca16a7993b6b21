"""`penstock plan`: numbers that can be, a table that shows what the bound is of, JSON that any reader takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import plan as command
from penstock.cli.main import app
from penstock.control.plan.capacity import OperatorRate
from penstock.dataplane.requests import Answer


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_the_table_shows_cores_nodes_and_what_is_predicted_of_what_is_bounded() -> None:
    ran = penstock("--operator", "match:5000:800", "--latency", 0.5)
    assert ran.exit_code == 0 and "predicted mean" in ran.stdout and "10x" in ran.stdout, ran.output
    ran = penstock("--operator", "match:5000:800", "--latency", 0.5, "--quantile", 0.99)
    assert ran.exit_code == 0 and "predicted p99" in ran.stdout, ran.output


def test_an_operator_of_several_executors_has_one_column_with_all_their_cores() -> None:
    stated = [
        option
        for number in range(1, 21)
        for option in ("--operator", f"{'match' if number == 1 else f'match#{number}'}:100:200")
    ]
    ran = penstock(*stated, "--operator", "sum:100:200", "--latency", 0.5, "--json", "-")
    found = json.loads(ran.stdout)["capacity"][0]["cores"]
    ran = penstock(*stated, "--operator", "sum:100:200", "--latency", 0.5)
    assert ran.exit_code == 0 and "match#2" not in ran.stdout and "20 executors" in ran.stdout, ran.output
    assert "2,000/s, 200/s a core" in ran.stdout
    row = next(line for line in ran.stdout.splitlines() if " 1x " in line.replace("│", " "))
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1:4] == [
        str(sum(found.values()) - found["sum"]),
        str(found["sum"]),
        str(sum(found.values())),
    ]


def test_a_bound_may_be_on_each_operator() -> None:
    stated = ("--operator", "a:500:100", "--operator", "b:500:100", "--latency", 0.02)
    ran = penstock(*stated)
    assert "cannot be reached" in ran.stdout, ran.output
    ran = penstock(*stated, "--scope", "operator")
    assert ran.exit_code == 0 and "(operator)" in ran.stdout and "cannot" not in ran.stdout, ran.output


def test_names_are_shown_as_they_were_written() -> None:
    ran = penstock("--operator", "[b]match[/b]:5000:800")
    assert ran.exit_code == 0 and "[b]match[/b]" in ran.stdout, ran.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--operator", "a:nan:10"), "NAME:RATE:SERVICE"),
        (("--operator", "a:10:inf"), "NAME:RATE:SERVICE"),
        (("--operator", "a:10:10", "--operator", "a:20:10"), "operator a is there 2 times"),
        (("--operator", "a:1000:300:0"), "its visits cannot be 0"),
        (("--operator", "a:10:10", "--cores-per-node", 0), "at least one core"),
        (("--operator", "a:10:10", "--cores-per-node", -3), "at least one core"),
        (("--operator", "a:10:10", "--latency", "nan"), "latency must be"),
        (("--operator", "a:10:10", "--latency", "inf"), "latency must be"),
        (("--operator", "a:10:10", "--quantile", 1.5), "quantile must be"),
        (("--operator", "a:10:10", "--json", "nowhere/plan.json"), "nowhere/plan.json cannot be written"),
        (("nowhere",), "no checkpoint of Penstock"),
        ((), "either a checkpoint"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    arguments: tuple[object, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = penstock(*arguments)
    assert ran.exit_code == 2 and says in ran.stderr, ran.output
    assert len(ran.stderr.strip().splitlines()) == 1 and isinstance(ran.exception, SystemExit)
    assert list(tmp_path.iterdir()) == []


def test_json_has_null_where_nothing_can_be_predicted() -> None:
    ran = penstock("--operator", "a:1e12:10", "--json", "-")
    found = json.loads(ran.stdout, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))
    assert ran.exit_code == 1 and [one["predicted_s"] for one in found["capacity"]] == [None] * 3
    assert all("most planned for" in one["problem"] for one in found["capacity"])


def test_a_bound_out_of_reach_at_the_load_there_is_has_an_exit_code_of_its_own() -> None:
    assert penstock("--operator", "a:10:100", "--latency", 0.001).exit_code == 1
    ran = penstock("--operator", f"a:{1 << 22}:10", "--latency", 1)
    assert ran.exit_code == 0 and "most planned for" in ran.stdout, "ten times the load is none that there is"


def test_the_last_lines_say_by_which_model_and_that_shards_are_taken_to_be_balanced() -> None:
    ran = penstock("--operator", "match:5000:800", "--latency", 0.5)
    assert ran.stdout.splitlines()[-3:] == [
        "rates as stated; nothing was measured",
        "what the table predicts is by M/M/k with 20% of every core left free",
        "balanced shards are assumed",
    ]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Operators as a query that runs tells them."""
    told: list[dict[str, object]] = []
    monkeypatch.setattr(command, "checkpoint_folder", str)
    monkeypatch.setattr(
        command, "ask", lambda *rest: Answer(True, "mm1: 3 predictions", [json.dumps(one) for one in told])
    )
    return told


def test_a_running_query_tells_how_large_its_hottest_shard_is(running: list[dict[str, object]]) -> None:
    running.append(asdict(OperatorRate("match", 1000.0, 500.0, scv_service=0.1, hottest_ratio=0.05)))
    ran = penstock("cp", "--latency", 0.5)
    said = " ".join(ran.stdout.split())
    assert (
        ran.exit_code == 0
        and "by GI/G/k with 20% of every core left free; errors above, if any, are of" in said
    )
    assert "the hottest is 5.0% of the load of match and keeps 10% of a core busy" in said
    running[0]["hottest_ratio"] = 0.6
    ran = penstock("cp", "--latency", 0.5)
    assert ran.exit_code == 1 and "a shard has one task" in " ".join(ran.stdout.replace("│", " ").split())


def test_a_query_of_another_release_may_tell_less_or_more(running: list[dict[str, object]]) -> None:
    running.append({"name": "match", "rate_per_s": 1000.0, "service_per_s": 500.0, "colour": "red"})
    ran = penstock("cp", "--latency", 0.5)
    assert ran.exit_code == 0 and ran.stdout.splitlines()[-1] == "balanced shards are assumed", ran.output


def test_the_help_says_what_the_fourth_number_is() -> None:
    said = " ".join(penstock("--help").stdout.replace("│", " ").split())
    assert "rows that reach the operator for each input row" in said
