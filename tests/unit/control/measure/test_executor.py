"""What is said of an executor after a window: its tail, its mean latency, its bytes, how its arrivals vary."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.fake_plane import FakePlane

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import ExecutorSample, NodeSample, Sample, TaskSample


def with_tail(sample: Sample, tail_s: float) -> Sample:
    match = replace(
        sample.executors["match"], latency_p99_s=tail_s, latency_quantiles_s={0.9: tail_s / 2, 0.5: 0.01}
    )
    return replace(sample, executors={"match": match})


def look(window_s: float, *tails_s: float) -> ExecutorEstimate:
    """One sample a second, the last with these tails."""
    plane, measurer = FakePlane([50.0]), Measurer(Measuring(window_s=window_s))
    measurer.measure(plane.sample())
    for tail_s in tails_s:
        estimate = measurer.measure(with_tail(plane.step(), tail_s))
    return estimate.executors["match"]


def test_the_tail_of_a_window_is_the_greatest_of_its_samples() -> None:
    found = look(3.0, 0.9, 0.3, 0.6, 0.2)
    assert found.measured_p99_s == 0.6
    assert found.measured_quantiles_s == {0.9: 0.3, 0.5: 0.01}
    assert look(1.0, 0.9, 0.3, 0.6, 0.2).measured_p99_s == 0.2


def test_a_tail_that_is_no_number_counts_for_nothing() -> None:
    assert look(3.0, 0.3, math.nan).measured_p99_s == 0.3
    assert look(3.0, math.nan).measured_p99_s is None


def count(at_s: float, rows: int, latency_s: float | None = None, written: int = 0) -> Sample:
    """Everything that came by then is done; a row is 10 bytes."""
    counts = np.array([rows], np.int64)
    match = ExecutorSample(
        "match",
        np.zeros(1, np.int32),
        counts,
        counts,
        counts * 0.001,
        np.zeros(1, np.int64),
        (TaskSample(0, "n0", rows * 0.001, rows),),
        in_bytes=10 * rows,
        out_bytes=written,
        latency_s=latency_s,
    )
    return Sample(at_s, {"match": match}, {"n0": NodeSample("n0", 4)})


def last(*samples: Sample, window_s: float = 10.0) -> ExecutorEstimate:
    measurer = Measurer(Measuring(window_s=window_s))
    return [measurer.measure(one) for one in samples][-1].executors["match"]


def test_the_mean_latency_of_a_window_is_that_of_its_rows_not_of_its_samples() -> None:
    found = last(count(0.0, 0), count(1.0, 10, 1.0), count(2.0, 40, 0.2))
    assert found.measured_s == pytest.approx((10 * 1.0 + 30 * 0.2) / 40)


def test_bytes_that_come_in_and_go_out_are_told_apart() -> None:
    found = last(count(0.0, 0), count(1.0, 10, written=7), count(2.0, 20, written=14))
    assert (found.in_bytes_per_s, found.out_bytes_per_s) == (100.0, 7.0)


def test_the_variability_of_arrivals_is_measured() -> None:
    steady = [count(float(at), 100 * at) for at in range(60)]
    in_bursts = [count(float(at), 200 * ((at + 1) // 2)) for at in range(60)]
    assert last(*steady).scv_arrival == 0.0
    assert last(*in_bursts).scv_arrival > 5.0
