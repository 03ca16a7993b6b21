"""The calls of the operating system behind the steps, and the disk they make. The only module that opens checkpoint
files for writing; it never changes a file's contents in place.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import stat
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from penstock.dataplane.disk.protocol import Faults, IrregularFileError
from penstock.dataplane.disk.steps import StepDisk

OPEN_FILES = 128
_READ_MAX = 1 << 30
_MAP_MIN = 1 << 20
"""Bytes from which on mapping costs less than copying."""
_CLAMP_MIN = 1 << 16
"""Bytes from which on a read asks first how many there are."""
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""Waits for nobody, as the opening of a FIFO would, and follows no link."""
_IRREGULAR: Mapping[int, str] = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class _ReadHandle:
    """An open file for reading; closed when the last user lets go, so an evicted one is safe to read from."""

    __slots__ = ("fd", "identity")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, _READING)
        status = os.fstat(self.fd)
        _check_regular(status, path)
        self.identity = (status.st_dev, status.st_ino)

    def is_deleted(self) -> bool:
        try:
            return os.fstat(self.fd).st_nlink == 0
        except OSError:  # a network file system may have forgotten it
            return True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # os is gone when Python ends
        if hasattr(self, "fd"):
            close(self.fd)


class PosixCalls:
    """The calls of the operating system. Keeps a bounded number of files open for reading, per process."""

    def __init__(self, open_files: int = OPEN_FILES) -> None:
        self._open_files = open_files
        self._forget_handles()

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def open(self, path: str) -> int:
        _check_regular(os.lstat(path), path)
        return os.open(path, _READING)

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
        if length is None or length > _CLAMP_MIN:
            # Room is made for what is asked: of a length that lies, no more than there is.
            there = max(0, os.fstat(handle.fd).st_size - offset)
            length = there if length is None else min(length, there)
        if length <= _READ_MAX:
            return _pread(handle.fd, length, offset)
        return _read_in_pieces(handle.fd, length, offset)

    def view(self, path: str, offset: int, length: int | None) -> bytes | memoryview:
        if length is not None and length < _MAP_MIN:
            return self.read(path, offset, length)
        handle = self._handle(path)
        # Of the open file: what a network file system says of a name may be of some time ago.
        size = os.fstat(handle.fd).st_size
        length = max(0, size - offset) if length is None else length
        # Past the end of a file a mapping kills the process; a short read is the reader's to tell.
        if length < _MAP_MIN or size < offset + length:
            return self.read(path, offset, length)
        before = offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(handle.fd, before + length, access=mmap.ACCESS_READ, offset=offset - before)
        return memoryview(mapped)[before:]

    def size(self, path: str) -> int:
        return os.lstat(path).st_size

    def list(self, path: str) -> list[str]:
        return os.listdir(path)

    def _handle(self, path: str) -> _ReadHandle:
        if os.getpid() != self._pid:
            self._forget_handles()  # the lock may have been held by a thread that the fork left behind
        status = os.lstat(path)  # another process may have replaced or deleted the file since
        _check_regular(status, path)
        with self._lock:
            handle = self._handles.get(path)
            if handle is None or handle.identity != (status.st_dev, status.st_ino):
                handle = _ReadHandle(path)
                self._drop_deleted()
                self._handles[path] = handle
            self._handles.move_to_end(path)
            if len(self._handles) > self._open_files:
                self._handles.popitem(last=False)
        return handle

    def _drop_deleted(self) -> None:
        """Let go of files that another process has deleted since: held open, they would still take up the disk."""
        for path, handle in list(self._handles.items()):
            if handle.is_deleted():
                del self._handles[path]

    def _evict(self, path: str) -> None:
        if os.getpid() == self._pid:
            with self._lock:
                self._handles.pop(path, None)

    def _forget_handles(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, _ReadHandle] = OrderedDict()


class PosixDisk(StepDisk):
    """The ``Disk`` on a local or shared POSIX file system with hard links and atomic rename.

    Args:
        temps: folder for files under way, where those beside their targets would be seen by others.
        open_files: how many are kept open for reading again; few where each is read once.
    """

    def __init__(
        self, faults: Faults | None = None, *, temps: str | None = None, open_files: int = OPEN_FILES
    ) -> None:
        token = secrets.token_hex(6)
        # The process id keeps temporary names apart after a fork, the token on different machines.
        super().__init__(PosixCalls(open_files), faults, lambda: f"{os.getpid():x}-{token}", temps)


def _check_regular(status: os.stat_result, path: str) -> None:
    """Refuse what is no file before it is opened: to open a FIFO or a device may wait, or do something."""
    if not stat.S_ISREG(status.st_mode):
        raise IrregularFileError(path, _IRREGULAR.get(stat.S_IFMT(status.st_mode), "no regular file"))


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
