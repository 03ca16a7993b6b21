"""The queries of this process: what `penstock run` waits for, and what is stopped in order when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.query import Query

_started: list[Query] = []
_guard = threading.Lock()


def remember(query: Query) -> None:
    """Note a query that was started."""
    with _guard:
        if not _started:
            atexit.register(stop_all)
        _started[:] = [one for one in _started if one.isActive or one.exception() is not None] + [query]


def active_on(checkpoint: str) -> Query | None:
    """Return the query of this process that runs on a checkpoint, None when there is none."""
    with _guard:
        return next((one for one in _started if one.isActive and one.checkpoint == checkpoint), None)


def await_all() -> None:
    """Wait until every query that was started has ended.

    Raises:
        QueryError: one of them ended with an error.
    """
    while any(query.isActive for query in _started):
        for query in list(_started):
            query.awaitTermination(0.1 if query.isActive else 0.0)
    for query in list(_started):
        query.awaitTermination(0.0)


def stop_all() -> None:
    """Stop every query that runs: registered for the end of the process, so that a program that ends, or is ended by
    Ctrl-C, leaves a checkpoint that is given back and no lease."""
    with _guard:
        running = [query for query in _started if query.isActive]
    for query in running:
        with contextlib.suppress(Exception):  # the next one is to be stopped too
            query.stop()
