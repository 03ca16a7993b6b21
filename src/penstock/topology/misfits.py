"""Why a value is none of a type, in words of columns and Python types rather than of Arrow and msgpack. Pure; asked only
after something did not fit.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.topology.returned import shown
from penstock.topology.types import ddl_of

_TAKES: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...], str]] = [
    (pa.types.is_boolean, (bool, np.bool_), "True or False"),
    (pa.types.is_integer, (int, np.integer), "an int"),
    (pa.types.is_floating, (float, int, np.floating, np.integer), "a float"),
    (pa.types.is_string, (str,), "a str"),
    (pa.types.is_binary, (bytes, bytearray), "bytes"),
    (pa.types.is_timestamp, (dt.datetime, np.datetime64), "a datetime.datetime"),
    (pa.types.is_date32, (dt.date, np.datetime64), "a datetime.date"),
    (pa.types.is_time64, (dt.time,), "a datetime.time"),
    (pa.types.is_duration, (dt.timedelta, np.timedelta64), "a datetime.timedelta"),
    (pa.types.is_decimal128, (decimal.Decimal, int), "a decimal.Decimal"),
]


def explain_misfit(value: Any, type_: pa.DataType) -> str | None:
    """Return why a value is none of the type, as the end of a sentence; None where nothing is seen.

    Null is of every type here: whether it may stand is said elsewhere.
    """
    if value is None:
        return None
    odd = _odd(value)
    if odd is not None:
        return odd
    if pa.types.is_struct(type_):
        return _of_struct(value, list(type_))
    if pa.types.is_list(type_):
        return _of_list(value, type_)
    if pa.types.is_map(type_):
        return _of_map(value, type_)
    return _of_atom(value, type_)


def _odd(value: Any) -> str | None:
    """What is seldom meant as a value of any type."""
    if type(value).__module__.startswith("penstock.dataplane.state"):
        return "it is the state itself; take what it holds, with its get()"
    if type(value).__name__ == "coroutine":
        return "it is a coroutine, which nobody awaits; call functions that are no async def"
    return None


def _of_struct(value: Any, fields: list[pa.Field]) -> str | None:
    names = ", ".join(field.name for field in fields)
    if isinstance(value, dict):
        unknown = [shown(key) for key in value if key not in {field.name for field in fields}]
        if unknown:
            return f"the struct has no field {', '.join(unknown)}; it has {names}"
        pairs = [(field, value.get(field.name)) for field in fields]
    elif not isinstance(value, tuple | list):
        return (
            f"a struct is a tuple or dict of its {_counted(len(fields), 'field')} {names}, not {_type(value)}"
        )
    elif len(value) != len(fields):
        return f"it has {_counted(len(value), 'value')} for the {_counted(len(fields), 'field')} {names}"
    else:
        pairs = list(zip(fields, value, strict=True))
    for field, one in pairs:
        if one is None and not field.nullable:
            return f"its field {field.name!r} is NOT NULL and has no value"
        if (told := explain_misfit(one, field.type)) is not None:
            return f"in its field {field.name!r}, {told}"
    return None


def _of_list(value: Any, type_: pa.DataType) -> str | None:
    if not isinstance(value, list | tuple | np.ndarray):
        return f"an array is a list, not {_type(value)}"
    told = ((at, explain_misfit(one, type_.value_type)) for at, one in enumerate(value))
    return next((f"in its element {at}, {why}" for at, why in told if why is not None), None)


def _of_map(value: Any, type_: pa.DataType) -> str | None:
    if not isinstance(value, dict):
        return None if isinstance(value, list | tuple) else f"a map is a dict, not {_type(value)}"
    for key, item in value.items():
        if (told := explain_misfit(key, type_.key_type)) is not None:
            return f"in its key {shown(key)}, {told}"
        if (told := explain_misfit(item, type_.item_type)) is not None:
            return f"under its key {shown(key)}, {told}"
    return None


def _of_atom(value: Any, type_: pa.DataType) -> str | None:
    kinds, takes = next(((kinds, takes) for fits, kinds, takes in _TAKES if fits(type_)), (None, ""))
    if kinds is None:
        return None
    takes = f"a {ddl_of(type_)} takes {takes}"
    if isinstance(value, tuple) and len(value) == 1:
        return f"{takes}, and this is a tuple with one; take it out, as key[0] does"
    is_flag = isinstance(value, bool | np.bool_)
    if not isinstance(value, kinds) or (is_flag and not pa.types.is_boolean(type_)):
        return f"{takes}, not {shown(value)}, {_type(value)}"
    if pa.types.is_date32(type_) and isinstance(value, dt.datetime):
        return None
    if pa.types.is_integer(type_) and not _in_range(value, type_):
        return f"{shown(value)} is more than the {type_.bit_width} bits of a {ddl_of(type_)} hold"
    if isinstance(value, decimal.Decimal):
        return f"{shown(value)} has more digits than a {ddl_of(type_)}, or is no number"
    return None


def _in_range(value: Any, type_: pa.DataType) -> bool:
    bits = type_.bit_width
    signed = pa.types.is_signed_integer(type_)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    return bool(low <= int(value) < high)


def _type(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
