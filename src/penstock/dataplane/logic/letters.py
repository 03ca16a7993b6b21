"""Dead letters: calls of a user's function that raised, kept with what is needed to look into them and to run them
again. The caller has taken back what the call changed; nothing here touches state."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.dataplane.logic.protocol import DEAD
from penstock.errors import OperatorError, PenstockError
from penstock.topology.nodes import DEAD_LETTERS

MAX_ROWS: Final = 1_000
"""Rows of one call that a letter carries."""


class Letters:
    """Collects the dead letters of one epoch of one operator."""

    def __init__(self, operator: str, time_us: int) -> None:
        self._operator = operator
        self._time_us = time_us
        self._made: list[dict[str, Any]] = []

    def add(self, key: Any, rows: Sequence[Any], error: Exception) -> None:
        """Keep one call.

        Raises:
            PenstockError: the error itself, when it is of the disk or of local state and not the function's.
        """
        if isinstance(error, PenstockError) and not isinstance(error, OperatorError):
            raise error
        lines = traceback.format_exception(type(error), error, error.__traceback__)  # survives any __str__
        self._made.append(
            {
                "operator": self._operator,
                "key": _json(list(key)) if key is not None else None,
                "time": self._time_us,
                "error": f"{type(error).__name__}: {_text(error)}",
                "traceback": "".join(lines).rstrip(),
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
    fields = getattr(row, "_asdict", None)
    return _json(fields() if fields is not None else row)


def _json(value: Any) -> str:
    try:
        return json.dumps(_with_text_keys(value), default=str)
    except Exception:  # whatever it is, the letter must be written
        return repr(value)


def _with_text_keys(value: Any) -> Any:
    """JSON has no keys but text."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()
        }
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be had)"
