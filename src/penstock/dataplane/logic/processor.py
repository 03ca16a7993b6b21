"""A PySpark StatefulProcessor inside one task: initial rows, then rows, then timers that are due, key by key.

One call per key and epoch, in a fixed order. Late rows are left out in event time, by the watermark that stood before
their batch; timers fire by the watermark after the rows. A timer that a handler sets fires in a later epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.dataplane.collector import collector_off
from penstock.dataplane.logic.grouping import Groups, group_by_key
from penstock.dataplane.logic.processor_flavours import Flavour, Frames, Rows
from penstock.dataplane.logic.processor_letters import LetteredCalls
from penstock.dataplane.logic.processor_states import ENDS, Tools, timer_kinds
from penstock.dataplane.logic.protocol import LATE, EpochInput, ShardedRows
from penstock.dataplane.logic.rows import _blocks, operator_error, show_key
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.protocol import I64, U16
from penstock.dataplane.state.timers import Due
from penstock.errors import OperatorError
from penstock.raised import function_error
from penstock.topology.processors import Processor, copy_processor
from penstock.topology.returned import returned_rows
from penstock.topology.rows import batch_to_rows, row_class
from penstock.topology.types import ddl_of

LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what a processor sees as watermark when its bounded input has ended."""


@dataclass(frozen=True)
class ProcessorSpec:
    """A processor with its output schema, as declared."""

    declared: Processor
    schema: pa.Schema
    initial_keys: tuple[str, ...] = ()
    """Key columns of its second input, the initial state; none where it has no such input."""
    dead_letters: bool = False

    stateful = True

    @property
    def clocked(self) -> bool:
        return self.declared.time_mode != "none"

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> ProcessorLogic:
        return ProcessorLogic(self, operator, tuple(keys), input_schema, memory_bytes)

    def identity(self) -> dict[str, object]:
        return {
            "kind": "processor",
            "schema": ddl_of(self.schema),
            "time": self.declared.time_mode,
            "states": [[state.name, state.identity()] for state in self.declared.states],
        }


