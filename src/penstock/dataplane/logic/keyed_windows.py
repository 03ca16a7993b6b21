"""Windows kept key by key: sessions, aggregates that fit no words, and functions over whole windows.

A key's open windows are a map of start to end and partial results; an event-time timer stands at each end. When it is
due the window is put out and leaves the state. Sessions that touch become one, as Spark's do; but for a row, a session
that ended at or before the row's `late_us` is closed, whether or not it was put out yet, so that sessions do not depend
on how epochs were cut.
"""

from __future__ import annotations

import datetime as dt
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.dataplane.collector import collector_off
from penstock.dataplane.keys.canonical import EPOCH_NAIVE, EPOCH_UTC
from penstock.dataplane.keys.encoding import decode_keys, encode_keys
from penstock.dataplane.logic.grouping import Groups, group_by_key
from penstock.dataplane.logic.protocol import LATE, EpochInput, Logic, ShardClock, ShardedRows
from penstock.dataplane.logic.rows import operator_error
from penstock.dataplane.logic.wide_aggregates import make_columns, merged_partials
from penstock.dataplane.logic.window_rows import (
    START,
    WindowGrouper,
    assign_windows,
    by_lateness,
    split_sessions,
    window_column,
)
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.protocol import TaskState
from penstock.dataplane.state.timers import EVENT_TIMERS
from penstock.topology.batches import rows_to_batch
from penstock.topology.returned import returned_rows
from penstock.topology.rows import batch_to_rows, row_class, struct_class
from penstock.topology.states import MapState, StateSpec, ValueState
from penstock.topology.windows import UPDATE

if TYPE_CHECKING:
    from penstock.dataplane.logic.windows import WindowLogicSpec

_WINDOWS: Final = "_windows"
_ROWS: Final = "_rows"
_NEXT: Final = "_next"
WINDOW_STATES: Final = (_WINDOWS, _ROWS)
"""What is kept behind the states that a function declares: a key's windows, and for a function their rows."""
_TIME: Final = "\0time"
_AT: Final = "\0at"
_ELEMENT: Final = struct.Struct(">QQ")
_OFFSET: Final = 1 << 63
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode

Held = list[Any] | None
"""What a window holds: the aggregates so far; None where rows are kept instead."""


def window_of(stored: bytes) -> tuple[int, Held]:
    """Return the end of a stored window and what it holds."""
    end, held = _decode(stored)
    return end, held


def time_of(element: bytes) -> int:
    """Return the time under which a stored row of a function stands: the start of its window, or its own in a session."""
    return int(_ELEMENT.unpack(element)[0]) - _OFFSET


def build_keyed_windows(
    spec: WindowLogicSpec,
    operator: str,
    keys: Sequence[str],
    input_schema: pa.Schema,
    shards: int,
    memory_bytes: int,
) -> Logic:
    """Make the logic of a windowed operator that is kept key by key."""
    kind = AggregateWindows if spec.function is None else FunctionWindows
    return kind(spec, operator, keys, input_schema, shards, memory_bytes)


