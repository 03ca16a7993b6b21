"""The Python types in which state holds values, as msgspec decodes them."""

from __future__ import annotations

from collections import namedtuple
from functools import lru_cache
from typing import Annotated, Any, Optional

import msgspec
import pyarrow as pa

from penstock.topology.rows import python_type


def held_type(type_: pa.DataType) -> Any:
    """Return `python_type` with integers held to their width, so that decoding checks what Arrow would check."""
    is_ = pa.types
    if is_.is_uint64(type_):
        return Annotated[int, msgspec.Meta(ge=0)]
    if is_.is_integer(type_):
        lowest, highest = limits_of(type_)
        return Annotated[int, msgspec.Meta(ge=lowest, le=highest)]
    if is_.is_list(type_):
        return list[_or_null(type_.value_type)]  # type: ignore[misc]
    if is_.is_map(type_):
        return dict[held_type(type_.key_type), _or_null(type_.item_type)]  # type: ignore[misc]
    return held_struct(type_) if is_.is_struct(type_) else python_type(type_)


@lru_cache(maxsize=1024)
def held_struct(type_: pa.StructType) -> Any:
    """Return the named tuple in which a struct is held, the same each time; odd names become _1, _2."""
    made: Any = namedtuple("Row", [field.name for field in type_], rename=True)  # type: ignore[misc]
    types = [_or_null(field.type) if field.nullable else held_type(field.type) for field in type_]
    made.__annotations__ = dict(zip(made._fields, types, strict=True))
    return made


@lru_cache(maxsize=1024)
def grown_struct(type_: pa.StructType) -> Any:
    """Return the struct with null for nullable fields at its end that an encoding lacks."""
    fields = list(type_)
    strict = max((at for at, field in enumerate(fields) if not field.nullable), default=-1)
    made: Any = namedtuple("Grown", [field.name for field in fields], rename=True)  # type: ignore[misc]
    made.__new__.__defaults__ = (None,) * (len(fields) - strict - 1)
    made._field_defaults = dict.fromkeys(made._fields[strict + 1 :])
    made.__annotations__ = dict(zip(made._fields, held_struct(type_).__annotations__.values(), strict=True))
    return made


def _or_null(type_: pa.DataType) -> Any:
    return Optional[held_type(type_)]  # noqa: UP045


def limits_of(type_: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest number of an integer type."""
    bits: int = type_.bit_width
    if pa.types.is_unsigned_integer(type_):
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1
