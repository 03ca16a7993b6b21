"""The result file of a bench: its shape, its numbers, and that it is whole after every figure."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.bench.result import BenchResult, ratio_spread, spread


def test_a_spread_is_the_median_and_both_ends() -> None:
    assert spread([3.0, 1.0, 10.0]).median == 3.0
    assert (spread([3.0, 1.0, 10.0]).low, spread([3.0, 1.0, 10.0]).high) == (1.0, 10.0)


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]])
def test_a_spread_of_nothing_or_of_no_number_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        spread(samples)


def test_a_ratio_divides_medians_and_spans_the_worst_and_the_best_pair_of_a_round() -> None:
    ratio = ratio_spread([100.0, 120.0, 90.0], [10.0, 20.0, 8.0])
    assert (ratio.median, ratio.low, ratio.high) == (10.0, 6.0, 11.25)


def test_samples_that_were_not_taken_in_pairs_are_paired_in_every_way() -> None:
    ratio = ratio_spread([100.0, 120.0, 90.0], [10.0, 20.0])
    assert (ratio.low, ratio.high) == (4.5, 12.0)


def test_a_ratio_of_medians_lies_within_its_own_spread() -> None:
    ratio = ratio_spread([1.0, 2.0, 9.0], [1.0, 8.0, 3.0])
    assert ratio.low <= ratio.median <= ratio.high


def test_a_ratio_to_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        ratio_spread([1.0], [0.0])


def test_the_file_is_whole_and_readable_after_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.json"
    result = BenchResult("keyed-count", {"python": "3.11"}, path=path)
    result.add_figures(start_s=1.23456789, cores=2, note="quiet", missing=None)
    first = json.loads(path.read_text())
    assert list(first) == ["bench", "date", "versions", "emulated", "ratios", "figures"]
    assert first["figures"] == {"start_s": 1.2346, "cores": 2, "note": "quiet", "missing": None}
    result.add_ratio("aggregate_vs_spark_native", [4.0, 6.0], [2.0])
    assert json.loads(path.read_text())["ratios"] == {"aggregate_vs_spark_native": 2.5}
    assert result.figures["aggregate_vs_spark_native_spread"] == [2.0, 3.0]
    assert os.listdir(path.parent) == ["out.json"]


def test_a_spread_is_written_as_its_median_beside_its_ends() -> None:
    result = BenchResult("b", {})
    result.add_figures(rate_per_s=spread([1_234_567.0, 1_300_000.0, 1_200_000.0]))
    assert result.figures == {"rate_per_s": 1_234_567.0, "rate_per_s_spread": [1_200_000.0, 1_300_000.0]}


def test_a_number_that_was_not_measured_is_null_and_the_file_stays_readable(tmp_path: Path) -> None:
    result = BenchResult("b", {}, path=tmp_path / "out.json")
    result.add_figures(mean_ms=float("inf"))
    assert json.loads((tmp_path / "out.json").read_text())["figures"] == {"mean_ms": None}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    result = BenchResult("b", {}, path=path)
    result.add_figures(one=1)
    monkeypatch.setattr(Path, "write_text", _full_disk)
    with pytest.raises(OSError, match="full"):
        result.add_figures(two=2)
    assert json.loads(path.read_text())["figures"] == {"one": 1}


def _full_disk(*_: object, **__: object) -> int:
    raise OSError("full")
