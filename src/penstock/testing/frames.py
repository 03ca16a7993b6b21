"""Equality of frames for tests: Arrow, pandas and Spark frames and lists of rows, with a message that shows where they
differ. Imports neither pandas nor Spark; what they give is recognised by what it can do."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.errors import DeclarationError

_SHOWN: Final = 5
"""Differences that a message shows."""


@dataclass(frozen=True)
class _Frame:
    """Rows of any kind: names where they have some, Arrow types where they have those."""

    rows: Sequence[tuple[Any, ...]]
    names: Sequence[str] | None = None
    types: Sequence[pa.DataType] | None = None
    by_name: bool = False
    """Whether the order of the names means nothing."""


def assert_frames_equal(left: Any, right: Any, *, ordered: bool = False, check_types: bool = True) -> None:
    """Fail unless two frames hold the same rows.

    NaN equals NaN; -0.0 is not 0.0; moments compare in UTC. How a type is laid out in memory (large strings, dictionaries,
    units of time stamps) makes no difference.

    Args:
        left, right: Arrow tables or batches, pandas frames, Spark DataFrames, or lists of dicts, tuples or rows.
        ordered: whether the order of rows counts; how often each row is there counts always.
        check_types: whether types count: those of columns where both sides have some, and that 1 is not 1.0. Without it
            numbers compare by value, and a time without a zone is in UTC.

    Raises:
        AssertionError: says which rows and columns differ.
        DeclarationError: a side is no frame.
    """
    mine, theirs = _frame_of(left, "left"), _frame_of(right, "right")
    mine, theirs = _check_names(mine, theirs)
    if check_types:
        _check_column_types(mine, theirs)
    names = mine.names or theirs.names or [f"column {at}" for at in range(_width(mine))]
    comparison = _Comparison(mine.rows, theirs.rows, names, check_types)
    differences = comparison.by_place() if ordered else comparison.by_content()
    if differences:
        counts = f"left has {len(mine.rows)} rows, right has {len(theirs.rows)}"
        more = [f"and {len(differences) - _SHOWN} more"] if len(differences) > _SHOWN else []
        raise AssertionError("\n  ".join([f"the frames differ; {counts}:", *differences[:_SHOWN], *more]))


class _Comparison:
    """The rows of two frames side by side."""

    def __init__(
        self,
        left: Sequence[tuple[Any, ...]],
        right: Sequence[tuple[Any, ...]],
        names: Sequence[str],
        check_types: bool,
    ) -> None:
        self._left, self._right, self._names = left, right, names
        self._keys = [
            [tuple(_key(value, check_types) for value in row) for row in rows] for rows in (left, right)
        ]

    def by_place(self) -> list[str]:
        """Compare row n with row n."""
        found = []
        for at in range(max(len(self._left), len(self._right))):
            if at >= len(self._left):
                found.append(f"row {at} is in right only: {self._shown(self._right[at])}")
            elif at >= len(self._right):
                found.append(f"row {at} is in left only: {self._shown(self._left[at])}")
            elif self._keys[0][at] != self._keys[1][at]:
                found.append(f"row {at}: {self._differing(at, at)}")
        return found

    def by_content(self) -> list[str]:
        """Compare how often each row is there; rows without an equal are told with the most similar one left over."""
        lefts, rights = self._left_over(0), self._left_over(1)
        one_each = len(lefts) == len(rights) == 1
        found = []
        for at in lefts:
            near = max(rights, key=lambda other: self._alike(at, other), default=None)
            if near is not None and (one_each or self._alike(at, near)):
                rights.remove(near)
                found.append(f"row {at} of left and row {near} of right: {self._differing(at, near)}")
            else:
                found.append(f"row {at} is in left only: {self._shown(self._left[at])}")
        found.extend(f"row {at} is in right only: {self._shown(self._right[at])}" for at in rights)
        return found

    def _left_over(self, side: int) -> list[int]:
        """Rows of one side that the other has not, or has less often."""
        missing = Counter(self._keys[side]) - Counter(self._keys[1 - side])
        places = defaultdict(list)
        for at, key in enumerate(self._keys[side]):
            places[key].append(at)
        return sorted(at for key, count in missing.items() for at in places[key][-count:])

    def _alike(self, left: int, right: int) -> int:
        return sum(a == b for a, b in zip(self._keys[0][left], self._keys[1][right], strict=True))

    def _differing(self, left: int, right: int) -> str:
        pairs = zip(self._names, self._left[left], self._right[right], strict=True)
        keys = zip(self._keys[0][left], self._keys[1][right], strict=True)
        told = [
            f"{name} is {_shown(mine)} and {_shown(theirs)}{_remark(mine, theirs)}"
            for (name, mine, theirs), (a, b) in zip(pairs, keys, strict=True)
            if a != b
        ]
        same = {
            name: value
            for name, value, a, b in zip(
                self._names, self._left[left], self._keys[0][left], self._keys[1][right], strict=True
            )
            if a == b
        }
        return "; ".join(told) + (f" (where {self._shown_items(same)})" if same else "")

    def _shown(self, row: tuple[Any, ...]) -> str:
        return self._shown_items(dict(zip(self._names, row, strict=True)))

    @staticmethod
    def _shown_items(row: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={_shown(value)}" for name, value in row.items())


def _frame_of(given: Any, side: str) -> _Frame:
    if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
        given = pa.Table.from_pandas(given, preserve_index=False)
    elif callable(getattr(given, "toArrow", None)):
        given = given.toArrow()
    elif callable(getattr(given, "collect", None)) and hasattr(given, "columns"):
        names, rows = list(given.columns), [tuple(row) for row in given.collect()]
        return _Frame(rows, names)
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        types = [_plain_type(field.type) for field in given.schema]
        columns = [
            [_plain(value, type_) for value in column.cast(type_).to_pylist()]
            for column, type_ in zip(given.columns, types, strict=True)
        ]
        rows = list(zip(*columns, strict=True)) if columns else [()] * given.num_rows
        return _Frame(rows, given.schema.names, types)
    if isinstance(given, list | tuple):
        return _frame_of_rows(list(given), side)
    raise DeclarationError(
        f"assert_frames_equal(...): {side} is a {type(given).__name__}; give an Arrow table, a pandas or Spark "
        "DataFrame, or a list of rows."
    )


def _frame_of_rows(rows: list[Any], side: str) -> _Frame:
    if not rows:
        return _Frame([])
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return _Frame([tuple(row.get(name) for name in names) for row in rows], names, by_name=True)
    if not all(isinstance(row, list | tuple) for row in rows) or len({len(row) for row in rows}) > 1:
        raise DeclarationError(
            f"assert_frames_equal(...): {side} is a list of unlike things; give rows that are all dicts, or all tuples "
            "of one length."
        )
    found = {tuple(_fields_of(row)) for row in rows}
    fields = found.pop() if len(found) == 1 else ()
    return _Frame([tuple(row) for row in rows], list(fields) or None)


def _fields_of(row: Any) -> Sequence[str]:
    """Return the names that a row has: Spark's rows keep them one by one, named tuples in their class."""
    names: Sequence[str] = getattr(row, "__fields__", ()) or getattr(row, "_fields", ())
    return names


