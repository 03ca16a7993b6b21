"""Row functions with timers: `on_timer(key, time, state)` for keys whose timers are due, after the rows of the epoch.

Timers fire by shard, then event time before epoch time, then by time and key: an order that a replay repeats. What a
timer sets for a later time that is due too fires in the same epoch, so that the result does not depend on how far
a watermark jumps. When the input has ended, the event-time timers that are set fire once and set no others off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.dataplane.collector import collector_off
from penstock.dataplane.logic.protocol import EpochInput
from penstock.dataplane.logic.rows import RowLogic, RowLogicSpec, operator_error
from penstock.dataplane.records import END_US
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.timed import Timing, datetime_of, timed_state_class
from penstock.dataplane.state.timers import EPOCH_TIMERS, EVENT_TIMERS, Due
from penstock.topology.batches import rows_to_batch
from penstock.topology.returned import returned_rows

TimerFunction = Callable[[Any, Any, KeyState], "Iterable[Any] | None"]


@dataclass(frozen=True)
class TimedRowLogicSpec(RowLogicSpec):
    """A row function with a function for its timers."""

    on_timer: TimerFunction | None = None
    watermarked: bool = True
    """Whether a watermark comes to the operator, without which no event-time timer would ever fire."""

    clocked = True

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> RowLogic:
        return TimedRowLogic(self, operator, tuple(keys), input_schema, memory_bytes)


class TimedRowLogic(RowLogic):
    """A row function with timers inside one task."""

    _spec: TimedRowLogicSpec

    def _make_state(self, operator: str, key_fields: list[pa.Field], memory_bytes: int) -> EntryState:
        self._timing = Timing(operator, self._spec.watermarked)
        state = EntryState(
            operator,
            key_fields,
            dict(self._spec.states),
            memory_bytes,
            timers=(EVENT_TIMERS, EPOCH_TIMERS),
            key_state=timed_state_class(self._timing),
        )
        self._timing.columns = state.timers
        return state

    def run(self, given: EpochInput) -> pa.Table:
        """Call the function for every key that has rows, then fire the timers that are due."""
        marks = [(shard, clock.watermark_us) for clock in given.clocks for shard in clock.shards.tolist()]
        self._timing.begin(given.time_us, marks)
        made = super().run(given)
        fired: list[Any] = []
        with collector_off():
            for shard, watermark_us in sorted(marks, key=lambda mark: mark[0]):
                ended = watermark_us is not None and watermark_us >= END_US
                while True:  # a timer of one kind may set one of the other that is due
                    by_event = watermark_us is not None and self._fire(
                        EVENT_TIMERS, shard, watermark_us, fired
                    )
                    by_epoch = self._fire(EPOCH_TIMERS, shard, given.time_us, fired)
                    if not by_epoch or (ended and by_event):
                        break
        if not fired:
            return made
        batch = rows_to_batch(fired, self._spec.schema, self._operator)
        return pa.concat_tables([made, pa.Table.from_batches([batch])]).combine_chunks()

    def _fire(self, kind: str, shard: int, until_us: int, into: list[Any]) -> bool:
        """Fire the timers of one kind that are due; say whether there were any."""
        fired = False
        while due := self.state.due_timers(kind, shard, until_us):
            keys = list(dict.fromkeys(one.key for one in due))
            states = dict(zip(keys, self.state.touch(shard, keys), strict=True))
            fired = True
            for one in due:
                self._call_timer(kind, states[one.key], one, into)
            self._timing.firing = None
            self.state.settle(list(states.values()))
            if until_us >= END_US:
                break
        return fired

    def _call_timer(self, kind: str, state: KeyState, due: Due, into: list[Any]) -> None:
        column = self.state.timers[kind]
        if due.time_us not in column.of(state):
            return  # an earlier timer took it back
        column.delete(state, due.time_us)
        self._timing.firing = (kind, due.time_us)
        assert self._spec.on_timer is not None
        try:
            into.extend(returned_rows(self._spec.on_timer(state._key, datetime_of(due.time_us), state)))
        except BaseException as error:
            raise operator_error(self._operator, state._key, error) from error
