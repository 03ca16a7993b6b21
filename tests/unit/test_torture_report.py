from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.torture import run as torture
from tests.torture.report import Report, State, over_seeds
from tests.torture.table import render_table


def fail_at_three(seed: int) -> str | None:
    return "three" if seed == 3 else None


def report(path: Path, code: str = "c1", seconds: float = 60.0) -> Report:
    return Report("12", State(path, code), time.monotonic() + seconds, say=lambda line: None)


def test_parts_that_passed_are_not_wanted_again_for_the_same_code(tmp_path: Path) -> None:
    path = tmp_path / "state"
    over_seeds(report(path), fail_at_three, 6, 0, chunk=2, workers=1)
    later = report(path)
    assert [later.wanted(f"seeds {a} to {a + 1}") for a in (0, 2, 4)] == [False, True, False]
    assert report(path, "c2").wanted("seeds 0 to 1")


def test_a_report_adds_up_what_this_run_and_earlier_ones_did(tmp_path: Path) -> None:
    path = tmp_path / "state"
    over_seeds(report(path), fail_at_three, 4, 0, chunk=2, workers=1)
    later = report(path)
    over_seeds(later, fail_at_three, 6, 0, chunk=2, workers=1)
    parts = later.finished()
    assert (sum(p.tried for p in parts), sum(p.passed for p in parts)) == (6, 5)
    assert [p.details for p in parts if p.details] == [["seed 3: three"]]


def test_nothing_is_wanted_when_time_is_up(tmp_path: Path) -> None:
    late = report(tmp_path / "state", seconds=-1.0)
    assert not late.wanted("a part")


def test_the_result_names_tried_and_passed_per_test(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    suites = (torture.Suite("1", "one", 4, "tests.unit.test_torture_report:suite_one"),
              torture.Suite("2", "two", 4, "tests.unit.test_torture_report:no_such_suite"))  # fmt: skip
    monkeypatch.setattr(torture, "SUITES", suites)
    out = tmp_path / "out.json"
    given = ["--json", str(out), "--state", str(tmp_path / "state")]
    assert torture.main([*given, "--only", "1"]) == 0
    assert torture.main(given) == 1
    tests = json.loads(out.read_text())["tests"]
    assert (tests["1"]["tried"], tests["1"]["passed"], tests["1"]["complete"]) == (4, 4, True)
    assert (tests["2"]["tried"], tests["2"]["passed"], tests["2"]["complete"]) == (1, 0, False)


def suite_one(count: int, seed: int, given: Report) -> None:
    if given.wanted("all"):
        given.note("all", count, count)


def result(code: str, **suites: bool) -> dict[str, object]:
    return {
        "code": code,
        "tests": {
            name.replace("_", "-").removeprefix("t"): {
                "title": "kills",
                "tried": 3_000,
                "passed": 3_000,
                "complete": done,
            }
            for name, done in suites.items()
        },
    }


def test_the_table_has_a_row_for_every_suite_in_the_order_of_their_numbers() -> None:
    text = render_table([result("c1", t12_planted=True, t2=True), result("c1", t12=True)])
    assert [line.split("|")[1].strip() for line in text.splitlines()[4:]] == ["2", "12", "12-planted"]
    assert "commit c1" in text and "3,000" in text


def test_no_table_is_made_of_two_commits_or_of_what_is_not_finished() -> None:
    with pytest.raises(ValueError, match="different code: c1, c2"):
        render_table([result("c1", t1=True), result("c2", t2=True)])
    with pytest.raises(ValueError, match="not finished or did not pass: 2"):
        render_table([result("c1", t1=True, t2=False)])