class _KeyedWindows:
    """The open windows of each key."""

    def __init__(
        self,
        spec: WindowLogicSpec,
        operator: str,
        keys: Sequence[str],
        input_schema: pa.Schema,
        shards: int,
        memory_bytes: int,
    ) -> None:
        self._spec, self._operator, self._keys = spec, operator, tuple(keys)
        self._key_fields = [input_schema.field(key) for key in keys]
        states: dict[str, StateSpec] = {**spec.states, _WINDOWS: MapState("long", "binary")}
        states.update(self._more_states(input_schema))
        self._entries = EntryState(operator, self._key_fields, states, memory_bytes, timers=(EVENT_TIMERS,))
        self._timers = self._entries.timers[EVENT_TIMERS]
        self.state: TaskState | None = self._entries
        self.sides: Mapping[str, pa.Table] = {}
        self.late_rows = 0
        self.untimed_rows = 0

    def _more_states(self, input_schema: pa.Schema) -> dict[str, StateSpec]:
        return {}

    def run(self, given: EpochInput) -> pa.Table:
        """Put the rows into their windows, then close those that the watermark has reached."""
        self.sides, self.late_rows, self.untimed_rows = {}, 0, 0
        with collector_off():
            changed = self._fold(given.inputs[0]) if given.inputs[0].rows.num_rows else None
            closed = self._close(given.clocks)
        made = changed if self._spec.mode == UPDATE else closed
        return self._spec.schema.empty_table() if made is None else made

    def _fold(self, taken: ShardedRows) -> pa.Table | None:
        raise NotImplementedError

    def _put_out(self, closed: list[tuple[KeyState, bytes, int, int, Held]]) -> pa.Table:
        """Return the output of closed windows: state and bytes of the key, start, end and what it held."""
        raise NotImplementedError

    def _assigned(self, taken: ShardedRows, columns: Sequence[str]) -> ShardedRows:
        found = assign_windows(self._spec.window, taken, columns)
        self.late_rows, self.untimed_rows = found.late_rows, found.untimed_rows
        if found.late is not None:
            self.sides = {LATE: found.late}
        return found.rows

    def _add(self, state: KeyState, start: int, end: int, held: Held, late_us: int | None) -> Held:
        """Add to the window of a key, made where there is none; return what it holds now."""
        windows = getattr(state, _WINDOWS)
        for begun in self._touching(windows, start, end, late_us):
            ended, before = _decode(windows.pop(begun))
            self._timers.delete(state, ended)
            start, end = min(start, begun), max(end, ended)
            held = self._merged(before, held)
        windows[start] = _encode([end, held])
        self._timers.register(state, end)
        return held

    def _touching(self, windows: Any, start: int, end: int, late_us: int | None) -> list[int]:
        """Return the windows of a key that are one with this."""
        if not self._spec.window.session:
            return [start] if start in windows else []
        least = start if late_us is None else max(start, late_us + 1)
        return [begun for begun, stored in windows.items() if begun <= end and least <= _decode(stored)[0]]

    def _merged(self, before: Held, new: Held) -> Held:
        """Fold what came (second) into what a window held."""
        return None

    def _close(self, clocks: Sequence[ShardClock]) -> pa.Table | None:
        """Take out the windows that have ended, by shard, end and key; return their output."""
        marks = sorted(
            (shard, clock.watermark_us)
            for clock in clocks
            if clock.watermark_us is not None
            for shard in clock.shards.tolist()
        )
        closed: list[tuple[KeyState, bytes, int, int, Held]] = []
        for shard, watermark_us in marks:
            due = self._entries.due_timers(EVENT_TIMERS, shard, watermark_us)
            if due:
                keys = list(dict.fromkeys(one.key for one in due))
                states = dict(zip(keys, self._entries.touch(shard, keys), strict=True))
                closed.extend((states[key], key, *self._ended(states[key], end)) for end, key in due)
        made = self._put_out(closed) if closed else None
        self._entries.settle(list({id(one[0]): one[0] for one in closed}.values()))
        return made

    def _ended(self, state: KeyState, end: int) -> tuple[int, int, Held]:
        windows = getattr(state, _WINDOWS)
        self._timers.delete(state, end)
        if not self._spec.window.session:
            start = end - self._spec.window.size_us
        else:
            start = next(begun for begun, stored in windows.items() if _decode(stored)[0] == end)
        return start, end, _decode(windows.pop(start))[1]


