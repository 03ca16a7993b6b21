"""Power losses, bad disks, and clean-up that races with recovery, at the counts of `make test`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.faults.disk_weather import (
    BAD_DISK,
    RACING,
    bad_disk,
    clean_up_race,
    power_loss,
    power_loss_with_stale_blocks,
)

from penstock.sim.protocol import simulate
from penstock.testing.disk import SimDisk


def wrong_seeds(check: Callable[[int], str | None], count: int) -> list[str]:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = zip(range(count), pool.map(check, range(count)), strict=True)
        return [f"seed {seed}: {what}" for seed, what in found if what is not None]


def test_every_acknowledged_epoch_survives_a_power_loss_at_any_step() -> None:
    assert not wrong_seeds(power_loss, 10)


def test_lost_blocks_that_show_old_bytes_are_refused_by_name_or_do_no_harm() -> None:
    assert not wrong_seeds(power_loss_with_stale_blocks, 6)


def test_a_log_whose_syncs_do_nothing_does_not_survive_a_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimDisk._sync
    lying = lambda self, path, file: None if path.endswith(".log") else sync(self, path, file)  # noqa: E731
    monkeypatch.setattr(SimDisk, "_sync", lying)
    assert any(power_loss(seed) for seed in range(1, 5))


def test_a_disk_with_errors_and_stalls_never_leaves_a_partial_commit() -> None:
    assert not wrong_seeds(bad_disk, 15)


def test_one_call_in_twenty_of_the_bad_disk_fails_or_stalls() -> None:
    met = [
        what
        for seed in range(8)
        for what, times in simulate(seed, BAD_DISK).happened.items()
        for _ in range(times)
    ]
    assert sum(what.startswith("error") for what in met) > 10
    assert sum(what.startswith("stall") for what in met) > 5
    assert {"error before sync", "error after sync"} & set(met)


def test_clean_up_that_races_with_recovery_deletes_nothing_reachable_and_leaves_no_orphan() -> None:
    assert not wrong_seeds(clean_up_race, 10)


def test_races_hit_the_steps_of_a_starting_driver() -> None:
    happened = {what for seed in range(4) for what in simulate(seed, RACING).happened}
    assert any(what.startswith("meanwhile") for what in happened)
    assert any(what.startswith("take-over") for what in happened)
