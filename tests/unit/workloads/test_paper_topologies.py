from __future__ import annotations

import numpy as np
import pytest

from penstock.workloads.paper_topologies import (
    FREQUENT_PATTERNS,
    LOGO_DETECTION,
    SPLIT_COUNT,
    TOPOLOGIES,
    PaperTopology,
    derive_rates,
    steps,
)

PRINTED = {
    "logo-detection": ([0, 359, 360, 1259, 1260, 2039, 2040], [6, 6, 12, 12, 6, 6, 18]),
    "frequent-patterns": ([0, 3600], [320, 320]),
    "commcount": ([0, 99, 100, 159, 160], [1800, 1800, 3600, 3600, 2700]),
    "top-n": ([0, 99, 100, 159, 160], [1800, 1800, 3600, 3600, 2700]),
    "split-count": ([0, 75, 150, 225, 300], [15_000, 18_750, 15_000, 11_250, 15_000]),
}
"""Application -> moments in seconds, and the rows a second that its paper prints for them."""


def loads(topology: PaperTopology, per_s: float) -> list[float]:
    rates = derive_rates(topology, per_s)
    return [rates[one.name] * one.service_s for one in topology.stations]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_printed_number_of_tasks_can_carry_the_rate_it_is_printed_for(name: str) -> None:
    topology = TOPOLOGIES[name]
    known = {"K_max = 22": {"frequent-patterns": 320.0, "logo-detection": 13.0}.get(name, 0.0)}
    for what, tasks in topology.printed_tasks.items():
        rate = known[what] if what in known else float(what.removesuffix("/s"))
        assert all(load < k for load, k in zip(loads(topology, rate), tasks, strict=True)), what


@pytest.mark.parametrize(
    ("per_s", "tasks"), [(5.0, (2, 4, 1)), (5.0, (3, 3, 1)), (6.0, (2, 4, 1)), (6.0, (3, 3, 1))]
)
def test_the_two_best_settings_of_figure_ten_are_stable(per_s: float, tasks: tuple[int, ...]) -> None:
    assert all(load < k for load, k in zip(loads(LOGO_DETECTION, per_s), tasks, strict=True))


def test_a_loop_adds_to_the_rate_of_its_station() -> None:
    assert derive_rates(FREQUENT_PATTERNS, 320.0)["detector"] == pytest.approx(960 / 0.9)


def test_scaling_keeps_the_loads() -> None:
    small = SPLIT_COUNT.scaled(0.1)
    at = np.array([0.0, 75.0])
    np.testing.assert_allclose(small.rate(at), [1500.0, 1875.0])
    assert loads(small, 1500.0) == pytest.approx(loads(SPLIT_COUNT, 15_000.0))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_input_has_the_rates_that_the_paper_prints(name: str) -> None:
    at_s, per_s = PRINTED[name]
    np.testing.assert_allclose(TOPOLOGIES[name].rate(np.array(at_s, dtype=float)), per_s)


def test_steps_hold_from_their_moment_on() -> None:
    rate = steps((0, 1.0), (10, 2.0))
    assert rate(np.array([0.0, 9.9, 10.0, 99.0])).tolist() == [1.0, 1.0, 2.0, 2.0]
