"""How sentences say numbers and times: the right plural, and long lists cut short. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

LISTED = 8
"""Things that a sentence names at most."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 lease`, `2 leases`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(things: Iterable[object], most: int = LISTED) -> str:
    """Return things separated by commas; of many, the first ones and how many more there are."""
    found = [str(one) for one in things]
    if len(found) <= most:
        return ", ".join(found)
    return f"{', '.join(found[:most])} and {len(found) - most:,} more"


def in_local_time(unix_s: float) -> str:
    """Return a moment as the clock on the wall has it: `2026-11-18 20:52:36`."""
    try:
        return datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # what somebody else wrote into a file may be any number
        return f"second {unix_s:g}"
