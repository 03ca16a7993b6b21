"""When a query works and when it ends: what `trigger(...)` means here, with PySpark's arguments. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import DeclarationError
from penstock.topology.durations import parse_duration

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
    """The interval as Spark reads it."""

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
    interval_us = parse_duration(value, "trigger(processingTime=...)")
    if interval_us < 0:
        raise DeclarationError(f"trigger(processingTime=...) must not be negative: {value!r}.")
    return (
        Trigger(interval_s=interval_us / 1e6, interval=f"{interval_us} microseconds")
        if interval_us
        else Trigger()
    )
