"""Durations as users write them: "10 minutes", "1 hour 30 seconds", a timedelta. Parsed once, to microseconds."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from penstock.errors import DeclarationError

_UNITS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_PART: Final = re.compile(r"\s*([+-]?\d+)\s*([a-z]+)", re.IGNORECASE)


def show_duration(micros: int) -> str:
    """Return a duration as users write it: `20 seconds`, `1 hour 30 minutes`."""
    left, parts = abs(micros), []
    for unit, size in sorted(_UNITS.items(), key=lambda one: -one[1]):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{'-' if micros < 0 else ''}{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


def parse_duration(given: object, where: str) -> int:
    """Return a duration in microseconds.

    Args:
        given: a timedelta, or numbers with units from microseconds to weeks, as Spark writes intervals.
        where: names the call in errors.

    Raises:
        DeclarationError: it is none, or has months or years, which have no fixed length.
    """
    if isinstance(given, dt.timedelta):
        return round(given / dt.timedelta(microseconds=1))
    if not isinstance(given, str) or not given.strip():
        raise DeclarationError(f"{where}: {given!r} is no duration; write one as '10 minutes'.")
    text, total = given.strip(), 0
    text = text[len("interval ") :] if text.lower().startswith("interval ") else text
    at = 0
    while at < len(text.rstrip()):
        found = _PART.match(text, at)
        unit = found.group(2).lower().removesuffix("s") if found else ""
        if unit in ("month", "year"):
            raise DeclarationError(f"{where}: {given!r} has no fixed length; use days or weeks.")
        if found is None or unit not in _UNITS:
            known = ", ".join(f"{name}s" for name in _UNITS)
            raise DeclarationError(f"{where}: {given!r} is no duration; write one as '10 minutes' ({known}).")
        total += int(found.group(1)) * _UNITS[unit]
        at = found.end()
    return total
