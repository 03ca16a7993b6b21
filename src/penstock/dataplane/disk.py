"""The only module that opens checkpoint files for writing; every call is a ``Step`` that tests can fail.

``StepDisk`` knows in which order a durable write is made of steps; ``PosixCalls`` knows the operating system.
The simulated disk swaps the second and keeps the first, so that both go through the same order. Nothing here
knows what the bytes mean, and nothing ever changes a file's contents in place.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import itertools
import os
import re
import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

from penstock.errors import CheckpointError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

Part: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
T = TypeVar("T")

TEMP_SUFFIX = ".tmp"
PROBE = ".writable-"
"""Begins the names of files by which a start finds out whether it may write."""
_IOV_MAX = 1024
_READ_MAX = 1 << 30


class Step(enum.StrEnum):
    """What the disk is asked to do, one call at a time; the points at which a test may interfere."""

    MKDIR = "mkdir"
    CREATE = "create"
    WRITE = "write"
    SYNC = "sync"
    SYNC_DIR = "sync_dir"
    LINK = "link"
    DELETE = "delete"
    READ = "read"
    LIST = "list"


STEPS_OF: Mapping[str, tuple[Step, ...]] = {
    "make_dirs": (Step.MKDIR, Step.SYNC_DIR),
    "open_append": (Step.CREATE,),
    "append": (Step.WRITE,),
    "sync": (Step.SYNC, Step.SYNC_DIR),
    "create_exclusive": (Step.CREATE, Step.WRITE, Step.SYNC, Step.LINK, Step.SYNC_DIR, Step.DELETE),
    "start_append": (Step.CREATE, Step.WRITE, Step.SYNC, Step.LINK, Step.SYNC_DIR, Step.DELETE),
    "put": (Step.CREATE, Step.WRITE, Step.SYNC, Step.LINK, Step.SYNC_DIR),
    "read": (Step.READ,),
    "size": (Step.READ,),
    "list": (Step.LIST,),
    "delete": (Step.DELETE,),
}
"""The steps of each operation, in order, when nothing is in its way (``sync``: the first one of a file)."""

DROPPABLE = frozenset({Step.SYNC, Step.SYNC_DIR, Step.DELETE})
"""Steps that a disk may claim to have done without doing them."""


class SkipStep(Exception):
    """Raised by ``Faults.before`` to make a droppable step lie: it is reported done and was not done."""


class Faults(Protocol):
    """Sees every step from both sides; may raise ``OSError`` or ``SkipStep``, sleep, or end the process."""

    def before(self, step: Step, path: str) -> None: ...

    def after(self, step: Step, path: str) -> None: ...


class AppendFile(Protocol):
    """A file that only grows, with one owner; after a failed call every later one raises ``StorageError``."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes appended so far, synced or not."""

    def append(self, *parts: Part) -> int:
        """Write the parts one after the other and return the offset of the first; durable after ``sync``."""

    def sync(self) -> None:
        """Return once everything appended so far, and the file's name, survives a power loss."""

    def close(self) -> None:
        """Give the file back; syncs nothing, never raises, may be called twice."""


