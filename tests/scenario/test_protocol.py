"""The record, lease and bring protocol under storms, at the counts of `make test`."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.scenario.mutants import mutated
from tests.scenario.planted import PLANTED, hunt

from penstock.sim.protocol import Outcome, simulate

SEEDS = 200
FOUND_LATE = {
    "a task waits for its node for ever",
    "shards that sit out with windows and timers in them are taken along",
}
"""Planted bugs that take the hunt long; `make test-long` looks for them."""


def run_seeds(seeds: range) -> list[Outcome]:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(simulate, seeds, chunksize=10))


def test_no_storm_breaks_a_promise_and_storms_are_what_they_should_be() -> None:
    outcomes = run_seeds(range(SEEDS))
    broken = [f"seed {o.seed}: {o.violation}" for o in outcomes if o.violation is not None]
    assert not broken, "\n".join(broken)
    happened = {what for outcome in outcomes for what in outcome.happened}
    expected = {"kill", "pause", "cut", "gate", "driver crash", "take-over", "power loss", "stop", "plan"}
    assert expected <= happened
    steps = ("create", "write", "sync", "sync_dir", "link", "delete", "read", "list")
    for kind in ("error before", "crash after", "take-over after", "meanwhile before"):
        met = [step for step in steps if f"{kind} {step}" in happened]
        assert len(met) >= 4, f"{kind} came only at {met}"


@pytest.mark.parametrize("seed", [2, 5, 3, 8])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert simulate(seed).trace == simulate(seed).trace


def test_different_seeds_give_different_traces() -> None:
    assert len({simulate(seed).trace for seed in range(4)}) == 4


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=[pytest.mark.long] if bug.name in FOUND_LATE else [], id=bug.name)
        for bug in PLANTED
    ],
)
def test_a_planted_bug_is_found(bug) -> None:  # type: ignore[no-untyped-def]
    found = hunt(bug)
    assert found.seed is not None, f"no seed of the simulation found '{bug.name}'"


def test_there_are_planted_bugs_and_most_of_them_change_real_lines() -> None:
    assert len(PLANTED) >= 34
    assert sum(bool(bug.changes) for bug in PLANTED) >= 20


def test_a_mutation_that_no_longer_applies_is_an_error() -> None:
    with (
        pytest.raises(AssertionError, match="not once"),
        mutated({"penstock.dataplane.bring": [("no such line", "")]}),
    ):
        pass
