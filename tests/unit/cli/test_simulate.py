from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.simulate import derive_contender
from penstock.errors import DeclarationError

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
    ("text", "says"),
    [
        ("static_x", "write static_8"),
        ("static_0", "write static_8"),
        ("nobody", "no policy 'nobody'"),
        ("nobody:=1", "name=value"),
    ],
)
def test_a_policy_that_is_not_there_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        derive_contender(text)


def test_an_unknown_workload_is_refused_with_those_there_are() -> None:
    result = CliRunner().invoke(app, ["simulate", "weather"])
    assert result.exit_code == 2
    assert "order-stream" in result.output
