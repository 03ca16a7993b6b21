"""The algorithms of StreamSwitch 3.4 against enumeration of every unit strategy on small executors."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.policy.switching import (
    Health,
    Switch,
    derive_health,
    find_balancing,
    find_scale_in,
    find_scale_out,
    find_shards,
    project_latency_s,
)

RATES = st.integers(0, 12).map(float)


@st.composite
def switches(draw: st.DrawFn, least_tasks: int = 2) -> Switch:
    tasks = draw(st.integers(least_tasks, 4))
    shards = draw(st.integers(1, 8))
    rate = np.array(draw(st.lists(RATES, min_size=shards, max_size=shards)))
    at = np.array(draw(st.lists(st.integers(0, tasks - 1), min_size=shards, max_size=shards)), dtype=np.int64)
    latency = np.array(draw(st.permutations(range(shards))), dtype=np.float64)
    service = np.array(draw(st.lists(st.integers(5, 40).map(float), min_size=tasks, max_size=tasks)))
    return Switch(tuple(range(tasks)), ("n0",) * tasks, service, at, rate, latency, 0.2)


def pressure(switch: Switch) -> list[float]:
    return sorted((-switch.headroom).tolist(), reverse=True)


def eligible(switch: Switch, source: int, destination: int) -> list[int]:
    """Shards in ascending order of latency, without those that no improving set can hold."""
    gap = switch.headroom[destination] - switch.headroom[source]
    mine = [int(s) for s in np.flatnonzero(switch.at == source) if 0 < switch.rate_per_s[s] < gap]
    return sorted(mine, key=lambda s: switch.latency_s[s])


def every_balancing(switch: Switch, source: int) -> list[tuple[list[float], int, list[int]]]:
    found = []
    for destination in range(len(switch.tasks)):
        order = eligible(switch, source, destination) if destination != source else []
        for length in range(1, len(order) + 1):
            after = switch.moved(np.array(order[:length]), destination)
            found.append((pressure(after), destination, order[:length]))
    return found


def test_projected_latency_is_infinite_at_and_past_the_margin() -> None:
    assert project_latency_s(np.array([200.0, 1.0, 0.0, -5.0])).tolist() == [0.005, 1.0, np.inf, np.inf]


def test_the_papers_example_projects_one_second() -> None:
    switch = Switch(
        (0,), ("n0",), np.array([2000.0]), np.array([0]), np.array([1799.0]), np.array([0.1]), 0.1
    )
    assert switch.projected_s.tolist() == [1.0]


def test_health_needs_both_conditions_to_be_severe() -> None:
    found = derive_health(np.array([0.2, 0.2, 0.0, 0.1]), np.array([2.0, 0.5, 2.0, 1.0]), 0.1, 1.0)
    assert found == [Health.SEVERE, Health.MODERATE, Health.MODERATE, Health.GOOD]


@given(switches())
def test_moved_shards_are_the_prefix_that_leaves_most_headroom(switch: Switch) -> None:
    for source in range(len(switch.tasks)):
        for destination in range(len(switch.tasks)):
            if source == destination or switch.headroom[destination] <= switch.headroom[source]:
                continue
            order = eligible(switch, source, destination)
            found = find_shards(switch, source, destination)
            sums = [sum(switch.rate_per_s[s] for s in order[:n]) for n in range(len(order) + 1)]
            best = max(min(switch.headroom[source] + x, switch.headroom[destination] - x) for x in sums)
            after = switch.moved(found, destination)
            assert found.tolist() == order[: len(found)]
            assert np.isclose(min(after.headroom[source], after.headroom[destination]), best)


@given(switches())
def test_no_shard_is_kept_whose_move_made_things_worse(switch: Switch) -> None:
    for source in range(len(switch.tasks)):
        found = find_balancing(switch, source)
        if found is None:
            continue
        without = switch.moved(found.shards[:-1], switch.tasks.index(found.destination))
        pair = [source, switch.tasks.index(found.destination)]
        assert found.after.headroom[pair].min() > without.headroom[pair].min() - 1e-9


@settings(max_examples=150)
@given(switches())
def test_balancing_finds_the_lexicographic_optimum(switch: Switch) -> None:
    for source in range(len(switch.tasks)):
        better = [found for found in every_balancing(switch, source) if found[0] < pressure(switch)]
        found = find_balancing(switch, source)
        if not better:
            assert found is None
            continue
        assert found is not None
        assert np.allclose(pressure(found.after), min(better)[0])


@settings(max_examples=150)
@given(switches(), st.one_of(st.floats(0.05, 2.0), st.just(np.inf)))
def test_scale_in_finds_the_lexicographic_optimum_of_all_pairs(switch: Switch, bound_s: float) -> None:
    best = None
    for source in range(len(switch.tasks)):
        for destination in range(len(switch.tasks)):
            if source != destination:
                shards = np.flatnonzero(switch.at == source)
                after = switch.moved(shards, destination).without_task(source)
                if after.worst_s <= bound_s and switch.worst_s <= bound_s:
                    best = min(best, pressure(after)) if best is not None else pressure(after)
    found = find_scale_in(switch, bound_s)
    if best is None:
        assert found is None
        return
    assert found is not None and np.allclose(pressure(found.after), best)
    assert len(found.after.tasks) == len(switch.tasks) - 1 and found.source not in found.after.tasks


def test_scale_in_over_many_tasks_keeps_the_worst_latency_least() -> None:
    random = np.random.default_rng(3)
    at = np.repeat(np.arange(80), 2)
    rate = random.uniform(0.5, 3.0, 160)
    switch = Switch(tuple(range(80)), ("n0",) * 80, np.full(80, 20.0), at, rate, np.zeros(160), 0.2)
    found = find_scale_in(switch, 10.0)
    assert found is not None
    rates = np.bincount(at, weights=rate)
    order = np.sort(rates)
    assert found.after.worst_s == max(1 / (16 - order[0] - order[1]), 1 / (16 - order[-1]))


@given(switches(least_tasks=1), st.sampled_from([0.5, 1.0, 8.0]))
def test_scaling_out_never_merely_replaces_a_task(switch: Switch, speed: float) -> None:
    for source in range(len(switch.tasks)):
        found = find_scale_out(switch, source, "n1", speed)
        mine = np.flatnonzero(switch.at == source)
        if found is None:
            assert np.count_nonzero(switch.rate_per_s[mine]) <= 1 or speed < 1
            continue
        assert 0 < len(found.shards) < len(mine)
        assert found.after.headroom[[source, -1]].min() > switch.headroom[source]
        assert found.destination == len(switch.tasks) and found.after.nodes[-1] == "n1"


def test_a_new_task_takes_the_lowest_index_that_is_free() -> None:
    switch = Switch(
        (0, 2), ("n0",) * 2, np.full(2, 10.0), np.array([0, 0, 1]), np.array([6.0, 5.0, 1.0]), np.zeros(3)
    )
    found = find_scale_out(switch, 0, "n0")
    assert found is not None and found.destination == 1


def test_a_hot_shard_of_low_latency_does_not_end_the_search() -> None:
    rate, latency = np.array([50.0, 2.0, 2.0, 2.0]), np.array([0.01, 0.2, 0.3, 0.4])
    switch = Switch((0, 1), ("n0",) * 2, np.array([60.0, 10.0]), np.zeros(4, dtype=np.int64), rate, latency)
    found = find_balancing(switch, 0)
    assert found is not None and found.shards.tolist() == [1, 2, 3]


def test_a_task_that_completed_nothing_is_as_late_as_its_backlog() -> None:
    nothing = np.full(2, np.nan)
    switch = Switch((0, 1), ("n0",) * 2, np.array([10.0, 10.0]), np.array([0, 1]), np.ones(2), nothing)
    assert switch.task_latencies(np.array([50.0, 0.0])).tolist() == [5.0, 0.0]


def test_of_two_ways_to_scale_in_that_are_alike_the_one_that_moves_fewer_shards_is_taken() -> None:
    at, rate = np.array([0, 0, 0, 1]), np.array([2.0, 2.0, 2.0, 6.0])
    switch = Switch((0, 1), ("n0",) * 2, np.full(2, 20.0), at, rate, np.zeros(4))
    found = find_scale_in(switch, 1.0)
    assert found is not None and (found.source, found.shards.tolist()) == (1, [3])
