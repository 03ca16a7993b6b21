"""Time as tests step it: a clock that stands still until it is told to go on, and how tests write moments.

Reads no real clock.
"""

from __future__ import annotations

import contextlib
import datetime as dt

from penstock.errors import DeclarationError
from penstock.topology.durations import parse_duration

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def parse_time(given: object, where: str) -> int:
    """Return a moment in microseconds since 1970.

    Args:
        given: a datetime, or text such as "2026-01-01 00:10:00"; UTC where it has no zone.
        where: names the call in errors.

    Raises:
        DeclarationError: it is none.
    """
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            given = dt.datetime.fromisoformat(given)
    if not isinstance(given, dt.datetime):
        raise DeclarationError(f"{where}: {given!r} is no time; write one as '2026-01-01 00:10:00'.")
    return ((given if given.tzinfo is not None else given.replace(tzinfo=dt.UTC)) - _EPOCH) // _MICROSECOND


class ManualClock:
    """A clock that stands still until `advance` is called.

    Give it to `run` or `operator`: it is what operators see as the epoch time, and processing-time timers follow it.

    Args:
        start: where it stands at first: a datetime, or text; UTC where it has no zone.
    """

    def __init__(self, start: object = "2026-01-01 00:00:00") -> None:
        self.time_us = parse_time(start, "ManualClock(...)")
        """Where it stands, in microseconds since 1970."""

    @property
    def now(self) -> dt.datetime:
        """Where it stands, in UTC."""
        return _EPOCH + self.time_us * _MICROSECOND

    def advance(self, duration: object) -> dt.datetime:
        """Let time pass and return where the clock stands then; never calls anything.

        Args:
            duration: such as "5 minutes", or a timedelta.

        Raises:
            DeclarationError: it is no duration, or a negative one.
        """
        self.time_us += parse_positive(duration, "ManualClock.advance(...)")
        return self.now

    def __repr__(self) -> str:
        return f"ManualClock({self.now:%Y-%m-%d %H:%M:%S.%f})"


def parse_positive(given: object, where: str) -> int:
    """Return a duration that is not negative, in microseconds."""
    found = parse_duration(given, where)
    if found < 0:
        raise DeclarationError(f"{where}: time does not go back; {given!r} is negative.")
    return found
