"""Says that a query has failed, once: in the log, and on standard error where the log does not go there.

A traceback of user code is told once as well: here where nobody waits for the query, else by the error that the one who
waits gets. Ends nothing and decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from penstock.errors import PenstockError, QueryError
from penstock.raised import describe_traceback

_log = logging.getLogger("penstock")


class Outcry:
    """What is said of the end of one query."""

    def __init__(self, query: str) -> None:
        self.query = query
        self._guard = threading.Lock()
        self._waiting = 0
        self._told = False
        self._told_whole = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count whoever will be handed the error when the query fails."""
        with self._guard:
            self._waiting += 1
        try:
            yield
        finally:
            with self._guard:
                self._waiting -= 1

    def tell(self, error: PenstockError) -> None:
        """Say that the query has failed; does nothing when it was said."""
        with self._guard:
            if self._told:
                return
            self._told, self._told_whole = True, not self._waiting
        # A cause and a handler of the user's may do anything, and the query is to end.
        with contextlib.suppress(Exception):
            told = "\n".join([str(error), *_notes(error)]) if self._told_whole else brief(error)
            text = f"query {self.query} has failed: {told}"
            heard = reaches_stderr(_log)
            _log.error("%s", text)
            if not heard:
                print(f"penstock: {text}", file=sys.stderr, flush=True)

    def as_raised(self, error: PenstockError) -> QueryError:
        """Return what is raised to the one who waits; its cause carries the traceback unless that has been told."""
        raised = QueryError(f"Query {self.query} ended: {brief(error)}")
        cause = error
        if self._told_whole and (brief(error) != str(error) or _notes(error)):
            cause = type(error)(
                f"{brief(error)} (query.exception() has the traceback, which was told when it failed)"
            )
        raised.__cause__ = cause
        return raised


def brief(error: PenstockError) -> str:
    """Return the sentence of an error, without the traceback that stands below it."""
    return str(error).partition("\n")[0]


def _notes(error: PenstockError) -> list[str]:
    """What else is known of an error: the task's traceback, or that of a function that was called on the driver."""
    cause = error.__cause__
    if cause is not None and not issubclass(type(cause), PenstockError):
        return [describe_traceback(cause)]
    return [one.rstrip() for one in getattr(error, "__notes__", []) if one]


def reaches_stderr(logger: logging.Logger) -> bool:
    """Whether an error that is logged here is written to standard error, or to a console that shows it there."""
    if not logger.isEnabledFor(logging.ERROR):
        return False
    handlers = list(_handlers(logger))
    if not handlers:  # Python's last resort
        return logging.lastResort is not None and logging.lastResort.level <= logging.ERROR
    return any(_stream(one) in (sys.stderr, sys.__stderr__) for one in handlers if one.level <= logging.ERROR)


def _handlers(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _stream(handler: logging.Handler) -> Any:
    console = getattr(handler, "console", None)  # as of rich
    return getattr(handler, "stream", None) or getattr(console, "file", None) or handler