class Disk(Protocol):
    """Durable files under absolute paths. A failed change raises ``StorageError``, whatever the cause."""

    def make_dirs(self, path: str) -> None:
        """Make the folder and its missing parents; on return all of them survive a power loss."""

    def open_append(self, path: str) -> AppendFile:
        """Create a file to append to. Raises ``FileExistsError`` if there is one."""

    def start_append(self, path: str, data: Part) -> AppendFile | None:
        """Create a file that begins with ``data`` and goes on growing; ``None`` if the name is taken.

        The name appears only after ``data`` is durable: whoever finds the file finds its beginning whole.
        """

    def create_exclusive(self, path: str, data: Part) -> bool:
        """Create a whole file, durable on return; ``False`` if the name is taken, by a file that is durable.

        There is never a partial file under ``path``. After a ``StorageError`` the whole file may or may not
        be there: a second call that returns ``False`` may have lost to the first.
        """

    def put(self, path: str, data: Part) -> None:
        """Replace the whole file, durable on return; readers see the old or the new bytes, never both."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes from ``offset``, fewer where the file ends. Raises ``FileNotFoundError``."""

    def size(self, path: str) -> int | None:
        """Return the file's size, ``None`` if there is no such file."""

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder, temporary ones included; ``[]`` if there is no such folder."""

    def delete(self, path: str) -> bool:
        """Remove a file; ``False`` if it was not there. A power loss may bring it back."""


def is_temp(name: str) -> bool:
    """Whether a name is that of a write under way, or of one that was cut off and left an orphan."""
    return name.endswith(TEMP_SUFFIX)


class Calls(Protocol):
    """What a disk does in one call: raises ``OSError`` as POSIX does, makes nothing durable unasked."""

    def mkdir(self, path: str) -> None: ...

    def create(self, path: str) -> int: ...

    def write(self, file: int, parts: Sequence[memoryview]) -> int: ...

    def sync(self, file: int) -> None: ...

    def close(self, file: int) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def link(self, source: str, target: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def is_dir(self, path: str) -> bool: ...

    def read(self, path: str, offset: int, length: int | None) -> bytes: ...

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]: ...


class StepDisk:
    """The ``Disk`` made of steps: owns their order and what a failure in the middle leaves behind.

    Args:
        calls: what carries a step out.
        faults: is told of every step, from both sides.
        writer: names whoever writes, unlike any other at this moment; goes into temporary names.
    """

    def __init__(self, calls: Calls, faults: Faults | None, writer: Callable[[], str]) -> None:
        self._calls = calls
        self._faults = faults
        self._writer = writer
        self._temps = itertools.count()

    def make_dirs(self, path: str) -> None:
        missing: list[str] = []
        existing = path
        while not self._calls.is_dir(existing) and os.path.dirname(existing) != existing:
            missing.append(existing)
            existing = os.path.dirname(existing)
        # Whoever made the deepest existing folder may have crashed before its entry was synced.
        self._sync_parent_if_readable(existing)
        for folder in reversed(missing):
            try:
                self._step(Step.MKDIR, folder, self._calls.mkdir, folder, expect=FileExistsError)
            except FileExistsError as error:
                if not self._calls.is_dir(folder):
                    raise storage_error(Step.MKDIR, folder, error) from error
            self._sync_dir_of(folder)

    def open_append(self, path: str) -> AppendFile:
        return StepAppendFile(self, path, self._create(path))

    def create_exclusive(self, path: str, data: Part) -> bool:
        return self._link_durably(self._write_temp(path, data), path)

    def start_append(self, path: str, data: Part) -> AppendFile | None:
        temp = self._temp_name(path)
        try:
            begun = StepAppendFile(self, temp, self._create(temp))
            begun.append(data)
            self._sync(temp, begun._opened())
        except StorageError:
            self._discard(temp)
            raise
        if not self._link_durably(temp, path):
            begun.close()
            return None
        begun.path, begun._named = path, True
        return begun

    def put(self, path: str, data: Part) -> None:
        temp = self._write_temp(path, data)
        try:
            self._step(Step.LINK, path, self._calls.rename, temp, path)
        except StorageError:
            self._discard(temp)
            raise
        self._sync_dir_of(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._step(Step.READ, path, self._calls.read, path, offset, length, expect=FileNotFoundError)

    def size(self, path: str) -> int | None:
        try:
            return self._step(Step.READ, path, self._calls.size, path, expect=FileNotFoundError)
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str]:
        try:
            return sorted(self._step(Step.LIST, path, self._calls.list, path, expect=FileNotFoundError))
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> bool:
        try:
            self._step(Step.DELETE, path, self._calls.unlink, path, expect=FileNotFoundError)
        except FileNotFoundError:
            return False
        return True

    def _step(
        self,
        step: Step,
        path: str,
        call: Callable[..., T],
        *args: object,
        expect: type[OSError] | tuple[type[OSError], ...] = (),
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Make one call between its two fail points; an unexpected ``OSError`` is a StorageError."""
        try:
            if self._faults is not None:
                self._faults.before(step, path)
            result = call(*args)
        except SkipStep:
            if step not in DROPPABLE:
                raise
            return None  # type: ignore[return-value]  # droppable steps return nothing
        except expect:
            raise
        except OSError as error:
            raise storage_error(step, path, error) from error
        try:
            if self._faults is not None:
                self._faults.after(step, path)
        except OSError as error:
            if undo is not None:
                undo(result)
            raise storage_error(step, path, error) from error
        return result

    def _create(self, path: str) -> int:
        undo = self._calls.close
        return self._step(Step.CREATE, path, self._calls.create, path, expect=FileExistsError, undo=undo)

    def _write_all(self, path: str, file: int, parts: Sequence[Part]) -> int:
        left = [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]
        total = sum(view.nbytes for view in left)
        while left:
            written = self._step(Step.WRITE, path, self._calls.write, file, left[:_IOV_MAX])
            left = _drop_prefix(left, written)
        return total

    def _sync(self, path: str, file: int) -> None:
        self._step(Step.SYNC, path, self._calls.sync, file)

    def _sync_dir_of(self, path: str) -> None:
        folder = os.path.dirname(path)
        self._step(Step.SYNC_DIR, folder, self._calls.sync_dir, folder)

    def _sync_parent_if_readable(self, path: str) -> None:
        folder = os.path.dirname(path)
        with suppress(PermissionError):  # a folder whose parent we may not even read was not made by us
            self._step(Step.SYNC_DIR, folder, self._calls.sync_dir, folder, expect=PermissionError)

    def _write_temp(self, path: str, data: Part) -> str:
        temp = self._temp_name(path)
        try:
            file = self._create(temp)
            try:
                self._write_all(temp, file, [data])
                self._sync(temp, file)
            finally:
                self._calls.close(file)
        except StorageError:
            self._discard(temp)
            raise
        return temp

    def _link_durably(self, temp: str, path: str) -> bool:
        """Give a synced temporary file its name, ``False`` if that is taken; drops the temporary one."""
        try:
            try:
                self._step(Step.LINK, path, self._calls.link, temp, path, expect=FileExistsError)
                created = True
            except FileExistsError:
                created = False
            # Also when it lost: nobody may act on a winner's file that a power loss could take away.
            self._sync_dir_of(path)
        except StorageError:
            self._discard(temp)
            raise
        self._discard(temp)
        return created

    def _temp_name(self, path: str) -> str:
        return f"{path}.{self._writer()}-{next(self._temps):x}{TEMP_SUFFIX}"

    def _discard(self, temp: str) -> None:
        with suppress(StorageError):  # an orphan that clean-up finds by its suffix; the rest is decided
            self.delete(temp)


