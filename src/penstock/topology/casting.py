"""Casts of column expressions, with Spark's meaning in ANSI mode where Arrow's is another one. Pure functions of arrays.

A value that the target type does not hold is an error, never a wrong number. Time stamps without a zone are UTC.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_ZONE: Final = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
"""How the text of a time stamp with a zone ends."""
_MICROS: Final = 1_000_000


def cast_values(value: Any, target: pa.DataType) -> Any:
    """Return values as another type.

    Fractions are cut off on the way to integers, decimals rounded half up, whole numbers of more than 53 bits rounded on
    the way to floats; numbers and time stamps convert as seconds since 1970; white space around texts is passed over.

    Raises:
        pa.ArrowException: a value does not fit.
        TypeError: there is no such cast.
    """
    is_, source = pa.types, value.type
    number = is_.is_integer(source) or is_.is_floating(source)
    if is_.is_string(source) and not is_.is_string(target) and not is_.is_binary(target):
        return _of_text(pc.utf8_trim_whitespace(value), target)
    if is_.is_integer(target) and (is_.is_floating(source) or is_.is_decimal(source)):
        return pc.cast(pc.trunc(value), target)
    if is_.is_floating(target) and is_.is_integer(source):
        return pc.cast(value, target, safe=False)
    if is_.is_decimal(target) and is_.is_decimal(source) and target.scale < source.scale:
        return pc.cast(pc.round(value, target.scale, "half_towards_infinity"), target)
    if is_.is_timestamp(target) and number:
        return _of_seconds(value, target)
    if is_.is_timestamp(source) and (is_.is_integer(target) or is_.is_floating(target)):
        return _seconds_of(value, target)
    if source != target and (is_.is_duration(source) or is_.is_duration(target)):
        raise TypeError(f"there is no cast from {source} to {target}; use map_arrow(...)")
    return pc.cast(value, target)


def _of_text(value: Any, target: pa.DataType) -> Any:
    if not pa.types.is_timestamp(target) or target.tz is None:
        return pc.cast(value, target)
    zoned, none = pc.match_substring_regex(value, _ZONE), pa.scalar(None, pa.string())
    plain = pc.cast(pc.if_else(zoned, none, value), pa.timestamp("us"))
    return pc.coalesce(pc.cast(pc.if_else(zoned, value, none), target), pc.cast(plain, target))


def _of_seconds(value: Any, target: pa.DataType) -> Any:
    _require_zone(target, value.type, target)
    if pa.types.is_floating(value.type):
        micros = pc.cast(pc.trunc(pc.multiply(pc.cast(value, pa.float64()), float(_MICROS))), pa.int64())
    else:
        micros = pc.multiply_checked(pc.cast(value, pa.int64()), _MICROS)
    return pc.cast(micros, target)


def _seconds_of(value: Any, target: pa.DataType) -> Any:
    _require_zone(value.type, value.type, target)
    if pa.types.is_floating(target):
        micros = pc.cast(pc.cast(value, pa.int64()), pa.float64(), safe=False)
        return pc.cast(pc.divide(micros, float(_MICROS)), target)
    whole = pc.cast(pc.floor_temporal(value, unit="second"), pa.int64())
    return pc.cast(pc.divide(whole, _MICROS), target)


def _require_zone(stamp: pa.DataType, source: pa.DataType, target: pa.DataType) -> None:
    if stamp.tz is None:
        raise TypeError(f"there is no cast from {source} to {target}; cast to timestamp first")
