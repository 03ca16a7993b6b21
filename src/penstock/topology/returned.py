"""What a user's function gave back, as a list of rows; what is no such list is refused with what to return instead.

Knows nothing of columns: whether each row fits is said by `batches`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from penstock.raised import show

_SHOWN = 80
_TABULAR = ("DataFrame", "Table", "RecordBatch", "Series", "ndarray")


class ReturnedError(TypeError):
    """A function returned what is no list of rows; the text goes on after the name of the operator: `returned ...`."""


def returned_rows(result: Any) -> list[Any]:
    """Return the rows that a function gave back: a list, any iterable of rows, or for none None or whatever else counts as
    false, as of `return condition and [row]`.

    A generator has run to its end afterwards.

    Raises:
        ReturnedError: it is one row, a table, a coroutine or no iterable at all.
    """
    if type(result) is list:
        return result
    if result is None:
        return []
    refuse_asynchronous(result)
    if type(result).__name__ not in _TABULAR and _is_false(result):
        return []
    if isinstance(result, str | bytes | dict) or _is_row(result):
        raise ReturnedError(
            f"returned {shown(result)}, which is one row and not a list of rows; return [row]"
        )
    if type(result).__name__ in _TABULAR and not isinstance(result, list | tuple):
        raise ReturnedError(
            f"returned a {_named(result)} and not a list; return a list of tuples or dicts, [frame] where the operator "
            "gives frames, or use apply_arrow, which returns tables"
        )
    if not isinstance(result, Iterable):
        raise ReturnedError(f"returned {shown(result)}, which is no list of rows; return one, or None")
    return list(result)


def refuse_asynchronous(result: Any) -> None:
    """Refuse what an async function gives: nobody would run it.

    Raises:
        ReturnedError: it is a coroutine, another awaitable or an async generator.
    """
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        kind = "an async generator" if inspect.isasyncgen(result) else f"a {type(result).__name__}"
        raise ReturnedError(
            f"returned {kind}, which nobody awaits; write it with def instead of async def, or return "
            "asyncio.run(...) of it"
        )


def is_asynchronous(function: Any) -> bool:
    """Whether calling a function only makes a coroutine or an async generator."""
    called = getattr(type(function), "__call__", None)  # noqa: B004  (of an object that is called)
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in (inspect.unwrap(function, stop=lambda one: inspect.iscoroutinefunction(one)), called)
    )


def shown(value: object) -> str:
    """Return a value as messages show it: cut short, and whatever its `repr` does."""
    text = show(value, _SHOWN)
    return f"a {_named(value)}" if "\n" in text or " at 0x" in text else text


def _is_false(result: Any) -> bool:
    try:
        return not result
    except Exception:  # it does not say
        return False


def _is_row(result: Any) -> bool:
    """Whether a tuple stands for one row: it is a named one, or holds what is no row."""
    if not isinstance(result, tuple) or not result:
        return False
    return (
        hasattr(result, "_fields")
        or hasattr(result, "__fields__")
        or not isinstance(result[0], tuple | list | dict)
    )


def _named(value: object) -> str:
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
