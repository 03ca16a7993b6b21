"""What a report says of an operator whose executors come and go."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

import pytest
from tests.unit.spark.engine_shell import started

from penstock.dataplane.metrics import OPERATOR, STAGE
from penstock.dataplane.splitting import Pass, plan_merge, plan_split
from penstock.sim.inprocess import Driver
from penstock.spark.progress import Identity, Reading, make_report, take_reading

COUNTERS = [one.name for one in (*STAGE, *OPERATOR) if one.counts]
IDENTITY = Identity(str(uuid.uuid4()), str(uuid.uuid4()), "counts")


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return started(tmp_path, rows=4_000)


def dealt(driver: Driver, found: Pass) -> None:
    """Carry out a split or a merge, and let rows flow for a while after it."""
    done = len(driver.engine.redealing.made)
    driver.engine.redeal(found.giver, found.taker, found.shards, found.tasks)
    assert driver.run_until(lambda: len(driver.engine.redealing.made) > done)
    driver.run_until(0.3)


def seen(readings: list[Reading], driver: Driver) -> None:
    readings.append(take_reading(driver.engine))


def test_no_counter_of_an_operator_runs_backwards_while_executors_split_and_merge(driver: Driver) -> None:
    readings = [take_reading(driver.engine)]
    for plan in (plan_split, plan_split, plan_merge, plan_merge):
        dealt(driver, plan(driver.engine, "fold"))
        seen(readings, driver)
    for before, now in itertools.pairwise(readings):
        for counter in COUNTERS:
            assert now.of("fold", counter) >= before.of("fold", counter), counter
        report = make_report(now, before, IDENTITY)
        assert report["stateOperators"][0]["numRowsUpdated"] > 0
    assert list(readings[-1].facts["operators"]["fold"]["executors"]) == ["fold"], "those with shards"
    assert driver.run_until("drained")
    seen(readings, driver)
    assert readings[-1].of("fold", "rowsIn") == 4_000


def test_after_a_restart_the_rows_of_an_executor_that_was_merged_still_count(driver: Driver) -> None:
    dealt(driver, plan_split(driver.engine, "fold"))
    dealt(driver, plan_merge(driver.engine, "fold#2"))
    assert driver.run_until("drained")
    driver.stop()
    driver.restart()
    facts = take_reading(driver.engine).facts["operators"]["fold"]
    assert facts["rowsIn"] == 4_000 and facts["watermark"] is None
