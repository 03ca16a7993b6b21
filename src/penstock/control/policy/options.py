"""Options of policies: each is of the kind its policy declares, in the range that it names, or refused with both.

A policy calls `check_options` when it is made; texts of the command line and arguments of a program come the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args, get_type_hints

from penstock.errors import DeclarationError


@dataclass(frozen=True)
class Range:
    """Numbers that an option may be."""

    says: str
    holds: Callable[[float], bool]


POSITIVE = Range("above 0 and finite", lambda value: 0 < value < math.inf)
NOT_NEGATIVE = Range("zero or more and finite", lambda value: 0 <= value < math.inf)
SHARE = Range("at least 0 and below 1", lambda value: 0 <= value < 1)
RATIO = Range("above 0 and at most 1", lambda value: 0 < value <= 1)
COUNT = Range("at least 1", lambda value: 1 <= value < math.inf)
ABOVE_ONE = Range("above 1", lambda value: 1 < value < math.inf)

_KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    float: (
        "a number",
        lambda value: isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value),
    ),
}


def check_options(policy: Any, **ranges: Range) -> None:
    """Refuse options of another kind than declared, numbers that are none, and numbers out of their range.

    Args:
        policy: a dataclass with a `name`; fields that begin with an underscore are its own business.
        ranges: option -> what it may be. An option that may be None and is, is in range.

    Raises:
        DeclarationError: with the option's name and what is allowed.
    """
    hints = get_type_hints(type(policy))
    for option in fields(policy):
        if option.init and not option.name.startswith("_"):
            allowed = ranges.get(option.name)
            _check(policy.name, option.name, getattr(policy, option.name), hints[option.name], allowed)


def _check(policy: str, option: str, value: Any, hint: Any, allowed: Range | None) -> None:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return
    known = [_KINDS[kind] for kind in kinds if kind in _KINDS]
    says, fits = known[0] if known else (_name(kinds), lambda one: isinstance(one, kinds))
    if not fits(value):
        said = f"{says}, {allowed.says}" if allowed is not None else says
        raise DeclarationError(f"{policy}: {option} must be {said}, not {value!r}.")
    if allowed is not None and not allowed.holds(value):
        raise DeclarationError(f"{policy}: {option} must be {allowed.says}, not {value!r}.")


def _name(kinds: tuple[Any, ...]) -> str:
    return " or ".join("text" if kind is str else f"a {kind.__name__}" for kind in kinds)
