"""How the files of Spark's folder are read: regular ones only, up to a limit, never waiting for another process.

What can only not be looked at is never taken for gone. Knows no layout, and changes nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from penstock.dataplane.disk import IrregularFileError, PosixDisk
from penstock.spark.ingest_entries import number_of

_NUMBER = re.compile(r"[0-9]+")
_MOST: Final = 64 << 20
"""More bytes than metadata, offsets, commits or the sums of an entry have."""
_MOST_ENTRY: Final = 1 << 30
"""More bytes than the files that one batch of a file source takes in need; a compaction has those of all batches."""
_IRREGULAR: Final = {
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
}  # fmt: skip
_disk: Final = PosixDisk()


def is_file(path: str) -> bool:
    """Whether there is a regular file.

    Raises:
        IrregularFileError: it is something else, on which Spark may wait for ever, or which lies outside of its folder.
        OSError: it cannot be looked at.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        _pass_if_gone(error)
        return False
    if not stat.S_ISREG(mode):
        raise IrregularFileError(path, _IRREGULAR.get(stat.S_IFMT(mode), "a device"))
    return True


def bytes_of(path: str) -> bytes | None:
    """Return the bytes of a regular file, none of one that has more than any of its kind; None where there is none."""
    if not is_file(path):
        return None
    limit = _limit_of(path)
    try:
        data = _disk.read(path, 0, None if limit is None else limit + 1)
    except FileNotFoundError:
        return None
    return data if limit is None or len(data) <= limit else b""


def _limit_of(path: str) -> int | None:
    if path.endswith((".compact", ".compact.crc")):
        return None
    in_sources = "/sources/" in path and number_of(os.path.basename(path)) is not None
    return _MOST_ENTRY if in_sources else _MOST


def numbers_in(folder: str) -> list[int]:
    """Return the numbers that are names of files in a folder."""
    return [int(name) for name in names_in(folder) if _NUMBER.fullmatch(name) and is_file(f"{folder}/{name}")]


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, none where there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError as error:
        _pass_if_gone(error)
        return []


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder of a tree with the names of what is no folder in it; follows no link below its top."""
    for above, _, names in os.walk(folder, onerror=_pass_if_gone):
        yield above, names


def find_link(*folders: str) -> str | None:
    """Return the first of some folders that is a link."""
    return next((folder for folder in folders if os.path.islink(folder)), None)


def _pass_if_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
