"""The one form in which state holds a value: what reading it back from its encoding gives.

Whatever a function stores takes this form at the write, so that a read gives the same in the same call, in a later epoch
and after a restart. The form shares nothing that can be changed with what was given. Knows types alone: no keys, no
operators, no encodings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.dataplane.state.atoms import Misfit, Normal, atom_of, is_missing
from penstock.dataplane.state.held import held_struct
from penstock.dataplane.state.passing import pass_array, pass_map, pass_struct
from penstock.raised import show

__all__ = ["Misfit", "Normal", "copier_of", "is_missing", "normal_of"]


def normal_of(type_: pa.DataType, local_times: bool = False) -> Normal:
    """Return what brings values into the form of a type.

    Args:
        local_times: take a time without a zone for one of this machine's zone where the type has one, and the day of a
            time where the type is a date, as PySpark's states do; otherwise both are refused.
    """
    is_ = pa.types
    if is_.is_struct(type_):
        return _struct(type_, local_times)
    if is_.is_list(type_):
        return _array(type_, local_times)
    if is_.is_map(type_):
        return _map(type_, local_times)
    return atom_of(type_, local_times)


def copier_of(type_: pa.DataType) -> Normal | None:
    """Return what copies a normal value of a type that can be changed in place; None where none can be."""
    is_ = pa.types
    if is_.is_list(type_):
        element = copier_of(type_.value_type)
        if element is None:
            return list.copy
        return lambda values: [one if one is None else element(one) for one in values]
    if is_.is_map(type_):
        item = copier_of(type_.item_type)
        if item is None:
            return dict.copy
        return lambda given: {key: one if one is None else item(one) for key, one in given.items()}
    if is_.is_struct(type_):
        fields = [copier_of(field.type) for field in type_]
        if any(field is not None for field in fields):
            return lambda row: _copied(row, fields)
    return None


def _copied(row: Any, fields: Sequence[Normal | None]) -> Any:
    copied = [
        one if copy is None or one is None else copy(one) for one, copy in zip(row, fields, strict=True)
    ]
    return tuple.__new__(type(row), copied)


def _struct(type_: pa.StructType, local_times: bool) -> Normal:
    names = [field.name for field in type_]
    fields = [normal_of(field.type, local_times) for field in type_]
    required = [at for at, field in enumerate(type_) if not field.nullable]
    made, width, listed = held_struct(type_), len(names), ", ".join(names)

    def normal(value: Any) -> Any:
        given = value
        if isinstance(value, dict):
            if unknown := value.keys() - set(names):
                wrong = ", ".join(sorted(map(show, unknown)))
                raise Misfit(value, type_, f"it has no field {wrong}; its fields are {listed}")
            given = tuple(map(value.get, names))
        elif not isinstance(value, (tuple, list)):
            raise Misfit(value, type_, f"give a tuple or a dict of {listed}")
        if len(given) != width:
            raise Misfit(value, type_, f"it has {len(given)} value(s) for the {width} field(s) {listed}")
        found = [_part(*part) for part in zip(given, fields, names, strict=True)]
        for at in required:
            if found[at] is None:
                raise Misfit(None, type_.field(at).type, "it is NOT NULL", (names[at],))
        return tuple.__new__(made, found)

    return pass_struct(type_, fields, normal)


def _array(type_: pa.ListType, local_times: bool) -> Normal:
    element = normal_of(type_.value_type, local_times)

    def normal(value: Any) -> list[Any]:
        if isinstance(value, np.ndarray) and value.ndim:
            value = list(value)
        elif not isinstance(value, (list, tuple)):
            unordered = isinstance(value, (set, frozenset))
            raise Misfit(value, type_, "a set has no order; give a list" if unordered else "give a list")
        return [_part(one, element, "element") for one in value]

    return pass_array(type_, element, normal)


def _map(type_: pa.MapType, local_times: bool) -> Normal:
    key_of, item_of = normal_of(type_.key_type, local_times), normal_of(type_.item_type, local_times)

    def normal(value: Any) -> dict[Any, Any]:
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, (list, tuple)) or not all(map(_is_pair, pairs)):
            raise Misfit(value, type_, "give a dict")
        keys = [_required(key, key_of, "key") for key, _ in pairs]
        return dict(zip(keys, [_part(one, item_of, "value") for _, one in pairs], strict=True))

    return pass_map(type_, key_of, item_of, normal)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _part(value: Any, normal: Normal, name: str) -> Any:
    """Return a part as it is held: null where it is what numpy or pandas has for null."""
    if value is None:
        return None
    try:
        return normal(value)
    except Misfit as misfit:
        if is_missing(value):
            return None
        raise misfit.within(name) from None


def _required(value: Any, normal: Normal, name: str) -> Any:
    try:
        return normal(value)
    except Misfit as misfit:
        raise misfit.within(name) from None
