from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.simulate import derive_contender
from penstock.control.sla import SLA
from penstock.errors import DeclarationError
from penstock.sim.elastic.cases import Case
from penstock.sim.elastic.compare import Result

SHORT = ["simulate", "--hours", "0.01", "--policy", "static_18", "--policy", "static_20"]


def test_a_comparison_is_a_table_with_the_oracle_first() -> None:
    result = CliRunner().invoke(app, SHORT)
    assert result.exit_code == 0, result.output
    assert result.stdout.index("oracle") < result.stdout.index("static_18") < result.stdout.index("static_20")


def test_an_application_of_the_papers_is_judged_end_to_end_and_has_no_oracle() -> None:
    result = CliRunner().invoke(
        app,
        [
            "simulate",
            "commcount",
            "--hours",
            "0.005",
            "--interval",
            "1",
            "--policy",
            "static_20",
            "--policy",
            "drs",
        ],
    )
    assert result.exit_code == 0, result.output
    assert "oracle" not in result.stdout and "static_20" in result.stdout and "20.00" in result.stdout


def test_a_comparison_as_json_has_policies_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = CliRunner().invoke(app, [*SHORT, "--seeds", "1,2", "--json", str(path)])
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert [one["policy"] for one in found["policies"]] == ["oracle", "static_18", "static_20"]
    assert len(found["runs"]) == 6
    assert found["policies"][1]["tasks"] == 18


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert CliRunner().invoke(app, [*SHORT, "--html", str(path)]).exit_code == 0
    page = path.read_text()
    assert page.count("<svg") == 1 + 2 * 3
    assert "static_20" in page
    assert not any(word in page for word in ("http", "<script", "src=", "@import"))


def test_plots_are_written_or_the_extra_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*SHORT, "--plots", str(tmp_path / "plots")])
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert result.exit_code == 2
        assert "penstock[plots]" in result.output
    else:
        assert {path.name for path in (tmp_path / "plots").iterdir()} >= {"success.png", "run-static_18.png"}


@pytest.mark.parametrize(
    ("path", "says"),
    [("file", "is a file; name a folder"), ("file/plots", "cannot be made: Not a directory")],
)
def test_a_folder_for_plots_that_cannot_be_one_is_refused_before_anything_is_simulated(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("penstock.cli.simulate.check_plots", lambda: None)
    monkeypatch.setattr("penstock.cli.simulate.compare", lambda *rest: pytest.fail("it was simulated"))
    result = CliRunner().invoke(app, [*SHORT, "--plots", str(tmp_path / path)])
    assert result.exit_code == 2 and says in result.stderr, result.output
    assert len(result.stderr.strip().splitlines()) == 1 and isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("static_x", "write static_8"),
        ("static_0", "write static_8"),
        ("static_²", "write static_8"),
        ("nobody", "no policy 'nobody'"),
        ("nobody:=1", "name=value"),
        ("drs:t_min_s=2", "t_min"),
    ],
)
def test_a_policy_that_is_not_there_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        derive_contender(text, SLA(1.0))


def test_an_unknown_workload_is_refused_with_those_there_are() -> None:
    result = CliRunner().invoke(app, ["simulate", "weather"])
    assert result.exit_code == 2
    assert "order-stream" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--hours", "0"), "--hours must be a positive number, not 0"),
        (("--hours", "-1"), "--hours must be"),
        (("--hours", "nan"), "--hours must be"),
        (("--hours", "inf"), "--hours must be"),
        (("--hours", "1e-6"), "is shorter than 1 s"),
        (("--hours", "9"), "has 4 hours: simulate at most so many"),
        (("--policy", "drs:t_min_s=2"), "t_min"),
        (("--seeds", "a"), "'a' is no seed"),
        (("--seeds", ""), "'' is no seed"),
        (("--seeds", "1,-2"), "'-2' is no seed"),
        (("--seeds", "1,2,1"), "--seeds: 1 is given twice"),
        (("--policy", "drs", "--policy", "drs"), "--policy: drs is given twice"),
        (("--policy", "static_8", "--policy", "static_08"), "--policy: static_8 is given twice"),
        (("--interval", "0"), "--interval must be a positive number"),
        (("--interval", "-1"), "--interval must be"),
        (("--interval", "nan"), "--interval must be"),
        (("--interval", "60", "--hours", "0.01"), "is shorter than 60 s"),
        (("--policy", "streamswitch:margin=abc"), "streamswitch: margin must be a number"),
        (("--json", "nowhere/result.json"), "there is no folder nowhere"),
        (("--html", "nowhere/page.html"), "there is no folder nowhere"),
        (("--html", "."), "is a folder"),
    ],
)
def test_what_cannot_be_meant_is_one_line_before_anything_is_simulated(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("penstock.cli.simulate.compare", lambda *rest: pytest.fail("it was simulated"))
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2 and says in result.stderr, result.output
    assert len(result.stderr.strip().splitlines()) == 1 and isinstance(result.exception, SystemExit)


def test_a_policy_can_be_heard_without_being_followed() -> None:
    result = CliRunner().invoke(
        app,
        ["simulate", "--hours", "0.005", "--interval", "1", "--policy", "advise:drs:k_max=8", "--json", "-"],
    )
    assert result.exit_code == 0, result.output
    (oracle, advised) = json.loads(result.stdout)["policies"]
    assert (oracle["policy"], advised["policy"], advised["actions"]) == ("oracle", "advise:drs:k_max=8", 0)


def test_the_help_says_what_the_oracle_is() -> None:
    said = " ".join(CliRunner().invoke(app, ["simulate", "--help"]).stdout.replace("│", " ").split())
    assert "bounds them all" not in said and "in order of arrival" in said


@pytest.mark.parametrize(
    ("workload", "stated", "interval_s"),
    [("order-stream", (), 0.1), ("logo-detection", (), 1.0), ("logo-detection", ("--interval", "0.5"), 0.5)],
)
def test_each_workload_has_an_interval_of_its_own(
    workload: str, stated: tuple[str, ...], interval_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def look(cases: Iterable[Case], *rest: object) -> list[Result]:
        seen.extend(case.interval_s for case in cases)
        return []

    monkeypatch.setattr("penstock.cli.simulate.compare", look)
    result = CliRunner().invoke(app, ["simulate", workload, "--hours", "0.01", *stated])
    assert result.exit_code == 0 and seen == [interval_s], result.output
