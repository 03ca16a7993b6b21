"""What user functions said on the nodes, in the driver's log.

Logged through the logger `penstock.functions`, or to standard error where no handler is set up, on a thread of its own:
a handler of the user's may take its time, the hub's thread may not.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading

from penstock.dataplane.messages import Said

LOGGER = "penstock.functions"
_WAITING = 4000
_log = logging.getLogger(LOGGER)


def level_wanted() -> int:
    """Return the level from which on log records are worth sending: what this process logs."""
    return _log.getEffectiveLevel()


def describe(said: Said) -> str:
    """Return a text with who said it: `match[task 3, shard 17, key 'IBM']: text`."""
    where = f", {said.where}" if said.where else ""
    return f"{said.stage}[task {said.task + 1}{where}]: {said.text}"


def log_said(said: Said) -> None:
    """Log one text. What was printed is logged as INFO, or WARNING for standard error, whatever the root's level is: a
    print is meant to be seen; a level set on `penstock.functions` itself holds."""
    if _log.disabled or said.level < _log.level:
        return
    if not _log.hasHandlers():
        sys.stderr.write(f"{describe(said)}\n")
        sys.stderr.flush()
        return
    _log.handle(_log.makeRecord(LOGGER, said.level, said.stage, 0, describe(said), (), None))


class Hearing:
    """Logs what is heard, in order; never holds up whoever hands it in."""

    def __init__(self) -> None:
        self._heard: queue.Queue[Said | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._closed = False

    def hear(self, said: Said) -> None:
        """Log this soon; dropped where the log is thousands of lines behind. Any thread."""
        if self._thread is None:
            self._start()
        try:
            self._heard.put_nowait(said)
        except queue.Full:
            return

    def close(self, timeout: float = 2.0) -> None:
        """Log what was heard by now, and end."""
        with self._guard:
            self._closed = True
        if self._thread is not None:
            try:
                self._heard.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(timeout)

    def _start(self) -> None:
        with self._guard:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="penstock-hearing", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is on its way out
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while (said := self._heard.get()) is not None:
            try:
                log_said(said)
            except BaseException:  # a handler of the user's that fails is no reason to stop the query
                logging.getLogger("penstock").debug("a line of a function could not be logged", exc_info=True)
