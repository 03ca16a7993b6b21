"""What an epoch may take, by what rows were seen to take."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane.intake import Intake
from penstock.dataplane.levels import APART_RATIO
from penstock.dataplane.run import Run
from penstock.dataplane.settings import Settings
from penstock.dataplane.shards import Holding
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program


@pytest.fixture
def run(tmp_path: Path) -> Run:
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), KEPT, 1, str(tmp_path / "node"), rows=1
    )
    return Run(driver.engine.runs["fold"].chain, Settings())


def see(run: Run, rows: int, epoch_s: float, longest_task_s: float) -> None:
    run.intake._learn_rate(rows, epoch_s, longest_task_s)


def test_slow_rows_that_come_one_by_one_are_known_to_be_slow_before_they_come_in_a_burst(run: Run) -> None:
    see(run, 10, epoch_s=0.055, longest_task_s=0.05)
    assert run.intake.budget().rows == 40, (
        "as many as take 0.2 s, though that is less than an epoch may usually take"
    )


def test_an_epoch_of_slow_rows_is_no_longer_than_one_row_or_the_target(run: Run) -> None:
    longest_s = Settings().max_epoch_s
    for row_s in (0.01, 0.1, 0.5, 30.0):
        run.intake = Intake(run.spec, Settings())
        for _ in range(3):
            rows = run.intake.budget().rows
            see(run, rows, epoch_s=0.005 + rows * row_s, longest_task_s=rows * row_s)
        assert run.intake.budget().rows * row_s <= max(row_s, longest_s)


def test_a_budget_smaller_than_a_row_of_every_shard_is_shared_by_the_tasks(run: Run) -> None:
    run.shards.to(run.shards.mine(), Holding.BRINGING)
    run.shards.to(run.shards.mine(), Holding.HELD)
    shards, tasks = run.spec.shards, len(run.slots)
    assert run.task_rows(1.0) is None, "one row of each shard is few"
    see(run, 16, epoch_s=3.2, longest_task_s=3.2)
    assert APART_RATIO * run.intake.budget().rows < shards
    assert run.task_rows(1.0) == dict.fromkeys(range(tasks), run.intake.budget().rows / tasks)


def test_the_first_epoch_is_small_and_fast_rows_have_their_whole_budget_after_a_few(run: Run) -> None:
    assert run.intake.budget().rows <= 60
    epochs, taken = 0, 0
    while run.intake.budget().rows < 0.9 * 1e6 * Settings().max_epoch_s:
        rows = run.intake.budget().rows
        epochs, taken = epochs + 1, taken + rows
        see(run, rows, epoch_s=0.01 + rows / 1e6, longest_task_s=0.002 + rows / 1e6)
    assert epochs <= 8


@pytest.mark.parametrize("overhead_s", [0.002, 0.15, 0.3])
def test_a_rate_that_is_wrong_by_any_factor_recovers(run: Run, overhead_s: float) -> None:
    for wrong in (1e-6, 1.0, 1e9):
        run.intake._epoch_time.rate = run.intake._row_time.rate = wrong
        for _ in range(40):
            rows = min(run.intake.budget().rows, 100_000)
            see(run, rows, epoch_s=0.01 + overhead_s + rows / 1e4, longest_task_s=overhead_s + rows / 1e4)
        assert Settings().min_epoch_rows <= run.intake.budget().rows <= 1e4 * Settings().max_epoch_s


def test_rows_that_turn_slow_are_known_to_be_after_one_long_epoch(run: Run) -> None:
    for _ in range(5):
        see(run, 20_000, epoch_s=0.2, longest_task_s=0.19)
    see(run, 20_000, epoch_s=2_000.0, longest_task_s=2_000.0)
    assert run.intake.budget().rows <= 8
    see(run, 8, epoch_s=0.8, longest_task_s=0.8)
    assert run.intake.budget().rows <= 8


def test_few_fast_rows_tell_nothing_and_the_first_burst_is_taken_whole(run: Run) -> None:
    see(run, 10, epoch_s=0.008, longest_task_s=0.002)
    assert run.intake.budget().rows > 10_000


def test_a_pause_of_the_machine_in_a_small_epoch_is_forgotten_within_a_few_large_ones(run: Run) -> None:
    for _ in range(10):
        see(run, 100, epoch_s=0.06, longest_task_s=0.05)
    for rows in (400, 2_000, 10_000, 50_000):
        see(run, rows, epoch_s=0.01 + rows / 2e6, longest_task_s=0.005)
    assert run.intake.budget().rows > 100_000
