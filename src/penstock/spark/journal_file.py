"""The file of a query's decisions: one line of JSON each, appended as they are made. Never read here.

It is no part of the checkpoint: nothing depends on it, and a file that cannot be written ends the writing, not the query.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

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
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = Path(path).open("ab")  # noqa: SIM115
        except OSError as error:
            raise DeclarationError(f"option 'journal': {path} cannot be written: {error.strerror}.") from None

    def add(self, line: bytes) -> None:
        """Append one line."""
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.write(line + b"\n")
                self._file.flush()
            except OSError as error:
                self._file.close()
                _log.warning("decisions are no longer written to %s: %s.", self._path, error.strerror)

    def close(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.close()
