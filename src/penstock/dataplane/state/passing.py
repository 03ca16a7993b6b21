"""Functions that pass at once what is in its normal form already, as nearly all is that is written.

They are made as source, once per type, because a call per field or element takes several times as long as the check
that it makes. No name and no text of a user enters the source: fields are numbered and classes come by reference. What
they do not pass they leave to the functions given, which decide what it becomes and refuse what is none.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.dataplane.state.atoms import Misfit, Normal
from penstock.dataplane.state.held import held_struct, limits_of

_NAMES: Final[dict[str, Any]] = {
    "Misfit": Misfit, "new": tuple.__new__, "date": dt.date, "datetime": dt.datetime, "UTC": dt.UTC,
}  # fmt: skip

_CHECKS: Final = (
    (pa.types.is_boolean, "type({0}) is bool"),
    (pa.types.is_float64, "type({0}) is float"),
    (pa.types.is_string, "type({0}) is str and {0}.isascii()"),
    (pa.types.is_binary, "type({0}) is bytes"),
    (pa.types.is_date32, "type({0}) is date"),
)
"""What holds of a value that is in its normal form. Types that are not here have no check that is worth it."""


def pass_struct(type_: pa.StructType, fields: Sequence[Normal], normal: Normal) -> Normal:
    """Return what brings tuples into the form of a struct, field by field, and leaves all else to `normal`."""
    names = [f"v{at}" for at in range(len(fields))]
    parts = [
        _part(field.type, name, f"n{at}", field.nullable)
        for at, (field, name) in enumerate(zip(type_, names, strict=True))
    ]
    # A tuple of another length, or one with a misfit, is for `normal` to refuse.
    source = f"""
def quick(value):
    if type(value) is tuple or type(value) is made or isinstance(value, (tuple, list)):
        try:
            {"".join(f"{name}, " for name in names)} = value
            return new(made, ({"".join(f"{part}, " for part in parts)}))
        except (ValueError, Misfit):
            pass
    return normal(value)
"""
    given = {f"n{at}": field for at, field in enumerate(fields)}
    return _made(source, {**given, "made": held_struct(type_), "normal": normal})


def pass_array(type_: pa.ListType, element: Normal) -> Normal:
    """Return what makes the list of normal elements of a list or tuple; raises `Misfit` without its place."""
    source = f"""
def quick(values):
    return [{_part(type_.value_type, "v", "n", True)} for v in values]
"""
    return _made(source, {"n": element})


def pass_map(type_: pa.MapType, key: Normal, item: Normal) -> Normal:
    """Return what makes the dict of normal keys and values of pairs; raises `Misfit` without its place."""
    key_part, item_part = _part(type_.key_type, "k", "kn", False), _part(type_.item_type, "v", "n", True)
    source = f"""
def quick(pairs):
    return {{{key_part}: {item_part} for k, v in pairs}}
"""
    return _made(source, {"kn": key, "n": item})


def _part(type_: pa.DataType, value: str, normal: str, nullable: bool) -> str:
    """Return the expression of a part in its normal form; null of a part that is not nullable is left to `normal`."""
    called = f"{normal}({value})"
    if nullable:
        called = f"None if {value} is None else {called}"
    check = _check(type_)
    return f"({called})" if check is None else f"({value} if {check.format(value)} else {called})"


def _check(type_: pa.DataType) -> str | None:
    if pa.types.is_integer(type_):
        lowest, highest = limits_of(type_)
        return f"type({{0}}) is int and {lowest} <= {{0}} <= {highest}"
    if pa.types.is_timestamp(type_):
        zone = "None" if type_.tz is None else "UTC"
        return f"type({{0}}) is datetime and {{0}}.tzinfo is {zone} and not {{0}}.fold"
    return next((check for fits, check in _CHECKS if fits(type_)), None)


def _made(source: str, names: dict[str, Any]) -> Normal:
    scope = {**_NAMES, **names}
    exec(source, scope)
    made: Normal = scope["quick"]
    return made
