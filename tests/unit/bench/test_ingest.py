"""Latency of rows through ingest, as it is derived from prepared batches."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from penstock.bench.ingest import derive_latency_ms


def test_a_row_waits_half_an_interval_and_then_what_was_measured() -> None:
    assert derive_latency_ms(1000.0, 700.0) == 1200.0


def test_batches_that_pile_up_before_the_operator_do_not_count_as_latency() -> None:
    assert derive_latency_ms(1000.0, 20_000.0) == 2500.0
