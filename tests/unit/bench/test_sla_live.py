"""The compressed stretch of the order stream: the same orders live and simulated; and what its figures say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.bench import sla, sla_live
from penstock.bench.order_slice import BEFORE_S, KEYS, SHARDS, OrderSlice
from penstock.bench.result import BenchResult, UnknownPart
from penstock.workloads.dynamics import shard_of_keys


@pytest.fixture(scope="module")
def orders() -> OrderSlice:
    return OrderSlice(60, 5)


def test_rows_fall_on_the_shards_that_are_simulated_second_by_second(orders: OrderSlice) -> None:
    whole = orders(0, int(orders.starts[-1]))
    shard = shard_of_keys(KEYS, SHARDS)[whole.column(0).to_numpy()]
    for second in (0, 4, 5, 5 + BEFORE_S, 64):
        seen = np.bincount(shard[orders.starts[second] : orders.starts[second + 1]], minlength=SHARDS)
        assert (seen == orders.counts[second]).all()


def test_any_range_of_rows_is_that_of_the_whole(orders: OrderSlice) -> None:
    whole = orders(0, 3_000).column(0)
    assert orders(700, 1_234).column(0) == whole.slice(700, 1_234)
    assert orders(int(orders.starts[3]), 1).column(0) == whole.slice(int(orders.starts[3]), 1)


def test_the_rate_of_each_second_is_its_orders_and_the_opening_stands_out(orders: OrderSlice) -> None:
    rates = [rate for _, rate in orders.steps()]
    assert rates[:-1] == orders.counts.sum(axis=1).tolist() and rates[-1] == 0
    assert int(np.argmax(rates)) == 5 + BEFORE_S
    assert max(rates) > 8 * float(np.median(rates))


def test_a_live_part_is_measured_and_kept_beside_those_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, used = [], []

    def run_live(policy: str, given: int, seconds: int) -> sla_live.Done:
        tasks.append((policy, given, seconds))
        row_s = 0.006 if policy == "streamswitch" else 0.007
        return sla_live.Done(
            policy, 0.9 if policy == "streamswitch" else 0.8, 4.2, 0.5, 2.0, 7,
            placed_s=0.3, row_s=row_s, epoch_overhead_s=0.03, touched_shards=40.0,
        )  # fmt: skip

    def run_simulated(policy: str, given: int, seconds: int, by: sla_live.Calibration) -> sla_live.Done:
        used.append((policy, by))
        return sla_live.Done(policy, 0.95 if policy == "streamswitch" else 0.85, 4.0, 0.4, 2.0, 7)

    monkeypatch.setattr(sla_live, "run_live", run_live)
    monkeypatch.setattr(sla_live, "run_simulated", run_simulated)
    monkeypatch.setattr(sla_live.penstock, "session", lambda *a, **k: None)
    path = tmp_path / "sla.json"
    for part in ("spark-streamswitch", "spark-static"):
        assert sla.run(BenchResult("sla", {}, path=path), True, [part]) == []
    assert tasks == [("streamswitch", sla_live.START_TASKS, 120), ("static", 5, 120)]
    figures = json.loads(path.read_text())["figures"]
    assert figures["spark"]["success"] == {"streamswitch": 0.9, "static": 0.8}
    assert figures["spark"]["tasks"]["streamswitch"] == 4.2
    assert figures["spark"]["order"] == figures["spark"]["simulated_order"] == "streamswitch > static"
    assert figures["spark"]["calibrated_by"] == "streamswitch"
    assert [policy for policy, _ in used] == ["streamswitch", "oracle", "static"]
    (by,) = {by for _, by in used}  # the first live run calibrates all
    assert by.service_per_s == pytest.approx(1 / 0.006)
    overhead_s = by.epochs.o0_s + 4.2 * by.epochs.o1_s + 40 * by.epochs.o2_s
    assert overhead_s == pytest.approx(0.03) and by.costs.task_start_s == 0.3
    assert figures["simulator_error"] == pytest.approx({"mean": 0.2, "p99": 0.0, "cores": 0.0476}, abs=1e-3)


def test_an_unknown_part_is_refused_and_live_ones_are_named() -> None:
    with pytest.raises(UnknownPart, match="spark-penstock"):
        sla.run(BenchResult("sla", {}), True, ["spark-nobody"])
