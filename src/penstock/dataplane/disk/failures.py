"""Says of a failed step which file it was, why it failed and what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from penstock.dataplane.disk.protocol import IrregularFileError, Step
from penstock.errors import CorruptFileError, StorageError

_NOT_WRITABLE = "the checkpoint directory is not writable; give this user write access or choose another"
_NOT_READABLE = "this user may not read it; give this user read access"
_NO_LINKS = (
    "the file system refuses hard links or renames; choose a checkpoint directory on one that has them, and give this "
    "user write access"
)
_FIXES: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full; free space there and restart the query",
    errno.EDQUOT: "the disk quota is used up; free space there and restart the query",
    errno.EROFS: "the file system is mounted read-only; mount it writable or choose another checkpoint directory",
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EIO: "the device reports an I/O error; check the disk and restart the query",
    errno.EMFILE: "this process has too many open files; raise its limit (ulimit -n)",
    errno.ENFILE: "the machine has too many open files; raise its limit",
    errno.ENOENT: "a folder of the checkpoint is missing; do not delete from a checkpoint in use",
    errno.ENOTDIR: "a part of this path is a file; choose another checkpoint directory",
    errno.ENAMETOOLONG: "the path is too long for this file system; choose a shorter checkpoint directory",
    errno.ELOOP: "links on this path lead in a circle; choose another checkpoint directory",
    errno.EISDIR: "a folder has the name of this file; move it away",
    errno.ENOTEMPTY: "a folder has the name of this file; move it away",
    errno.EFBIG: "the file is larger than its file system or the limit of this process allows (ulimit -f); raise it",
    errno.ESTALE: "the network file system has lost this file; check the mount and restart the query",
    errno.ENOMEM: "the machine has no memory left; free some and restart the query",
}
_READING: Mapping[int, str] = {errno.EACCES: _NOT_READABLE, errno.EPERM: _NOT_READABLE}
_LINKING: Mapping[int, str] = {
    errno.EPERM: _NO_LINKS,
    errno.ENOTSUP: _NO_LINKS,
    errno.ENOSYS: _NO_LINKS,
    errno.EMLINK: _NO_LINKS,
}
_MAKING: Mapping[int, str] = {
    errno.ENOENT: "no folder can be made there; choose another directory",
    errno.EEXIST: "a file has this name; move it away or choose another directory",
}
_FIXES_OF: Mapping[Step, Mapping[int, str]] = {
    Step.READ: _READING,
    Step.LIST: _READING,
    Step.LINK: _LINKING,
    Step.MKDIR: _MAKING,
    Step.SYNC_DIR: {errno.EINVAL: "the file system cannot sync folders; choose a directory on another"},
}
"""What a cause means for one step, where that is not what it means for all."""


def storage_error(step: Step, path: str, error: OSError) -> StorageError:
    """Say in one sentence which step failed on which file, why, and what to do."""
    number = error.errno or 0
    name = errno.errorcode.get(number, type(error).__name__)
    fix = _FIXES_OF.get(step, {}).get(number) or _FIXES.get(number)
    fix = fix or f"{error.strerror or error}; solve this and restart the query"
    return StorageError(f"The {step} step failed on {path} ({name}): {fix}.")


def not_a_file(path: str, error: IrregularFileError) -> CorruptFileError:
    """Say what stands where a file belongs."""
    return CorruptFileError(
        f"{path} is {error.what} where a file belongs; move it away and restore the file from a copy."
    )
