"""Every shape of topology in one, in process, with leases and drivers dying: the model, the schedule and the replay
agree."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk
from tests.scenario import shapes

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.program import Program
from penstock.sim.inprocess import Driver
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

ROWS = 240


def program() -> Program:
    orders = penstock.generate(shapes.make_orders, schema=shapes.ORDERS, rate=1000, name="orders")
    payments = penstock.generate(shapes.make_payments, schema=shapes.ORDERS, rate=1000, name="payments")
    rules = penstock.generate(shapes.make_rules, schema=shapes.RULES, rate=1000, name="rules")
    stream = shapes.flow(orders, payments, rules)
    return compile_program(stream.node, tasks=2, memory_bytes=1 << 20)


@pytest.mark.parametrize("seed", range(4))
def test_all_shapes_together_agree_with_a_plain_model_whatever_dies(tmp_path: Path, seed: int) -> None:
    made = program()
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), made, KEPT, seed, str(tmp_path / "node"), rows=ROWS, rate=4_000.0
    )
    rng = random.Random(seed)
    for _ in range(3):
        driver.run_until(0.02 + 0.03 * rng.random())
        if driver.live_leases():
            driver.kill(rng.choice(driver.live_leases()))
    driver.crash()
    driver.restart()
    assert driver.run_until("drained", 60.0), driver.failed
    last = {(row["kind"], row["user"]): (row["count"], row["amount"]) for row in driver.sink.rows()}
    assert last == shapes.model(ROWS, ROWS)
    driver.stop()
    check_schedule(driver.checkpoint, made, complete=True)
    assert replay(driver.checkpoint, made).rows > 4 * ROWS
