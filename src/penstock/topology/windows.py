"""Windows over event time as a user declares them, with PySpark's names. Checked here; no engine.

A window is a half-open range [start, end) of event time. Tumbling and sliding windows stand on a grid that is the
same for all keys; a session is what lies together with pauses shorter than its gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.durations import parse_duration
from penstock.topology.expressions import nearest
from penstock.topology.type_words import type_words

APPEND: Final = "append"
UPDATE: Final = "update"


@dataclass(frozen=True)
class Window:
    """A window to group by. Made by `window` and `session_window`."""

    column: str
    size_us: int
    """Of a session: its gap."""
    slide_us: int = 0
    offset_us: int = 0
    session: bool = False
    name: str = "window"

    def alias(self, name: str) -> Window:
        """Return the same window with another output column name."""
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"alias(...) of {self.name!r} takes a column name, not {name!r}.")
        return replace(self, name=name)

    @property
    def per_row(self) -> int:
        """How many windows a row belongs to, at most."""
        return 1 if self.session else -(-self.size_us // self.slide_us)

    def identity(self) -> dict[str, object]:
        """Return what must not change across restarts, JSON-able."""
        kind = "session_window" if self.session else "window"
        return {
            "kind": kind,
            "column": self.column,
            "size": self.size_us,
            "slide": self.slide_us,
            "offset": self.offset_us,
        }

    def field(self, schema: pa.Schema) -> pa.Field:
        """Return the output column: a struct of start and end, of the type of the time column."""
        time = pa.timestamp("us", schema.field(self.column).type.tz)
        return pa.field(self.name, pa.struct([("start", time), ("end", time)]), nullable=False)


def window(
    timeColumn: str, windowDuration: str, slideDuration: str | None = None, startTime: str | None = None
) -> Window:
    """Group rows into windows of a fixed length: tumbling, or sliding where `slideDuration` is given.

    Args:
        timeColumn: a timestamp or timestamp_ntz column; a row in which it is null belongs to no window.
        windowDuration: such as "10 minutes".
        slideDuration: how far the next window starts after this one; at most `windowDuration`.
        startTime: shift of all window starts from 1970-01-01 00:00:00 UTC; shorter than the slide, may be negative.

    Raises:
        DeclarationError: a duration is none, not positive, or does not fit the others.
    """
    _require_column(timeColumn, "window")
    size = parse_duration(windowDuration, f"windowDuration of window({timeColumn!r}, ...)")
    where = f"window({timeColumn!r}, {windowDuration!r})"
    slide = size if slideDuration is None else parse_duration(slideDuration, f"slideDuration of {where}")
    offset = 0 if startTime is None else parse_duration(startTime, f"startTime of {where}")
    for name, micros, text in (
        ("windowDuration", size, windowDuration),
        ("slideDuration", slide, slideDuration),
    ):
        if micros <= 0:
            raise DeclarationError(f"{where}: {name} must be longer than nothing, not {text!r}.")
    if slide > size:
        raise DeclarationError(
            f"{where}: slideDuration {slideDuration!r} is longer than the window, so that rows between two windows "
            "would be lost; make it at most windowDuration."
        )
    if abs(offset) >= slide:
        raise DeclarationError(
            f"{where}: startTime {startTime!r} must be shorter than the slide; windows repeat after that anyway."
        )
    return Window(timeColumn, size, slide, offset)


def session_window(timeColumn: str, gapDuration: str) -> Window:
    """Group rows of a key into sessions: a row belongs to the session before it if it comes within `gapDuration`.

    A session starts with its first row and ends `gapDuration` after its last.

    Raises:
        DeclarationError: the gap is no duration, or not positive.
    """
    _require_column(timeColumn, "session_window")
    gap = parse_duration(gapDuration, f"gapDuration of session_window({timeColumn!r}, ...)")
    if gap <= 0:
        raise DeclarationError(
            f"session_window({timeColumn!r}, ...): gapDuration must be longer than nothing, not {gapDuration!r}."
        )
    return Window(timeColumn, gap, session=True, name="session_window")


def _require_column(column: object, what: str) -> None:
    if not isinstance(column, str) or not column:
        raise DeclarationError(f"{what}(timeColumn, ...) takes the name of a column, not {column!r}.")


def split_grouping(columns: Sequence[object], schema: pa.Schema, producer: str) -> tuple[Window, int]:
    """Return the window among the columns of a groupBy, and its place.

    Raises:
        DeclarationError: there are two, or its time column is unknown or holds no timestamps.
    """
    places = [at for at, column in enumerate(columns) if isinstance(column, Window)]
    if len(places) > 1:
        raise DeclarationError(
            f"groupBy(...) on '{producer}' has {len(places)} windows; group by one, and use another operator for the "
            "other."
        )
    found = columns[places[0]]
    assert isinstance(found, Window)
    if found.column not in schema.names:
        raise DeclarationError(
            f"{found.name}(...): '{producer}' has no column '{found.column}', it has {', '.join(schema.names)}"
            f"{nearest(found.column, schema.names)}."
        )
    type_ = schema.field(found.column).type
    if not pa.types.is_timestamp(type_):
        raise DeclarationError(
            f"{found.name}(...): column '{found.column}' of '{producer}' has type {type_words(type_)}, not timestamp; cast "
            "it with withColumn(...) first."
        )
    return found, places[0]


def check_output_mode(
    operator: str, window: Window, aggregated: bool, mode: str | None, event_time: str | None
) -> str:
    """Return the output mode of a windowed operator, append where none was given.

    Args:
        event_time: the column with the watermark that reaches the operator, if any.

    Raises:
        DeclarationError: the mode cannot be had.
    """
    chosen = mode or APPEND
    if chosen == UPDATE and window.session:
        raise DeclarationError(
            f"operator '{operator}': outputMode 'update' is not available for sessions, because two of them can become "
            "one; use 'append'."
        )
    if chosen == UPDATE and not aggregated:
        raise DeclarationError(
            f"operator '{operator}': outputMode 'update' is not available for functions over windows, which are called "
            "when a window closes; use 'append'."
        )
    if event_time is not None and event_time != window.column:
        raise DeclarationError(
            f"operator '{operator}': its windows are over '{window.column}' and the watermark is on '{event_time}'; "
            f"call withWatermark('{window.column}', ...)."
        )
    if chosen == APPEND and event_time is None:
        advice = "" if window.session or not aggregated else ", or outputMode('update') on the writer"
        raise DeclarationError(
            f"operator '{operator}': without a watermark no window ever closes; call "
            f"withWatermark('{window.column}', \"10 minutes\") before groupBy(...){advice}."
        )
    return chosen
