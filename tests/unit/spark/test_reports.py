"""Reports of a query: a hundred are kept, one as of now is not, and what goes wrong in one ends nothing."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program
from penstock.spark.progress import Identity, Reading, take_reading
from penstock.spark.reports import Reports

IDENTITY = Identity(str(uuid.uuid4()), str(uuid.uuid4()), "counts")


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), KEPT, 1, str(tmp_path / "node"), rows=300
    )


def reports_of(driver: Driver) -> Reports:
    return Reports(IDENTITY, lambda: take_reading(driver.engine), lambda: True)


def test_a_report_as_of_now_is_not_kept_and_after_the_end_the_last_one_stays(driver: Driver) -> None:
    reports = reports_of(driver)
    reports.begin()
    driver.run_until("drained", 30.0)
    reports.add()
    assert reports.as_of_now() is not None and len(reports.kept()) == 1
    reports.end()
    last = reports.newest()
    assert last is not None and reports.kept()[-1] is last and last["operators"]["fold"]["rowsIn"] == 300
    driver.crash()
    driver.restart()
    assert reports.as_of_now() is last, "nothing is read any more"


def test_no_more_than_a_hundred_are_kept(driver: Driver) -> None:
    reports = reports_of(driver)
    for _ in range(103):
        reports.add()
    assert len(reports.kept()) == 100


def test_a_report_that_fails_is_logged_and_the_next_one_is_made(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    fails = [True]

    def read() -> Reading:
        if fails:
            raise OSError("the disk is away")
        return take_reading(driver.engine)

    reports = Reports(IDENTITY, read, lambda: True)
    with caplog.at_level(logging.ERROR, "penstock"):
        reports.add()
    assert "a report of query counts failed" in caplog.text and reports.newest() is None
    fails.clear()
    reports.end()
    assert reports.newest() is not None


def test_where_nothing_can_be_read_there_is_no_report() -> None:
    reports = Reports(IDENTITY, lambda: None, lambda: False)
    reports.begin()
    reports.add()
    reports.end()
    assert reports.as_of_now() is None and reports.kept() == []
