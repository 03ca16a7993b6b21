"""Shards dealt anew between executors under storms: no promise breaks, and planted bugs are found."""

from __future__ import annotations

import importlib
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from tests.faults.shape_runs import DEALS, story
from tests.scenario.mutants import Changes, mutated

from penstock.sim.protocol import Outcome, simulate
from penstock.sim.weather import dealt_weather_of

TAKING = "penstock.dataplane.taking"
EXECUTORS = "penstock.dataplane.executors"
REDEALING = "penstock.dataplane.redealing"
CHAINS = "penstock.dataplane.chains"

PLANTED: dict[str, Changes] = {
    "rows of after a deal overtake those of before it": {
        TAKING: [("(item.barrier and not is_reached(item))", "False")]
    },
    "a shard is in two chains": {
        EXECUTORS: [
            (
                "    giver.groups = [group for group in without(giver.groups, [shards]) if len(group.shards)]\n",
                "",
            )
        ]
    },
    "the taker goes on with its own epochs": {
        EXECUTORS: [("    epoch = 1 + max(giver.epoch, taker.epoch)\n", "    epoch = 1 + giver.epoch\n")]
    },
    "deltas stay behind": {
        EXECUTORS: [
            (
                "    frames = [*taker.deltas, *(frame for frame in needed if frame.extent not in known)]\n",
                "    frames = [*taker.deltas]\n",
            )
        ]
    },
    "a deal does not wait for the epoch in flight": {
        REDEALING: [
            (
                "self._is_let_go(one) and all(run.phase is Phase.IDLE for run in runs)",
                "self._is_let_go(one)",
            )
        ]
    },
    "a channel is dropped when one of two executors has taken it": {
        CHAINS: [
            (
                "        return [chain] if self.is_plain else self.of(operator_of(chain.name))\n",
                "        return [chain]\n",
            )
        ]
    },
}


def _simulate(seed: int) -> Outcome:
    return simulate(seed, dealt_weather_of(seed))


def _check(seeds: range) -> list[Outcome]:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(_simulate, seeds, chunksize=2))
    broken = [f"seed {o.seed}: {o.violation}" for o in outcomes if o.violation is not None]
    assert not broken, "\n".join(broken)
    return outcomes


def test_no_deal_in_a_storm_breaks_a_promise() -> None:
    outcomes = _check(range(4))
    assert sum(outcome.happened.get("deal", 0) for outcome in outcomes) > 8


@pytest.mark.long
def test_no_deal_in_many_storms_breaks_a_promise() -> None:
    outcomes = _check(range(200))
    assert sum(outcome.happened.get("deal", 0) for outcome in outcomes) > 600


def _hunt(name: str) -> str | None:
    with mutated(PLANTED[name]):
        protocol: Any = importlib.import_module("penstock.sim.protocol")
        weather: Any = importlib.import_module("penstock.sim.weather")
        found = protocol.first_violation(
            range(60), lambda seed: protocol.simulate(seed, weather.dealt_weather_of(seed))
        )
    return found.violation if found is not None else None


def test_a_channel_that_is_dropped_too_early_is_found() -> None:
    assert _hunt("a channel is dropped when one of two executors has taken it") is not None


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_of_a_deal_is_found(name: str) -> None:
    assert _hunt(name) is not None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_every_shape_of_topology_with_event_time_survives_many_deals(seed: int) -> None:
    assert story(seed, DEALS) is None


def test_a_task_whose_node_has_no_lease_left_runs_elsewhere_though_nothing_comes_or_goes() -> None:
    outcome = _simulate(2_048)
    assert outcome.violation is None
