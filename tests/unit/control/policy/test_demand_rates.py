"""Rates that policies count on: those of the traffic equations, whatever arrives while a backlog comes or goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer
from penstock.control.measure.sample import ExecutorSample, NodeSample, Sample, TaskSample
from penstock.control.policy.demand import derive_demand
from penstock.control.policy.drs import DrsPolicy


def loop(faster: float) -> World:
    """100 rows a second enter a chain with a loop, of which `a` completes so many times what lasts: 125 a second there,
    half as many at `b`, which sends two on to `c` and 0.4 back for each."""
    a, b = 125.0 * faster, 62.5 * faster
    arriving = {"a": 100.0 + 0.4 * b, "b": b, "c": 2 * b}
    edges = {("in", "a"): 100.0, ("a", "b"): b, ("b", "a"): 0.4 * b, ("b", "c"): 2 * b}
    world = World(
        {name: make_station(np.full(32, rate / 32), 60.0, 3) for name, rate in arriving.items()},
        edges=edges,
        sources={"in": 100.0},
    )
    world.stations["a"].service_per_s = a / 3
    return world


def seen(world: World) -> Estimate:
    """All tasks are busy with what arrives, those of `a` all the time."""
    now = world.estimate()
    found = {}
    for name, one in now.executors.items():
        ratio = 1.0 if name == "a" else one.rate_per_s / (one.k * one.service_per_s)
        found[name] = replace(one, tasks=tuple(replace(task, useful_ratio=ratio) for task in one.tasks))
    return replace(now, executors=found)


@pytest.mark.parametrize("faster", [1.0, 2.0, 4.0])
def test_what_a_backlog_that_is_worked_off_sends_on_is_no_load_that_lasts(faster: float) -> None:
    demand = derive_demand(seen(loop(faster)))
    assert demand.rate_per_s == pytest.approx({"a": 125.0, "b": 62.5, "c": 125.0})


def test_drs_asks_for_no_more_cores_while_a_backlog_is_worked_off_than_before() -> None:
    def asked(faster: float) -> str:
        world, policy = loop(faster), DrsPolicy(k_max=3)
        now = replace(seen(world), latency_s=5.0)
        policy.propose(now, world.sla, world.limits)
        found = policy.propose(replace(now, at_s=1.0), world.sla, world.limits)
        return found.symptom + found.action

    assert "b 2, c 3" in asked(1.0) and "b 2, c 3" in asked(4.0)


def test_without_a_backlog_the_greater_of_what_arrives_and_what_will_counts() -> None:
    world = loop(1.0)
    world.stations["c"].rates *= 1.2
    assert derive_demand(seen(world)).rate_per_s["c"] == pytest.approx(150.0)


def passed_on(rows: int, done: int, row_s: dict[str, float], before: Sample | None) -> Sample:
    """A second in which so many rows come to `a`, and `a` and then `b` complete so many, at some cost each."""
    shards = 16

    def more(name: str, arrived: int, completed: int) -> ExecutorSample:
        last = before.executors[name] if before else None
        spread = np.full(shards, 1.0 / shards)
        arrivals = (arrived * spread).astype(np.int64) + (last.arrived if last else 0)
        completions = (completed * spread).astype(np.int64) + (last.completed if last else 0)
        busy_s = completed * row_s[name] * spread + (last.busy_s if last else 0.0)
        task = TaskSample(0, "n", float(busy_s.sum()), int(completions.sum()))
        state = np.zeros(shards, np.int64)
        return ExecutorSample(name, np.zeros(shards, np.int32), arrivals, completions, busy_s, state, (task,))

    total = dict(before.edges) if before else {}
    edges = {("in", "a"): total.get(("in", "a"), 0) + rows, ("a", "b"): total.get(("a", "b"), 0) + done}
    source = {"in": edges["in", "a"]}
    both = {"a": more("a", rows, done), "b": more("b", done, done)}
    return Sample((before.at_s if before else 0.0) + 1.0, both, {"n": NodeSample("n", 8)}, edges, source)


def test_dearer_rows_at_a_producer_make_its_consumers_need_no_less() -> None:
    measurer, sample = Measurer(), None
    for second in range(60):
        dearer = 0.0005 if second < 30 else 0.0015
        sample = passed_on(1600, 1600, {"a": dearer, "b": 0.002}, sample)
        now = measurer.measure(sample)
        if now.invalid is None:
            assert derive_demand(now).rate_per_s["b"] == pytest.approx(1600.0)


def test_a_backlog_that_is_worked_off_is_seen_in_what_was_counted() -> None:
    measurer, sample = Measurer(), None
    for second in range(30):
        # `a` keeps up, does half for ten seconds, and then three times what comes.
        done = 1600 if second < 10 else 800 if second < 20 else 4800
        sample = passed_on(1600, done, {"a": 0.0001, "b": 0.0001}, sample)
        now = measurer.measure(sample)
        if now.invalid is None:
            assert derive_demand(now).rate_per_s["b"] == pytest.approx(1600.0, rel=0.01), second
            if second >= 24:
                break
