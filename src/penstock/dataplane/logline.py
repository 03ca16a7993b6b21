"""The line of records on their way to the log: what was asked for, what is durable, when the next base is due.

Owns the order of appends and the number of the log part. A base waits until everything before it is durable, and
records that come meanwhile wait for the base, so that a part begins with all that happened before it. Does no
I/O: it asks the shell, and is told when that is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.dataplane import records
from penstock.dataplane.records import Record
from penstock.dataplane.run import Run


class Appender(Protocol):
    """Makes records durable."""

    def append(self, encoded: Sequence[bytes]) -> None:
        """Make these records durable in order; answered by `on_appended`."""

    def start_part(self, base: records.Base) -> None:
        """Begin a log part with this base, after all appends asked for; answered by `on_part_started`."""


@dataclass
class Pending:
    """A record on its way to the log."""

    record: Record
    encoded: bytes
    run: Run


class LogLine:
    """Hands records and bases to the log in order.

    Args:
        make_base: makes the base of a part, given its number, from what is published now.
        interval_s: time between two bases, of a query that commits anything.
    """

    def __init__(self, log: Appender, make_base: Callable[[int], records.Base], interval_s: float) -> None:
        self.part = 0
        """Number of the newest part, begun or about to be; 0 before the first."""
        self._log = log
        self._make_base = make_base
        self._interval_s = interval_s
        self._inflight: deque[Pending] = deque()
        self._held: deque[Pending] = deque()
        self._due = False
        self._running = False
        self._next_at = 0.0
        self._wanted_at: float | None = None
        self._since_base = 0

    @property
    def empty(self) -> bool:
        """Whether no record is on its way."""
        return not self._inflight and not self._held

    @property
    def begins(self) -> bool:
        """Whether the first base is not durable yet."""
        return self.part == 0 or (self.part == 1 and self._running)

    def under_way(self) -> Iterator[Pending]:
        yield from self._inflight
        yield from self._held

    def submit(self, pending: Pending) -> None:
        """Hand on a record, after the base if one is due."""
        if self._due or self._running:
            self._held.append(pending)
        else:
            self._append([pending])

    def pop_durable(self, count: int) -> Iterator[Pending]:
        """Yield the oldest records, which are durable now, one by one."""
        for _ in range(count):
            yield self._inflight.popleft()

    def start_base_if_due(self, now: float) -> None:
        """Begin the next part when it is time and nothing is in flight; an idle query begins none."""
        waiting = self._due or self._running or not self.part
        wanted = self._wanted_at is not None and now >= self._wanted_at
        if not waiting and (wanted or (self._since_base > 0 and now >= self._next_at)):
            self._due = True
        if self._due and not self._inflight and not self._running:
            self.start_base()

    def want_base(self, at: float) -> None:
        """Let the next part begin at this time at the latest, records or not."""
        self._wanted_at = at if self._wanted_at is None else min(at, self._wanted_at)

    @property
    def owes_base(self) -> bool:
        """Whether a base that was wanted is not durable yet."""
        return self._wanted_at is not None or self._due or self._running

    def start_base(self) -> None:
        """Begin the next part with what is published now."""
        self._due, self._running, self._since_base, self._wanted_at = False, True, 0, None
        self.part += 1
        self._log.start_part(self._make_base(self.part))

    def part_started(self, now: float) -> None:
        """The base is durable; what waited for it goes on."""
        self._running = False
        self._next_at = now + self._interval_s
        held, self._held = self._held, deque()
        self._append(list(held))

    def _append(self, pending: list[Pending]) -> None:
        if pending:
            self._since_base += len(pending)
            self._inflight.extend(pending)
            self._log.append([item.encoded for item in pending])