class ProcessorLogic:
    """A processor inside one task."""

    def __init__(
        self,
        spec: ProcessorSpec,
        operator: str,
        keys: tuple[str, ...],
        input_schema: pa.Schema,
        memory_bytes: int,
    ) -> None:
        declared = spec.declared
        self._spec = spec
        self._declared = declared
        self._operator = operator
        self._keys = keys
        self._kinds = timer_kinds(declared.time_mode)
        key_fields = [input_schema.field(name) for name in keys]
        self.state: EntryState = EntryState(
            operator,
            key_fields,
            declared.slots(),
            memory_bytes,
            timers=self._kinds,
            key_class=tuple,
        )
        self._timer_key = declared.kit.row_class(keys)
        make = Rows if declared.flavour == "rows" else Frames
        key_types = [field.type for field in key_fields]
        self._timed_keys = any(map(pa.types.is_timestamp, key_types))
        self._flavour: Flavour = make(declared, input_schema, spec.schema, operator, key_types)
        self._tools = Tools(declared, operator, self.state)
        self._tools.nothing = self._flavour.nothing
        self._processor = self._call_user(None, lambda: copy_processor(declared.processor))
        self._call_user(None, lambda: self._processor.init(declared.kit.handle(self._tools)))
        self._tools.end_init()
        self.sides: dict[str, pa.Table] = {}
        self.late_rows = 0
        self._lettered: LetteredCalls | None = None

    def close(self) -> None:
        """Let the processor clean up; the lease ends."""
        self._tools.key = None
        self._call_user(None, self._processor.close)

    def run(self, given: EpochInput) -> pa.Table:
        """Call the processor for every key that has initial rows, rows or due timers."""
        self.sides, self.late_rows = {}, 0
        self._tools.time_ms = given.time_us // 1000
        self._tools.watermark_ms = 0
        if self._spec.dead_letters:
            self._lettered = LetteredCalls(self._operator, given.time_us, self.state, self._batch)
        made = _Made()
        with collector_off():
            if self._spec.initial_keys and given.inputs[1].rows.num_rows:
                (self._take_initial if self._declared.imported is None else self._take_imported)(
                    given.inputs[1]
                )
            rows = self._in_time(given.inputs[0])
            if rows.rows.num_rows:
                self._take_rows(rows, given, made)
            if self._kinds:
                self._fire(given, made)
        self._tools.key = None
        if self._lettered is not None:
            self.sides = {**self.sides, **self._lettered.letters.sides()}
        return made.table(self._spec.schema)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _in_time(self, given: ShardedRows) -> ShardedRows:
        column = self._declared.event_time
        if self._declared.time_mode != "event" or column is None or given.late_us is None:
            return given
        times = given.rows.column(column).combine_chunks()
        times = (
            times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64()).fill_null(np.iinfo(np.int64).max)
        )
        kept = times.to_numpy() > given.late_us
        if kept.all():
            return given
        self.late_rows = int(len(kept) - kept.sum())
        self.sides = {LATE: given.rows.filter(pa.array(~kept))}
        return _only(given, kept)

    def _take_rows(self, given: ShardedRows, epoch: EpochInput, made: _Made) -> None:
        groups = group_by_key(given, self._keys, self._operator)
        table = given.rows if groups.order is None else given.rows.take(pa.array(groups.order))
        states = self._touch(given, groups)
        clocks = self._row_clocks(given, groups, epoch)
        for first, last in _blocks(groups.bounds):
            start, end = groups.bounds[first], groups.bounds[last]
            bounds = [bound - start for bound in groups.bounds[first : last + 1]]
            block = table.slice(start, end - start)
            times = None if clocks is None else clocks[first:last]
            if self._lettered is None:
                results = self._call(block, states[first:last], bounds, times)
            else:
                keys = groups.keys[first:last]
                results = self._call_with_letters(block, states[first:last], keys, bounds, times)
            self.state.settle(states[first:last])
            self._put_out(states[first:last], results, made)

    def _call(
        self, block: pa.Table, states: list[KeyState], bounds: list[int], clocks: list[int] | None
    ) -> list[list[Any]]:
        feeds = self._flavour.split(block, bounds)
        tools, handle, results, state = self._tools, self._processor.handleInputRows, [], states[0]
        key_of = self._flavour.key if self._timed_keys else None
        values = self._timer_values(0)
        try:
            for at, (state, feed) in enumerate(zip(states, feeds, strict=True)):
                tools.key = state
                if clocks is not None:
                    values = self._timer_values(clocks[at])
                key = state._key if key_of is None else key_of(state._key)
                result = handle(key, feed, values)
                # A generator has to run now: its state would be settled by the time its rows are read.
                results.append(result if type(result) is list else returned_rows(result))
        except BaseException as error:
            raise operator_error(self._operator, state._key, error) from error
        return results

    def _call_with_letters(
        self,
        block: pa.Table,
        states: list[KeyState],
        keys: list[bytes],
        bounds: list[int],
        clocks: list[int] | None,
    ) -> list[list[Any]]:
        """As `_call`, but a call that raises, or gives rows that do not fit, is taken back and kept as a letter."""
        feeds = self._flavour.split(block, bounds)

        def call(at: int) -> list[Any]:
            feed = next(feeds)
            self._tools.key = states[at]
            values = self._timer_values(0 if clocks is None else clocks[at])
            key = self._flavour.key(states[at]._key)
            return returned_rows(self._processor.handleInputRows(key, feed, values))

        def rows(at: int) -> list[Any]:
            found: list[Any] = block.slice(bounds[at], bounds[at + 1] - bounds[at]).to_pylist()
            return found

        assert self._lettered is not None
        return self._lettered.take_rows(states, keys, call, rows)

    def _row_clocks(self, given: ShardedRows, groups: Groups, epoch: EpochInput) -> list[int] | None:
        """The watermark that each key's rows see: what stood before the newest of their batches."""
        if self._declared.time_mode != "event":
            return None
        watermarks = _watermarks(epoch)
        shards = np.repeat(given.shards, np.diff(groups.shard_bounds)).tolist()
        after = [watermarks.get(shard) for shard in shards]
        if given.late_us is None:
            return [0] * len(after)
        late = given.late_us if groups.order is None else given.late_us[groups.order]
        before = np.maximum.reduceat(late, np.asarray(groups.bounds[:-1])).tolist()
        return [min(_ms(low), _ms(high)) for low, high in zip(before, after, strict=True)]

    def _touch(self, given: ShardedRows, groups: Groups) -> list[KeyState]:
        cuts = groups.shard_bounds
        touched = (
            self.state.touch(shard, groups.keys[cuts[at] : cuts[at + 1]])
            for at, shard in enumerate(given.shards.tolist())
        )
        return list(chain.from_iterable(touched))

    # -- initial state ------------------------------------------------------------------------------------------------

    def _take_initial(self, given: ShardedRows) -> None:
        names = self._spec.initial_keys
        groups = group_by_key(given, names, self._operator)
        table = given.rows if groups.order is None else given.rows.take(pa.array(groups.order))
        states = self._touch(given, groups)
        values = self._timer_values(0)
        calls = self._flavour.initial(table, groups.bounds)
        for state, rows in zip(states, calls, strict=True):
            self._tools.key, key = state, self._flavour.key(state._key)
            for row in rows:
                self._call_user(
                    state._key,
                    lambda: self._processor.handleInitialState(key, row, values),  # noqa: B023
                )
        self.state.settle(states)

    def _take_imported(self, given: ShardedRows) -> None:
        """Put what another query held into the states, without a call of the processor."""
        groups = group_by_key(given, self._spec.initial_keys, self._operator)
        table = given.rows if groups.order is None else given.rows.take(pa.array(groups.order))
        states = self._touch(given, groups)
        rows = batch_to_rows(table, row_class(table.schema))
        for at, state in enumerate(states):
            self._tools.key = state
            for row in rows[groups.bounds[at] : groups.bounds[at + 1]]:
                self._tools.take_imported(row, self._declared.imported or ())
        self.state.settle(states)

    # -- timers -------------------------------------------------------------------------------------------------------

    def _fire(self, given: EpochInput, made: _Made) -> None:
        (kind,) = self._kinds
        watermarks = _watermarks(given)
        for shard in sorted(watermarks):
            watermark = watermarks[shard]
            until = given.time_us if self._declared.time_mode == "processing" else watermark
            if until is None:
                continue
            due = self.state.due_timers(kind, shard, until)
            if due:
                self._fire_shard(shard, due, 0 if watermark is None else _ms(watermark), made)

    def _fire_shard(self, shard: int, due: Sequence[Due], watermark_ms: int, made: _Made) -> None:
        keys = list(dict.fromkeys(one.key for one in due))
        states = dict(zip(keys, self.state.touch(shard, keys), strict=True))
        values = self._timer_values(watermark_ms)

        def call(state: KeyState, time_us: int) -> list[Any] | None:
            return self._fire_one(state, time_us, values)

        if self._lettered is None:
            made_by = {
                one: self._call_user(states[one.key]._key, partial(call, states[one.key], one.time_us))
                for one in due
            }
        else:
            made_by = self._lettered.fire(due, states, call, self._tools.drop_timer)
        fired = {one: result for one, result in made_by.items() if result is not None}
        self.state.settle(list(states.values()))
        self._put_out([states[one.key] for one in fired], list(fired.values()), made)

    def _fire_one(self, state: KeyState, time_us: int, values: Any) -> list[Any] | None:
        """Fire one timer; None when a handler before it took it back, or when it is the hidden one."""
        tools = self._tools
        if not tools.has_timer(state, time_us):
            return None
        if time_us % 1000 == ENDS:
            tools.end(state, time_us)
            return None
        tools.key = state
        info = self._declared.kit.expired_timer(time_us // 1000)
        key = tuple.__new__(self._timer_key, self._flavour.timer_key(state._key))
        handle = self._processor.handleExpiredTimer
        found = returned_rows(handle(key=key, timerValues=values, expiredTimerInfo=info))
        tools.drop_timer(state, time_us)
        return found

    # -- calls and outputs --------------------------------------------------------------------------------------------

    def _timer_values(self, watermark_ms: int) -> Any:
        self._tools.watermark_ms = watermark_ms
        mode = self._declared.time_mode
        if mode == "none":
            return self._declared.kit.timer_values(-1, -1)
        return self._declared.kit.timer_values(self._tools.time_ms, watermark_ms if mode == "event" else 0)

    def _call_user(self, key: Any, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:
            raise operator_error(self._operator, key, error) from error

    def _put_out(self, states: list[KeyState], results: list[list[Any]], made: _Made) -> None:
        rows = list(chain.from_iterable(results))
        if not rows:
            return
        try:
            batch = self._batch(rows)
        except OperatorError as error:
            raise self._named(states, results, error) from error
        made.add(batch, [state._shard for state in states], self._counts(results, batch.num_rows))

    def _batch(self, made: list[Any]) -> pa.RecordBatch:
        try:
            return self._flavour.batch(made)
        except OperatorError:
            raise
        except BaseException as error:  # of a method of what was yielded
            what = f"operator {self._operator!r} yielded rows that cannot be read"
            raise function_error(what, error) from error

    def _counts(self, results: list[list[Any]], rows: int) -> list[int]:
        if self._declared.flavour == "rows":
            return [len(result) for result in results]
        return [sum(len(frame) for frame in result) for result in results]

    def _named(self, states: list[KeyState], results: list[list[Any]], error: OperatorError) -> OperatorError:
        """Say which key's rows did not fit."""
        for state, result in zip(states, results, strict=True):
            try:
                self._batch(result)
            except OperatorError as own:
                return OperatorError(f"{own} (key {show_key(state._key)})")
        return error


class _Made:
    """Output rows of an epoch with the shards they came from; they leave ordered by shard, then as they were made."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._shards: list[I64] = []

    def add(self, batch: pa.RecordBatch, shards: list[int], counts: list[int]) -> None:
        self._batches.append(batch)
        self._shards.append(np.repeat(np.asarray(shards, np.int64), counts))

    def table(self, schema: pa.Schema) -> pa.Table:
        table = pa.Table.from_batches(self._batches, schema).combine_chunks()
        if not self._batches:
            return table
        shards = np.concatenate(self._shards)
        if bool(np.all(shards[1:] >= shards[:-1])):
            return table
        return table.take(pa.array(np.argsort(shards, kind="stable")))


def _watermarks(given: EpochInput) -> dict[int, int | None]:
    return {shard: clock.watermark_us for clock in given.clocks for shard in clock.shards.tolist()}


def _ms(watermark_us: int | None) -> int:
    """Milliseconds as a processor sees them: 0 before there is a watermark."""
    return 0 if watermark_us is None else max(0, min(watermark_us // 1000, LATEST_MS))


def _only(given: ShardedRows, kept: Any) -> ShardedRows:
    """Return the rows that are kept."""
    counts = np.add.reduceat(kept.astype(np.int64), given.offsets[:-1])
    there = counts > 0
    offsets: I64 = np.concatenate([[0], np.cumsum(counts[there])]).astype(np.int64)
    shards: U16 = given.shards[there]
    late = None if given.late_us is None else given.late_us[kept]
    return ShardedRows(shards, offsets, given.rows.filter(pa.array(kept)), late)