def _check_names(left: _Frame, right: _Frame) -> tuple[_Frame, _Frame]:
    """Bring both sides to the same columns in the same order."""
    if any(not side.rows and side.names is None for side in (left, right)):
        return left, right  # an empty list has no columns
    if left.names is None or right.names is None:
        if _width(left) != _width(right):
            raise AssertionError(
                f"the frames differ; left has {_width(left)} columns, right has {_width(right)}."
            )
        return left, right
    if list(left.names) == list(right.names):
        return left, right
    if sorted(left.names) == sorted(right.names) and (left.by_name or right.by_name):
        return (
            (left, _sorted_as(right, left.names)) if right.by_name else (_sorted_as(left, right.names), right)
        )
    raise AssertionError(
        f"the frames differ; left has the columns {', '.join(left.names)}, right has {', '.join(right.names)}."
    )


def _sorted_as(frame: _Frame, names: Sequence[str]) -> _Frame:
    assert frame.names is not None
    order = [list(frame.names).index(name) for name in names]
    return _Frame([tuple(row[at] for at in order) for row in frame.rows], names)


def _width(frame: _Frame) -> int:
    return len(frame.names) if frame.names is not None else len(frame.rows[0]) if frame.rows else 0


def _check_column_types(left: _Frame, right: _Frame) -> None:
    if left.types is None or right.types is None or left.names is None:
        return
    wrong = [
        f"{name} is {mine} and {theirs}"
        for name, mine, theirs in zip(left.names, left.types, right.types, strict=True)
        if mine != theirs
    ]
    if wrong:
        raise AssertionError(
            f"the frames differ in the types of columns: {'; '.join(wrong)} (check_types=False compares values)."
        )


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """Return a type without what is only layout."""
    is_ = pa.types
    if is_.is_dictionary(type_):
        return _plain_type(type_.value_type)
    if is_.is_large_string(type_):
        return pa.string()
    if is_.is_large_binary(type_):
        return pa.binary()
    if is_.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz is not None else None)
    if is_.is_list(type_) or is_.is_large_list(type_):
        return pa.list_(_plain_type(type_.value_type))
    if is_.is_struct(type_):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in type_])
    if is_.is_map(type_):
        return pa.map_(_plain_type(type_.key_type), _plain_type(type_.item_type))
    return type_


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Return an Arrow value as Python has it: maps as dicts."""
    if value is None or not pa.types.is_nested(type_):
        return value
    if pa.types.is_map(type_):
        return {key: _plain(item, type_.item_type) for key, item in value}
    if pa.types.is_struct(type_):
        return {field.name: _plain(value[field.name], field.type) for field in type_}
    return [_plain(item, type_.value_type) for item in value]


def _key(value: Any, check_types: bool) -> Hashable:
    """Return what two values must share to count as equal."""
    if isinstance(value, Mapping):
        return "map", frozenset((_key(k, check_types), _key(v, check_types)) for k, v in value.items())
    if isinstance(value, tuple) and (names := _fields_of(value)):
        return _key(dict(zip(names, value, strict=True)), check_types)
    if isinstance(value, list | tuple):
        return "list", tuple(_key(item, check_types) for item in value)
    if type(value).__module__ == "numpy":
        return _key(value.tolist(), check_types)
    if isinstance(value, float | decimal.Decimal) and math.isnan(value):
        return "NaN"
    if isinstance(value, float) and value == 0.0 and math.copysign(1.0, value) < 0:
        return "-0.0"
    if isinstance(value, dt.datetime):
        zoned = value.tzinfo is not None
        moment = value.astimezone(dt.UTC) if zoned else value.replace(tzinfo=dt.UTC)
        return "time", zoned if check_types else True, moment.replace(tzinfo=None)
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    return (type(value).__name__ if check_types else "", value)


def _shown(value: Any) -> str:
    text = value.isoformat(" ") if isinstance(value, dt.datetime) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _remark(left: Any, right: Any) -> str:
    """Say what is easily overlooked."""
    if isinstance(left, float) and isinstance(right, float) and left == right:
        return " (the sign of zero differs)"
    if type(left) is not type(right) and left is not None and right is not None:
        return f" ({type(left).__name__} and {type(right).__name__})"
    return ""