class StepAppendFile:
    """The ``AppendFile`` of a ``StepDisk``."""

    def __init__(self, disk: StepDisk, path: str, file: int) -> None:
        self.path = path
        self.size = 0
        self._disk = disk
        self._file: int | None = file
        self._named = False
        self._failure: str | None = None

    def append(self, *parts: Part) -> int:
        offset = self.size
        self.size += self._guarded(lambda file: self._disk._write_all(self.path, file, parts))
        return offset

    def sync(self) -> None:
        self._guarded(self._sync)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._disk._calls.close(file)

    def _sync(self, file: int) -> None:
        self._disk._sync(self.path, file)
        if not self._named:
            self._disk._sync_dir_of(self.path)
            self._named = True

    def _opened(self) -> int:
        if self._failure is not None:
            raise StorageError(
                f"{self.path} is not used any more because an earlier write to it failed ({self._failure}); "
                "write what it should hold to a new file."
            )
        if self._file is None:
            raise StorageError(f"{self.path} is closed; open a new file to append to.")
        return self._file

    def _guarded(self, change: Callable[[int], T]) -> T:
        file = self._opened()
        try:
            return change(file)
        except BaseException as error:
            # After a failed sync the kernel may report the next one as fine without the lost pages.
            self._failure = str(error) or type(error).__name__
            raise


def _drop_prefix(views: list[memoryview], count: int) -> list[memoryview]:
    for index, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[index + 1 :]]
        count -= view.nbytes
    return []


