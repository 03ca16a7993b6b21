"""Checks of the functions that a user gives: that they are some, and that they can be called the way they will be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import DeclarationError
from penstock.topology.returned import is_asynchronous


def check_function(function: Any, parameters: Sequence[str], where: str) -> Callable[..., Any]:
    """Return a function that takes these parameters by position.

    One whose signature cannot be had, as of some built-in functions, is taken as it is.

    Raises:
        DeclarationError: it is no function, or cannot be called with these; names the place.
    """
    called = f"({', '.join(parameters)})"
    if not callable(function):
        raise DeclarationError(f"{where} takes a function {called}, not {function!r}.")
    if is_asynchronous(function):
        raise DeclarationError(
            f"{where}: {getattr(function, '__name__', type(function).__name__)} is an async function, which nobody awaits; "
            "write it with def, and call asyncio.run(...) inside where it has to wait for something."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function  # type: ignore[no-any-return]
    try:
        signature.bind(*parameters)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise DeclarationError(
            f"{where} calls its function with {called}, and {name} takes {signature}; give it these parameters."
        ) from None
    return function  # type: ignore[no-any-return]
