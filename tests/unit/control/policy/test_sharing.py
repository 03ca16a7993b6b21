"""How an end-to-end bound is split: who gives to whom, when, and when nobody does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.sharing import BoundSplit
from penstock.control.sla import SLA

BOUND = SLA(1.0, scope="end-to-end")


def look(at_s: float, latency_s: dict[str, float], whole_s: float = 1.5) -> Estimate:
    rates = np.full(4, 10.0)
    edges = {("in", "a"): 40.0, ("a", "b"): 40.0}
    world = World({name: make_station(rates, 400.0, 1) for name in ("a", "b")}, edges=edges, sla=BOUND)
    now = world.estimate(at_s=at_s, latency_s=whole_s)
    measured = {name: replace(one, measured_s=latency_s[name]) for name, one in now.executors.items()}
    return replace(now, executors=measured)


def learn(split: BoundSplit, turns: list[dict[str, float]], whole_s: float = 1.5) -> list[int]:
    """Return the turns at which it was split otherwise."""
    found = []
    for at, latency_s in enumerate(turns):
        now = look(float(at), latency_s, whole_s)
        if split.learn(now, BOUND, split.shares(now, BOUND)):
            found.append(at)
    return found


def test_who_always_does_worse_is_given_some_of_the_bound_once_that_was_seen_twice() -> None:
    split = BoundSplit()
    shifted = learn(split, [{"a": 0.1, "b": 0.9}] * 60)
    assert shifted[0] >= 2 * split.interval_s and len(shifted) >= 3
    assert split.weights["b"] > split.weights["a"]


def test_what_chance_explains_shifts_nothing() -> None:
    for seed in range(5):
        random = np.random.default_rng(seed)
        # Epochs make turns that follow each other alike.
        noise = np.repeat(random.exponential(0.45, (400, 2)), 3, axis=0)
        assert not learn(BoundSplit(), [{"a": a, "b": b} for a, b in noise])


def test_nobody_gives_what_it_needs_itself() -> None:
    split = BoundSplit()
    learn(split, [{"a": 0.45, "b": 0.9}] * 400)
    assert split.shares(look(0.0, {"a": 0.45, "b": 0.9}), BOUND)["a"] >= 0.45


def test_no_share_falls_below_a_floor() -> None:
    split = BoundSplit()
    learn(split, [{"a": 0.001, "b": 2.0}] * 1000)
    assert split.weights["a"] >= split.least


def test_a_bound_that_is_held_may_stay_split_as_it_is() -> None:
    turns = [{"a": 0.1, "b": 0.7}] * 100
    assert not learn(BoundSplit(only_missed=True), turns, whole_s=0.8)
    assert learn(BoundSplit(only_missed=True), turns, whole_s=1.2)


def split_for(a: tuple[float, float], b: tuple[float, float], split: BoundSplit) -> dict[str, float]:
    """Return the shares of two operators that serve so many rows a second, which come with such an index of dispersion."""
    now = look(1.0, {"a": 0.1, "b": 0.1})
    made = {
        name: replace(now.executors[name], service_per_s=one[0], scv_arrival=one[1])
        for name, one in (("a", a), ("b", b))
    }
    return split.shares(replace(now, executors=made), BOUND)


def test_the_first_split_follows_what_rows_take_until_it_is_shifted() -> None:
    split = BoundSplit(by_service=True)
    assert split_for((1000.0, 1.0), (1000.0, 1.0), split) == {"a": 0.5, "b": 0.5}
    known = split_for((1000.0, 1.0), (5.0, 1.0), split)
    assert known["b"] > 0.85
    split.weights, split._shifted = {"a": 1.0, "b": 1.0}, True
    assert split_for((1000.0, 1.0), (5.0, 1.0), split) == {"a": 0.5, "b": 0.5}


def test_rows_that_come_at_once_need_more_of_the_bound() -> None:
    alone = split_for((4.0, 1.0), (70.0, 1.0), BoundSplit(by_service=True))
    at_once = split_for((4.0, 1.0), (70.0, 34.0), BoundSplit(by_service=True))
    assert alone["b"] < 0.2 and at_once["b"] == pytest.approx(0.5, abs=0.05)


def test_a_shift_that_does_not_happen_leaves_the_first_split_to_be_derived() -> None:
    split = BoundSplit(by_service=True)
    turns = [{"a": 0.499, "b": 0.9}] * 60
    assert not learn(split, turns)
    assert split_for((1000.0, 1.0), (5.0, 1.0), split)["b"] > 0.85


def test_a_turn_without_an_epoch_does_not_split_by_rows_alone() -> None:
    split = BoundSplit(by_service=True)
    now = look(1.0, {"a": 0.1, "b": 0.1})
    idle = {**now.executors, "b": replace(now.executors["b"], scv_arrival=300.0)}
    ended = {name: replace(one, commit_s=0.01) for name, one in idle.items()}
    before = split.shares(replace(now, executors=ended), BOUND)
    assert before == pytest.approx({"a": 0.5, "b": 0.5})
    assert split.shares(replace(now, executors={**ended, "b": idle["b"]}), BOUND) == before
