"""What an epoch may take, by what rows were seen to take."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane.run import Run
from penstock.dataplane.settings import Settings
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program


@pytest.fixture
def run(tmp_path: Path) -> Run:
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), KEPT, 1, str(tmp_path / "node"), rows=1
    )
    return Run(driver.engine.runs["fold"].chain, Settings())


def see(run: Run, rows: int, epoch_s: float, longest_task_s: float) -> None:
    run.rows, run.epoch_s = rows, epoch_s
    run._learn_rate(longest_task_s)


def test_slow_rows_that_come_one_by_one_are_known_to_be_slow_before_they_come_in_a_burst(run: Run) -> None:
    see(run, 10, epoch_s=0.055, longest_task_s=0.05)
    assert run.budget().rows == Settings().min_epoch_rows


def test_few_fast_rows_tell_nothing_and_the_first_burst_is_taken_whole(run: Run) -> None:
    see(run, 10, epoch_s=0.008, longest_task_s=0.002)
    assert run.budget().rows > 10_000


def test_a_pause_of_the_machine_in_a_small_epoch_is_forgotten_within_a_few_large_ones(run: Run) -> None:
    for _ in range(10):
        see(run, 100, epoch_s=0.06, longest_task_s=0.05)
    for rows in (400, 2_000, 10_000, 50_000):
        see(run, rows, epoch_s=0.01 + rows / 2e6, longest_task_s=0.005)
    assert run.budget().rows > 100_000
