"""What the engine does when a lease is lost at an awkward moment, or rows are slow; each once lost or hung a run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane.committing import Committing
from penstock.dataplane.messages import Done
from penstock.dataplane.run import Phase
from penstock.dataplane.settings import Settings
from penstock.dataplane.sourcing import Arrivals
from penstock.sim.inprocess import Driver
from penstock.sim.programs import memory_program
from penstock.sim.timing import Delays
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule


def driver_on(folder: Path, seed: int, **more: object) -> Driver:
    return Driver(
        fast_disk(),
        str(folder / "cp"),
        memory_program(),
        KEPT,
        seed,
        str(folder / "node"),
        rows=200,
        rate=4_000.0,
        **more,  # type: ignore[arg-type]
    )


def finish(driver: Driver) -> None:
    assert driver.run_until("drained", 30.0), driver.failed
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replay(driver.checkpoint, driver.program)


@pytest.mark.parametrize("seed", range(6))
def test_a_lease_that_dies_after_its_report_leaves_its_part_in_the_record(tmp_path: Path, seed: int) -> None:
    # The append takes long, so that another lease asks for the shards before the record is there.
    driver = driver_on(tmp_path, seed, delays=Delays(append=(0.05, 0.08), lease_start=(0.001, 0.002)))
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.phase is Phase.COMMITTING and run.chain.epoch > 1 and bool(run.parts))
    task = next(iter(run.parts))
    lease = run.slots[task].lease
    assert lease is not None
    driver.kill(lease)
    driver.run_until(lambda: lease not in driver.engine.leases)
    assert run.phase is Phase.COMMITTING, "the record is still on its way"
    finish(driver)


@pytest.mark.parametrize("seed", range(4))
def test_a_source_whose_lease_dies_before_the_first_row_still_begins(tmp_path: Path, seed: int) -> None:
    driver = driver_on(tmp_path, seed)
    source = driver.engine.runs["source"]
    driver.run_until(lambda: source.slots[0].lease is not None)
    assert source.slots[0].lease is not None
    driver.kill(source.slots[0].lease)
    finish(driver)


def test_shards_that_were_absent_when_all_rows_went_to_others_do_not_keep_the_run_from_draining(
    tmp_path: Path,
) -> None:
    driver = driver_on(tmp_path, 1)
    driver.run_until("drained", 30.0)
    fold = driver.engine.runs["fold"]
    group = fold.chain.groups[0]
    assert len(fold.chain.groups) == 1
    # A row for shards of task 0 only, taken while task 1 has no lease.
    mine = next(row for row in range(200, 400) if _shard(driver, row) in fold.assigned_to(fold.slots[0]))
    lease = fold.slots[1].lease
    fold.ready[fold.assigned_to(fold.slots[1])] = False
    arrivals = driver.engine.sources.arrivals["source"]
    arrivals.limit = mine + 1
    assert lease is not None and len(group.shards) == 8
    driver.run_until(
        lambda: driver.engine.chains["source"].offset == mine + 1 and fold.phase is Phase.IDLE, 5.0
    )
    driver.run_until(0.2)
    fold.ready[:] = True
    driver.engine.step()
    assert driver.run_until("drained", 5.0), "a passed range without rows was never let go"
    assert len(fold.chain.groups) == 1


def _shard(driver: Driver, row: int) -> int:
    import pyarrow as pa

    from penstock.dataplane.channel import deal_rows
    from penstock.sim.programs import make_rows

    counts, _ = deal_rows(
        driver.program.stages["source"].edges[0], pa.Table.from_batches([make_rows(row, 1)]), "x"
    )
    return int(counts.argmax())


def test_a_driver_that_was_held_up_itself_does_not_take_silence_for_loss(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 2)
    held = set(driver.engine.leases)
    driver.loop.now += 60.0  # the process was stopped; what the leases said meanwhile is still on its way
    driver.engine.step()
    assert set(driver.engine.leases) == held
    finish(driver)


def test_a_silent_lease_is_given_up(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 2)
    silent = driver.live_leases()[0]
    driver.pause(silent)
    assert driver.run_until(lambda: silent not in driver.engine.leases, 5.0)
    finish(driver)


@pytest.mark.parametrize("seed", range(4))
def test_a_burst_of_slow_rows_is_worked_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rows of 50 ms, of which a task does a few in an epoch; shards that were never late then are now, too."""
    plain = Committing.on_done

    def after_emulated_work(self: Committing, lease: str, done: Done) -> None:
        if done.stage == "fold":
            part = msgspec.structs.replace(done.part, busy_us=max(500, 50_000 * done.part.rows_in))
            done = msgspec.structs.replace(done, part=part)
        plain(self, lease, done)

    monkeypatch.setattr(Committing, "on_done", after_emulated_work)
    driver = Driver(
        fast_disk(),
        str(tmp_path / "cp"),
        memory_program(shards=(32, 12)),
        Settings(),
        seed,
        str(tmp_path / "node"),
        nodes=1,
        delays=Delays(work=(0.15, 0.2)),
        arrivals=lambda _: Arrivals([(4.0, 20.0), (0.5, 400.0 + 100 * seed), (4.0, 20.0)], 1200),
    )
    assert driver.run_until("drained", 120.0), "nobody takes a row any more"
