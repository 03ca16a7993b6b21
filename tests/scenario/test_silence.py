"""Event time does not stand still because a source falls silent: what executors owe each other is told, after crashes and
stops too, and `processAllAvailable` waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest

from penstock.dataplane.compile import compile_program
from penstock.dataplane.sourcing import Arrivals
from penstock.sim import timelines
from penstock.sim.inprocess import Driver
from penstock.sim.timing import SMALL, quick
from penstock.testing.disk import SimDisk


@contextmanager
def _driver(seed: int, way: str, executors: int, rows: int | None = timelines.ROWS) -> Iterator[Driver]:
    stream = timelines.topology(way, 2, ends=False)
    program = compile_program(stream.node, tasks=2, memory_bytes=1 << 20, executors=executors)
    disk = SimDisk(seed)
    disk.make_dirs("/work")
    with TemporaryDirectory(prefix="penstock-silence-") as folder:
        driver = Driver(
            disk,
            "/work/cp",
            program,
            quick(SMALL),
            seed,
            folder,
            arrivals=lambda _: Arrivals([(1.0, 400.0)], rows),
        )
        yield driver
        driver.stop()


def _wrong(driver: Driver) -> list[str]:
    wanted = timelines.expected(timelines.source_rows(), 2, ends=False)
    return timelines.differences(timelines.results(driver.sink.rows()), wanted)


def _run_until_all_arrived(driver: Driver) -> None:
    assert driver.run_until(lambda: driver.engine.chains["rows"].offset >= timelines.ROWS, 60.0)


def _run_until_owed(driver: Driver, known: int) -> bool:
    """Run until some executor owes an epoch, and more records than these are durable."""
    return driver.run_until(lambda: driver.engine.chains.lagging() and len(driver.acknowledged) > known, 2.0)


def _wait_for_all(driver: Driver) -> None:
    mark = driver.engine.draining.mark()
    assert driver.run_until(lambda: driver.engine.draining.has_passed(mark), 10.0), driver.failed


@pytest.mark.parametrize("end", [Driver.crash, Driver.stop], ids=["crash", "stop"])
def test_the_next_driver_tells_what_executors_owed_each_other(end: Callable[[Driver], None]) -> None:
    with _driver(5, "operator", 2) as driver:
        _run_until_all_arrived(driver)
        ended = known = 0
        while _run_until_owed(driver, known):
            end(driver)
            driver.restart()
            ended, known = ended + 1, len(driver.acknowledged)
        assert ended
        driver.run_until(5.0)
        assert not _wrong(driver)
        assert driver.drained(), driver.failed


def test_what_all_rows_close_is_there_when_the_wait_for_them_ends() -> None:
    for seed in (1, 3):
        with _driver(seed, "two operators", 2) as driver:
            _run_until_all_arrived(driver)
            _wait_for_all(driver)
            assert not _wrong(driver)


def test_a_wait_for_all_rows_ends_while_more_keep_coming() -> None:
    with _driver(1, "operator", 2, rows=None) as driver:
        driver.run_until(0.5)
        _wait_for_all(driver)
        assert driver.engine.chains["rows"].offset > 0
