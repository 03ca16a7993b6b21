"""The bench of decisions: its instances, and the names it owes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from penstock.bench import schedule
from penstock.bench.result import BenchResult, UnknownPart
from penstock.bench.schedule import SIZES, decide, make_instance

SMALL = dataclasses.replace(SIZES["32"], nodes=6, executors=20)


def test_the_same_seed_makes_the_same_instance() -> None:
    one, two, other = make_instance(SMALL, 1), make_instance(SMALL, 1), make_instance(SMALL, 2)
    assert (one.rates_per_s == two.rates_per_s).all()
    assert (one.now.present == two.now.present).all()
    assert (one.rates_per_s != other.rates_per_s).any()


@pytest.mark.parametrize("seed", range(3))
def test_about_a_tenth_of_the_demands_differ_from_the_plan_in_force(seed: int) -> None:
    instance = make_instance(SIZES["32"], seed)
    held = instance.now.present.sum(axis=1)
    assert held.sum() == 32 * 8
    changed = decide(instance).demand.demand != held
    assert 0.05 <= changed.mean() <= 0.4


def test_a_decision_gives_everyone_its_cores() -> None:
    found = decide(make_instance(SMALL, 3))
    assert (found.cores.sum(axis=1) >= found.demand.demand).all()
    assert (found.cores.sum(axis=0) <= found.demand.capacity).all()
    assert (found.cores != found.demand.present).any()


def test_every_name_is_there_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "SIZES", {"32": SMALL})
    result = BenchResult("schedule", {})
    assert schedule.run(result, True, None) == []
    assert result.figures["schedule_ms_32_nodes"] > 0
    assert np.isfinite(result.figures["schedule_ms_32_nodes_spread"]).all()


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(UnknownPart, match="there is no part 64; there is 32, 1000"):
        schedule.run(BenchResult("schedule", {}), True, ["64"])
