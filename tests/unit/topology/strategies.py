"""Types, schemas and values of any kind that can be carried, for property tests."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.topology.rows import struct_class

UTC_STAMP = pa.timestamp("us", "UTC")

_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
_whole = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_stamps = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
_LONG = dt.timedelta(days=106_000_000)  # 64 bits of microseconds hold a little more
_text = st.text(st.characters(codec="utf-8"), max_size=8)
ATOMS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{type_: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for type_, bits in _whole.items()},
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): _text,
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.dates(),
    pa.timestamp("us"): _stamps,
    pa.time64("ns"): st.times(),
    pa.duration("us"): st.timedeltas(-_LONG, _LONG),
    UTC_STAMP: _stamps.map(lambda stamp: stamp.replace(tzinfo=dt.UTC)),
    pa.decimal128(10, 2): st.decimals(-(10**7), 10**7, places=2),
    pa.decimal128(38, 0): st.decimals(-(10**37), 10**37, places=0),
}


def _nest(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.builds(pa.field, _names, inner, st.booleans())
    structs = st.lists(field, min_size=1, max_size=3, unique_by=lambda f: f.name).map(pa.struct)
    keys = st.sampled_from([pa.string(), pa.int64(), pa.date32()])
    return st.one_of(inner.map(pa.list_), structs, st.builds(pa.map_, keys, inner))


TYPES = st.recursive(st.sampled_from(list(ATOMS)), _nest, max_leaves=5)
SCHEMAS = st.lists(
    st.builds(pa.field, _names, TYPES, st.booleans()),
    min_size=1,
    max_size=4,
    unique_by=lambda field: field.name,
).map(pa.schema)


def values_of(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values as user code holds them: named tuples for structs, dicts for maps."""
    if pa.types.is_list(type_):
        return st.lists(st.none() | values_of(type_.value_type), max_size=3)
    if pa.types.is_map(type_):
        return st.dictionaries(values_of(type_.key_type), st.none() | values_of(type_.item_type), max_size=3)
    if pa.types.is_struct(type_):
        fields = [values_of(f.type) | st.none() if f.nullable else values_of(f.type) for f in type_]
        return st.tuples(*fields).map(lambda row: struct_class(type_)(*row))
    return ATOMS[type_]
