"""What every ``Disk`` promises, run over the real one and the simulated one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.dataplane.disk import STEPS_OF, AppendFile, Disk, Faults, PosixDisk, Step, StepDisk, is_temp
from penstock.errors import StorageError
from penstock.testing.disk import SimDisk
from penstock.testing.faults import (
    Action,
    FaultPlan,
    FaultRule,
    SimCrash,
    TracingDisk,
    When,
    crash_plans,
    fail,
)

MakeDisk = Callable[..., StepDisk]


@pytest.fixture(params=["posix", "sim", "sim with short writes"])
def make_disk(request: pytest.FixtureRequest) -> MakeDisk:
    """Builds further processes on the same files: the second disk sees what the first one wrote."""
    if request.param == "posix":
        return lambda faults=None: PosixDisk(faults)
    machine = SimDisk(seed=1, short_write_ratio=0.5 if "short" in request.param else 0.0)
    return machine.another


@pytest.fixture
def root(make_disk: MakeDisk, tmp_path: Path) -> str:
    path = str(tmp_path / "checkpoint")
    make_disk().make_dirs(path)
    return path


@pytest.fixture
def disk(make_disk: MakeDisk, root: str) -> StepDisk:
    return make_disk()


def test_make_dirs_makes_missing_parents_and_may_be_repeated(disk: StepDisk, root: str) -> None:
    disk.make_dirs(f"{root}/a/b/c")
    disk.make_dirs(f"{root}/a/b/c")
    assert disk.list(f"{root}/a/b") == ["c"]


def test_make_dirs_refuses_a_path_through_a_file(disk: StepDisk, root: str) -> None:
    disk.create_exclusive(f"{root}/file", b"x")
    with pytest.raises(StorageError, match="file"):
        disk.make_dirs(f"{root}/file/below")
    with pytest.raises(StorageError, match="file"):
        disk.make_dirs(f"{root}/file")


def test_parts_of_all_buffer_types_land_one_after_the_other(disk: StepDisk, root: str) -> None:
    file = disk.open_append(f"{root}/log")
    assert file.append(b"ab", memoryview(b"cd"), pa.py_buffer(b"ef"), bytearray(b"gh"), b"") == 0
    assert file.append(b"i" * 5000) == 8
    assert file.size == 5008
    file.sync()
    assert disk.read(f"{root}/log") == b"abcdefgh" + b"i" * 5000
    file.close()


def test_more_parts_than_one_write_takes_all_land(disk: StepDisk, root: str) -> None:
    file = disk.open_append(f"{root}/log")
    file.append(*(bytes([index % 251]) * 3 for index in range(3000)))
    assert disk.read(f"{root}/log") == b"".join(bytes([index % 251]) * 3 for index in range(3000))


def test_open_append_refuses_a_name_that_is_taken(disk: StepDisk, root: str) -> None:
    disk.open_append(f"{root}/log").append(b"kept")
    with pytest.raises(FileExistsError):
        disk.open_append(f"{root}/log")
    assert disk.read(f"{root}/log") == b"kept"


def test_open_append_in_a_missing_folder_is_a_storage_error(disk: StepDisk, root: str) -> None:
    with pytest.raises(StorageError, match="missing"):
        disk.open_append(f"{root}/absent/log")


def test_a_closed_file_refuses_appends(disk: StepDisk, root: str) -> None:
    file = disk.open_append(f"{root}/log")
    file.close()
    file.close()
    with pytest.raises(StorageError, match="closed"):
        file.append(b"x")


def test_create_exclusive_has_exactly_one_winner(make_disk: MakeDisk, root: str) -> None:
    first, second = make_disk(), make_disk()
    assert first.create_exclusive(f"{root}/record", b"first") is True
    assert second.create_exclusive(f"{root}/record", b"second") is False
    assert second.read(f"{root}/record") == b"first"
    assert first.list(root) == ["record"]


def test_start_append_has_exactly_one_winner_who_goes_on(make_disk: MakeDisk, root: str) -> None:
    first, second = make_disk(), make_disk()
    file = first.start_append(f"{root}/log", b"base ")
    assert file is not None
    assert second.start_append(f"{root}/log", b"other") is None
    assert (file.path, file.size, file.append(b"more")) == (f"{root}/log", 5, 5)
    file.sync()
    assert second.read(f"{root}/log") == b"base more"
    assert first.list(root) == ["log"]


def test_put_replaces_the_whole_file(make_disk: MakeDisk, root: str) -> None:
    writer, reader = make_disk(), make_disk()
    for beat in (b"long heartbeat", b"beat", b""):
        writer.put(f"{root}/heartbeat", beat)
        assert reader.read(f"{root}/heartbeat") == beat
    assert writer.list(root) == ["heartbeat"]


def test_read_returns_what_is_there(disk: StepDisk, root: str) -> None:
    disk.create_exclusive(f"{root}/file", b"0123456789")
    assert disk.read(f"{root}/file", 3, 4) == b"3456"
    assert disk.read(f"{root}/file", 8, 10) == b"89"
    assert disk.read(f"{root}/file", 20) == b""
    assert disk.read(f"{root}/file", 20, 5) == b""
    assert disk.read(f"{root}/file", 4) == b"456789"
    assert disk.read(f"{root}/file", 0, 0) == b""


def test_a_reader_sees_a_file_grow(make_disk: MakeDisk, root: str) -> None:
    file, reader = make_disk().open_append(f"{root}/log"), make_disk()
    for size in range(1, 5):
        file.append(b"x")
        assert reader.read(f"{root}/log") == b"x" * size == reader.read(f"{root}/log", 0, 100)


def test_a_file_deleted_or_replaced_by_another_process_is_not_read_from_a_kept_handle(
    make_disk: MakeDisk, root: str
) -> None:
    reader, other = make_disk(), make_disk()
    other.create_exclusive(f"{root}/file", b"old")
    assert reader.read(f"{root}/file") == b"old"
    assert other.delete(f"{root}/file")
    with pytest.raises(FileNotFoundError):
        reader.read(f"{root}/file")
    other.create_exclusive(f"{root}/file", b"new")
    assert reader.read(f"{root}/file") == b"new"


def test_absent_files_and_folders_have_no_size_no_names_and_nothing_to_delete(
    disk: StepDisk, root: str
) -> None:
    assert disk.size(f"{root}/absent") is None
    assert disk.list(f"{root}/absent") == []
    assert disk.delete(f"{root}/absent") is False
    with pytest.raises(FileNotFoundError):
        disk.read(f"{root}/absent")


def test_list_is_sorted_and_size_and_delete_agree_with_it(disk: StepDisk, root: str) -> None:
    for name in ("b", "a", "c"):
        disk.create_exclusive(f"{root}/{name}", name.encode() * 3)
    assert disk.list(root) == ["a", "b", "c"]
    assert disk.size(f"{root}/b") == 3
    assert disk.delete(f"{root}/b") is True
    assert disk.list(root) == ["a", "c"]


def test_a_link_is_a_second_name_that_outlives_the_first(disk: StepDisk, root: str) -> None:
    disk.open_append(f"{root}/theirs").append(b"data")
    assert disk.link(f"{root}/theirs", f"{root}/ours") is True
    assert disk.delete(f"{root}/theirs")
    assert disk.read(f"{root}/ours") == b"data"
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/theirs", f"{root}/more")
    with pytest.raises(StorageError, match="ours"):
        disk.create_exclusive(f"{root}/theirs", b"other")
        disk.link(f"{root}/theirs", f"{root}/ours")


def prepare(operation: str, disk: StepDisk, root: str) -> Callable[[], object]:
    """Make what an operation needs and return one plain use of it."""
    if operation in ("append", "sync"):
        file = disk.open_append(f"{root}/log")
        file.append(b"data")
        return file.sync if operation == "sync" else lambda: file.append(b"data")
    if operation == "settle":
        disk.open_append(f"{root}/theirs").append(b"data")
        return lambda: disk.settle(f"{root}/theirs")
    if operation == "link":
        disk.open_append(f"{root}/theirs").append(b"data")
        return lambda: disk.link(f"{root}/theirs", f"{root}/ours")
    if operation == "view":
        disk.create_exclusive(f"{root}/file", b"data")
        return lambda: disk.view(f"{root}/file", 0, 4)
    if operation in ("read", "size", "delete"):
        disk.create_exclusive(f"{root}/file", b"data")
        return lambda: getattr(disk, operation)(f"{root}/file")
    if operation in ("create_exclusive", "start_append", "put"):
        return lambda: getattr(disk, operation)(f"{root}/file", b"data")
    return lambda: getattr(disk, operation)(root if operation == "list" else f"{root}/new")


@pytest.mark.parametrize("make_disk", ["posix", "sim"], indirect=True)
@pytest.mark.parametrize("operation", STEPS_OF)
def test_every_operation_takes_the_steps_that_are_written_down_for_it(
    disk: StepDisk, root: str, operation: str
) -> None:
    traced = TracingDisk(disk)
    use = prepare(operation, traced, root)
    traced.steps.clear()
    use()
    taken = tuple(step for step, _ in traced.steps)
    # make_dirs first syncs the name of the deepest folder that was there
    expected = (Step.SYNC_DIR, *STEPS_OF[operation]) if operation == "make_dirs" else STEPS_OF[operation]
    assert taken == expected


def test_every_operation_of_a_disk_is_written_down_with_its_steps() -> None:
    public = {name for kind in (Disk, AppendFile) for name in vars(kind) if not name.startswith("_")}
    assert public - {"path", "close"} == STEPS_OF.keys()
    assert {step for steps in STEPS_OF.values() for step in steps} == set(Step)


def is_only_tidying(operation: str, step: Step) -> bool:
    """After the name is durable, a temporary name that cannot be deleted is no reason to fail."""
    return step is Step.DELETE and operation != "delete"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize(
    ("operation", "step"), [(name, step) for name, steps in STEPS_OF.items() for step in steps]
)
def test_a_failed_step_is_a_storage_error_that_names_file_and_cause(
    make_disk: MakeDisk, root: str, operation: str, step: Step, when: When, number: int
) -> None:
    plan = FaultPlan([FaultRule(Action.FAIL, step, probability=1.0, when=when, error=number)])
    plan.disarm()
    use = prepare(operation, make_disk(plan), root)
    plan.arm()
    if is_only_tidying(operation, step):
        use()
        assert plan.fired
        return
    with pytest.raises(StorageError) as caught:
        use()
    assert os.path.dirname(root) in str(caught.value)
    assert errno.errorcode[number] in str(caught.value)
    assert step in str(caught.value)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("operation", ["create_exclusive", "start_append", "put"])
def test_no_failure_leaves_a_partial_file_under_its_name_or_a_temporary_one(
    make_disk: MakeDisk, root: str, operation: str, when: When
) -> None:
    data = bytes(range(256)) * 8
    for step in STEPS_OF[operation]:
        if is_only_tidying(operation, step):
            continue
        path = f"{root}/{step}"
        with pytest.raises(StorageError):
            getattr(make_disk(FaultPlan([FaultRule(Action.FAIL, step, nth=1, when=when)])), operation)(
                path, data
            )
        assert make_disk().size(path) in (None, len(data))
        assert not any(is_temp(name) for name in make_disk().list(root))


@pytest.mark.parametrize("step", [Step.WRITE, Step.SYNC, Step.SYNC_DIR])
def test_a_file_that_failed_once_refuses_everything_later(make_disk: MakeDisk, root: str, step: Step) -> None:
    file = make_disk(FaultPlan([fail(step)])).open_append(f"{root}/log")
    with pytest.raises(StorageError, match=step):
        file.append(b"lost")
        file.sync()
    later_calls: list[Callable[[], object]] = [lambda: file.append(b"more"), file.sync, file.sync]
    for later in later_calls:
        with pytest.raises(StorageError, match=f"{root}/log is not used any more"):
            later()
    file.close()


def test_a_second_sync_of_a_file_does_not_sync_its_folder_again(make_disk: MakeDisk, root: str) -> None:
    disk = TracingDisk(make_disk())
    file = disk.open_append(f"{root}/log")
    for _ in range(3):
        file.append(b"x")
        file.sync()
    taken = [step for step, _ in disk.steps if step in (Step.SYNC, Step.SYNC_DIR)]
    assert taken == [Step.SYNC, Step.SYNC_DIR, Step.SYNC, Step.SYNC]


def test_a_crash_at_any_step_leaves_whole_files_and_recognisable_orphans(
    make_disk: MakeDisk, root: str
) -> None:
    def scenario(disk: StepDisk, folder: str) -> None:
        disk.make_dirs(folder)
        disk.create_exclusive(f"{folder}/record", b"record")
        disk.put(f"{folder}/heartbeat", b"beat")
        started = disk.start_append(f"{folder}/log", b"base")
        assert started is not None
        started.close()

    traced = TracingDisk(make_disk())
    scenario(traced, f"{root}/undisturbed")
    whole = {"record": b"record", "heartbeat": b"beat", "log": b"base"}
    crashes = 0
    for number, plan in enumerate(crash_plans(len(traced.steps))):
        folder = f"{root}/run-{number}"
        with pytest.raises(SimCrash):
            scenario(make_disk(plan), folder)
        crashes += 1
        found = make_disk()
        for name in found.list(folder):
            assert is_temp(name) or found.read(f"{folder}/{name}") == whole[name]
    assert crashes == 2 * len(traced.steps)


def test_a_dropped_sync_is_reported_as_done(make_disk: MakeDisk, root: str) -> None:
    plan = FaultPlan([FaultRule(Action.DROP, Step.SYNC, probability=1.0)])
    disk = TracingDisk(make_disk(plan))
    assert disk.create_exclusive(f"{root}/record", b"data") is True
    assert Step.SYNC not in [step for step, _ in disk.steps]


def test_faults_see_each_step_from_both_sides(make_disk: MakeDisk, root: str) -> None:
    class Seen:
        def __init__(self) -> None:
            self.sides: list[tuple[str, Step]] = []

        def before(self, step: Step, path: str) -> None:
            self.sides.append(("before", step))

        def after(self, step: Step, path: str) -> None:
            self.sides.append(("after", step))

    seen = Seen()
    faults: Faults = seen
    make_disk(faults).put(f"{root}/heartbeat", b"x")
    assert [side for side, _ in seen.sides] == ["before", "after"] * (len(seen.sides) // 2)
    assert [step for _, step in seen.sides[::2]] == [step for _, step in seen.sides[1::2]]
    assert {step for _, step in seen.sides} == set(STEPS_OF["put"])


def test_a_file_of_another_program_is_settled_with_its_name(
    disk: StepDisk, root: str, make_disk: MakeDisk
) -> None:
    file = make_disk().open_append(f"{root}/theirs")
    file.append(b"plan")
    traced = TracingDisk(disk)
    traced.settle(f"{root}/theirs")
    assert tuple(step for step, _ in traced.steps) == STEPS_OF["settle"]
    assert disk.read(f"{root}/theirs") == b"plan"
    with pytest.raises(FileNotFoundError):
        disk.settle(f"{root}/none")


def test_what_was_settled_survives_a_power_loss(tmp_path: Path) -> None:
    machine = SimDisk(seed=3)
    machine.make_dirs("/work")
    theirs = machine.another()
    for name in ("a", "b"):
        theirs.open_append(f"/work/{name}").append(b"plan")
    machine.another().settle("/work/a")
    machine.power_loss()
    assert machine.another().read("/work/a") == b"plan"


@pytest.mark.parametrize("offset", [0, 1, 4096, 70_001])
def test_a_view_is_what_a_read_gives_however_long(disk: StepDisk, root: str, offset: int) -> None:
    path = f"{root}/data"
    file = disk.open_append(path)
    file.append(bytes(range(256)) * 8_192)
    file.sync()
    file.close()
    for length in (0, 10, 1 << 20, (1 << 21) - offset, 1 << 22, None):
        assert bytes(disk.view(path, offset, length)) == disk.read(path, offset, length)
    with pytest.raises(FileNotFoundError):
        disk.view(f"{root}/none", 0, 10)
