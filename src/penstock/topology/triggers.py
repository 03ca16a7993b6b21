"""When a query works and when it ends: what `trigger(...)` means here, with PySpark's arguments. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from penstock.errors import DeclarationError

_UNITS = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3_600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_REFUSED = {
    "continuous": "epochs follow one another without a pause already; leave the trigger out",
    "realTime": "epochs follow one another without a pause already; leave the trigger out",
}


@dataclass(frozen=True)
class Trigger:
    """When epochs start, and whether the query ends after what is there.

    Args:
        interval_s: shortest time between two epochs of a stage, None for the default.
        ends: how the query ends by itself after what is available at its start; None for never.
    """

    interval_s: float | None = None
    ends: str | None = None
    """once | availableNow, as the Spark query of a streaming DataFrame is told."""
    interval: str | None = None
    """The interval as it was written."""

    def for_spark(self) -> dict[str, Any]:
        """Return the arguments of `trigger(...)` for the Spark query of a streaming DataFrame."""
        if self.ends is not None:
            return {self.ends: True}
        return {"processingTime": self.interval} if self.interval is not None else {}


def read_trigger(given: dict[str, Any]) -> Trigger:
    """Return what the arguments of `trigger(...)` mean.

    Raises:
        DeclarationError: none or several of them, one that cannot be had, or a value of another kind.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise DeclarationError(
            f"trigger(...) takes one of processingTime, once and availableNow, and was given {len(named)}."
        )
    ((name, value),) = named.items()
    if name in _REFUSED:
        raise DeclarationError(f"trigger({name}=...) is not available: {_REFUSED[name]}.")
    if name in ("once", "availableNow"):
        if value is not True:
            raise DeclarationError(f"trigger({name}=...) must be True, not {value!r}.")
        return Trigger(ends=name)
    seconds = read_interval(value, "trigger(processingTime=...)")
    return Trigger(interval_s=seconds, interval=str(value)) if seconds > 0 else Trigger()


def read_interval(given: object, where: str) -> float:
    """Return the seconds of an interval as Spark writes them: "5 seconds", "1 minute 30 seconds".

    Raises:
        DeclarationError: it is none.
    """
    text = given.strip().lower() if isinstance(given, str) else ""
    text = text.removeprefix("interval ").strip()
    parts = _PART.findall(text)
    units = [_UNITS.get(unit.removesuffix("s")) for _, unit in parts]
    if not parts or None in units or _PART.sub("", text).strip(" ,"):
        raise DeclarationError(f"{where} must be an interval such as '5 seconds', not {given!r}.")
    return sum(float(number) * (unit or 0.0) for (number, _), unit in zip(parts, units, strict=True))
