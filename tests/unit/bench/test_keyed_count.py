"""How the whole bench is put together: parts, what a failed one leaves, the exit code. Nothing is measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.bench import keyed_count, registry
from penstock.bench.keyed_count import PARTS, AggregateRound, Bench, Plan
from penstock.bench.ours import Held
from penstock.bench.result import BenchResult, UnknownPart
from penstock.bench.spark_process import SparkPeer
from penstock.bench.targets import NAMES


def bench(path: Path | None = None) -> Bench:
    peer = cast(SparkPeer, SimpleNamespace(pid=1))
    return Bench(BenchResult("keyed-count", {}, path=path), peer, Plan.of(True))


def held(rate_per_s: float, mean_ms: float) -> Held:
    return Held(rate_per_s, rate_per_s, mean_ms, mean_ms, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1, 1)


def test_every_part_owes_names_and_every_owed_name_has_a_part() -> None:
    assert set(PARTS) == set(NAMES)


def test_a_part_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownPart, match=r"no part latncy; there is latency"):
        keyed_count.run(BenchResult("keyed-count", {}), True, ["latncy"])


def test_a_failed_part_keeps_what_it_had_and_lets_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(one: Bench) -> None:
        one.result.add_figures(ours_cpu_idle_cores=0.01)
        raise TimeoutError("plain Spark gave no answer")

    monkeypatch.setitem(PARTS, "idle", fail)
    one = bench(tmp_path / "out.json")
    keyed_count._run_part(one, "idle")
    written = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert written["ours_cpu_idle_cores"] == 0.01
    assert one.result.failed == ["idle"]
    assert "plain Spark gave no answer" in capsys.readouterr().err


def test_missing_names_make_the_bench_fail_after_all_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    result = BenchResult("keyed-count", {}, ratios={"matching_vs_bare_loop": 0.4}, failed=["idle"])
    assert registry.report(result, ["ours_cpu_idle_cores"]) == 1
    said = capsys.readouterr()
    assert "matching_vs_bare_loop" in said.out and "met" in said.out
    assert "failed: idle; missing: ours_cpu_idle_cores" in said.err
    assert registry.report(BenchResult("keyed-count", {}), []) == 0


def test_a_tight_rate_that_was_not_held_in_every_round_is_not_claimed() -> None:
    always: Any = {}
    good = AggregateRound(always, held(5, 5), True, held(4.0, 90.0), 60.0)
    bad = AggregateRound(always, held(5, 5), True, None, 130.0)
    figures = bench()._tight_figures([good, bad])
    assert figures == {"ours_aggregate_at_100ms_per_s": 0.0, "ours_aggregate_at_100ms_mean_ms": 60.0}
    assert bench()._tight_figures([good])["ours_aggregate_at_100ms_per_s"] == 4.0
