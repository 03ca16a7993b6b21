"""`penstock plan`: numbers that can be, a table that shows what the bound is of, JSON that any reader takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.main import app


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
    assert ran.exit_code == 0 and [one["predicted_s"] for one in found["capacity"]] == [None] * 3
    assert all("most planned for" in one["problem"] for one in found["capacity"])