class AggregateWindows(_KeyedWindows):
    """Aggregates over windows."""

    def __init__(
        self,
        spec: WindowLogicSpec,
        operator: str,
        keys: Sequence[str],
        input_schema: pa.Schema,
        shards: int,
        memory_bytes: int,
    ) -> None:
        super().__init__(spec, operator, keys, input_schema, shards, memory_bytes)
        fields = list(spec.schema)[1 + len(keys) :]
        self._columns = make_columns(spec.aggregates, spec.input_types, fields, operator)
        self._questions = [question for column in self._columns for question in column.questions]
        self._questions += [(_TIME, "max"), (_AT, "max")]
        self._grouper = WindowGrouper(operator, keys, input_schema, shards)
        self._needed = [*keys, *(one.column for one in spec.aggregates if one.column is not None)]
        self._merges = [(column.merge, column.keeps_nulls) for column in self._columns]

    def _fold(self, taken: ShardedRows) -> pa.Table | None:
        rows = self._assigned(taken, self._needed)
        if not rows.rows.num_rows:
            return None
        if not self._spec.window.session:
            return self._fold_windows(rows, rows.rows.column(START), None)
        for late_us, part in by_lateness(rows):
            split = split_sessions(part, self._keys, self._spec.window.size_us, self._operator)
            self._fold_windows(split, part.rows.column(START), late_us)
        return None

    def _fold_windows(self, rows: ShardedRows, times: Any, late_us: int | None) -> pa.Table | None:
        inputs: dict[str, Any] = {_TIME: times, _AT: pa.array(np.arange(rows.rows.num_rows))}
        for column in self._columns:
            inputs.update(column.columns(rows.rows))
        groups = self._grouper.group(rows, inputs, self._questions)
        partials = zip(
            *(column.partials(groups, rows, self._grouper) for column in self._columns), strict=True
        )
        # A window ends its length after its start, a session its gap after its last row: START is either's time.
        ends = (groups.partial((_TIME, "max")).values + self._spec.window.size_us).tolist()
        starts = groups.keys[0].to_pylist()
        parts = [(s, e, list(p), late_us) for s, e, p in zip(starts, ends, partials, strict=True)]
        held = self._keep(groups, parts)
        if self._spec.mode != UPDATE:
            return None
        return self._table(groups.keys[1:], starts, ends, held)

    def _keep(self, groups: Any, parts: list[tuple[int, int, list[Any], int | None]]) -> list[Held]:
        """Fold partial windows into the state, those of a key in the order of their last rows; return what each
        window holds."""
        keys = (
            encode_keys(groups.keys[1:], self._keys, self._operator).to_pylist()
            if self._keys
            else [b""] * len(parts)
        )
        order = np.lexsort((groups.partial((_AT, "max")).values, groups.batch.shards)).tolist()
        found: list[Held] = [None] * len(parts)
        touched: list[KeyState] = []
        for shard, places in _runs(order, groups.batch.shards):
            names = list(dict.fromkeys(keys[at] for at in places))
            states = dict(zip(names, self._entries.touch(shard, names), strict=True))
            for at in places:
                found[at] = self._add(states[keys[at]], *parts[at])
            touched.extend(states.values())
        self._entries.settle(touched)
        return found

    def _merged(self, before: Held, new: Held) -> Held:
        assert before is not None and new is not None
        return [merged_partials(*each) for each in zip(self._merges, before, new, strict=True)]

    def _put_out(self, closed: list[tuple[KeyState, bytes, int, int, Held]]) -> pa.Table:
        keys: list[pa.Array] = []
        if self._keys:
            encoded = pa.array([key for _, key, _, _, _ in closed], pa.binary())
            keys = decode_keys(encoded, [field.type for field in self._key_fields])
        starts, ends = [one[2] for one in closed], [one[3] for one in closed]
        return self._table(keys, starts, ends, [one[4] for one in closed])

    def _table(self, keys: list[pa.Array], starts: list[int], ends: list[int], held: list[Held]) -> pa.Table:
        spec = self._spec
        window = window_column(
            pa.array(starts, pa.int64()), pa.array(ends, pa.int64()), spec.schema.field(spec.place)
        )
        by_column = zip(self._columns, zip(*(one or () for one in held), strict=True), strict=True)
        columns = [*keys, *(column.output(list(values)) for column, values in by_column)]
        columns.insert(spec.place, window)
        return pa.Table.from_arrays(columns, schema=spec.schema)


