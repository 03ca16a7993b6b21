"""Dead letters: calls of a user's function that raised, kept with what is needed to look into them and to run them
again. The caller has taken back what the call changed; nothing here touches state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.dataplane.logic.protocol import DEAD
from penstock.raised import describe, describe_traceback, pass_on, show
from penstock.topology.nodes import DEAD_LETTERS

MAX_ROWS: Final = 1_000
"""Rows of one call that a letter carries."""
ROW_CHARACTERS: Final = 10_000
"""Of a row that is no JSON."""


class Letters:
    """Collects the dead letters of one epoch of one operator."""

    def __init__(self, operator: str, time_us: int) -> None:
        self._operator = operator
        self._time_us = time_us
        self._made: list[dict[str, Any]] = []

    def add(self, key: Any, rows: Sequence[Any], error: BaseException) -> None:
        """Keep one call.

        Raises:
            BaseException: the error itself, when `pass_on` says that it is not the function's.
        """
        pass_on(error)
        self._made.append(
            {
                "operator": self._operator,
                "key": _json(list(key)) if key is not None else None,
                "time": self._time_us,
                "error": describe(error),
                "traceback": describe_traceback(error),
                "rows": [_shown(row) for row in rows[:MAX_ROWS]],
            }
        )

    def sides(self) -> Mapping[str, pa.Table]:
        """Return the letters as a side output, nothing where there are none."""
        if not self._made:
            return {}
        columns = [
            pa.array([letter[field.name] for letter in self._made], _plain(field.type)).cast(field.type)
            for field in DEAD_LETTERS
        ]
        return {DEAD: pa.Table.from_arrays(columns, schema=DEAD_LETTERS)}


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def _shown(row: Any) -> str:
    named = isinstance(row, tuple) and hasattr(row, "_fields")
    return _json(dict(zip(row._fields, row, strict=True)) if named else row)


def _json(value: Any) -> str:
    try:
        return json.dumps(_with_text_keys(value), default=str)  # ASCII, lone surrogates escaped
    except BaseException as error:  # whatever it is, the letter must be written
        pass_on(error)
        return show(value, ROW_CHARACTERS)


def _with_text_keys(value: Any) -> Any:
    """JSON has no keys but text."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()
        }
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value
