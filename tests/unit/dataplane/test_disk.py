"""The real disk: no call outside a step, schemes, clear refusals, forks and threads."""

from __future__ import annotations

import ast
import errno
import itertools
import os
import signal
import socket
import threading
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.dataplane import disk as disk_package
from penstock.dataplane.disk import (
    PosixCalls,
    PosixDisk,
    Step,
    check_scheme,
    check_writable,
    is_temp,
    storage_error,
)
from penstock.errors import CheckpointError, CorruptFileError, StorageError
from penstock.testing.faults import (
    EXIT_CODE,
    Action,
    FaultPlan,
    FaultRule,
    TracingDisk,
    When,
    crash_plans,
    fail,
)

SOURCE = "\n".join(path.read_text() for path in sorted(Path(disk_package.__path__[0]).glob("*.py")))
CHANGING = {
    *("open", "fdopen", "write", "writev", "pwrite", "pwritev", "sendfile", "copy_file_range"),
    *("fsync", "fdatasync", "sync", "truncate", "ftruncate", "posix_fallocate", "chmod", "utime"),
    *("link", "symlink", "rename", "renames", "replace", "unlink", "remove"),
    *("mkdir", "makedirs", "rmdir", "removedirs"),
}
MAY_CALL_THE_SYSTEM = {"PosixCalls", "_ReadHandle", "_full_sync"}
NO_STEP_NEEDED = {"close", "is_dir"}


def calls_outside_a_step(source: str) -> list[str]:
    """Where the sources change files outside of ``PosixCalls``, or use that other than through ``_step``."""
    tree = ast.parse(source)
    allowed = {
        id(node)
        for top in tree.body
        if isinstance(top, (ast.ClassDef, ast.FunctionDef)) and top.name in MAY_CALL_THE_SYSTEM
        for node in ast.walk(top)
    }
    stepped = {
        id(node.args[2])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "_step"
        and isinstance(node.args[0], ast.Attribute)
        and ast.unparse(node.args[0]).startswith("Step.")
    }
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if id(node) not in allowed and id(node) not in stepped and _is_a_call_to_guard(node)
    ]


def _is_a_call_to_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("open", "fcntl", "shutil", "pathlib", "tempfile") and not isinstance(
            node.ctx, ast.Store
        )
    if not isinstance(node, ast.Attribute):
        return False
    if isinstance(node.value, ast.Name) and node.value.id == "os":
        return node.attr in CHANGING
    return ast.unparse(node.value).endswith("_calls") and node.attr not in NO_STEP_NEEDED


def test_every_call_that_changes_a_file_goes_through_a_named_step() -> None:
    assert calls_outside_a_step(SOURCE) == []


@pytest.mark.parametrize(
    "planted",
    [
        "os.unlink(path)",
        "os.fsync(3)",
        "os.open(path, os.O_WRONLY)",
        "open(path, 'wb')",
        "self._calls.rename(temp, path)",
        "self._disk._calls.write(file, [])",
        "fcntl.fcntl(3, 51)",
        "retry(os.replace, temp, path)",
    ],
)
def test_a_planted_call_outside_a_step_is_found(planted: str) -> None:
    assert calls_outside_a_step(f"{SOURCE}\n\ndef planted(self, path, temp, file):\n    {planted}\n")


def test_every_step_is_taken_somewhere() -> None:
    taken = {
        ast.unparse(node.args[0]).removeprefix("Step.")
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_step"
    }
    assert taken == {step.name for step in Step}


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/checkpoint", "/data/checkpoint"),
        ("/data//x/../checkpoint/", "/data/checkpoint"),
        ("file:///data/checkpoint", "/data/checkpoint"),
        ("file:/data/checkpoint", "/data/checkpoint"),
        ("FILE:///data/checkpoint", "/data/checkpoint"),
        ("file://localhost/data/checkpoint", "/data/checkpoint"),
        ("file:///data/with%20space", "/data/with space"),
        ("/data/with%20percent", "/data/with%20percent"),
        ("/data/with:colon", "/data/with:colon"),
        (Path("/data/checkpoint"), "/data/checkpoint"),
    ],
)
def test_paths_and_file_uris_mean_an_absolute_path(location: str | Path, path: str) -> None:
    assert check_scheme(location) == path


def test_a_relative_path_is_taken_from_the_working_directory() -> None:
    assert check_scheme("checkpoint") == os.path.join(os.getcwd(), "checkpoint")


@pytest.mark.parametrize("given", ["~/checkpoint", "~", "~/a b/ü"])
def test_a_location_below_home_is_written_out(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert check_scheme(given) == os.path.normpath(given.replace("~", "/home/ann"))
    assert check_scheme(f"./{given}").startswith(os.getcwd()), "a folder of that name"


def test_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match="begins with ~nobody_at_all, and the home of that user is not known"
    ):
        check_scheme("~nobody_at_all/checkpoint")


