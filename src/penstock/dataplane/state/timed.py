"""What the state of a key offers a function with timers: the clocks, and the timers of its key.

Times are datetimes in UTC on this side and microseconds on the other; a datetime without a zone is taken as UTC.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from penstock.dataplane.keys.canonical import EPOCH_UTC
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.timers import EPOCH_TIMERS, EVENT_TIMERS, TimerColumn
from penstock.errors import DeclarationError

_LATEST: Final = dt.datetime.max.replace(tzinfo=dt.UTC)
_MICRO: Final = dt.timedelta(microseconds=1)


class Timing:
    """The clocks of one epoch, and the timer that fires.

    Args:
        watermarked: whether a watermark comes to the operator.
    """

    def __init__(self, operator: str, watermarked: bool) -> None:
        self.operator, self.watermarked = operator, watermarked
        self.columns: Mapping[str, TimerColumn] = {}
        self.now_us = 0
        self.watermarks: dict[int, int | None] = {}
        self.firing: tuple[str, int] | None = None

    def begin(self, now_us: int, watermarks: Iterable[tuple[int, int | None]]) -> None:
        """Set the clocks: the epoch time, and the watermark of each shard."""
        self.now_us, self.watermarks, self.firing = now_us, dict(watermarks), None


class TimedKeyState(KeyState):
    """The state of one key, with timers; made by a subclass that has the declared states as slots."""

    __slots__ = ()
    _timing: ClassVar[Timing]

    @property
    def now(self) -> dt.datetime:
        """The epoch time: the one clock of the operator, the same in every replay."""
        return datetime_of(self._timing.now_us)

    @property
    def watermark(self) -> dt.datetime | None:
        """The watermark after the rows of this epoch; None while there is none, and the year 9999 when the input has
        ended."""
        micros = self._timing.watermarks.get(self._shard)
        return None if micros is None else datetime_of(micros)

    def set_timer(self, when: dt.datetime, *, processing: bool = False) -> None:
        """Have `on_timer` called for this key when the watermark has reached `when`, or with `processing` the epoch
        time. A timer that is set already stays one timer; one that is due already fires at the end of this epoch.

        Raises:
            DeclarationError: by event time, and no watermark comes to the operator.
            ValueError: a timer that fires sets another one that is not later.
        """
        if not processing and not self._timing.watermarked:
            raise DeclarationError(
                f"operator '{self._timing.operator}': a timer by event time never fires without a watermark; call "
                "withWatermark(...) before groupBy(...), or set_timer(when, processing=True)."
            )
        kind, micros = _kind(processing), micros_of(when)
        firing = self._timing.firing
        if firing is not None and firing[0] == kind and micros <= firing[1]:
            raise ValueError(f"a timer at {datetime_of(firing[1])} can only set later ones, not {when}")
        self._timing.columns[kind].register(self, micros)

    def delete_timer(self, when: dt.datetime, *, processing: bool = False) -> None:
        """Take a timer of this key back; without effect when there is none."""
        self._timing.columns[_kind(processing)].delete(self, micros_of(when))

    def timers(self, *, processing: bool = False) -> list[dt.datetime]:
        """Return the timers of this key, in order of time."""
        return [datetime_of(micros) for micros in self._timing.columns[_kind(processing)].of(self)]


def timed_state_class(timing: Timing) -> type[TimedKeyState]:
    """Return the class of key states that read these clocks."""
    made: type[TimedKeyState] = type("TimedKeyState", (TimedKeyState,), {"__slots__": (), "_timing": timing})
    return made


def micros_of(when: Any) -> int:
    """Return the microseconds since 1970 of a datetime."""
    if not isinstance(when, dt.datetime):
        raise TypeError(f"a timer takes a datetime, not {when!r}")
    return (when.replace(tzinfo=when.tzinfo or dt.UTC) - EPOCH_UTC) // _MICRO


def datetime_of(micros: int) -> dt.datetime:
    """Return a time in UTC; the latest there is where Python has none."""
    try:
        return EPOCH_UTC + dt.timedelta(microseconds=micros)
    except OverflowError:
        return _LATEST


def _kind(processing: bool) -> str:
    return EPOCH_TIMERS if processing else EVENT_TIMERS
