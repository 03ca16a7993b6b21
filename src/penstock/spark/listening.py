"""Tells listeners what happens to queries: real PySpark events, one after the other, from one thread.

Queries put events in; a listener that is slow or raises holds up no query. When progress piles up behind a slow
listener the oldest of it is dropped; starts and ends never are.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError
from penstock.raised import describe_own, describe_traceback, type_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

MAX_WAITING = 1000
"""Progress events kept for listeners that are slow."""
START_WAIT_S = 5.0
"""How long a start waits for listeners to be told of it."""
_DROPPED = ("onQueryProgress", "onQueryIdle")
"""What may be dropped when too much of it waits."""
_log = logging.getLogger("penstock")


@dataclass
class Announcement:
    """One event, and the method of a listener that takes it."""

    method: str
    event: Any
    told: threading.Event = field(default_factory=threading.Event)


class Announcer:
    """Owns the listeners and the thread that calls them, which begins with the first event."""

    def __init__(self) -> None:
        self._listeners: list[StreamingQueryListener] = []
        self._waiting: deque[Announcement] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, listener: StreamingQueryListener) -> None:
        """Call this listener from now on.

        Raises:
            DeclarationError: it is no StreamingQueryListener.
        """
        from pyspark.sql.streaming.listener import StreamingQueryListener

        if not isinstance(listener, StreamingQueryListener):
            raise DeclarationError(
                "addListener(...) takes an instance of pyspark.sql.streaming.StreamingQueryListener, not "
                f"{listener!r}."
            )
        with self._changed:
            if not any(one is listener for one in self._listeners):
                self._listeners.append(listener)

    def remove(self, listener: StreamingQueryListener) -> None:
        """Call this listener no more; one that was never added is no error, as with Spark."""
        with self._changed:
            self._listeners = [one for one in self._listeners if one is not listener]

    def announce(self, method: str, event: Any) -> Announcement:
        """Have every listener's method called with an event; returns at once."""
        made = Announcement(method, event)
        with self._changed:
            if not self._listeners:
                made.told.set()
                return made
            if method in _DROPPED:
                self._drop_surplus()
            self._waiting.append(made)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="penstock-listeners", daemon=True)
                self._thread.start()
            self._changed.notify()
        return made

    def announce_and_wait(self, method: str, event: Any) -> None:
        """Have it called and wait for that; a listener that starts a query is not waited for, being the caller."""
        made = self.announce(method, event)
        if threading.current_thread() is not self._thread and not made.told.wait(START_WAIT_S):
            _log.warning("a listener has held up %s for %.0f s; it is not waited for.", method, START_WAIT_S)

    def _drop_surplus(self) -> None:
        progress = [one for one in self._waiting if one.method in _DROPPED]
        if len(progress) >= MAX_WAITING:
            self._waiting.remove(progress[0])

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                made = self._waiting.popleft()
                listeners = list(self._listeners)
            for listener in listeners:
                try:
                    getattr(listener, made.method)(made.event)
                except BaseException as error:
                    name, trace = type_name(listener), describe_traceback(error)
                    _log.error("%s.%s failed; the query goes on.\n%s", name, made.method, trace)
            made.told.set()


announcer = Announcer()
"""The one of this process."""


def started_event(id: str, run_id: str, name: str | None, timestamp: str) -> Any:
    from pyspark.sql.streaming.listener import QueryStartedEvent

    facts: dict[str, Any] = {"id": id, "runId": run_id, "name": name, "timestamp": timestamp, "jobTags": []}
    return QueryStartedEvent.fromJson(facts)


def progress_event(report: Any) -> Any:
    from pyspark.sql.streaming.listener import QueryProgressEvent

    return QueryProgressEvent(report)


def idle_event(id: str, run_id: str, timestamp: str) -> Any:
    from pyspark.sql.streaming.listener import QueryIdleEvent

    return QueryIdleEvent.fromJson({"id": id, "runId": run_id, "timestamp": timestamp})


def terminated_event(id: str, run_id: str, error: BaseException | None) -> Any:
    from pyspark.sql.streaming.listener import QueryTerminatedEvent

    facts = {
        "id": id,
        "runId": run_id,
        "exception": describe_own(error) if error is not None else None,
        "errorClassOnException": type(error).__name__ if error is not None else None,
    }
    return QueryTerminatedEvent.fromJson(facts)
