"""The one form in which state holds numbers, texts, bytes and times: see `normal`.

Each function here is for one kind of type and returns what brings values into its form, or raises `Misfit`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.dataplane.state.held import limits_of
from penstock.raised import show
from penstock.topology.types import ddl_of

Normal = Callable[[Any], Any]
"""From what a function gives to what state holds; raises `Misfit`. Null is never given."""

_SINGLE: Final = struct.Struct("f")
_EXACT: Final = decimal.Context(prec=80)
_MOST_MICROS: Final = (1 << 63) - 1
_MICRO: Final = dt.timedelta(microseconds=1)
_NO_VALUES: Final = frozenset({"NaTType", "NAType"})
"""Classes of what pandas has in place of null."""


class Misfit(TypeError):
    """A value, or a part of one, that is no value of its type."""

    def __init__(self, value: Any, type_: pa.DataType, reason: str = "", path: tuple[str, ...] = ()) -> None:
        super().__init__(value, type_, reason, path)
        self.value, self.type, self.reason, self.path = value, type_, reason, path

    def within(self, name: str) -> Misfit:
        """Return the same misfit, seen from what it is a part of."""
        return Misfit(self.value, self.type, self.reason, (name, *self.path))

    def __str__(self) -> str:
        reason = f"; {self.reason}" if self.reason else ""
        return f"{show(self.value)} ({type(self.value).__name__}) is no {ddl_of(self.type)}{reason}"


def is_missing(value: Any) -> bool:
    """Whether this is null, or what numpy or pandas has for it."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in _NO_VALUES


def atom_of(type_: pa.DataType, local_times: bool) -> Normal:
    """Return what brings values into the form of a type that is not nested; `local_times` as of `normal_of`."""
    is_ = pa.types
    if is_.is_integer(type_):
        return _whole(type_)
    if is_.is_timestamp(type_):
        return _instant(type_, local_times) if type_.tz is not None else _wall_time(type_)
    if is_.is_date32(type_):
        return _date(type_, local_times)
    return next(make for fits, make in _PLAIN if fits(type_))(type_)


# -- numbers ----------------------------------------------------------------------------------------------------------


def _is_whole(value: Any) -> bool:
    # numpy counts spans of time among its integers.
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def _whole(type_: pa.DataType) -> Normal:
    lowest, highest = limits_of(type_)

    def normal(value: Any) -> int:
        if type(value) is int and lowest <= value <= highest:
            return value
        plain = _unwrapped(value)
        if not _is_whole(plain):
            raise Misfit(value, type_)
        if not lowest <= int(plain) <= highest:
            raise Misfit(value, type_, f"it lies outside {lowest} to {highest}")
        return int(plain)

    return normal


def _bool(type_: pa.DataType) -> Normal:
    def normal(value: Any) -> bool:
        if type(value) is bool:
            return value
        plain = _unwrapped(value)
        if not isinstance(plain, (bool, np.bool_)):
            raise Misfit(value, type_)
        return bool(plain)

    return normal


def _double(type_: pa.DataType) -> Normal:
    def normal(value: Any) -> float:
        if type(value) is float:
            return value
        plain = _unwrapped(value)
        if not isinstance(plain, (float, np.floating)) and not _is_whole(plain):
            raise Misfit(value, type_)
        try:
            return float(plain)
        except OverflowError:
            raise Misfit(value, type_, "it is too large") from None

    return normal


def _single(type_: pa.DataType) -> Normal:
    double = _double(type_)

    def normal(value: Any) -> float:
        wide = double(value)
        try:
            return float(_SINGLE.unpack(_SINGLE.pack(wide))[0])
        except OverflowError:
            return math.copysign(math.inf, wide)

    return normal


def _decimal(type_: pa.DataType) -> Normal:
    scale = type_.scale
    zero = decimal.Decimal((0, (0,), -scale))

    def normal(value: Any) -> decimal.Decimal:
        plain = _unwrapped(value)
        if not isinstance(plain, decimal.Decimal) and not _is_whole(plain):
            raise Misfit(value, type_, "give a decimal.Decimal" if isinstance(plain, (float, str)) else "")
        given = plain if isinstance(plain, decimal.Decimal) else decimal.Decimal(int(plain))
        if not given.is_finite():
            raise Misfit(value, type_)
        if not given:
            return zero
        fits = given.adjusted() < type_.precision - scale
        unscaled = _EXACT.scaleb(given, scale) if fits else given
        if not fits or unscaled != unscaled.to_integral_value():
            raise Misfit(value, type_, "it has more digits than the type; round it first")
        return _EXACT.scaleb(decimal.Decimal(int(unscaled)), -scale)

    return normal


