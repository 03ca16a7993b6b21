"""Times in what a processor is given and gives back: as PySpark's, in the time zone of the session.

Inside, time stamps are in UTC. Rows and their keys hold times with the session's zone, frames times without one that are
the session's wall times, when they go in and when they come back. Touches no state.
"""

from __future__ import annotations

import datetime as dt
import re
import time
import zoneinfo
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from penstock.errors import SessionError

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?")

Convert = Callable[[Any], Any]


def zone_named(name: str) -> dt.tzinfo:
    """Return a time zone as Spark names it: `Europe/Berlin`, `+05:30`, `GMT+8`.

    Raises:
        SessionError: Python knows none of this name.
    """
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign, hours, minutes = offset.groups(default="0")
        ahead = dt.timedelta(hours=int(hours), minutes=int(minutes))
        return dt.timezone(-ahead if sign == "-" else ahead)
    if name in ("UTC", "Etc/UTC", "GMT", "UT", "Z"):
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise SessionError(
            f"spark.sql.session.timeZone is {name!r}, which Python does not know; set a name such as "
            "'America/Los_Angeles', or an offset such as '+05:30'"
        ) from None


class Zone:
    """A time zone by name; None is this machine's."""

    def __init__(self, name: str | None) -> None:
        self._zone = None if name is None else zone_named(name)
        if name is None and time.timezone == 0 and not time.daylight:
            self._zone = dt.UTC
        self.is_utc = self._zone is dt.UTC

    def aware(self, value: dt.datetime) -> dt.datetime:
        """Return a time of any zone in this one."""
        return value.astimezone(self._zone)

    def wall(self, value: dt.datetime) -> dt.datetime:
        """Return a time of any zone as what clocks show in this one."""
        return value.astimezone(self._zone).replace(tzinfo=None)

    def from_wall(self, value: Any) -> Any:
        """Return a time that has no zone as one of this one; anything else as it is."""
        if not isinstance(value, dt.datetime) or value.tzinfo is not None:
            return value
        return value.astimezone() if self._zone is None else value.replace(tzinfo=self._zone)

    def for_pandas(self) -> Any:
        """Return the zone as pandas takes it, with its summer times."""
        if self._zone is not None:
            return self._zone
        from dateutil.tz import tzlocal

        return tzlocal()


def times_in(type_: pa.DataType, convert: Convert) -> Convert | None:
    """Return what converts the time stamps anywhere in a value of a type; None where it has none.

    Structs may be tuples or dicts, maps dicts or lists of pairs.
    """
    if pa.types.is_timestamp(type_):
        return convert if type_.tz is not None else None
    if pa.types.is_list(type_):
        element = times_in(type_.value_type, convert)
        return None if element is None else lambda values: [v if v is None else element(v) for v in values]
    if pa.types.is_map(type_):
        key, item = times_in(type_.key_type, convert), times_in(type_.item_type, convert)
        return None if key is None and item is None else lambda given: _in_map(given, key, item)
    if pa.types.is_struct(type_):
        fields = {field.name: times_in(field.type, convert) for field in type_}
        if any(fields.values()):
            return lambda given: _in_struct(given, fields)
    return None


def _in_map(given: Any, key: Convert | None, item: Convert | None) -> Any:
    pairs = [
        (k if key is None or k is None else key(k), v if item is None or v is None else item(v))
        for k, v in (given.items() if isinstance(given, dict) else given)
    ]
    return dict(pairs) if isinstance(given, dict) else pairs


def _in_struct(given: Any, fields: dict[str, Convert | None]) -> Any:
    if isinstance(given, dict):
        return {
            name: value if value is None or (convert := fields.get(name)) is None else convert(value)
            for name, value in given.items()
        }
    if not isinstance(given, (tuple, list)) or len(given) != len(fields):
        return given  # it is refused where it is stored
    return tuple(
        value if value is None or convert is None else convert(value)
        for value, convert in zip(given, fields.values(), strict=True)
    )
