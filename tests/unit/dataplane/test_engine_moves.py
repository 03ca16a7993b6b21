"""Tasks that change their lease while the query runs: no row lost, state handed over where it can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane import messages
from penstock.dataplane.shards import Holding
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program, memory_program
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule


def driver_on(folder: Path, seed: int, *, nodes: int = 1, capacity: int = 1, local: bool = True) -> Driver:
    program = local_program() if local else memory_program()
    return Driver(
        fast_disk(), str(folder / "cp"), program, KEPT, seed, str(folder / "node"),
        rows=240, rate=1_500.0, nodes=nodes, capacity=capacity,
    )  # fmt: skip


def finish(driver: Driver) -> None:
    assert driver.run_until("drained", 30.0), driver.failed
    assert sorted(row["id"] for row in driver.sink.rows()) == list(range(240))  # type: ignore[type-var]
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replay(driver.checkpoint, driver.program)


def leases_of(driver: Driver, stage: str) -> set[str | None]:
    return {slot.lease for slot in driver.engine.runs[stage].slots.values()}


@pytest.mark.parametrize("seed", range(4))
def test_a_second_lease_takes_over_tasks_and_their_environments(tmp_path: Path, seed: int) -> None:
    driver = driver_on(tmp_path, seed)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 4)
    assert len(leases_of(driver, "fold")) == 1
    driver.set_capacity(2)
    assert driver.run_until(lambda: len(leases_of(driver, "fold") - {None}) == 2, 5.0), "both leases serve it"
    driver.run_until(lambda: bool(driver.engine.runs["fold"].ready.all()), 5.0)
    assert "local" in {how for _, stage, _, how in driver.engine.placing.bringings if stage == "fold"}
    finish(driver)


@pytest.mark.parametrize("seed", range(4))
def test_a_task_that_moves_to_another_node_is_brought_from_the_checkpoint(tmp_path: Path, seed: int) -> None:
    driver = driver_on(tmp_path, seed, nodes=2)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 4)
    before = len(driver.engine.placing.bringings)
    driver.set_capacity(2)
    assert driver.run_until(lambda: len(leases_of(driver, "fold") - {None}) == 2, 5.0)
    driver.run_until(lambda: bool(driver.engine.runs["fold"].ready.all()), 5.0)
    moved = {how for _, stage, _, how in list(driver.engine.placing.bringings)[before:] if stage == "fold"}
    assert moved and "local" not in moved
    finish(driver)


@pytest.mark.parametrize("victim", ["old", "new"])
@pytest.mark.parametrize("seed", range(3))
def test_a_lease_that_dies_while_a_task_moves_loses_nothing(tmp_path: Path, seed: int, victim: str) -> None:
    driver = driver_on(tmp_path, seed)
    fold = driver.engine.runs["fold"]
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 4)
    (old,) = leases_of(driver, "fold")
    driver.set_capacity(2)
    assert driver.run_until(lambda: bool((fold.shards.holding == Holding.RELEASING).any()), 5.0)
    (new,) = set(driver.engine.leases) - {old}
    assert old is not None
    driver.kill(old if victim == "old" else new)
    finish(driver)


@pytest.mark.parametrize("seed", range(3))
def test_a_lease_given_back_leaves_its_tasks_to_the_others(tmp_path: Path, seed: int) -> None:
    driver = driver_on(tmp_path, seed, capacity=3, local=False)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 2 and len(driver.engine.leases) == 3)
    driver.set_capacity(1)
    driver.run_until(lambda: len(driver.engine.leases) == 1, 5.0)
    finish(driver)


def test_a_mark_is_passed_by_what_had_arrived_although_the_source_goes_on(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, local=False)
    driver.engine.sources.arrivals["source"].limit = None
    mark = driver.engine.draining.mark()
    assert not driver.engine.draining.has_passed(mark), "a source that has not begun is waited for"
    assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 10.0)
    driver.run_until(0.05)
    offset = driver.engine.sources.due_now()["source"]
    later = driver.engine.draining.mark()
    assert not driver.engine.draining.has_passed(later)
    assert driver.run_until(lambda: driver.engine.draining.has_passed(later), 10.0)
    assert len(driver.sink.rows()) >= offset
    assert not driver.engine.draining.is_drained(), "it is not the end of the source"


def test_the_mark_of_a_bounded_source_is_its_end(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, local=False)
    mark = driver.engine.draining.mark()
    assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 10.0)
    assert len(driver.sink.rows()) == 240
    assert driver.engine.runs["sink"].sunk_rows == 240


def test_a_message_to_let_go_says_what_has_its_record() -> None:
    release = messages.Release("fold", 0, b"", 7)
    assert messages.decode_to_lease(messages.encode(release)) == release


def test_an_idle_operator_can_be_given_a_boundary_by_an_epoch_without_rows(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1)
    assert driver.run_until("drained", 30.0), driver.failed
    fold, gather = driver.engine.chains["fold"], driver.engine.chains["gather"]
    before, rows, versions = fold.epoch, fold.rows_in, fold.versions.copy()
    driver.engine.ask_empty_epoch("fold")
    assert driver.run_until(lambda: fold.epoch == before + 1, 5.0), "one more record"
    driver.run_until(0.1)
    assert (fold.epoch, fold.rows_in) == (before + 1, rows) and (fold.versions == versions).all()
    assert gather.epoch > 0 and driver.engine.draining.is_drained()
    finish(driver)
