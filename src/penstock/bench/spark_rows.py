"""The row functions that PySpark's own state APIs are measured with: a count and a sum for every key.

Runs on Spark's Python workers, which import this module by name; nothing here belongs to the driver's side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

OUTPUT: Final = "key bigint, rows bigint, total bigint"
STATE: Final = "rows bigint, total bigint"

_NAMES: Final = ["key", "rows", "total"]


def count_in_pandas(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Serve `applyInPandasWithState`."""
    rows, total = state.get if state.exists else (0, 0)
    for frame in frames:
        rows += len(frame)
        total += int(frame["value"].to_numpy().sum())
    state.update((rows, total))
    # From an array pandas builds a frame three times as fast as from lists, and time per key is all there is.
    yield pd.DataFrame(np.array([[key[0], rows, total]]), columns=_NAMES)


class CountRows(StatefulProcessor):
    """Serve `transformWithState` row by row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self._state.get()
        count, total = (known[0], known[1]) if known is not None else (0, 0)
        for row in rows:
            count += 1
            total += row["value"]
        self._state.update((count, total))
        yield Row(key=key[0], rows=count, total=total)

    def close(self) -> None:
        pass


class CountFrames(StatefulProcessor):
    """Serve `transformWithStateInPandas`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        known = self._state.get()
        count, total = (known[0], known[1]) if known is not None else (0, 0)
        for frame in rows:
            count += len(frame)
            total += int(frame["value"].to_numpy().sum())
        self._state.update((count, total))
        yield pd.DataFrame(np.array([[key[0], count, total]]), columns=_NAMES)

    def close(self) -> None:
        pass
