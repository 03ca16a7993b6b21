"""Tumbling and sliding windows of aggregates that fit words, over columnar state; and the spec of all windowed logic.

State is keyed by (window start, keys); a window is put out and leaves the state when the watermark of its shard has
reached its end. Nothing runs per row or per key in Python. What does not fit words, sessions and functions go to
`keyed_windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.dataplane.keys.encoding import decode_keys
from penstock.dataplane.keys.kinds import key_types
from penstock.dataplane.logic.aggregate_words import WordAggregates, aggregates_identity, is_fixed_width
from penstock.dataplane.logic.keyed_windows import build_keyed_windows
from penstock.dataplane.logic.protocol import LATE, EpochInput, Logic, ShardClock, ShardedRows
from penstock.dataplane.logic.rows import states_identity
from penstock.dataplane.logic.window_rows import WindowGrouper, assign_windows, window_column
from penstock.dataplane.state.expiring_columns import LEAST, ExpiringColumnState
from penstock.dataplane.state.protocol import I64, U64, TaskState
from penstock.topology.aggregates import Aggregate
from penstock.topology.states import StateSpec
from penstock.topology.windows import UPDATE, Window


@dataclass
class WindowLogicSpec:
    """A windowed operator as declared: aggregates, or a function."""

    window: Window
    place: int
    schema: pa.Schema
    mode: str
    aggregates: tuple[Aggregate, ...] = ()
    input_types: tuple[pa.DataType, ...] = ()
    function: Callable[..., Any] | None = None
    states: Mapping[str, StateSpec] = field(default_factory=dict)
    rows: str = ""
    """Of a function: the columns of its rows, which are kept until their window closes."""

    clocked = True
    stateful = True

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> Logic:
        words = self.function is None and is_fixed_width(self.aggregates, self.input_types)
        if words and not self.window.session:
            return ColumnWindowLogic(self, operator, keys, input_schema, shards, memory_bytes)
        return build_keyed_windows(self, operator, keys, input_schema, shards, memory_bytes)

    def identity(self) -> dict[str, object]:
        made: dict[str, object] = {"kind": "windowed", "window": self.window.identity()}
        if self.function is not None:
            return {**made, **states_identity(self.schema, self.states), "rows": self.rows}
        made["aggregates"] = aggregates_identity(self.aggregates, self.input_types)
        return made


class ColumnWindowLogic:
    """Aggregates that fit words over tumbling or sliding windows."""

    def __init__(
        self,
        spec: WindowLogicSpec,
        operator: str,
        keys: Sequence[str],
        input_schema: pa.Schema,
        shards: int,
        memory_bytes: int,
    ) -> None:
        self._spec, self._shards = spec, shards
        fields = list(spec.schema)[1 + len(keys) :]
        self._words = WordAggregates(spec.aggregates, spec.input_types, fields)
        self._grouper = WindowGrouper(operator, keys, input_schema, shards)
        self._types = [pa.int64(), *(key_types(input_schema, keys, operator) if keys else [])]
        names = ["window", *keys]
        self._columns = ExpiringColumnState(
            self._words.format, self._types, names, operator, shards, memory_bytes
        )
        self._needed = [*keys, *(one.column for one in spec.aggregates if one.column is not None)]
        self._window_field = spec.schema.field(spec.place)
        self.state: TaskState | None = self._columns
        self.sides: Mapping[str, pa.Table] = {}
        self.late_rows = 0
        self.untimed_rows = 0

    def run(self, given: EpochInput) -> pa.Table:
        """Fold the rows into their windows, then close those that the watermark has reached."""
        self.sides, self.late_rows, self.untimed_rows = {}, 0, 0
        changed = self._fold(given.epoch, given.inputs[0]) if given.inputs[0].rows.num_rows else None
        closed = self._close(given.clocks)
        made = changed if self._spec.mode == UPDATE else closed
        return self._spec.schema.empty_table() if made is None else made

    def _fold(self, epoch: int, taken: ShardedRows) -> pa.Table | None:
        """Return the windows that changed."""
        assigned = assign_windows(self._spec.window, taken, self._needed)
        self.late_rows, self.untimed_rows = assigned.late_rows, assigned.untimed_rows
        if assigned.late is not None:
            self.sides = {LATE: assigned.late}
        rows = assigned.rows
        if not rows.rows.num_rows:
            return None
        groups = self._words.group(self._grouper, rows)
        combine = self._words.combiner(groups)
        words = self._columns.update(epoch, groups.batch, self._words.initial, combine)
        return self._table(groups.keys, words) if self._spec.mode == UPDATE else None

    def _close(self, clocks: Sequence[ShardClock]) -> pa.Table | None:
        """Take out the windows that have ended; return them."""
        until: I64 = np.full(self._shards, LEAST, np.int64)
        for clock in clocks:
            if clock.watermark_us is not None:
                until[clock.shards] = clock.watermark_us - self._spec.window.size_us
        expired = self._columns.remove_up_to(until)
        if not len(expired.shards) or self._spec.mode == UPDATE:
            return None
        return self._table(decode_keys(expired.keys, self._types), expired.rows)

    def _table(self, keys: list[pa.Array], rows: U64) -> pa.Table:
        spec = self._spec
        starts = keys[0].to_numpy()
        window = window_column(keys[0], pa.array(starts + spec.window.size_us), self._window_field)
        columns = [*keys[1:], *self._words.outputs(rows)]
        columns.insert(spec.place, window)
        return pa.Table.from_arrays(columns, schema=spec.schema)
