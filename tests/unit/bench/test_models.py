"""How `bench models` is put together: parts and names; each part once, on little."""

from __future__ import annotations

import pytest

from penstock.bench import models
from penstock.bench.models import NAMES, PARTS, Plan
from penstock.bench.result import BenchResult, UnknownPart


def test_every_part_owes_names_and_every_owed_name_has_a_part() -> None:
    assert set(PARTS) == set(NAMES)


def test_a_part_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownPart, match=r"no part sped; there is optimality"):
        models.run(BenchResult("models", {}), True, ["sped"])


def test_each_part_adds_what_it_owes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "of", staticmethod(lambda quick: Plan(20, 2, 1, 500)))
    result = BenchResult("models", {})
    assert models.run(result, True, list(PARTS)) == []
    assert not result.failed
    assert result.figures["assign_optimal_share"] == 1.0


def test_a_part_that_fails_leaves_its_names_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(result: BenchResult, plan: Plan) -> None:
        raise RuntimeError("no queue")

    monkeypatch.setitem(PARTS, "recursion", fail)
    result = BenchResult("models", {})
    assert models.run(result, True, ["recursion"]) == list(NAMES["recursion"])
    assert result.failed == ["recursion"]
    assert "no queue" in capsys.readouterr().err