class FunctionWindows(_KeyedWindows):
    """A function that is called once per window and key, with all rows, when the window closes."""

    def __init__(
        self,
        spec: WindowLogicSpec,
        operator: str,
        keys: Sequence[str],
        input_schema: pa.Schema,
        shards: int,
        memory_bytes: int,
    ) -> None:
        super().__init__(spec, operator, keys, input_schema, shards, memory_bytes)
        self._input_schema = input_schema
        self._row_class = row_class(input_schema)
        window = spec.window.field(input_schema)
        fields = list(self._key_fields)
        fields.insert(spec.place, window)
        self._key_class = struct_class(pa.struct(fields))
        self._window_class = struct_class(window.type)
        self._zero = EPOCH_NAIVE if window.type.field(0).type.tz is None else EPOCH_UTC

    def _more_states(self, input_schema: pa.Schema) -> dict[str, StateSpec]:
        return {_ROWS: MapState("binary", pa.struct(list(input_schema))), _NEXT: ValueState("long")}

    def _fold(self, taken: ShardedRows) -> pa.Table | None:
        given = self._assigned(taken, self._input_schema.names)
        if not given.rows.num_rows:
            return None
        groups = self._grouped(given)
        table = given.rows if groups.order is None else given.rows.take(pa.array(groups.order))
        starts = table.column(START).to_numpy().tolist()
        lates = self._lates(given, groups)
        rows = batch_to_rows(table.drop_columns([START]), self._row_class)
        touched: list[KeyState] = []
        for at, shard in enumerate(given.shards.tolist()):
            first, last = groups.shard_bounds[at], groups.shard_bounds[at + 1]
            states = self._entries.touch(shard, groups.keys[first:last])
            for state, number in zip(states, range(first, last), strict=True):
                part = slice(groups.bounds[number], groups.bounds[number + 1])
                self._store(state, starts[part], rows[part], lates[part])
            touched.extend(states)
        self._entries.settle(touched)
        return None

    def _grouped(self, given: ShardedRows) -> Groups:
        if self._keys:
            return group_by_key(given, self._keys, self._operator)
        return Groups([b""], [0, given.rows.num_rows], None, [0, 1])

    def _lates(self, given: ShardedRows, groups: Groups) -> list[int | None]:
        """Return `late_us` of the rows in the order of their groups."""
        if given.late_us is None or not self._spec.window.session:
            return [None] * given.rows.num_rows
        lates: list[int | None] = (
            given.late_us if groups.order is None else given.late_us[groups.order]
        ).tolist()
        return lates

    def _store(self, state: KeyState, starts: list[int], rows: list[Any], lates: list[int | None]) -> None:
        kept, counter = getattr(state, _ROWS), getattr(state, _NEXT)
        number = counter.get() or 0
        for at, (start, row) in enumerate(zip(starts, rows, strict=True), number):
            kept[_ELEMENT.pack(start + _OFFSET, at)] = row
        counter.update(number + len(rows))
        for start, late_us in dict.fromkeys(zip(starts, lates, strict=True)):
            self._add(state, start, start + self._spec.window.size_us, None, late_us)

    def _put_out(self, closed: list[tuple[KeyState, bytes, int, int, Held]]) -> pa.Table:
        function, results = self._spec.function, []
        assert function is not None
        for state, _, start, end, _ in closed:
            rows = self._take(state, start, end)
            if not getattr(state, _WINDOWS).exists():
                getattr(state, _NEXT).clear()
            key = self._key(state, start, end)
            try:
                results.append(returned_rows(function(key, rows, state)))
            except BaseException as error:
                raise operator_error(self._operator, key, error) from error
        made = rows_to_batch(list(chain.from_iterable(results)), self._spec.schema, self._operator)
        return pa.Table.from_batches([made], self._spec.schema)

    def _key(self, state: KeyState, start: int, end: int) -> Any:
        values = list(state._key)
        micros = dt.timedelta(microseconds=1)
        window = tuple.__new__(self._window_class, (self._zero + start * micros, self._zero + end * micros))
        values.insert(self._spec.place, window)
        return tuple.__new__(self._key_class, values)

    def _take(self, state: KeyState, start: int, end: int) -> list[Any]:
        """Take the rows of a window out of a key's state, in the order in which they came."""
        kept = getattr(state, _ROWS)
        last = end - self._spec.window.size_us if self._spec.window.session else start
        elements = kept.keys()
        low = bisect_left(elements, _ELEMENT.pack(start + _OFFSET, 0))
        high = bisect_right(elements, _ELEMENT.pack(last + _OFFSET, (1 << 64) - 1))
        # Behind the time stands the number of the row.
        return [kept.pop(element) for element in sorted(elements[low:high], key=lambda one: one[8:])]


def _runs(order: list[int], shards: Any) -> Iterator[tuple[int, list[int]]]:
    """Yield each shard with its places, in order."""
    ordered = shards[order]
    bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for start, end in pairwise(bounds):
        yield int(ordered[start]), order[start:end]
