"""What the control plane is told of an engine: latency at each operator, and how an SLA is judged there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.control.sla import OPERATOR, SLA
from penstock.dataplane import messages
from penstock.dataplane.metrics import success_of
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program
from penstock.spark.measuring import judge_by, take_sample

FIRST, LAST = "fold", "gather"


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), KEPT, 1, str(tmp_path / "node"), rows=300
    )


def test_the_latency_of_an_operator_begins_when_rows_arrive_at_it(driver: Driver) -> None:
    driver.run_until("drained", 30.0)
    sample = take_sample(driver.engine, [], 0.0)
    first, last, whole = sample.executors[FIRST].latency_s, sample.executors[LAST].latency_s, sample.latency_s
    assert first is not None and last is not None and whole is not None
    assert first + last == pytest.approx(whole, rel=0.2), (
        "together they are the way from the source to the last commit"
    )


def test_the_quantile_that_an_sla_bounds_is_measured(driver: Driver) -> None:
    driver.run_until("drained", 30.0)
    found = [take_sample(driver.engine, [], 0.0, quantile) for quantile in (0.1, 0.5, 0.999)]
    for part in [found, [one.executors[LAST] for one in found]]:
        low, middle, high = (next(iter(one.latency_quantiles_s.values())) for one in part)
        assert 0 < low <= middle <= high and low < high
        assert part[0].latency_p99_s is not None and middle <= part[0].latency_p99_s <= high


def test_a_task_has_the_shares_that_its_lease_tells_of_its_process(driver: Driver) -> None:
    driver.run_until("drained", 30.0)
    assert driver.engine.leases
    before = take_sample(driver.engine, [], 0.0).executors.values()
    assert all(task.cpu_ratio is None for one in before for task in one.tasks)
    for lease in list(driver.engine.leases):
        driver.engine.on_message(lease, messages.Alive((0.9, 0.9, 0.9), (0.4, 0.2, 0.1)))
    runs, sample = driver.engine.runs, take_sample(driver.engine, [], 0.0)
    served = Counter(slot.lease for run in runs.values() for slot in run.slots.values())
    for name in (FIRST, LAST):
        for task in sample.executors[name].tasks:
            several = served[runs[name].slots[task.index].lease]
            found = (task.cpu_ratio, task.memory_ratio, task.io_ratio)
            assert found == pytest.approx((0.4 / several, 0.2 / several, 0.1 / several))


def test_an_sla_of_operators_is_judged_at_each_and_one_of_paths_at_their_end(driver: Driver) -> None:
    judge_by(driver.engine, SLA(5.0, 0.01, scope=OPERATOR))
    driver.run_until("drained", 30.0)
    engine = driver.engine
    found = {name: success_of(engine, name, engine.now()) for name in (FIRST, LAST)}
    assert all(one is not None and one.judged and one.met == one.judged for one in found.values())
    judge_by(engine, SLA(5.0, 0.01, scope=OPERATOR))
    assert success_of(engine, LAST, engine.now()) == found[LAST], "the same bound goes on"
    judge_by(engine, SLA(5.0, 0.01))
    assert success_of(engine, FIRST, engine.now()) is None
    pairs = engine.runs[LAST].counts.sojourns.pairs
    assert pairs is not None and pairs.bound.from_source


def test_a_bound_that_is_missed_shows(driver: Driver) -> None:
    judge_by(driver.engine, SLA(1e-6, 0.01))
    driver.run_until("drained", 30.0)
    found = success_of(driver.engine, LAST, driver.engine.now())
    assert found is not None and found.ratio is not None and found.ratio < 1.0
