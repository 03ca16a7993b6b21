"""The tail latency of an executor over a window."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.unit.control.fake_plane import FakePlane

from penstock.control.measure.estimate import ExecutorEstimate
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import Sample


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
