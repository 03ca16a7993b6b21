"""Wrong usage of any command: one line on stderr, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.spark import ctrl_c
from penstock.version import __version__


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


def test_the_version_is_an_option_too() -> None:
    said = [CliRunner().invoke(app, given) for given in (["--version"], ["version"])]
    assert said[0].stdout == said[1].stdout == f"{__version__}\n" and said[0].exit_code == 0


def test_paths_may_begin_with_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "app.py").write_text("print('ran')")
    assert CliRunner().invoke(app, ["run", "~/app.py"]).stdout == "ran\n"
    assert f"{tmp_path}/none is no folder" in CliRunner().invoke(app, ["checkpoint", "show", "~/none"]).output
    asked = ["plan", "--operator", "x:10:100", "--json=~/out.json"]
    assert CliRunner().invoke(app, asked).exit_code == 0 and (tmp_path / "out.json").exists()
    missing = CliRunner().invoke(app, ["replay", "~/gone.jsonl"])
    assert missing.exit_code == 2 and "File '~/gone.jsonl' does not exist" in missing.output


def test_ctrl_c_ends_a_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.plan.run_plan", interrupted)
    monkeypatch.setattr("penstock.spark.ctrl_c._presses", ctrl_c._Presses())
    with pytest.raises(SystemExit) as ended:
        app(["plan"])
    assert ended.value.code == 130
    assert capfd.readouterr().err == "penstock: interrupted.\n"
