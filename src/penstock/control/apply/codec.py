"""Plain dataclasses of the control plane as JSON and back, arrays included, to the last bit.

A field that a reader does not know is left out, one that is missing takes its default: journals outlive versions.
Opens no file.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import types
import typing
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from penstock.errors import PenstockError

T = TypeVar("T")

_ARRAY, _FLOAT = "~array", "~float"


class JournalError(PenstockError):
    """A line of a journal cannot be read; the message says which part."""


def encode(value: Any) -> bytes:
    """Return a dataclass as one line of JSON, without the line's end."""
    return msgspec.json.encode(pack(value))


def decode(kind: type[T], line: bytes | str) -> T:
    """Return the dataclass that `encode` wrote.

    Raises:
        JournalError: the line is not one.
    """
    try:
        found: T = unpack(kind, msgspec.json.decode(line))
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, AttributeError, zlib.error) as error:
        raise JournalError(f"a line of the journal is no {kind.__name__}: {error}.") from error
    return found


def is_complete(line: bytes | str) -> bool:
    """Return whether a line is JSON from its beginning to its end."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError):
        return False
    return True


def pack(value: Any) -> Any:
    """Return a dataclass as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: pack(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes(), 1)).decode()
        return {_ARRAY: value.dtype.str, "shape": list(value.shape), "data": packed}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: pack(one) for key, one in value.items()}
        return [[pack(key), pack(one)] for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [pack(one) for one in value]
    if isinstance(value, np.generic):
        return pack(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    return value


def unpack(kind: Any, data: Any) -> Any:
    """Return the value of a kind that `pack` made plain; raises what its parts raise."""
    if isinstance(data, dict) and _FLOAT in data:
        return float(data[_FLOAT])
    if isinstance(data, dict) and _ARRAY in data:
        raw = zlib.decompress(base64.b64decode(data["data"]))
        return np.frombuffer(raw, dtype=np.dtype(data[_ARRAY])).reshape(data["shape"]).copy()
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{name: unpack(hints[name], one) for name, one in data.items() if name in hints})
    return _unpack_generic(kind, data)


def _unpack_generic(kind: Any, data: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        known = [one for one in inner if one is not types.NoneType]
        return data if data is None or len(known) > 1 else unpack(known[0], data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = data.items() if isinstance(data, dict) else data
        return {unpack(inner[0], key): unpack(inner[1], one) for key, one in pairs}
    if origin is tuple:
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(unpack(one_kind, one) for one_kind, one in zip(kinds, data, strict=True))
    if kind is float and isinstance(data, int):
        return float(data)
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return {
        name: hint
        for name, hint in typing.get_type_hints(kind).items()
        if name in {one.name for one in dataclasses.fields(kind)}
    }
