"""Event time does not stand still because a source falls silent: what executors owe each other is told, after crashes, stops
and deals too, and `processAllAvailable` waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest

from penstock.dataplane.compile import compile_program
from penstock.sim import timelines
from penstock.sim.inprocess import Driver
from penstock.sim.timing import SMALL, quick
from penstock.testing.disk import SimDisk


@contextmanager
def _driver(seed: int, way: str = "operator", executors: int = 2, rows: int = timelines.ROWS) -> Iterator[Driver]:
    stream = timelines.topology(way, 2, ends=False)
    program = compile_program(stream.node, tasks=2, memory_bytes=1 << 20, executors=executors)
    disk = SimDisk(seed)
    disk.make_dirs("/work")
    with TemporaryDirectory(prefix="penstock-silence-") as folder:
        driver = Driver(disk, "/work/cp", program, quick(SMALL), seed, folder, rows=rows, rate=400.0)
        yield driver
        driver.stop()


def _wrong(driver: Driver) -> list[str]:
    wanted = timelines.expected(timelines.source_rows(), 2, ends=False)
    return timelines.differences(timelines.results(driver.sink.rows()), wanted)


def _run_until_all_arrived(driver: Driver) -> None:
    assert driver.run_until(lambda: driver.engine.chains["rows"].offset >= timelines.ROWS, 60.0)


def _owes(driver: Driver) -> bool:
    return driver.engine.chains.lagging()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("end", [Driver.crash, Driver.stop], ids=["crash", "stop"])
def test_what_executors_owed_each_other_when_the_driver_ended_is_told_by_the_next_one(seed: int, end: Callable[[Driver], None]) -> None:
    ended = known = 0
    with _driver(seed) as driver:
        _run_until_all_arrived(driver)
        while driver.run_until(lambda: _owes(driver) and len(driver.acknowledged) > known, 5.0):
            end(driver)
            driver.restart()
            known = len(driver.acknowledged)
            ended += 1
        assert ended
        assert driver.run_until("drained", 30.0), driver.failed
        assert not _wrong(driver)


@pytest.mark.parametrize(("way", "executors"), [("operator", 3), ("two operators", 2)])
def test_what_all_available_rows_close_is_there_when_the_wait_for_them_ends(way: str, executors: int) -> None:
    for seed in (1, 3):
        with _driver(seed, way, executors) as driver:
            _run_until_all_arrived(driver)
            mark = driver.engine.draining.mark()
            assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 30.0), driver.failed
            assert not _wrong(driver)


def test_a_wait_for_all_available_rows_ends_while_rows_keep_coming() -> None:
    with _driver(1, rows=2_000) as driver:
        driver.run_until(0.5)
        mark = driver.engine.draining.mark()
        assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 30.0), driver.failed
        assert driver.engine.chains["rows"].offset < 2_000
