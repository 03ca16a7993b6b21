"""Parts of a bench: those asked for, what they owe, and what an earlier run of others has left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bench.parts import Part, run_parts
from penstock.bench.result import BenchResult, UnknownPart


def _adds(name: str) -> Part:
    return Part(lambda result: result.add_figures(**{name: 1.0}), (), (name,))


def _fails(result: BenchResult) -> None:
    raise RuntimeError("no disk")


def test_a_part_that_fails_leaves_its_names_missing_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = BenchResult("rescale", {})
    parts = {"one": Part(_fails, ("speed",), ("first",)), "two": _adds("second")}
    assert run_parts(result, parts, None, True) == ["speed", "first"]
    assert result.failed == ["one"]
    assert result.figures["second"] == 1.0
    assert "no disk" in capsys.readouterr().err


def test_a_part_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownPart, match="no part three; there is one, two"):
        run_parts(BenchResult("rescale", {}), {"one": _adds("a"), "two": _adds("b")}, ["three"], True)


def test_parts_run_one_by_one_come_together_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "rescale.json"
    parts = {"one": _adds("first"), "two": _adds("second")}
    for name in parts:
        result = BenchResult("rescale", {"python": "3"}, path=path)
        assert run_parts(result, parts, [name], True) == []
    assert {"first", "second"} <= set(json.loads(path.read_text())["figures"])


def test_figures_of_another_bench_or_version_or_of_a_run_before_a_whole_one_are_not_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rescale.json"
    parts = {"one": _adds("first"), "two": _adds("second")}
    run_parts(BenchResult("rescale", {"python": "3"}, path=path), parts, ["one"], True)
    for bench, version in (("scaling", "3"), ("rescale", "4")):
        result = BenchResult(bench, {"python": version}, path=path)
        run_parts(result, parts, ["two"], True)
        assert "first" not in result.figures
        run_parts(BenchResult("rescale", {"python": "3"}, path=path), parts, ["one"], True)
    whole = BenchResult("rescale", {"python": "3"}, path=path)
    run_parts(whole, {"two": _adds("second")}, None, True)
    assert "first" not in whole.figures


def test_a_quick_run_that_names_no_parts_leaves_some_out_and_says_which(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = {"one": _adds("first"), "two": replace(_adds("second"), in_quick=False)}
    for only, quick, ran in (
        (None, True, {"first"}),
        (None, False, {"first", "second"}),
        (["two"], True, {"second"}),
    ):
        result = BenchResult("rescale", {})
        assert run_parts(result, parts, only, quick) == []
        assert {"first", "second"} & set(result.figures) == ran
        left_out = "to be named with --only: two" in capsys.readouterr().err
        assert left_out is (quick and only is None)