@pytest.mark.parametrize("scheme", ["s3a:", "s3:", "hdfs:", "dbfs:", "abfss:", "gs:", "wasbs:", "unknown+x:"])
def test_another_scheme_is_refused_by_name_with_the_fix(scheme: str) -> None:
    with pytest.raises(CheckpointError, match="plain path or file: URI") as caught:
        check_scheme(f"{scheme}//bucket/checkpoint")
    assert f"uses {scheme}" in str(caught.value)


@pytest.mark.parametrize("location", ["", "file:", "file:relative", "file://host/data", "/data/\0"])
def test_a_location_that_is_no_path_is_refused(location: str) -> None:
    with pytest.raises(CheckpointError):
        check_scheme(location)


def test_check_writable_makes_the_directory_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "a" / "b"))
    assert os.listdir(tmp_path / "a" / "b") == []


def test_check_writable_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="file"):
        check_writable(str(tmp_path / "file"))


def test_a_file_or_a_dead_link_is_no_place_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_bytes(b"x")
    (tmp_path / "dead").symlink_to(tmp_path / "gone")
    with pytest.raises(
        CheckpointError, match=r"location .*/0.json is a file and no folder; give a new or empty folder"
    ):
        check_writable(str(tmp_path / "0.json"))
    with pytest.raises(CheckpointError, match=r"/dead is a link that leads nowhere and no folder"):
        check_writable(str(tmp_path / "dead"))
    with pytest.raises(CheckpointError, match=r"part of this path is a file|a file has this name"):
        check_writable(str(tmp_path / "0.json" / "below"))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
def test_where_no_folder_can_be_made_nobody_is_told_of_deleting() -> None:
    with pytest.raises(
        CheckpointError, match=r"/proc/x .*no folder can be made there; choose another directory"
    ):
        check_writable("/proc/x")


def test_the_home_folder_and_the_root_are_no_checkpoints_though_they_look_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".profile").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path)
    for home in (tmp_path, tmp_path / "link"):
        with pytest.raises(CheckpointError, match=r"is a home folder, .*such as .*/checkpoints/counts"):
            check_writable(str(home))
    assert sorted(os.listdir(tmp_path)) == [".profile", "link"]
    with pytest.raises(CheckpointError, match="is the root of the file system"):
        check_writable("/")
    check_writable(str(tmp_path / "counts"))


def test_a_checkpoint_that_lies_in_the_home_folder_since_an_earlier_release_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "meta").write_bytes(b"x")
    check_writable(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_check_writable_refuses_a_read_only_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="not writable"):
        check_writable(str(tmp_path))


@pytest.mark.parametrize(
    ("number", "meaning"),
    [
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "not writable"),
        (errno.ENOSPC, "free space"),
        (errno.EIO, "check the disk"),
    ],
)
def test_check_writable_says_what_to_do(tmp_path: Path, number: int, meaning: str) -> None:
    disk = PosixDisk(FaultPlan([fail(Step.CREATE, error=number)]))
    with pytest.raises(CheckpointError, match=meaning) as caught:
        check_writable(str(tmp_path), disk)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("step", "number", "meaning"),
    [
        (Step.READ, errno.EACCES, "read access"),
        (Step.LIST, errno.EACCES, "read access"),
        (Step.READ, errno.EPERM, "read access"),
        (Step.CREATE, errno.EACCES, "write access"),
        (Step.LINK, errno.EPERM, "hard links"),
        (Step.LINK, errno.ENOTSUP, "hard links"),
        (Step.READ, errno.EMFILE, "ulimit -n"),
        (Step.WRITE, errno.EFBIG, "ulimit -f"),
        (Step.CREATE, errno.ENAMETOOLONG, "shorter"),
        (Step.MKDIR, errno.ENOTDIR, "is a file"),
        (Step.READ, errno.ELOOP, "circle"),
        (Step.DELETE, errno.EISDIR, "a folder has the name"),
        (Step.READ, errno.ESTALE, "mount"),
    ],
)
def test_each_cause_has_its_sentence(step: Step, number: int, meaning: str) -> None:
    said = str(storage_error(step, "/c/file", OSError(number, os.strerror(number))))
    assert meaning in said and "/c/file" in said and errno.errorcode[number] in said
    assert step not in (Step.READ, Step.LIST) or "not writable" not in said


