"""Plans that meet each other half-way, in process."""

from __future__ import annotations

from pathlib import Path

from tests.faults.plan_stories import driver_on, finish

from penstock.dataplane.placement import Placement
from penstock.dataplane.splitting import plan_split


def test_a_new_task_that_changes_its_lease_before_it_is_built_gets_its_shards_all_the_same(
    tmp_path: Path,
) -> None:
    driver = driver_on(tmp_path, 1, nodes=1)
    engine = driver.engine
    assert driver.run_until(lambda: engine.chains["fold"].epoch > 5 and engine.runs["fold"].is_whole)
    run = engine.runs["fold"]
    new = max(run.slots) + 1
    task_of = run.task_of.copy()
    task_of[:3] = new
    engine.place([Placement("fold", dict.fromkeys([*run.slots, new]), task_of)])
    assert driver.run_until(lambda: run.slots[new].warming, 5.0)
    run.slots[new].moving_to = next(lease for lease in engine.leases if lease != run.slots[new].lease)
    finish(driver)


def test_an_executor_that_is_split_off_a_paused_one_is_paused(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, nodes=1)
    engine = driver.engine
    assert driver.run_until(lambda: engine.chains["fold"].epoch > 5 and engine.runs["fold"].is_whole)
    engine.pause(["fold"])
    asked = plan_split(engine, "fold")
    driver.redeal(asked.giver, asked.taker, asked.shards, asked.tasks)
    assert driver.run_until(lambda: asked.taker in engine.runs, 10.0)
    at = engine.now()
    driver.run_until(lambda: engine.now() > at + 1.0, 2.0)
    assert engine.runs[asked.taker].epochs == 0
    engine.resume(["fold", asked.taker])
    finish(driver)
