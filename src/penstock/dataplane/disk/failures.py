"""Says of a failed step which file it was, why it failed and what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from penstock.dataplane.disk.protocol import Step
from penstock.errors import StorageError

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
