"""The file of a query's decisions: one line of JSON each, appended as they are made. Never read here.

It is no part of the checkpoint: nothing depends on it, and a file that cannot be written ends the writing, not the query.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from penstock.errors import DeclarationError

_log = logging.getLogger("penstock")


class JournalFile:
    """Appends lines to a file until it is closed or cannot be written any more.

    Raises:
        DeclarationError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = _open(path)

    def add(self, line: bytes) -> None:
        """Append one line."""
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.write(line + b"\n")
                self._file.flush()
            except OSError as error:
                _log.warning("decisions are no longer written to %s: %s.", self._path, error.strerror)
                with suppress(OSError):  # what is buffered is tried once more, and lost
                    self._file.close()

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self._file.close()


def check_journal(path: str) -> None:
    """Make sure that decisions can be appended to a file; nothing is asked where no path is given.

    Raises:
        DeclarationError: it cannot be opened.
    """
    if not path:
        return
    if not Path(path).is_fifo():
        _open(path).close()
    elif not os.access(path, os.W_OK):  # whoever reads it takes it for ended once it was opened and closed
        raise DeclarationError(f"option 'journal': {path} cannot be written: {os.strerror(errno.EACCES)}.")


def _open(path: str) -> BinaryIO:
    """Open a journal behind its last whole line: what a driver that was killed left of a line gets its end."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = _open_pipe(path) if Path(path).is_fifo() else Path(path).open("ab")  # noqa: SIM115
        if not _ends_whole(Path(path)):
            file.write(b"\n")
        return file
    except OSError as error:
        raise DeclarationError(
            f"option 'journal': {path} cannot be written: {error.strerror or error}."
        ) from None


def _open_pipe(path: str) -> BinaryIO:
    """Open a pipe that somebody reads: without a reader it would be waited for, and a query with it."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise DeclarationError(
                f"option 'journal': nobody reads the pipe {path}; start its reader first."
            ) from None
        raise
    os.set_blocking(number, True)
    return open(number, "wb")


def _ends_whole(path: Path) -> bool:
    """Say whether a file ends with a line; a pipe, and what may not be read, is taken to."""
    if not path.is_file() or not path.stat().st_size or not os.access(path, os.R_OK):
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
