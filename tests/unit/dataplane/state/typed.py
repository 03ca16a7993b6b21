"""Types of every kind and nesting, and values of them in every form in which people store them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

ZONED = pa.timestamp("us", "UTC")
SPANS = (dt.timedelta(days=-(10**6)), dt.timedelta(days=10**6))

_ints = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_atoms = [
    *_ints, pa.bool_(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.decimal128(38, 18), pa.decimal128(5, 5),
    pa.string(), pa.binary(), pa.date32(), ZONED, pa.timestamp("us"), pa.time64("us"), pa.duration("us"),
]  # fmt: skip
KEYS = [type_ for type_ in _atoms if not (pa.types.is_time(type_) or pa.types.is_duration(type_))]

atoms = st.sampled_from(_atoms)
key_types = st.sampled_from(KEYS)


def _structs(fields: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.lists(st.tuples(fields, st.booleans()), min_size=1, max_size=3).map(
        lambda given: pa.struct(
            [pa.field(f"f{at}", type_, nullable) for at, (type_, nullable) in enumerate(given)]
        )
    )


types = st.recursive(
    atoms,
    lambda inner: st.one_of(inner.map(pa.list_), _structs(inner), st.builds(pa.map_, key_types, inner)),
    max_leaves=5,
)


def _times(**more: Any) -> st.SearchStrategy[dt.datetime]:
    return st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), **more)


def _whole(type_: pa.DataType) -> st.SearchStrategy[Any]:
    bits = type_.bit_width
    numbers = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    return numbers | numbers.map(np.dtype(f"int{bits}").type)


def _decimals(type_: pa.Decimal128Type) -> st.SearchStrategy[Any]:
    exact = decimal.Context(prec=80)
    unscaled = st.integers(1 - 10**type_.precision, 10**type_.precision - 1)
    fits = unscaled.map(lambda number: exact.scaleb(decimal.Decimal(number), -type_.scale))
    short = fits.map(lambda value: value.normalize(exact))  # 1.5 and 1.50 are one value
    return fits | short | st.just(decimal.Decimal("-0"))


def _stamps(type_: pa.DataType) -> st.SearchStrategy[Any]:
    recent = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
    if type_.tz is None:
        return _times() | recent.map(pd.Timestamp) | recent.map(np.datetime64)
    zones = st.integers(-14, 14).map(lambda hours: dt.timezone(dt.timedelta(hours=hours)))
    return (
        _times(timezones=zones)
        | _times(timezones=st.just(dt.UTC))
        | recent.map(lambda time: pd.Timestamp(time, tz="Asia/Kolkata"))
    )


def _doubles(type_: pa.DataType) -> st.SearchStrategy[Any]:
    floats = st.floats()
    return (
        floats
        | floats.map(np.float64)
        | st.integers(-(1 << 40), 1 << 40)
        | st.floats(width=32).map(np.float32)
    )


def atom_values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type that is not nested."""
    is_ = pa.types
    if is_.is_boolean(type_):
        return st.booleans() | st.booleans().map(np.bool_)
    if is_.is_integer(type_):
        return _whole(type_)
    if is_.is_floating(type_):
        return _doubles(type_)
    if is_.is_decimal(type_):
        return _decimals(type_)
    if is_.is_string(type_):
        text = st.text(max_size=5)
        return text | text.map(np.str_)
    if is_.is_binary(type_):
        raw = st.binary(max_size=5)
        return raw | raw.map(bytearray) | raw.map(memoryview)
    if is_.is_date(type_):
        return st.dates() | st.dates().map(np.datetime64)
    if is_.is_timestamp(type_):
        return _stamps(type_)
    if is_.is_time(type_):
        return st.times()
    spans = st.timedeltas(*SPANS)
    return (
        spans
        | st.timedeltas(-dt.timedelta(9000), dt.timedelta(9000)).map(pd.Timedelta)
        | spans.map(np.timedelta64)
    )


def values_of(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, in the forms in which a function may give them; never null itself."""
    is_ = pa.types
    if is_.is_list(type_):
        items = st.lists(_or_null(type_.value_type), max_size=3)
        return items | items.map(tuple)
    if is_.is_map(type_):
        key = values_of(type_.key_type).filter(lambda value: isinstance(value, memoryview) or value == value)
        key = key.map(lambda value: bytes(value) if isinstance(value, (bytearray, memoryview)) else value)
        pairs = st.lists(
            st.tuples(key, _or_null(type_.item_type)), max_size=3, unique_by=lambda pair: str(pair[0])
        )
        return pairs | pairs.map(dict)
    if is_.is_struct(type_):
        fields = st.tuples(*[_field(field) for field in type_])
        names = [field.name for field in type_]
        named = fields.map(lambda given: dict(zip(reversed(names), reversed(given), strict=True)))
        return fields | fields.map(list) | named
    return atom_values(type_)


def _field(field: pa.Field) -> st.SearchStrategy[Any]:
    return _or_null(field.type) if field.nullable else values_of(field.type)


def _or_null(type_: pa.DataType) -> st.SearchStrategy[Any]:
    return values_of(type_) | st.none() | st.just(pd.NA)


def same(one: Any, other: Any) -> bool:
    """Whether two values are of one type and alike in every part: NaN is NaN, 1 is not 1.0."""
    if type(one).__name__ != type(other).__name__ or isinstance(one, tuple) != isinstance(other, tuple):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, float):
        return repr(one) == repr(other) and math.copysign(1, one) == math.copysign(1, other)
    return repr(one) == repr(other)


def changeable(value: Any) -> list[Any]:
    """Every list and dict in a value, itself included."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    found = [one for part in inside for one in changeable(part)]
    return [*found, value] if isinstance(value, (list, dict)) else found


def spoil(value: Any) -> None:
    """Change every list and dict in a value."""
    for one in changeable(value):
        if isinstance(one, dict):
            one["spoilt"] = "spoilt"
        else:
            one.append("spoilt")
