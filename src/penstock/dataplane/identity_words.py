"""How messages say what a checkpoint knows of an operator: its kind, windows, aggregates, as users declare them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.topology.durations import show_duration

_KINDS: Final = {
    "rows": "a row function (apply_rows)",
    "arrow": "a vectorised function (apply_arrow)",
    "aggregates": "aggregates (agg, count, ...)",
    "windowed": "an operator of windows",
    "cogrouped": "a cogroup",
    "broadcast": "a function beside a broadcast",
    "processor": "a processor",
    "station": "a station",
}


def say_change(part: str, was: Any, now: Any) -> str:
    """Return what became of one part of an operator's identity, and what to do about it."""
    if part == "kind":
        return f"it was {_kind(was)} and is {_kind(now)}; change it back"
    if part == "window" and was and now:
        return f"it was grouped by {say_window(was)} and is by {say_window(now)}; change it back"
    if part == "aggregates" and was and now:
        with_types = [one[:2] for one in was] == [one[:2] for one in now]
        before, after = (", ".join(say_aggregate(one, with_types) for one in all_) for all_ in (was, now))
        return f"its aggregates were {before} and are {after}; declare the same ones in the same order"
    return f"its {part} was {_plain(was)} and is {_plain(now)}; change it back"


def say_window(identity: Mapping[str, Any]) -> str:
    """Return a window as it is declared: `window('ts', '20 seconds')`."""
    size, slide, offset = identity["size"], identity.get("slide", 0), identity.get("offset", 0)
    given = [repr(identity["column"]), repr(show_duration(size))]
    if identity["kind"] == "window" and (slide != size or offset):
        given.append(repr(show_duration(slide)))
    if offset:
        given.append(repr(show_duration(offset)))
    return f"{identity['kind']}({', '.join(given)})"


def say_aggregate(identity: Sequence[Any], with_type: bool = False) -> str:
    """Return an aggregate as it is declared: `sum('amount')`."""
    kind, column, type_, n = identity
    given = [repr(column)] if column else []
    given += [str(n)] if n else []
    kind = "count" if kind == "count_rows" else kind
    return f"{kind}({', '.join(given)}){f' of {type_}' if with_type and column else ''}"


def _kind(kind: object) -> str:
    return _KINDS.get(str(kind), "stateless" if kind is None else repr(kind))


def _plain(value: Any) -> str:
    if value is None:
        return "not there"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else repr(value)
