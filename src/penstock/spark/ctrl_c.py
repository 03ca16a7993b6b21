"""Ctrl-C where queries run: one line, every query stopped in order, the exit code that shells know. Knows no query.

PySpark's own handler first cancels all jobs, which takes from queries the leases that are to commit what is in flight; it
is replaced here while a program that has a query runs. A prompt, a notebook and a program with a handler of its own keep
theirs.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code of a process that Ctrl-C ended, as shells and supervisors know it."""
PATIENCE_S: Final = 3.0
"""Ctrl-C within this time of another one adds nothing to it: a second one must not cut the stopping in two."""


class _Presses:
    """What was pressed, and whether the program is ending."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s: float | None = None
        self.ending = False

    def begin(self) -> None:
        """The program ends: whatever is pressed from now on interrupts nothing."""
        self.ending = True
        self._last_s = self._clock()

    def is_recent(self) -> bool:
        """Whether one was pressed a moment ago."""
        return self._last_s is not None and self._clock() - self._last_s < PATIENCE_S

    def press(self) -> bool:
        """Take note of one; return whether it is to be acted on."""
        if self.is_recent():
            return False
        self._last_s = self._clock()
        return True


_presses = _Presses()


def take_over() -> None:
    """Let Ctrl-C stop queries in order from now on; does nothing outside the main thread, where none can arrive."""
    if threading.current_thread() is not threading.main_thread() or _is_interactive():
        return
    if _is_replaceable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _on_press)
        if not _passed_on:  # registered before what stops queries, so that it runs after it
            atexit.register(_ignore)
    if sys.excepthook is not _hook:
        _passed_on[:] = [sys.excepthook]
        sys.excepthook = _hook
    if _is_news not in logging.getLogger().filters:
        logging.getLogger().addFilter(_is_news)


def _ignore() -> None:
    """From the end of the exit handlers on there is nobody left to ask: the interpreter would let a press kill the process,
    whose exit code is settled by then."""
    if signal.getsignal(signal.SIGINT) is _on_press:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def hold() -> None:
    """The program ends, and is stopping its queries: from now on Ctrl-C interrupts nothing, and later ends it at once."""
    _presses.begin()


def say_interrupted() -> int:
    """Say in one line that the program was interrupted and is ending; return its exit code."""
    take_over()
    hold()
    print("penstock: interrupted.", file=sys.stderr, flush=True)
    return INTERRUPTED


def _on_press(number: int, frame: FrameType | None) -> None:
    if not _presses.press():
        return
    if _presses.ending:
        _end_at_once()
    raise KeyboardInterrupt


def _end_at_once() -> NoReturn:
    """The user will not wait for queries to stop; a checkpoint bears that as it bears `kill -9`."""
    os.write(2, b"penstock: interrupted again; ended at once, without waiting for its queries.\n")
    os._exit(INTERRUPTED)


_passed_on: list[Callable[..., Any]] = []
"""The hook that was there before ours."""


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say an interrupt in one line, any other error as before. The queries are stopped as the process ends."""
    if issubclass(kind, KeyboardInterrupt) and not _is_interactive():
        say_interrupted()
    else:
        _passed_on[0](kind, error, trace)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether something logged is no mere echo of Ctrl-C: py4j logs the traceback of a call that one interrupted."""
    return not (record.exc_info and "py4j" in record.pathname and _presses.is_recent())


def _is_replaceable(handler: Any) -> bool:
    """Whether a handler is Python's or PySpark's, not one that the program set."""
    return (
        handler is signal.default_int_handler or getattr(handler, "__module__", "") == "pyspark.core.context"
    )


def _is_interactive() -> bool:
    """Whether a person sits at a prompt, which goes on after Ctrl-C."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or (shell is not None and shell() is not None)
