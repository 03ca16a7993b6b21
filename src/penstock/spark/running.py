"""The queries of this process: which run, which have ended, and whether another one may start beside them.

What `penstock.streams` and `penstock run` look at, and what is stopped in order when the process ends. Knows queries by
name, id and checkpoint; otherwise ends none but the one that a takeover replaces.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.errors import CheckpointError, DeclarationError
from penstock.spark import ctrl_c

if TYPE_CHECKING:
    from penstock.spark.query import Query

_started: list[Query] = []
_terminated: list[Query] = []
"""Queries that have ended since the start of the process or the last `reset_terminated`."""
_changed = threading.Condition()


def remember(query: Query) -> None:
    """Note a query that was started."""
    with _changed:
        if not _started:
            atexit.register(stop_all)
        _started[:] = [one for one in _started if one.isActive or one.exception() is not None] + [query]


def note_end(query: Query) -> None:
    """Note that a query has ended; wakes everybody who waits for that."""
    with _changed:
        if query in _started and query not in _terminated:
            _terminated.append(query)
        _changed.notify_all()


def active() -> list[Query]:
    """Return the queries that run, in the order in which they were started."""
    with _changed:
        return [one for one in _started if one.isActive]


def active_on(checkpoint: str) -> Query | None:
    """Return the query of this process that runs on a checkpoint, None when there is none."""
    return next((one for one in active() if one.checkpoint == checkpoint), None)


def make_way(name: str | None, checkpoint: str, takeover: bool) -> None:
    """See to it that no query of this process has the name or the checkpoint of one that is to be started.

    Args:
        takeover: stop such a query first, in order, instead of refusing.

    Raises:
        CheckpointError: a query of this name or on this checkpoint runs.
    """
    for running in active():
        same_place = running.checkpoint == checkpoint
        if not same_place and (name is None or running.name != name):
            continue
        if takeover:
            running.stop()
            continue
        what = f"query '{running.name}' runs" if running.name else "a query of this process runs"
        clash = "" if same_place else "no two queries can have one name: give this one another queryName, "
        raise CheckpointError(
            f"{what} already on the checkpoint {running.checkpoint}; {clash}call "
            f"penstock.streams.get('{running.id}').stop() to end it, or start this one with option('takeover', 'true') to "
            "stop it first and take its place."
        )


def check_timeout(what: str, timeout: object) -> None:
    """Refuse a time to wait that is no number of seconds."""
    if timeout is not None and (
        not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout < 0
    ):
        raise DeclarationError(f"{what}(timeout) takes seconds, not {timeout!r}.")


def check_since(since: object) -> None:
    """Refuse a moment that is no value of the monotonic clock."""
    if since is not None and (
        not isinstance(since, int | float) or isinstance(since, bool) or not math.isfinite(since)
    ):
        raise DeclarationError(
            f"latency(operator, since) takes a value of time.monotonic(), such as time.monotonic() - 30, not {since!r}."
        )


def await_any(timeout: float | None) -> bool:
    """Wait until a query has ended since the last `reset_terminated`; False when none did in time.

    Raises:
        QueryError: one of those that ended did so with an error.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with _awaited(active()), _changed:
        while not _terminated:
            # A wait without end could not be interrupted from the keyboard on every system.
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left <= 0:
                return False
            _changed.wait(left)
        ended = list(_terminated)
    for query in ended:
        query.awaitTermination(0.0)
    return True


@contextlib.contextmanager
def _awaited(queries: Sequence[Query]) -> Iterator[None]:
    """Let queries know that somebody will be handed their errors."""
    with contextlib.ExitStack() as stack:
        for query in queries:
            stack.enter_context(query.awaited())
        yield


def reset_terminated() -> None:
    """Forget the queries that have ended."""
    with _changed:
        _terminated.clear()


def await_all() -> None:
    """Wait until every query that was started has ended.

    Raises:
        QueryError: one of them ended with an error.
    """
    with _awaited(active()):
        while any(query.isActive for query in _started):
            for query in list(_started):
                query.awaitTermination(0.1 if query.isActive else 0.0)
    for query in list(_started):
        query.awaitTermination(0.0)


def stop_all() -> None:
    """Stop every query that runs: registered for the end of the process, so that a program that ends, or is ended by
    Ctrl-C, leaves a checkpoint that is given back and no lease."""
    ctrl_c.hold()
    for query in active():
        with contextlib.suppress(Exception):  # the next one is to be stopped too
            query.stop()