# -- text and bytes ---------------------------------------------------------------------------------------------------


def _text(type_: pa.DataType) -> Normal:
    def normal(value: Any) -> str:
        plain = value if type(value) is str else _unwrapped(value)
        if not isinstance(plain, str):
            raise Misfit(value, type_)
        if not plain.isascii():
            try:
                plain.encode()
            except UnicodeEncodeError:
                raise Misfit(
                    value, type_, "it holds half of a surrogate pair, which is no character"
                ) from None
        return plain if type(plain) is str else str.__str__(plain)

    return normal


def _bytes(type_: pa.DataType) -> Normal:
    def normal(value: Any) -> bytes:
        if type(value) is bytes:
            return value
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise Misfit(value, type_)
        return bytes(value)

    return normal


# -- times ------------------------------------------------------------------------------------------------------------


def _date(type_: pa.DataType, local_times: bool) -> Normal:
    def normal(value: Any) -> dt.date:
        if type(value) is dt.date:
            return value
        plain = _plain_time(value)
        if isinstance(plain, dt.datetime):
            if not local_times:
                raise Misfit(value, type_, "give its date()")
            return plain.date()
        if not isinstance(plain, dt.date):
            raise Misfit(value, type_)
        return dt.date(plain.year, plain.month, plain.day)

    return normal


def _instant(type_: pa.DataType, local_times: bool) -> Normal:
    def normal(value: Any) -> dt.datetime:
        if type(value) is dt.datetime and value.tzinfo is dt.UTC and not value.fold:
            return value
        plain = _plain_time(value)
        if not isinstance(plain, dt.datetime):
            raise Misfit(value, type_)
        if plain.utcoffset() is None and not local_times:
            raise Misfit(
                value, type_, "it has no zone; give it one, such as value.replace(tzinfo=datetime.UTC)"
            )
        try:
            return plain.astimezone(dt.UTC).replace(fold=0)
        except (OverflowError, ValueError, OSError):
            raise Misfit(value, type_, "in UTC it lies outside the years 1 to 9999") from None

    return normal


def _wall_time(type_: pa.DataType) -> Normal:
    def normal(value: Any) -> dt.datetime:
        if type(value) is dt.datetime and value.tzinfo is None and not value.fold:
            return value
        plain = _plain_time(value)
        if not isinstance(plain, dt.datetime):
            raise Misfit(value, type_)
        if plain.tzinfo is not None:
            raise Misfit(value, type_, "it has a zone; give value.replace(tzinfo=None)")
        return plain.replace(fold=0) if plain.fold else plain

    return normal


def _time_of_day(type_: pa.DataType) -> Normal:
    def normal(value: Any) -> dt.time:
        if not isinstance(value, dt.time) or value.tzinfo is not None:
            raise Misfit(value, type_)
        return dt.time(value.hour, value.minute, value.second, value.microsecond)

    return normal


def _span(type_: pa.DataType) -> Normal:
    def normal(value: Any) -> dt.timedelta:
        plain = _plain_time(value)
        if not isinstance(plain, dt.timedelta):
            raise Misfit(value, type_)
        if abs(plain // _MICRO) > _MOST_MICROS:
            raise Misfit(value, type_, "it is longer than 292,000 years")
        return dt.timedelta(plain.days, plain.seconds, plain.microseconds)

    return normal


def _plain_time(value: Any) -> Any:
    """Return a time of numpy, of pandas or of a subclass as Python's own; what stands for none is left as it is."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        if np.isnat(value):
            return None
        days = np.datetime_data(value.dtype)[0] == "D" and isinstance(value, np.datetime64)
        return value.item() if days else value.astype(f"{value.dtype.kind}8[us]").item()
    if type(value) in (dt.datetime, dt.timedelta):
        return value
    if type(value).__name__ in _NO_VALUES:
        return None
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    if isinstance(value, dt.datetime):
        whole = (
            value.year,
            value.month,
            value.day,
            value.hour,
            value.minute,
            value.second,
            value.microsecond,
        )
        return dt.datetime(*whole, tzinfo=value.tzinfo, fold=value.fold)
    return value


def _unwrapped(value: Any) -> Any:
    """Return the value of a member of an enumeration."""
    return value.value if isinstance(value, enum.Enum) else value


_PLAIN: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Normal]]]] = [
    (pa.types.is_boolean, _bool),
    (pa.types.is_decimal128, _decimal),
    (pa.types.is_float32, _single),
    (pa.types.is_floating, _double),
    (pa.types.is_string, _text),
    (pa.types.is_binary, _bytes),
    (pa.types.is_time64, _time_of_day),
    (pa.types.is_duration, _span),
]
