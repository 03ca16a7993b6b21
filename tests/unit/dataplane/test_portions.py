"""How much a source publishes at once: what suits who takes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane.intake import FIRST_PORTION_ROWS, PORTION_RATIO, PORTION_S
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program

LARGE = replace(KEPT, max_epoch_rows=5_000)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), LARGE, 1, str(tmp_path / "node"), rows=900
    )


def learn(driver: Driver, stage: str, rows_per_s: float) -> None:
    driver.engine.runs[stage].intake._epoch_time.rate = rows_per_s


def test_portions_are_small_until_the_rate_is_known(driver: Driver) -> None:
    run = driver.engine.runs["fold"]
    assert run.intake.portion_rows() == FIRST_PORTION_ROWS
    learn(driver, "fold", 1e6)
    assert run.intake.portion_rows() == int(
        1e6 * max(PORTION_S, PORTION_RATIO * driver.engine.settings.max_epoch_s)
    )


def test_two_portions_fit_an_epoch_of_any_rate(driver: Driver) -> None:
    run = driver.engine.runs["fold"]
    for rate in (1e4, 1e5, 1e6):
        learn(driver, "fold", rate)
        portion = run.intake.portion_rows()
        epoch = rate * max(driver.engine.settings.max_epoch_s, 2 * PORTION_S)
        assert portion is not None and 0.9 * epoch <= 2 * portion <= epoch


def test_a_source_publishes_no_more_than_suits_the_slowest_it_feeds(driver: Driver) -> None:
    source = next(run for run in driver.engine.runs.values() if run.spec.kind == "source")
    at_once = driver.engine.sources._rows_at_once
    before = at_once(source)
    assert before == min(source.intake.source_rows(), FIRST_PORTION_ROWS)
    fed = [edge.consumer for edge in source.spec.edges]
    learn(driver, fed[0], 1_000.0)
    assert at_once(source) == driver.engine.runs[fed[0]].intake.portion_rows() < before
    driver.run_until("drained", 30.0)
    assert driver.engine.runs["fold"].counts.arrived.sum() == 900


def test_a_portion_is_counted_in_rows_that_get_through_to_who_takes_them(driver: Driver) -> None:
    sources = driver.engine.sources
    source = next(run for run in driver.engine.runs.values() if run.spec.kind == "source")
    driver.run_until("drained", 30.0)
    learn(driver, source.spec.edges[0].consumer, 1_000.0)
    all_through = sources._rows_at_once(source)
    for _ in range(40):  # one row in a hundred passes the source's steps
        sources.note_published(source, 100, [])
        edge, item = source.spec.edges[0], type("Item", (), {"rows": 2})()
        sources.note_published(source, 100, [(edge, item)])
    assert sources._rows_at_once(source) >= min(50 * all_through, source.intake.source_rows())