class _ReadHandle:
    """An open file for reading; closed when the last user lets go, so an evicted one is safe to read from."""

    __slots__ = ("fd", "identity")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class PosixCalls:
    """The calls of the operating system. Keeps a bounded number of files open for reading, per process."""

    def __init__(self, open_files: int = 128) -> None:
        self._open_files = open_files
        self._forget_handles()

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        return os.writev(file, parts)

    def sync(self, file: int) -> None:
        if sys.platform == "darwin":
            _full_sync(file)
        else:
            os.fdatasync(file)

    def close(self, file: int) -> None:
        with suppress(OSError):  # what had to be durable was synced, and a sync that failed was reported
            os.close(file)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if sys.platform == "darwin":
                _full_sync(fd)
            else:
                os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        self._evict(target)

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self._evict(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        handle = self._handle(path)
        if length is None:
            length = max(0, os.fstat(handle.fd).st_size - offset)
        if length <= _READ_MAX:
            return _pread(handle.fd, length, offset)
        return _read_in_pieces(handle.fd, length, offset)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> list[str]:
        return os.listdir(path)

    def _handle(self, path: str) -> _ReadHandle:
        if os.getpid() != self._pid:
            self._forget_handles()  # the lock may have been held by a thread that the fork left behind
        status = os.stat(path)  # another process may have replaced or deleted the file since
        with self._lock:
            handle = self._handles.get(path)
            if handle is None or handle.identity != (status.st_dev, status.st_ino):
                handle = self._handles[path] = _ReadHandle(path)
            self._handles.move_to_end(path)
            if len(self._handles) > self._open_files:
                self._handles.popitem(last=False)
        return handle

    def _evict(self, path: str) -> None:
        if os.getpid() == self._pid:
            with self._lock:
                self._handles.pop(path, None)

    def _forget_handles(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, _ReadHandle] = OrderedDict()


class PosixDisk(StepDisk):
    """The ``Disk`` on a local or shared POSIX file system with hard links and atomic rename."""

    def __init__(self, faults: Faults | None = None) -> None:
        token = secrets.token_hex(6)
        # The process id keeps temporary names apart after a fork, the token on different machines.
        super().__init__(PosixCalls(), faults, lambda: f"{os.getpid():x}-{token}")


def _full_sync(fd: int) -> None:
    """macOS: ``fsync`` leaves data in the drive's cache; ``F_FULLFSYNC`` does not, some volumes lack it."""
    try:
        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC", 51))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
            raise
        os.fsync(fd)


def _pread(fd: int, length: int, offset: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) in (0, length):
        return data
    return data + _read_in_pieces(fd, length - len(data), offset + len(data))


def _read_in_pieces(fd: int, length: int, offset: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(fd, min(length, _READ_MAX), offset)):
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


_NOT_WRITABLE = "the checkpoint directory is not writable; give this user write access or choose another"
_FIXES: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full; free space there and restart the query",
    errno.EDQUOT: "the disk quota is used up; free space there and restart the query",
    errno.EROFS: _NOT_WRITABLE,
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EIO: "the device reports an I/O error; check the disk and restart the query",
    errno.EMFILE: "this process has too many open files; raise its limit (ulimit -n)",
    errno.ENFILE: "the machine has too many open files; raise its limit",
    errno.ENOENT: "a folder of the checkpoint is missing; do not delete from a checkpoint in use",
    errno.ENOTDIR: "a part of this path is a file; choose another checkpoint directory",
}


def storage_error(step: Step, path: str, error: OSError) -> StorageError:
    """Say in one sentence which step failed on which file, why, and what to do."""
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    fix = _FIXES.get(error.errno or 0, f"{error.strerror or error}; solve this and restart the query")
    return StorageError(f"The {step} step failed on {path} ({name}): {fix}.")


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def check_scheme(path: str | os.PathLike[str]) -> str:
    """Return the absolute path that a checkpoint location means; refuse any scheme but ``file:`` by name."""
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if scheme is not None:
        if scheme.group().lower() != "file:":
            raise CheckpointError(
                f"The checkpoint location {text!r} uses {scheme.group()}, which is not supported; give a "
                "directory that all nodes can reach, as a plain path or file: URI."
            )
        text = _path_of_file_uri(text, text[scheme.end() :])
    if not text or "\0" in text:
        raise CheckpointError(f"The checkpoint location {os.fspath(path)!r} is not a path; give a directory.")
    return os.path.abspath(text)


def _path_of_file_uri(uri: str, rest: str) -> str:
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, tail = rest[2:].partition("/")
        path = slash + tail
    if host not in ("", "localhost") or not path.startswith("/"):
        raise CheckpointError(
            f"The checkpoint location {uri!r} names a host or a relative path; write it as file:///absolute/path."
        )
    return unquote(path)


def check_writable(path: str, disk: Disk | None = None) -> None:
    """Make the checkpoint directory if need be and try an exclusive create in it, leaving nothing behind.

    Raises:
        CheckpointError: the directory cannot be made or written, or has no hard links; names it and the fix.
    """
    disk = disk or PosixDisk()
    probe = os.path.join(path, f"{PROBE}{os.getpid():x}-{time.time_ns():x}")
    try:
        disk.make_dirs(path)
        disk.create_exclusive(probe, b"")
        disk.delete(probe)
    except StorageError as error:
        raise CheckpointError(f"The checkpoint directory {path} cannot be used: {error}") from error
