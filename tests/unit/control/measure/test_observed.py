"""What an SLA bounds is judged by that and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.control.fake_plane import FakePlane

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.observed import derive_observed_s
from penstock.control.sla import END_TO_END, OPERATOR, SLA

QUANTILES = {0.5: 0.2, 0.9: 0.4, 0.999: 1.6}


def measure(**whole: object) -> Estimate:
    """Two samples; latencies 0.1 s in the mean, 0.8 s at p99, and the quantiles above."""
    plane, measurer = FakePlane([100.0, 40.0]), Measurer(Measuring())
    for at in range(3):
        sample = plane.sample() if not at else plane.step()
        match = replace(
            sample.executors["match"], latency_s=0.1, latency_p99_s=0.8, latency_quantiles_s=QUANTILES
        )
        fields = {"latency_s": 0.1, "latency_p99_s": 0.8, "latency_quantiles_s": QUANTILES} | whole
        found = measurer.measure(replace(sample, executors={"match": match}, **fields))  # type: ignore[arg-type]
    assert found.invalid is None
    return found


@pytest.mark.parametrize("scope", [OPERATOR, END_TO_END])
@pytest.mark.parametrize(
    ("quantile", "expected_s"), [("mean", 0.1), (0.5, 0.2), (0.9, 0.4), (0.99, 0.8), (0.999, 1.6)]
)
def test_an_sla_is_judged_by_the_quantile_it_bounds(
    scope: str, quantile: float | str, expected_s: float
) -> None:
    assert derive_observed_s(measure(), SLA(1.0, quantile=quantile, scope=scope)) == expected_s


def test_another_quantile_than_the_one_measured_says_nothing() -> None:
    assert derive_observed_s(measure(), SLA(1.0, quantile=0.95, scope=OPERATOR)) is None
    assert derive_observed_s(measure(), SLA(1.0, quantile=0.95)) is None


def test_where_no_quantile_is_measured_the_mean_stands_for_it() -> None:
    now = measure(latency_p99_s=None, latency_quantiles_s={})
    assert derive_observed_s(now, SLA(1.0, quantile=0.9)) == 0.1


def test_a_window_of_several_samples_has_the_greatest_of_their_quantiles() -> None:
    plane, measurer = FakePlane([100.0]), Measurer(Measuring(window_s=100.0))
    for value in (None, 0.3, 0.7, 0.5):
        sample = plane.step()
        told = {} if value is None else {0.9: value}
        match = replace(sample.executors["match"], latency_s=0.1, latency_quantiles_s=told)
        now = measurer.measure(replace(sample, executors={"match": match}))
    assert now.executors["match"].measured_quantiles_s == {0.9: 0.7}
