"""What is said of a topology: as it is declared, and with the executors and tasks that there are now."""

from __future__ import annotations

from pathlib import Path

from tests.unit.spark.engine_shell import started

from penstock.dataplane.explain import explain_program, tasks_of
from penstock.dataplane.splitting import plan_merge, plan_split


def test_executors_and_tasks_are_those_there_are_now(tmp_path: Path) -> None:
    driver = started(tmp_path, rows=3_000)
    engine = driver.engine
    assert "8 shards, 2 tasks" in explain_program(engine.program, False, tasks_of(engine))
    plans = (
        (plan_split, "2 executors, 2 tasks"),
        (plan_split, "3 executors, 3 tasks"),
        (plan_merge, "2 executors, 3"),
    )
    for made, (plan, says) in enumerate(plans, 1):
        found = plan(engine, "fold")
        engine.redeal(found.giver, found.taker, found.shards, found.tasks)
        assert driver.run_until(lambda made=made: len(engine.redealing.made) == made)  # type: ignore[misc]
        assert f"8 shards, {says}" in explain_program(engine.program, False, tasks_of(engine))
    assert "8 shards, 2 tasks" in explain_program(engine.program), "as declared"
