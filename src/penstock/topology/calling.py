"""What a method of the declaration says where it is called with arguments that it has not: its name, the argument and the
one that was probably meant. Changes nothing of a call that fits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from penstock.errors import DeclarationError
from penstock.suggesting import did_you_mean

T = TypeVar("T", bound=type)


class ArgumentsError(DeclarationError, TypeError):
    """A method was called with arguments that it does not take, or without one that it needs."""


def checks_arguments(kind: T) -> T:
    """Let the public methods of a class, inherited ones included, refuse wrong arguments in its words."""
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        if not name.startswith("_") and inspect.isfunction(found):
            setattr(kind, name, _checked(found, f"{name}(...) of {kind.__name__}"))
    return kind


def _checked(method: Callable[..., Any], where: str) -> Callable[..., Any]:
    method = getattr(method, "__wrapped__", method)  # an inherited one names its heir
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            signature.bind(*given, **named)
        except TypeError:
            _refuse(signature, where, given, named)
        return method(*given, **named)

    return call


def _refuse(
    signature: inspect.Signature, where: str, given: tuple[Any, ...], named: dict[str, Any]
) -> NoReturn:
    known = list(signature.parameters.values())[1:]
    names = [one.name for one in known]
    takes = f"it takes {', '.join(names)}" if names else "it takes none"
    for name in named:
        if name not in names and not any(one.kind is one.VAR_KEYWORD for one in known):
            raise ArgumentsError(f"{where} takes no {name!r}; {did_you_mean(name, names, f'{takes}.')}")
    by_place = [one.name for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(given) - 1 > len(by_place):
        raise ArgumentsError(
            f"{where} takes {len(by_place) or 'no'} argument(s) by position, and was given {len(given) - 1}; give "
            f"others by name: {', '.join(name for name in names if name not in by_place)}."
        )
    bound = {*by_place[: len(given) - 1], *named}
    for one in known:
        needed = one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if needed and one.name not in bound:
            raise ArgumentsError(f"{where} needs {one.name!r}; {takes}.")
    raise ArgumentsError(f"{where} was given an argument twice, by position and by name; {takes}.")
