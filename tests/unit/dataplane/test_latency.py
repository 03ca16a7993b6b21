"""Latency is weighted by rows and runs from arrival to commit."""

from __future__ import annotations

import pytest

from penstock.dataplane.latency import LatencyLog
from penstock.dataplane.records import Stamp


def test_nothing_committed_has_no_latency() -> None:
    assert LatencyLog().since(0.0) is None


def test_the_mean_is_weighted_by_rows() -> None:
    log = LatencyLog()
    log.add(1.0, 10_000, Stamp(1, 0, 0.0, 0))
    log.add(2.0, 20_000, Stamp(9, 19_000, 19_000.0, 19_000))
    found = log.since(0.0)
    assert found is not None and found.rows == 10
    assert found.mean_ms == pytest.approx((10 + 9 * 1) / 10)
    assert found.p50_ms == pytest.approx(1.0)
    assert found.p99_ms == pytest.approx(10.0)
    assert found.max_ms == pytest.approx(10.0)


def test_only_commits_since_the_asked_time_count() -> None:
    log = LatencyLog()
    log.add(1.0, 10_000, Stamp(1, 0, 0.0, 0))
    log.add(5.0, 10_000, Stamp(1, 9_000, 9_000.0, 9_000))
    found = log.since(4.0)
    assert found is not None and found.mean_ms == pytest.approx(1.0)


def test_rows_of_a_commit_are_spread_between_their_first_and_last_arrival() -> None:
    log = LatencyLog()
    log.add(1.0, 100_000, Stamp(1000, 0, 50_000.0, 100_000))
    found = log.since(0.0)
    assert found is not None
    assert found.p50_ms == pytest.approx(50.0, abs=6)
    assert 90 <= found.p99_ms <= 100


def test_old_entries_are_forgotten_when_there_are_too_many() -> None:
    log = LatencyLog(entries=3)
    for at in range(10):
        log.add(float(at), 1_000, Stamp(1, 0, 0.0, 0))
    found = log.since(0.0)
    assert found is not None and found.rows == 3


def test_commits_of_long_ago_are_forgotten() -> None:
    log = LatencyLog(kept_s=60.0)
    for at in range(1_000):
        log.add(float(at), 1_000, Stamp(1, 0, 0.0, 0))
    found = log.since(0.0)
    assert found is not None and found.rows == 61


def test_any_quantile_can_be_asked_for() -> None:
    log = LatencyLog()
    for ms in range(1, 1001):  # one row each, of 1 to 1000 ms
        log.add(
            1.0, 1_000_000, Stamp(1, 1_000_000 - 1000 * ms, 1_000_000 - 1000.0 * ms, 1_000_000 - 1000 * ms)
        )
    for quantile in (0.5, 0.9, 0.99, 0.999):
        found = log.since(0.0, quantile=quantile)
        assert found is not None and found.quantile_ms == pytest.approx(1000 * quantile, abs=2)
    plain = log.since(0.0)
    assert plain is not None and plain.quantile_ms is None and plain.p99_ms == pytest.approx(990, abs=2)
