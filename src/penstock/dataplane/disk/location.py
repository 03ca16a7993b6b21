"""Where a checkpoint lies: what a location means, which ones are refused, and whether it can be written to."""

from __future__ import annotations

import os
import re
import time
from urllib.parse import unquote

from penstock.dataplane.disk.posix import PosixDisk
from penstock.dataplane.disk.protocol import Disk
from penstock.errors import CheckpointError, StorageError

PROBE = ".writable-"
"""Begins the names of files by which a start finds out whether it may write."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def check_scheme(path: str | os.PathLike[str], what: str = "The checkpoint location") -> str:
    """Return the absolute path that a location means; refuse any scheme but ``file:`` by name.

    A plain path may begin with ``~`` or ``~user``, as a shell knows it.
    """
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if scheme is not None:
        if scheme.group().lower() != "file:":
            raise CheckpointError(
                f"{what} {text!r} uses {scheme.group()}, which is not supported; give a "
                "directory that all nodes can reach, as a plain path or file: URI."
            )
        text = _path_of_file_uri(text, text[scheme.end() :], what)
    else:
        text = _at_home(text, what)
    if not text or "\0" in text:
        raise CheckpointError(f"{what} {os.fspath(path)!r} is not a path; give a directory.")
    return os.path.abspath(text)


def _at_home(path: str, what: str) -> str:
    found = os.path.expanduser(path)
    if found.startswith("~"):  # a folder of that name would be made where the program runs
        user = found.partition("/")[0]
        raise CheckpointError(
            f"{what} {path!r} begins with {user}, and the home of that user is not known; write the path out, or begin it "
            "with ./ if a folder of that name is meant."
        )
    return found


def _path_of_file_uri(uri: str, rest: str, what: str) -> str:
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, tail = rest[2:].partition("/")
        path = slash + tail
    if host not in ("", "localhost") or not path.startswith("/"):
        raise CheckpointError(
            f"{what} {uri!r} names a host or a relative path; write it as file:///absolute/path."
        )
    return unquote(path)


def check_place(path: str, disk: Disk | None = None) -> None:
    """Refuse what no checkpoint can be, before anything is made there: a file, the home folder and the root of the file
    system, whatever they hold. A checkpoint that lies there already stays one.

    Raises:
        CheckpointError: names it and the fix.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        raise CheckpointError(
            f"The checkpoint location {path} is {_what(path)} and no folder; give a new or empty folder."
        )
    whole = {
        os.path.realpath("/"): "the root of the file system",
        os.path.realpath(os.path.expanduser("~")): "a home folder",
    }
    found = whole.get(os.path.realpath(path))
    if found is not None and "meta" not in (disk or PosixDisk()).list(path):
        example = os.path.join(path, "checkpoints", "counts")
        raise CheckpointError(
            f"The checkpoint location {path} is {found}, where the files of a checkpoint would lie among others; give a "
            f"folder of its own, such as {example}."
        )


def _what(path: str) -> str:
    return "a link that leads nowhere" if os.path.islink(path) and not os.path.exists(path) else "a file"


def check_writable(path: str, disk: Disk | None = None) -> None:
    """Make the checkpoint directory if need be and try an exclusive create in it, leaving nothing behind.

    Raises:
        CheckpointError: the directory cannot be made or written, or has no hard links; names it and the fix.
    """
    disk = disk or PosixDisk()
    check_place(path, disk)
    probe = os.path.join(path, f"{PROBE}{os.getpid():x}-{time.time_ns():x}")
    try:
        disk.make_dirs(path)
        disk.create_exclusive(probe, b"")
        disk.delete(probe)
    except StorageError as error:
        raise CheckpointError(f"The checkpoint directory {path} cannot be used: {error}") from error
