"""The system's clock is set back and ahead under a query on Spark: its source, its latencies and its log."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.flows import committed, numbered, running, sales, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE = 400.0
LOOKED_S = 3.0
"""Time within which a step is surely noticed."""


def test_a_clock_that_is_set_moves_no_row_and_no_latency_and_is_said_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, set_by = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + set_by[0])
    caplog.set_level(logging.WARNING, "penstock")
    with running(numbered(sales(None, RATE)), spark, tmp_path / "checkpoint") as query:
        wait_until(lambda: committed(query) >= RATE / 4, query)
        for by_s in (-3_600.0, 7_200.0):
            set_by[0] += by_s
            before, began = committed(query), time.monotonic()
            time.sleep(LOOKED_S)
            due = RATE * (time.monotonic() - began)
            # Loosely: other work on this machine may hold rows up, and set them free again.
            assert 0.3 * due <= committed(query) - before <= 3 * due
            latency = query.latency("numbered", began)
            assert latency is not None and 0.0 <= latency.mean_ms <= latency.max_ms < 60_000.0
    said = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert len(said) == 2
    assert "set back by 3,600.0 s" in said[0] and "set ahead by 7,200.0 s" in said[1]
