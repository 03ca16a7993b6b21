"""A node's local state damaged, deleted or on a full disk: rebuilt from the checkpoint with the committed digest."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
from pathlib import Path

import pytest
from tests.faults.local_damage import damage_handover, damage_live, fill_disk, in_child
from tests.faults.runs import KEPT, fast_disk, real_program, scratch

from penstock.dataplane.state.local import LocalShard
from penstock.errors import StorageError
from penstock.sim.inprocess import Driver
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule


@pytest.mark.parametrize("operator", ["fold", "gather"])
def test_a_damaged_copy_is_never_believed(operator: str) -> None:
    with scratch() as folder:
        tally = damage_handover(folder, operator, 40)
    assert tally.tried == 40
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.refused > 10


def test_a_value_damaged_under_a_working_lease_is_noticed_when_it_is_read() -> None:
    with scratch() as folder:
        tally = damage_live(folder, "fold", 10)
    assert tally.tried == 10 and tally.refused == 10
    assert not tally.failures, "\n".join(tally.failures)


def finish(driver: Driver) -> None:
    assert driver.run_until("drained", 60.0), driver.failed
    driver.stop()
    driver.loop.run_until(lambda: False, 1.0)
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replayed = replay(driver.checkpoint, driver.program)
    assert replayed.rows == 3 * driver.rows


@pytest.mark.parametrize("seed", range(3))
def test_local_state_deleted_again_and_again_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    with scratch() as folder:
        node = folder / "node"
        driver = Driver(
            fast_disk(), str(folder / "cp"), real_program(), KEPT, seed, str(node), rows=250, rate=4_000.0
        )
        for _ in range(6):
            driver.run_until(rng.uniform(0.02, 0.08))
            shutil.rmtree(node, ignore_errors=True)
            leases = driver.live_leases()
            if leases:
                driver.kill(rng.choice(leases))
        finish(driver)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_whose_disk_is_full_for_a_while_costs_leases_and_no_rows(seed: int) -> None:
    with scratch() as folder:
        assert fill_disk(folder, seed) > 0, "the disk was never full"


def test_an_environment_that_cannot_grow_says_so_and_stays_as_it_was(tmp_path: Path) -> None:
    def child() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        shard = LocalShard.create(str(tmp_path / "shard"), "me")
        shard.write([(b"\x01a", b"1")], [], 1, b"d" * 16)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, 256 << 10))
        try:
            shard.write([(b"\x01%06d" % at, os.urandom(1000)) for at in range(2000)], [], 2, b"e" * 16)
        except StorageError as error:
            kept = shard.version == 1 and shard.count == 1 and shard.get(b"\x01a") == b"1"
            return 7 if kept and str(tmp_path) in str(error) else 8
        return 9

    assert in_child(child) == 7


def test_an_environment_grows_past_its_first_map(tmp_path: Path) -> None:
    shard = LocalShard.create(str(tmp_path / "shard"), "me")
    puts = [(b"\x01%06d" % at, os.urandom(1000)) for at in range(3000)]
    shard.write(puts, [], 1, b"d" * 16)
    assert shard.count == 3000 and shard.get(puts[77][0]) == puts[77][1]
    shard.destroy()
