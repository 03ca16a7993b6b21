"""From an estimate to a switch: rates that were not measured yet, shards that have no task."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import ExecutorEstimate, TaskEstimate
from penstock.control.policy.mapping import adopt, derive_switch
from penstock.control.policy.switching import Switch


def with_an_unmeasured_task(*known_per_s: float) -> ExecutorEstimate:
    seen = World({"match": make_station(np.full(8, 10.0), 200.0, 1)}).estimate().executors["match"]
    tasks = [TaskEstimate(at, "n0", rate) for at, rate in enumerate((*known_per_s, math.nan))]
    return replace(seen, tasks=tuple(tasks))


def test_a_task_without_a_rate_has_the_one_that_is_assumed_of_it() -> None:
    switch = derive_switch(
        with_an_unmeasured_task(200.0, 100.0), 0.2, {("match", 2): 50.0, ("match", 1): 1.0}
    )
    assert switch.service_per_s.tolist() == [200.0, 100.0, 50.0]


def test_where_nothing_is_assumed_it_has_the_mean_of_its_siblings_else_the_operators() -> None:
    other = {("count", 2): 50.0}
    assert derive_switch(with_an_unmeasured_task(200.0, 100.0), 0.2, other).service_per_s[-1] == 150.0
    assert derive_switch(with_an_unmeasured_task(), 0.2).service_per_s.tolist() == [200.0]


def test_of_shards_without_a_task_the_heaviest_is_given_away_first() -> None:
    rates, at = np.array([0.0, 5.0, 10.0, 90.0]), np.array([0, 1, -1, -1])
    switch = Switch((0, 1), ("n0",) * 2, np.full(2, 125.0), at, rates, np.zeros(4), 0.2)
    assert adopt(switch, np.array([2, 3])).at.tolist() == [0, 1, 1, 0]
