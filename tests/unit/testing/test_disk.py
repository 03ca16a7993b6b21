"""The simulated disk: what is synced survives, what is not may go in part, and faults follow their plan."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from penstock.dataplane.disk import Step, is_temp
from penstock.errors import StorageError
from penstock.testing.disk import SimDisk
from penstock.testing.faults import (
    FaultPlan,
    SimCrash,
    TracingDisk,
    crash_after,
    crash_before,
    crash_plans,
    drop,
    fail,
    sometimes,
    stall,
)

SEEDS = range(100)


def started(seed: int = 0, **options: object) -> SimDisk:
    disk = SimDisk(seed, **options)  # type: ignore[arg-type]
    disk.make_dirs("/c")
    return disk


def outcomes(prepare: Callable[[SimDisk], object], look: Callable[[SimDisk], object]) -> set[object]:
    """What can be seen after a power loss, over all seeds."""
    seen: set[object] = set()
    for seed in SEEDS:
        disk = started(seed)
        prepare(disk)
        disk.power_loss()
        seen.add(look(disk))
    return seen


def read_or_none(disk: SimDisk, path: str) -> bytes | None:
    return disk.read(path) if disk.size(path) is not None else None


def test_a_process_crash_keeps_everything_written_and_closes_its_files() -> None:
    disk = started()
    file = disk.open_append("/c/log")
    file.append(b"never synced")
    other = disk.another().open_append("/c/other")
    disk.crash()
    assert disk.read("/c/log") == b"never synced"
    with pytest.raises(StorageError, match="EBADF"):
        file.append(b"from the grave")
    other.append(b"another process lives on")


def test_power_loss_ends_every_process() -> None:
    disk = started()
    file = disk.another().open_append("/c/log")
    disk.power_loss()
    with pytest.raises(StorageError, match="EBADF"):
        file.sync()


def test_folders_files_and_appends_that_were_reported_durable_survive_any_power_loss() -> None:
    def write(disk: SimDisk) -> None:
        disk.make_dirs("/c/a/b")
        assert disk.create_exclusive("/c/a/b/record", b"record")
        disk.put("/c/a/heartbeat", b"old")
        disk.put("/c/a/heartbeat", b"beat")
        file = disk.open_append("/c/a/log")
        file.append(b"one")
        file.sync()
        file.append(b"two")
        file.sync()
        begun = disk.start_append("/c/a/started", b"base")
        assert begun is not None
        begun.append(b"+1")
        begun.sync()

    paths = ("/c/a/b/record", "/c/a/heartbeat", "/c/a/log", "/c/a/started")
    expected = (b"record", b"beat", b"onetwo", b"base+1")
    assert outcomes(write, lambda disk: tuple(disk.read(path) for path in paths)) == {expected}


def test_an_unsynced_tail_may_stay_go_shrink_or_tear_but_never_touches_what_was_synced() -> None:
    synced, tail = b"s" * 700, bytes(range(1, 256)) * 12

    def write(disk: SimDisk) -> None:
        file = disk.open_append("/c/log")
        file.append(synced)
        file.sync()
        file.append(tail)

    seen = outcomes(write, lambda disk: disk.read("/c/log"))
    tails = [data[len(synced) :] for data in seen if isinstance(data, bytes) and data.startswith(synced)]
    assert len(tails) == len(seen)
    assert b"" in tails
    assert tail in tails
    assert any(tail.startswith(kept) and 0 < len(kept) < len(tail) for kept in tails)
    assert any(not tail.startswith(kept) for kept in tails)


def test_an_unsynced_name_may_go_even_if_the_data_is_synced() -> None:
    def write(disk: SimDisk) -> None:
        calls = disk._calls
        file = calls.create("/c/log")
        calls.write(file, [memoryview(b"data")])
        calls.sync(file)

    assert outcomes(write, lambda disk: read_or_none(disk, "/c/log")) == {b"data", None}


def test_a_delete_may_be_undone() -> None:
    def write(disk: SimDisk) -> None:
        disk.create_exclusive("/c/file", b"data")
        disk.delete("/c/file")

    assert outcomes(write, lambda disk: read_or_none(disk, "/c/file")) == {b"data", None}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    def write(disk: SimDisk) -> None:
        disk.put("/c/heartbeat", b"old")
        disk._faults = FaultPlan([drop(Step.SYNC_DIR)])
        disk.put("/c/heartbeat", b"new")

    assert outcomes(write, lambda disk: read_or_none(disk, "/c/heartbeat")) == {b"old", b"new"}


def test_a_lost_folder_takes_its_files_along() -> None:
    def write(disk: SimDisk) -> None:
        disk._calls.mkdir("/c/a")
        disk.create_exclusive("/c/a/record", b"data")

    assert outcomes(write, lambda disk: read_or_none(disk, "/c/a/record")) == {b"data", None}


@pytest.mark.parametrize("step", [Step.SYNC, Step.SYNC_DIR])
def test_a_disk_that_lies_about_a_sync_is_caught_by_power_loss(step: Step) -> None:
    def write(disk: SimDisk) -> None:
        disk._faults = FaultPlan([drop(step)])
        assert disk.create_exclusive("/c/record", b"x" * 2000)

    assert outcomes(write, lambda disk: read_or_none(disk, "/c/record")) - {b"x" * 2000}


def test_power_loss_at_any_step_never_shows_a_partial_record_and_never_loses_a_reported_one() -> None:
    traced = TracingDisk(started())
    data = bytes(range(256)) * 5
    traced.create_exclusive("/c/record", data)
    for plan_number, _ in enumerate(crash_plans(len(traced.steps))):
        for seed in range(20):
            disk = started(seed)
            disk.create_exclusive("/c/reported", b"reported")
            disk._faults = list(crash_plans(len(traced.steps)))[plan_number]
            with pytest.raises(SimCrash):
                disk.create_exclusive("/c/record", data)
            disk._faults = None
            disk.power_loss()
            assert read_or_none(disk, "/c/record") in (None, data)
            assert disk.read("/c/reported") == b"reported"
            assert all(is_temp(name) for name in disk.list("/c") if name not in ("record", "reported"))


def test_whoever_loses_a_create_can_rely_on_the_winner() -> None:
    for seed in SEEDS:
        disk = started(seed)
        winner = disk.another(FaultPlan([crash_after(Step.LINK)]))
        with pytest.raises(SimCrash):
            winner.create_exclusive("/c/record", b"winner")
        assert disk.create_exclusive("/c/record", b"loser") is False
        disk.power_loss()
        assert disk.read("/c/record") == b"winner"


def test_folders_made_by_a_process_that_crashed_are_durable_once_made_again() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        with pytest.raises(SimCrash):
            disk.another(FaultPlan([crash_after(Step.MKDIR)])).make_dirs("/c/a")
        disk.make_dirs("/c/a")
        disk.power_loss()
        assert disk.list("/c") == ["a"]


def test_equal_seeds_lose_equally() -> None:
    def run(seed: int) -> tuple[list[str], list[bytes]]:
        disk = started(seed, short_write_ratio=0.5)
        for number in range(10):
            disk.open_append(f"/c/{number}").append(random.Random(number).randbytes(3000))
        disk.power_loss()
        names = disk.list("/c")
        return names, [disk.read(f"/c/{name}") for name in names]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_the_steps_of_a_simulated_disk_are_the_same_in_every_run() -> None:
    def run() -> list[tuple[Step, str]]:
        disk = TracingDisk(started(3, short_write_ratio=0.5))
        disk.create_exclusive("/c/record", bytes(5000))
        disk.put("/c/heartbeat", bytes(5000))
        return disk.steps

    assert run() == run()


def test_a_full_disk_takes_part_of_a_write_and_then_fails() -> None:
    disk = started(capacity_bytes=1000)
    file = disk.open_append("/c/log")
    file.append(bytes(600))
    with pytest.raises(StorageError, match="free space"):
        file.append(bytes(600))
    assert disk.size("/c/log") == 1000
    with pytest.raises(StorageError, match="free space"):
        disk.create_exclusive("/c/record", b"x")
    assert disk.list("/c") == ["log"]
    disk.delete("/c/log")
    assert disk.create_exclusive("/c/record", b"x")


def test_damage_behind_everybodys_back_is_durable() -> None:
    disk = started()
    disk.create_exclusive("/c/record", b"sound")
    disk.overwrite("/c/record", b"rot")
    disk.power_loss()
    assert disk.read("/c/record") == b"rot"


def test_a_rule_fires_at_the_nth_matching_step_only() -> None:
    plan = FaultPlan([fail(Step.LINK, nth=2, path="/c/r*", error=errno.ENOSPC)])
    disk = SimDisk(faults=plan)
    disk.make_dirs("/c")
    for name in ("other", "r1"):
        disk.create_exclusive(f"/c/{name}", b"x")
    with pytest.raises(StorageError, match="free space"):
        disk.create_exclusive("/c/r2", b"x")
    assert disk.create_exclusive("/c/r2", b"x")
    assert [(fault.step, fault.path) for fault in plan.fired] == [(Step.LINK, "/c/r2")]


def test_probabilities_are_seeded_and_near_their_value() -> None:
    def run(seed: int) -> list[int]:
        plan, failed = FaultPlan([sometimes(0.05)], seed=seed), []
        for number in range(2000):
            try:
                plan.before(Step.WRITE, "/x")
            except OSError:
                failed.append(number)
        return failed

    assert run(1) == run(1) != run(2)
    assert 60 < len(run(1)) < 140


def test_a_stall_sleeps_on_the_clock_it_was_given_and_then_goes_on() -> None:
    slept: list[float] = []
    disk = SimDisk(faults=FaultPlan([stall(2.5, step=Step.SYNC)], sleep=slept.append))
    disk.make_dirs("/c")
    assert disk.create_exclusive("/c/record", b"x")
    assert slept == [2.5]


def test_a_crash_before_a_step_shows_no_effect_and_after_it_does() -> None:
    for rule, expected in ((crash_before(Step.LINK), None), (crash_after(Step.LINK), b"x")):
        disk = started()
        with pytest.raises(SimCrash):
            disk.another(FaultPlan([rule])).create_exclusive("/c/record", b"x")
        assert read_or_none(disk, "/c/record") == expected


def test_a_disarmed_plan_neither_fires_nor_counts() -> None:
    plan = FaultPlan([fail(nth=1)])
    plan.disarm()
    plan.before(Step.WRITE, "/x")
    plan.arm()
    with pytest.raises(OSError, match="/x"):
        plan.before(Step.WRITE, "/x")
