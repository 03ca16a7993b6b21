"""The table of node loads: skewness, the load of a node, and what still fits (Es-Stream III-C and V-B)."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.control.measure.nodes import Need
from penstock.control.policy.nodeloads import NodeLoads, choose_even, choose_r_storm, derive_skewness

LIMIT = Need(0.85, 0.85, 0.85)


def table(loads: dict[str, list[float]], tasks: dict[str, int], cores: int = 8) -> NodeLoads:
    free = {name: cores - tasks.get(name, 0) for name in loads}
    return NodeLoads(free, sum(free.values()), loads, Counter(tasks), LIMIT)


def test_skewness_divides_by_the_deviation_over_all_nodes() -> None:
    """Equation 20 by hand: deviations -0.2 three times and 0.6, so σ² = 0.48 / 4 and SK = 4 · 0.192 / (3 · 2 · σ³)."""
    assert derive_skewness([0.1, 0.1, 0.1, 0.9]) == pytest.approx(0.128 / 0.12**1.5)


def test_mean_and_skewness_are_of_the_nodes_in_use() -> None:
    loads = {"n0": [0.1], "n1": [0.1], "n2": [0.1], "n3": [0.9], "n4": [0.0], "n5": [0.0]}
    found = table(loads, {"n0": 1, "n1": 1, "n2": 1, "n3": 1})
    assert found.used == ["n0", "n1", "n2", "n3"]
    assert found.mean() == pytest.approx(0.3)
    assert found.skewness() == derive_skewness([0.1, 0.1, 0.1, 0.9])


@pytest.mark.parametrize("loads", [[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.1, 0.2, 0.7]])
def test_a_node_is_as_loaded_as_the_resource_it_has_least_of(loads: list[float]) -> None:
    assert table({"n0": loads}, {"n0": 1}).load("n0") == 0.7


@pytest.mark.parametrize("resource", range(3))
def test_no_resource_of_a_node_goes_past_alpha(resource: int) -> None:
    loads = [0.1, 0.1, 0.1]
    loads[resource] = 0.8
    found = table({"n0": loads}, {"n0": 1})
    assert found.fits("n0", Need(*(0.05 if at == resource else 0.5 for at in range(3))))
    assert not found.fits("n0", Need(*(0.06 if at == resource else 0.0 for at in range(3))))


def test_a_task_needs_a_core_of_the_node_and_one_under_the_limit_on_all() -> None:
    found = table({"n0": [0.1] * 3, "n1": [0.1] * 3}, {"n0": 1, "n1": 2}, cores=2)
    assert found.fits("n0", Need()) and not found.fits("n1", Need())
    found.left = 0
    assert not found.fits("n0", Need())


def test_the_even_scheduler_counts_tasks_and_looks_at_no_load() -> None:
    found = table({"n0": [0.8] * 3, "n1": [0.1] * 3}, {"n0": 1, "n1": 2})
    assert choose_even(found, Need(0.5, 0.5, 0.5), found.used) == "n0"


def test_r_storm_begins_where_most_is_left_and_then_stays_near() -> None:
    found = table({"n0": [0.3, 0.3, 0.0], "n1": [0.1, 0.1, 0.0], "n2": [0.2, 0.2, 0.0]}, {})
    need = Need(0.05, 0.05)
    assert choose_r_storm(found, need, sorted(found.cores)) == "n1"
    found.put("n1", need)
    assert choose_r_storm(found, need, sorted(found.cores)) == "n1"
    found.placed[:] = ["n2"]
    assert choose_r_storm(found, need, sorted(found.cores)) == "n2", "though n0 fits it more tightly"


def test_for_r_storm_memory_is_a_hard_limit_and_cpu_is_not() -> None:
    found = table({"n0": [0.0, 0.82, 0.0], "n1": [0.84, 0.1, 0.0]}, {})
    found.placed[:] = ["n0"]
    assert choose_r_storm(found, Need(0.1, 0.05), ["n0", "n1"]) == "n1"
    assert choose_r_storm(found, Need(0.1, 0.02), ["n0", "n1"]) == "n0"
