"""Functions that pass at once what is in its normal form already, as nearly all is that is written.

They are made as source, once per type, because a call per field or element takes several times as long as the check
that it makes. No name and no text of a user enters the source: fields are numbered and classes come by reference. What
they do not pass they leave to the functions given, which decide what it becomes and refuse what is none.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import wraps
from operator import itemgetter
from typing import Any, Final, TypeVar

import pyarrow as pa

from penstock.dataplane.state.atoms import Misfit, Normal
from penstock.dataplane.state.held import held_struct, limits_of

T = TypeVar("T")

_NAMES: Final[dict[str, Any]] = {
    "Misfit": Misfit, "new": tuple.__new__, "date": dt.date, "datetime": dt.datetime, "UTC": dt.UTC,
}  # fmt: skip

_STORES: Final = {
    "update": "self._value = {}; self._changed = True",
    "appendValue": "(self._tail if self._items is None else self._items).append({})",
}
"""How the methods of handles that take one value store it, once it is normal."""

_CHECKS: Final = (
    (pa.types.is_boolean, "type({0}) is bool"),
    (pa.types.is_float64, "type({0}) is float"),
    (pa.types.is_string, "type({0}) is str and {0}.isascii()"),
    (pa.types.is_binary, "type({0}) is bytes"),
    (pa.types.is_date32, "type({0}) is date"),
)
"""What holds of a value, {0}, that is in its normal form."""


def pass_struct(type_: pa.StructType, fields: Sequence[Normal], normal: Normal) -> Normal:
    """Return what brings the fields of a tuple or whole dict into their form, and leaves all else to `normal`."""
    names = [f"v{at}" for at in range(len(fields))]
    parts = [
        _part(field.type, name, f"n{at}", field.nullable)
        for at, (field, name) in enumerate(zip(type_, names, strict=True))
    ]
    # A tuple of another length, a dict of other fields and what has a misfit are for `normal` to refuse or complete.
    source = f"""
def quick(value):
{_passed(type_, "return {}")}
    return by_part(value)

def by_part(given):
    try:
        value = listed(given) if type(given) is dict and len(given) == {len(names)} else given
        if isinstance(value, (tuple, list)):
            {_listed(names)} = value
            return new(made, {_listed(parts)})
    except (KeyError, ValueError, Misfit):
        pass
    return normal(given)
"""
    given = {f"n{at}": field for at, field in enumerate(fields)}
    given |= {"made": held_struct(type_), "listed": _lister([field.name for field in type_])}
    return _made(source, {**given, "normal": normal})


def pass_array(type_: pa.ListType, element: Normal, normal: Normal) -> Normal:
    """Return what makes the list of the normal elements of a list or tuple, and leaves all else to `normal`."""
    source = f"""
def quick(values):
    if type(values) is list or type(values) is tuple:
        for v in values:
            if not ({_check(type_.value_type, "v") or "False"}): break
        else:
            return list(values)
        try:
            return [{_part(type_.value_type, "v", "n", True)} for v in values]
        except Misfit:
            pass
    return normal(values)
"""
    return _made(source, {"n": element, "normal": normal})


def pass_map(type_: pa.MapType, key: Normal, item: Normal, normal: Normal) -> Normal:
    """Return what makes the dict of the normal keys and values of a dict, and leaves all else to `normal`."""
    passed = f"{_check(type_.key_type, 'k') or 'False'} and {_check(type_.item_type, 'v') or 'False'}"
    key_part, item_part = _part(type_.key_type, "k", "kn", False), _part(type_.item_type, "v", "n", True)
    source = f"""
def quick(values):
    if type(values) is dict:
        for k, v in values.items():
            if not ({passed}): break
        else:
            return values.copy()
        try:
            return {{{key_part}: {item_part} for k, v in values.items()}}
        except Misfit:
            pass
    return normal(values)
"""
    return _made(source, {"kn": key, "n": item, "normal": normal})


def passing(kind: type[T], method: str, type_: pa.DataType) -> type[T]:
    """Return the kind of handle whose `method` stores at once what is normal, and is what it was for all else."""
    statements, method_of_kind = _passed(type_, _STORES[method]), getattr(kind, method)
    if not statements:
        return kind
    source = f"""
def quick(self, value):
{statements}
    method(self, value)
"""
    made = held_struct(type_) if pa.types.is_struct(type_) else None
    quick = wraps(method_of_kind)(_made(source, {"made": made, "method": method_of_kind}))
    return type(kind.__name__, (kind,), {"__slots__": (), "__doc__": kind.__doc__, method: quick})


def _passed(type_: pa.DataType, store: str) -> str:
    """Return the statements that store a `value` that is normal and leave; none where a type has no such check."""
    if not pa.types.is_struct(type_):
        check = _check(type_, "value")
        return "" if check is None else f"    if {check}:\n        {store.format('value')}; return"
    names = [f"v{at}" for at in range(type_.num_fields)]
    checks = [_check(field.type, name) for field, name in zip(type_, names, strict=True)]
    if not checks or None in checks:
        return ""
    stored = store.format("value if kind is made else new(made, value)")
    return f"""
    kind = type(value)
    if (kind is tuple or kind is made) and len(value) == {len(names)}:
        {_listed(names)} = value
        if {" and ".join(filter(None, checks))}:
            {stored}; return
"""


def _lister(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what lists the fields of a dict in their order; KeyError where one is missing."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda given: tuple(given[name] for name in names)


def _listed(parts: Sequence[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"


def _part(type_: pa.DataType, value: str, normal: str, nullable: bool) -> str:
    """Return the expression of a part in its normal form; null of a part that is not nullable is left to `normal`."""
    called = f"{normal}({value})"
    if nullable:
        called = f"None if {value} is None else {called}"
    check = _check(type_, value)
    return f"({called})" if check is None else f"({value} if {check} else {called})"


def _check(type_: pa.DataType, value: str) -> str | None:
    """Return the expression that is true where `value` is in its normal form; None where there is none worth it."""
    if pa.types.is_integer(type_):
        lowest, highest = limits_of(type_)
        return f"type({value}) is int and {lowest} <= {value} <= {highest}"
    if pa.types.is_timestamp(type_):
        zone = "None" if type_.tz is None else "UTC"
        return f"type({value}) is datetime and {value}.tzinfo is {zone} and not {value}.fold"
    return next((check.format(value) for fits, check in _CHECKS if fits(type_)), None)


def _made(source: str, names: dict[str, Any]) -> Normal:
    scope = {**_NAMES, **names}
    exec(source, scope)
    made: Normal = scope["quick"]
    return made
