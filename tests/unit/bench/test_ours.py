"""What a run of ours comes to, from progress reports; no query is started here."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bench.ours import Held, KeyedSource, Window, best_held, derive_overhead, middle


def run(rate_per_s: float = 100.0, mean_ms: float = 10.0, offered_per_s: float | None = None) -> Held:
    return Held(
        offered_per_s=rate_per_s if offered_per_s is None else offered_per_s,
        rate_per_s=rate_per_s,
        mean_ms=mean_ms,
        p99_ms=2 * mean_ms,
        epoch_ms=40.0,
        derived_ms=90.0,
        rows_per_epoch=4.0,
        driver_ms_per_epoch=1.0,
        start_s=1.0,
        cpu_cores=0.5,
        resident_bytes=0,
        state_bytes=0,
    )


def test_a_row_waits_half_an_interval_and_then_an_epoch_at_the_source_and_at_the_operator() -> None:
    before = {
        "operators": {"counts": {"epochs": 0, "rowsIn": 0}},
        "inputs": {"rows": {"epochSeconds": 0.0, "rowsIn": 0}},
    }
    after = {
        "operators": {"counts": {"epochs": 10, "rowsIn": 1_000}},
        # It ran ahead: four times the rows in 0.8 s of work, so 0.02 s for the 100 rows of an operator's epoch.
        "inputs": {"rows": {"epochSeconds": 0.8, "rowsIn": 4_000}},
    }
    window = Window(since=0.0, seconds=2.0, before=before, after=after)
    assert window.derived_ms("counts", "rows") == pytest.approx(1.5 * (200.0 + 20.0))


def test_a_rate_that_was_not_kept_up_with_is_not_held_however_low_its_latency() -> None:
    assert not run(96.0, 10.0, offered_per_s=100.0).holds(500.0)
    assert run(98.0, 10.0, offered_per_s=100.0).holds(500.0)
    assert best_held([run(98.0, 501.0, 100.0), run(50.0, 400.0)], 500.0) == run(50.0, 400.0)


def test_the_middle_run_is_of_median_rate() -> None:
    assert middle([run(3.0), run(1.0), run(2.0)]).rate_per_s == 2.0


def report(epochs: int, seconds: tuple[float, float, float], log: tuple[float, int]) -> dict[str, Any]:
    names = ("epochSeconds", "busySeconds", "syncSeconds")
    counts = {"epochs": epochs, "rowsIn": epochs, **dict(zip(names, seconds, strict=True))}
    return {"operators": {"counts": counts}, "logSeconds": log[0], "logAppends": log[1]}


def test_the_parts_of_an_empty_epoch_add_up_to_the_whole() -> None:
    before = report(100, (1.0, 0.3, 0.1), (0.5, 400))
    after = report(200, (1.7, 0.5, 0.2), (0.9, 800))
    overhead = derive_overhead(before, after, "counts")
    assert overhead.epoch_ms == pytest.approx(7.0)
    assert (overhead.work_ms, overhead.sync_ms, overhead.log_ms) == pytest.approx((2.0, 1.0, 1.0))
    assert overhead.rest_ms == pytest.approx(3.0)
    assert overhead.rows_per_epoch == 1.0


def test_a_prefilled_source_touches_every_key_once_and_then_goes_on() -> None:
    rows = KeyedSource(keys=100, zipf=0.0, prefill=100)(90, 30)
    assert rows.column("key").to_pylist()[:10] == list(range(90, 100))
    assert rows.num_rows == 30
