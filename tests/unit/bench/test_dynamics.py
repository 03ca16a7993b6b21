"""Arithmetic and parts of `bench dynamics`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from penstock.bench import dynamics
from penstock.bench.dynamics_exchange import POPULARITY, ShuffledOrders
from penstock.bench.dynamics_figures import (
    Sighting,
    derive_share_of_ceiling,
    derive_throughput,
    predict_latency_ms,
)
from penstock.bench.dynamics_runs import explains
from penstock.bench.dynamics_simulated import ROW_S, Saturated, derive_setting, hashed
from penstock.bench.result import BenchResult, UnknownPart
from penstock.workloads.dynamics import Dynamics
from penstock.workloads.exchange_orders import STOCKS, WARM_UP_ORDERS, orders

ROWS = Dynamics(rows_per_shuffle=10_000)


def sightings(rates: list[int]) -> list[Sighting]:
    found = [Sighting(0.0, 0)]
    for at, rate in enumerate(rates):
        found.append(Sighting(at + 1.0, found[-1].rows + rate))
    return found


def test_every_name_that_is_owed_has_a_part_of_a_quick_run() -> None:
    parts = {name: part for name, part in dynamics.parts_of(quick=True).items() if part.in_quick}
    assert set(parts) == set(dynamics.IN_QUICK)
    ratios = {name for part in parts.values() for name in part.ratios}
    assert ratios >= {
        "share_of_ceiling_w2",
        "share_of_ceiling_w16",
        "share_of_ceiling_hot_keys",
        "static_vs_elastic_latency_hot_keys",
        "resource_centric_vs_elastic_latency_hot_keys",
    }
    assert "ceiling" in parts["hot-keys-w2"].figures


def test_a_part_that_does_not_exist_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("penstock.session")
    with pytest.raises(UnknownPart, match="no part zipf-5"):
        dynamics.run(BenchResult("dynamics", {}), True, ["zipf-5"])


def test_rate_shuffles_and_seconds_are_read_off_the_sightings() -> None:
    found = derive_throughput(sightings([1_000] * 60), ROWS)
    assert found.rate_per_s == 1_000
    assert found.shuffles == range(6)
    assert found.shuffles_per_minute == 5
    assert set(found.by_second) == {1_000}


def test_a_dip_lasts_until_the_rate_is_back() -> None:
    rates = [1_000] * 10 + [300, 300, 300] + [1_000] * 20
    found = derive_throughput(sightings(rates), ROWS)
    assert found.dips_s[0] == pytest.approx(3.0)
    steady = derive_throughput(sightings([1_000] * 25), ROWS)
    assert steady.dips_s == (0.0, 0.0)


def test_a_run_without_shuffles_has_no_dips() -> None:
    assert derive_throughput(sightings([1_000] * 5), Dynamics()).dips_s == ()


def test_an_action_is_explained_by_what_was_seen_and_what_was_done() -> None:
    assert explains("p99 840 ms over 500 ms: task 3 holds 41% of load; moved 5 shards to task 1")
    assert not explains("; moved 5 shards to task 1")
    assert not explains("p99 840 ms over 500 ms")


def test_a_simulated_source_gives_as_much_as_is_taken() -> None:
    shard_of = np.arange(10_000) % 64
    feed = Saturated(Dynamics(), shard_of, 64, tasks=4, most_s=0.6)
    at_s, shards = feed.take(0.1)
    assert len(at_s) == len(shards) == round(4 * 1.2 * 0.1 / ROW_S)
    assert shards.tolist() == shard_of[Dynamics()(0, len(shards)).column(0).to_numpy()].tolist()
    feed.longest_s = lambda: 0.7
    assert not len(feed.take(0.2)[0])
    assert feed.made == len(at_s)


def test_simulated_shards_lie_as_the_ceiling_takes_them_to() -> None:
    setting, flat = derive_setting(4, 2, 8), hashed(4, 2, 8)
    for number, one in enumerate(setting.executors.values()):
        mine = np.flatnonzero(one.plan.task_of >= 0)
        assert (flat[mine] == number * 2 + one.plan.task_of[mine]).all()
    assert np.bincount(flat).tolist() == [4] * 8


def test_the_share_of_the_ceiling_is_the_least_that_was_measured() -> None:
    assert derive_share_of_ceiling([None, 0.95, 0.91]) == 0.91
    assert derive_share_of_ceiling([None]) is None


def test_the_model_predicts_by_overhead_and_the_largest_load() -> None:
    assert predict_latency_ms(0.1, 0.08, 0.8) == pytest.approx(1.5 * 100.0)
    assert predict_latency_ms(0.1, 0.08, 1.0) == math.inf


def test_ratios_with_targets_come_from_the_parts_that_were_run() -> None:
    result = BenchResult("dynamics", {})
    result.figures |= {
        "zipf_05_w2_elastic_share_of_ceiling": 0.97,
        "zipf_08_w2_elastic_share_of_ceiling": 0.93,
        "hot_keys_w16_elastic_share_of_ceiling": 0.9,
        "hot_keys_w16_ceiling": 2.1,
    }
    dynamics.summarise(result)
    assert result.ratios == {"share_of_ceiling_w2": 0.93, "share_of_ceiling_hot_keys": 0.9}
    assert result.figures["ceiling"] == 2.1


def test_orders_keep_all_but_the_name_of_their_stock_when_popularity_is_shuffled() -> None:
    each = 20_000
    source = ShuffledOrders(replace(POPULARITY, rows_per_shuffle=each))
    plain, shuffled = orders(WARM_UP_ORDERS, 2 * each), source(0, 2 * each)
    assert shuffled.drop_columns(["stock"]) == plain.drop_columns(["stock"])
    stock = shuffled.column("stock").to_numpy()
    shares = [np.bincount(stock[at : at + each], minlength=STOCKS) / each for at in (0, each)]
    hottest = [int(one.argmax()) for one in shares]
    assert hottest[0] != hottest[1] and min(one.max() for one in shares) > 0.05
    assert source(each - 5, 10) == shuffled.slice(each - 5, 10)
