"""When a sink takes rows: at once, after they have gathered, or because somebody waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane.settings import Settings
from penstock.sim.inprocess import Driver
from penstock.sim.programs import memory_program
from penstock.sim.timing import quick
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule


def driver_on(folder: Path, settings: Settings, rows: int = 400, rate: float = 2_000.0) -> Driver:
    return Driver(
        fast_disk(),
        str(folder / "cp"),
        memory_program(),
        settings,
        1,
        str(folder / "node"),
        rows=rows,
        rate=rate,
    )


def epochs(driver: Driver) -> list[int]:
    """Rows of each sink epoch."""
    return [table.num_rows for _, _, table in driver.sink.calls]


def test_rows_gather_for_a_sink_until_the_time_is_up(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, quick(KEPT, sink_hold_s=0.5), rows=10_000_000, rate=200.0)
    gathering = driver.engine.runs["sink"]
    assert driver.run_until(lambda: gathering.gathers_since is not None, 5.0)
    began = driver.loop.now
    driver.run_until(0.4)
    assert not driver.sink.calls
    assert driver.run_until(lambda: bool(driver.sink.calls), 0.5)
    assert driver.loop.now - began == pytest.approx(0.5, abs=0.1)
    driver.run_until(1.5)
    assert 3 <= len(driver.sink.calls) <= 4 and sum(epochs(driver)[1:]) > 150


def test_rows_gather_for_a_sink_until_there_are_enough(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, quick(KEPT, sink_hold_s=600.0, sink_bytes=8_000), rows=2_000)
    assert driver.run_until(lambda: len(driver.sink.calls) >= 3, 10.0)
    few, many = epochs(driver)[:3], driver_on(tmp_path / "other", KEPT, rows=2_000)
    many.run_until(lambda: len(many.sink.calls) >= 3, 10.0)
    assert min(few) > max(epochs(many)[:3])


def test_a_mark_lets_a_sink_take_what_has_gathered_once_all_of_it_is_there(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, quick(KEPT, sink_hold_s=600.0), rows=400)
    mark = driver.engine.draining.mark()
    assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 30.0), driver.failed
    assert epochs(driver) == [400], "one sink epoch, not one for every look"
    assert driver.engine.draining.is_drained()
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replay(driver.checkpoint, driver.program)


def test_what_has_gathered_when_the_driver_dies_is_taken_after_the_restart(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, quick(KEPT, sink_hold_s=600.0), rows=400)
    driver.run_until(lambda: driver.engine.chains.waiting_bytes_for(driver.engine.chains["sink"]) > 0, 10.0)
    driver.crash()
    assert not driver.sink.calls
    driver.restart()
    mark = driver.engine.draining.mark()
    assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 30.0), driver.failed
    assert sum(epochs(driver)) == 400
    waiting = driver.engine.chains.waiting_bytes_for(driver.engine.chains["sink"])
    assert waiting == 0 == driver.engine.chains.waiting_bytes()


def test_spaced_epochs_take_all_that_came_meanwhile(tmp_path: Path) -> None:
    paced = quick(KEPT, min_epoch_s=0.5, max_epoch_s=0.5, max_epoch_rows=100_000, max_epoch_bytes=1 << 30)
    driver = driver_on(tmp_path, paced, rows=1_000, rate=500.0)
    mark = driver.engine.draining.mark()
    assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 30.0), driver.failed
    assert driver.engine.chains["source"].epoch <= 7
    assert sum(epochs(driver)) == 1_000


def test_the_pace_gives_way_when_a_whole_epoch_of_rows_waits(tmp_path: Path) -> None:
    paced = quick(KEPT, min_epoch_s=60.0, max_epoch_s=60.0, max_epoch_rows=64, max_epoch_bytes=4_000)
    driver = driver_on(tmp_path, paced, rows=1_000, rate=1e6)
    assert driver.run_until(lambda: driver.engine.chains["source"].offset > 900, 30.0)
    assert driver.engine.chains["fold"].epoch > 3