def _as_user(uid: int, path: str) -> str:
    """What the disk says of a file to another user, in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setuid(uid)
            PosixDisk().read(path)
        except BaseException as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_a_file_that_may_not_be_read_is_not_called_not_writable() -> None:
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        secret = Path(folder, "secret")
        secret.write_text("x")
        secret.chmod(0o600)
        said = _as_user(65_534, str(secret))
    assert "may not read it" in said and "EACCES" in said and "writable" not in said


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


IRREGULAR = {
    "a FIFO": make_fifo,
    "a folder": Path.mkdir,
    "a socket": make_socket,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a dangling link": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("what", IRREGULAR)
def test_what_is_no_file_is_refused_by_name_without_waiting(tmp_path: Path, what: str) -> None:
    path = tmp_path / "heartbeat"
    IRREGULAR[what](path)
    disk = PosixDisk()
    calls = (
        lambda: disk.read(str(path)),
        lambda: disk.view(str(path), 0, 100),
        lambda: disk.settle(str(path)),
    )
    for call in calls:
        with pytest.raises(
            CorruptFileError, match=f"{path} is {what.split(' to')[0].replace('dangling ', '')} where"
        ):
            call()
    assert disk.size(str(path)) is not None
    assert disk.create_exclusive(str(path), b"mine") is False


def test_a_file_that_became_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    path, disk = tmp_path / "log", PosixDisk()
    path.write_bytes(b"x")
    assert disk.read(str(path)) == b"x"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptFileError, match="FIFO"):
        disk.read(str(path))


def test_a_folder_of_the_checkpoint_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").symlink_to("elsewhere")
    disk = PosixDisk()
    assert disk.create_exclusive(f"{tmp_path}/data/file", b"x")
    assert disk.read(f"{tmp_path}/data/file") == b"x"


@pytest.mark.parametrize("length", [1 << 20, 1 << 40, 1 << 62])
def test_room_is_made_for_what_is_there_and_not_for_what_is_asked(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    tracemalloc.start()
    try:
        assert PosixDisk().read(str(path), 1, length) == b"bc"
        assert bytes(PosixDisk().view(str(path), 1, length)) == b"bc"
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_an_unlisted_errno_still_gives_its_meaning() -> None:
    error = storage_error(Step.LINK, "/x", OSError(errno.EXDEV, "Invalid cross-device link"))
    assert "EXDEV" in str(error)
    assert "cross-device" in str(error)
    assert "OSError" in str(storage_error(Step.LINK, "/x", OSError("odd")))


def test_reads_keep_a_bounded_number_of_files_open(tmp_path: Path) -> None:
    calls = PosixCalls(open_files=4)
    for number in range(20):
        (tmp_path / str(number)).write_bytes(str(number).encode())
    before = len(os.listdir("/dev/fd"))
    for number in range(20):
        assert calls.read(str(tmp_path / str(number)), 0, None) == str(number).encode()
    assert len(os.listdir("/dev/fd")) == before + 4
    for number in range(16, 20):
        calls.unlink(str(tmp_path / str(number)))
    assert len(os.listdir("/dev/fd")) == before


def test_files_that_another_process_has_deleted_are_not_held_open(tmp_path: Path) -> None:
    calls = PosixCalls()
    before = len(os.listdir("/dev/fd"))
    for number in range(10):
        path = tmp_path / str(number)
        path.write_bytes(b"rows")
        assert calls.read(str(path), 0, 4) == b"rows"
        path.unlink()  # not by these calls, as when the driver clears away what a lease has read
    assert len(os.listdir("/dev/fd")) == before + 1


def test_a_failed_create_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for nth, when in itertools.product(range(1, 6), When):
        plan = FaultPlan([FaultRule(Action.FAIL, nth=nth, when=when)])
        with pytest.raises(StorageError):
            PosixDisk(plan).create_exclusive(str(tmp_path / f"{nth}-{when}"), b"x")
    assert len(os.listdir("/dev/fd")) == before


def test_a_forked_process_reads_and_writes_by_itself(tmp_path: Path) -> None:
    disk = PosixDisk()
    shared = str(tmp_path / "shared")
    disk.create_exclusive(shared, b"from the parent")
    disk.read(shared)
    disk._calls._lock.acquire()  # type: ignore[attr-defined]  # as if another thread were reading at the fork
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that waits for the lock fails the test instead of stopping it
        fine = disk.read(shared) == b"from the parent" and disk.create_exclusive(
            str(tmp_path / "child"), b"c"
        )
        os._exit(0 if fine else 1)
    disk._calls._lock.release()  # type: ignore[attr-defined]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert disk.read(shared) == b"from the parent"
    assert disk.read(str(tmp_path / "child")) == b"c"


def test_of_many_threads_exactly_one_creates_a_record(tmp_path: Path) -> None:
    disk, won = PosixDisk(), []

    def race(number: int) -> None:
        for record in range(20):
            if disk.create_exclusive(str(tmp_path / str(record)), str(number).encode()):
                won.append((record, number))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record for record, _ in won) == list(range(20))
    assert all(disk.read(str(tmp_path / str(record))) == str(number).encode() for record, number in won)


def test_a_process_that_ends_at_any_step_leaves_whole_files(tmp_path: Path) -> None:
    def scenario(disk: PosixDisk | TracingDisk, folder: str) -> None:
        disk.make_dirs(folder)
        disk.create_exclusive(f"{folder}/record", b"record")
        disk.put(f"{folder}/heartbeat", b"beat")

    traced = TracingDisk(PosixDisk())
    scenario(traced, str(tmp_path / "undisturbed"))
    whole = {"record": b"record", "heartbeat": b"beat"}
    for number, plan in enumerate(crash_plans(len(traced.steps), exit=True)):
        folder = str(tmp_path / f"run-{number}")
        child = os.fork()
        if child == 0:
            scenario(PosixDisk(plan), folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EXIT_CODE
        found = PosixDisk()
        for name in found.list(folder):
            assert is_temp(name) or found.read(f"{folder}/{name}") == whole[name]
