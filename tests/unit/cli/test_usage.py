"""Wrong usage of any command: one line on stderr, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app


@pytest.mark.parametrize(
    ("arguments", "says", "see"),
    [
        (("query", "rescale", "DIR", "match", "--cores", "x"), "'--cores'", "query rescale"),
        (("query", "hold", "DIR"), "Missing option '--latency'", "query hold"),
        (("replay", "/nonexist/" + "long" * 60), "does not exist", "replay"),
        (("replay", "--polcy", "x"), "--polcy", "replay"),
        (("querry",), "'querry'", ""),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], says: str, see: str) -> None:
    ran = CliRunner().invoke(app, list(arguments))
    (line,) = ran.stderr.splitlines()
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert line.startswith("penstock: ") and says in line and line.rstrip().endswith(f"{see} --help."), line


def test_no_arguments_show_the_help_once() -> None:
    ran = CliRunner().invoke(app, [])
    assert ran.output.count("Usage:") == 1 and "penstock:" not in ran.output


def test_exit_codes_and_help_are_as_they_were(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["version"]).exit_code == 0
    assert CliRunner().invoke(app, ["demo", "--help"]).exit_code == 0
    (tmp_path / "empty").touch()
    assert CliRunner().invoke(app, ["replay", str(tmp_path / "empty")]).exit_code == 2
