"""The reports of a running query: made from two readings of its counters, kept for a while, told to listeners.

Whoever only watches must not end a query: what goes wrong in a report is logged. Reads through what it is given, never the
engine itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.spark import listening
from penstock.spark.listening import announcer
from penstock.spark.progress import MIN_SPAN_S, Identity, Reading, make_report

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_log = logging.getLogger("penstock")
KEPT = 100
"""Reports that are kept."""


class Reports:
    """The reports of one query.

    Args:
        read: reads the counters now; None where nothing can be read.
        is_active: whether the query runs.
    """

    def __init__(
        self, identity: Identity, read: Callable[[], Reading | None], is_active: Callable[[], bool]
    ) -> None:
        self.identity = identity
        self._read = read
        self._is_active = is_active
        self._kept: deque[StreamingQueryProgress] = deque(maxlen=KEPT)
        self._readings: deque[Reading] = deque(maxlen=2)
        """Of the two newest reports, for what happened since."""
        self._ended = False

    def kept(self) -> list[StreamingQueryProgress]:
        """Return the last reports, oldest first."""
        return list(self._kept)

    def newest(self) -> StreamingQueryProgress | None:
        """Return the last report; None where there is none yet."""
        return self._kept[-1] if self._kept else None

    def as_of_now(self) -> StreamingQueryProgress | None:
        """Return a report as of now, which is not kept; the last one, once the query has ended."""
        if self._ended:
            return self._kept[-1]
        now = self._read()
        if now is None:
            return self.newest()
        return make_report(now, self._reading_before(now), self.identity)

    def _reading_before(self, now: Reading) -> Reading | None:
        """The newest reading that is old enough for a rate, the oldest there is otherwise."""
        known = list(self._readings)
        old = [one for one in known if now.at - one.at >= MIN_SPAN_S]
        return old[-1] if old else known[0] if known else None

    def begin(self) -> None:
        """Take the reading that the first report counts from."""
        first = self._read()
        if first is not None:
            self._readings.append(first)

    def add(self) -> None:
        """Make a report, keep it and tell listeners."""
        try:
            self._add()
        except Exception:
            name = self.identity.name or self.identity.id
            _log.exception("a report of query %s failed; the query goes on.", name)

    def end(self) -> None:
        """Make the last report."""
        self.add()
        self._ended = bool(self._kept)

    def _add(self) -> None:
        now = self._read()
        if now is None:
            return
        before = self._readings[-1] if self._readings else None
        report = make_report(now, before, self.identity)
        self._readings.append(now)
        self._kept.append(report)
        if before is None or _epochs(now) != _epochs(before):
            announcer.announce("onQueryProgress", listening.progress_event(report))
        elif self._is_active():
            idle = listening.idle_event(self.identity.id, self.identity.run_id, report["timestamp"])
            announcer.announce("onQueryIdle", idle)


def _epochs(reading: Reading) -> list[int]:
    """What moves when anything happens."""
    parts = (reading.facts[part] for part in ("inputs", "operators", "outputs"))
    return [facts["epoch"] for part in parts for facts in part.values()]
