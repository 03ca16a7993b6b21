"""Stories on the in-process harness: small, directed schedules for what storms meet only now and then."""

from __future__ import annotations

import pytest

from penstock.dataplane import paths
from penstock.dataplane.records import Batch, BatchPlan, Extent, PlannedFile, TaskPart
from penstock.dataplane.run import Phase
from penstock.errors import CorruptFileError, FencedError
from penstock.sim.inprocess import Driver
from penstock.sim.loop import Loop
from penstock.sim.programs import local_program, memory_program
from penstock.sim.surroundings import SinkLog
from penstock.sim.timing import SMALL, quick
from penstock.testing.disk import SimDisk
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

CHECKPOINT = "/work/checkpoint"


@pytest.fixture
def machine() -> SimDisk:
    machine = SimDisk(1)
    machine.make_dirs("/work")
    return machine


def test_a_run_with_a_killed_lease_a_crash_and_a_restart_replays_to_the_same_bytes(
    tmp_path, machine: SimDisk
) -> None:  # type: ignore[no-untyped-def]
    program = local_program()
    driver = Driver(machine, CHECKPOINT, program, quick(SMALL, retain_all=True), 1, str(tmp_path), rows=200)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 3)
    driver.kill(driver.live_leases()[0])
    driver.run_until(0.05)
    driver.crash()
    driver.restart()
    assert driver.run_until("drained")
    check_schedule(CHECKPOINT, program, complete=True, disk=machine)
    assert replay(CHECKPOINT, program, disk=machine).digests > 0
    assert sorted(row["id"] for row in driver.sink.rows()) == list(range(200))


def test_the_older_of_two_drivers_ends_with_an_error_that_names_the_newer(machine: SimDisk) -> None:
    loop, sink, program = Loop(3), SinkLog(), memory_program()
    old = Driver(machine, CHECKPOINT, program, loop=loop, sink=sink, name="old", rows=200)
    old.run_until(lambda: old.engine.chains["fold"].epoch > 2)
    new = Driver(machine.another(), CHECKPOINT, program, loop=loop, sink=sink, name="new", rows=200)
    assert new.run_until("drained")
    assert isinstance(old.failed, FencedError)
    assert "generation 2" in str(old.failed)
    loop.run_until(lambda: False, 1.0)
    assert all(lease.ended for lease in old.leases.values())
    assert sorted(row["id"] for row in sink.rows()) == list(range(200))


def test_a_driver_whose_half_written_file_a_newer_one_swept_away_is_told_who_won(machine: SimDisk) -> None:
    loop, program = Loop(3), memory_program()
    old = Driver(machine, CHECKPOINT, program, loop=loop, name="old", rows=200)
    old.run_until(lambda: old.engine.chains["fold"].epoch > 2)
    put = old.disk.put

    def overtaken(path: str, data: bytes) -> None:
        if path == paths.heartbeat(CHECKPOINT):
            rename = old.disk._calls.rename  # type: ignore[attr-defined]

            def late(source: str, target: str) -> None:
                Driver(machine.another(), CHECKPOINT, program, loop=loop, name="new", rows=200)
                rename(source, target)

            old.disk._calls.rename = late  # type: ignore[attr-defined]
        put(path, data)

    old.disk.put = overtaken  # type: ignore[method-assign]
    old.run_until(lambda: old.failed is not None, 5.0)
    assert isinstance(old.failed, FencedError)


def test_an_overtaken_driver_that_misses_a_file_is_told_who_won_and_not_to_restore_a_copy(
    machine: SimDisk,
) -> None:
    loop, program = Loop(3), memory_program()
    old = Driver(machine, CHECKPOINT, program, loop=loop, name="old", rows=200)
    old.run_until(lambda: old.engine.chains["fold"].epoch > 2)
    Driver(machine.another(), CHECKPOINT, program, loop=loop, name="new", rows=200)
    missing = CorruptFileError("g000001-l1-000001.seg is gone though a record names it")
    old.fail(missing)
    assert isinstance(old.failed, FencedError)
    assert old.failed.__cause__ is missing


def test_nothing_is_cleaned_up_before_the_first_base_of_a_driver_is_durable(machine: SimDisk) -> None:
    driver = Driver(machine, CHECKPOINT, memory_program(), rows=200)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 2)
    driver.crash()
    driver.restart()
    doomed: list[str] = []
    driver.clean_up = doomed.extend  # type: ignore[method-assign]
    driver.engine.start(2)
    driver.engine.on_files(["g000001-lost-000001.seg"], [])
    assert doomed == []
    driver.engine.on_part_started()
    driver.engine.on_files(["g000001-lost-000001.seg"], [])
    assert doomed == ["g000001-lost-000001.seg"]


def test_files_that_keep_what_was_planned_for_a_batch_are_kept_until_the_next_one_is_committed(
    machine: SimDisk,
) -> None:
    driver = Driver(machine, CHECKPOINT, memory_program(), rows=0)
    driver.run_until(
        lambda: driver.engine.runs["source"].phase is Phase.IDLE and not driver.engine.line.begins
    )
    doomed: list[str] = []
    driver.clean_up = doomed.extend  # type: ignore[method-assign]
    names = [f"g000001-b{number}x_plan-000001.pln" for number in range(3)]
    committed: list[int] = []
    for number in (0, 1):
        files = [PlannedFile("metadata", 0, 0, Extent(names[number], 0, 24, 0))]
        batch = Batch("q", number, BatchPlan(files))
        driver.engine.sources.on_batch("source", batch, [], None, lambda: committed.append(number))  # noqa: B023
        doomed.clear()
        driver.engine.on_files(names, [])
        # While the record is on its way the batch before it is the last one, and is needed still.
        assert set(doomed) == {names[2], *names[number + 1 :]}
        driver.run_until(lambda: committed == list(range(number + 1)))  # noqa: B023
    doomed.clear()
    driver.engine.on_files(names, [])
    assert set(doomed) == {names[0], names[2]}
    driver.crash()
    driver.restart()
    assert driver.engine.chains["source"].batch == batch
    doomed.clear()
    driver.engine.start(2)
    driver.engine.on_part_started()
    driver.engine.on_files(names, [])
    assert names[1] not in doomed


def test_files_that_a_report_names_are_kept_though_its_lease_is_gone(machine: SimDisk) -> None:
    driver = Driver(machine, CHECKPOINT, memory_program(), rows=200)
    driver.run_until(lambda: driver.engine.runs["fold"].phase is Phase.WORKING)
    doomed: list[str] = []
    driver.clean_up = doomed.extend  # type: ignore[method-assign]
    name = "g000001-gone-000001.seg"
    part = TaskPart(0, "gone", b"", 1, 0, [], Extent(name, 0, 8, 0))
    driver.engine.runs["fold"].parts[0] = part
    driver.engine.on_files([name, "g000001-gone-000002.seg"], [])
    assert doomed == ["g000001-gone-000002.seg"]
