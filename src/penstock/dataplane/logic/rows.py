"""Row functions: `fn(key, rows, state)` once per key and epoch, in a fixed order.

Rows are grouped and turned into named tuples column by column; the only Python that runs per row is the
user's. An exception of the user's ends the epoch as an OperatorError that names the key and carries the
traceback.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from time import perf_counter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.dataplane.collector import collector_off
from penstock.dataplane.logic.grouping import group_by_key
from penstock.dataplane.logic.letters import Letters
from penstock.dataplane.logic.protocol import EpochInput, PlainLogic, PlainSpec, ShardedRows
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.misuse import hint_for
from penstock.errors import OperatorError
from penstock.raised import describe_own, describe_traceback, function_error, show
from penstock.topology.batches import rows_to_batch
from penstock.topology.returned import ReturnedError, returned_rows
from penstock.topology.rows import batch_to_rows, row_class
from penstock.topology.states import StateSpec
from penstock.topology.types import ddl_of

_BLOCK_ROWS: Final = 4096
TIMED_EVERY: Final = 8
"""Epochs of which one looks at the clock between calls: it costs some hundredths of a short call."""

RowFunction = Callable[[Any, list[Any], KeyState], "Iterable[Any] | None"]


@dataclass(frozen=True)
class RowLogicSpec(PlainSpec):
    """A row function with its output schema and states, as declared."""

    fn: RowFunction
    schema: pa.Schema
    states: Mapping[str, StateSpec] = field(default_factory=dict)
    dead_letters: bool = False

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> RowLogic:
        return RowLogic(self, operator, tuple(keys), input_schema, memory_bytes)

    def identity(self) -> dict[str, object]:
        return {"kind": "rows", **states_identity(self.schema, self.states)}


def states_identity(schema: pa.Schema, states: Mapping[str, StateSpec]) -> dict[str, object]:
    """Return the part of an operator's identity that its output and its states give."""
    return {"schema": ddl_of(schema), "states": [[name, spec.identity()] for name, spec in states.items()]}


class RowLogic(PlainLogic):
    """A row function inside one task."""

    def __init__(
        self,
        spec: RowLogicSpec,
        operator: str,
        keys: tuple[str, ...],
        input_schema: pa.Schema,
        memory_bytes: int,
    ) -> None:
        self.shard_s: dict[int, float] = {}
        """Time that the last `run` spent in calls for each shard; empty where it was not looked at."""
        self._times: list[float] | None = None
        self._spec = spec
        self._operator = operator
        self._keys = keys
        self._row_class = row_class(input_schema)
        key_fields = [input_schema.field(name) for name in keys]
        self.state: EntryState = self._make_state(operator, key_fields, memory_bytes)

    def _make_state(self, operator: str, key_fields: list[pa.Field], memory_bytes: int) -> EntryState:
        return EntryState(operator, key_fields, dict(self._spec.states), memory_bytes)

    def run(self, given: EpochInput) -> pa.Table:
        """Call the function for every key that has rows."""
        (rows,) = given.inputs
        self.sides, self.shard_s = {}, {}
        if not rows.rows.num_rows:
            return self._spec.schema.empty_table()
        with collector_off():
            letters = Letters(self._operator, given.time_us) if self._spec.dead_letters else None
            self._times = [] if given.epoch % TIMED_EVERY == 0 and letters is None else None
            made = self._run(rows, letters)
        self.sides = letters.sides() if letters is not None else {}
        return made

    def _run(self, given: ShardedRows, letters: Letters | None) -> pa.Table:
        groups = group_by_key(given, self._keys, self._operator)
        table = given.rows if groups.order is None else given.rows.take(pa.array(groups.order))
        cuts = groups.shard_bounds
        touched = (
            self.state.touch(shard, groups.keys[cuts[at] : cuts[at + 1]])
            for at, shard in enumerate(given.shards.tolist())
        )
        states = list(chain.from_iterable(touched))
        # Block by block, so that what belongs to a key is still in the processor's cache when it is encoded.
        batches = []
        for first, last in _blocks(groups.bounds):
            bounds = groups.bounds[first : last + 1]
            rows = batch_to_rows(table.slice(bounds[0], bounds[-1] - bounds[0]), self._row_class)
            if letters is None:
                results = self._call(rows, states[first:last], bounds)
            else:
                keys = groups.keys[first:last]
                results = self._call_with_letters(rows, states[first:last], keys, bounds, letters)
            batches.append(self._encode(states[first:last], results))
        if self._times:
            # What was encoded between two blocks belongs to nobody in particular and is left out.
            sums = np.add.reduceat(np.array(self._times), np.array(cuts[:-1]))
            self.shard_s = dict(zip(given.shards.tolist(), sums.tolist(), strict=True))
        return pa.Table.from_batches(batches, self._spec.schema).combine_chunks()

    def _encode(self, states: list[KeyState], results: list[list[Any]]) -> pa.RecordBatch:
        self.state.settle(states)
        try:
            return rows_to_batch(list(chain.from_iterable(results)), self._spec.schema, self._operator)
        except OperatorError as error:
            raise self._named(states, results, error) from error

    def _call(self, rows: list[Any], states: list[KeyState], bounds: list[int]) -> list[list[Any]]:
        if self._times is not None:
            return self._call_timed(rows, states, bounds, self._times)
        fn, results, base, start = self._spec.fn, [], bounds[0], 0
        state = states[0]
        try:
            for state, bound in zip(states, islice(bounds, 1, None), strict=True):
                end = bound - base
                result = fn(state._key, rows[start:end], state)
                # A generator has to run now: its state would be staged by the time its rows are read.
                results.append(result if type(result) is list else returned_rows(result))
                start = end
        except BaseException as error:
            raise operator_error(self._operator, state._key, error) from error
        return results

    def _call_timed(
        self, rows: list[Any], states: list[KeyState], bounds: list[int], times: list[float]
    ) -> list[list[Any]]:
        """As `_call`, and note how long each call took."""
        fn, results, base, start = self._spec.fn, [], bounds[0], 0
        state, began = states[0], perf_counter()
        try:
            for state, bound in zip(states, islice(bounds, 1, None), strict=True):
                end = bound - base
                result = fn(state._key, rows[start:end], state)
                results.append(result if type(result) is list else returned_rows(result))
                start = end
                ended = perf_counter()
                times.append(ended - began)
                began = ended
        except BaseException as error:
            raise operator_error(self._operator, state._key, error) from error
        return results

    def _call_with_letters(
        self, rows: list[Any], states: list[KeyState], keys: list[bytes], bounds: list[int], letters: Letters
    ) -> list[list[Any]]:
        """As `_call`, but a call that raises, or returns rows that do not fit, is taken back and kept as a letter."""
        results: list[list[Any]] = []

        def take_back(at: int, error: BaseException) -> None:
            letters.add(states[at]._key, rows[bounds[at] - bounds[0] : bounds[at + 1] - bounds[0]], error)
            self.state.roll_back(states[at], keys[at])
            results[at] = []

        for at, state in enumerate(states):
            results.append([])
            try:
                mine = rows[bounds[at] - bounds[0] : bounds[at + 1] - bounds[0]]
                results[at] = returned_rows(self._spec.fn(state._key, mine, state))
            except BaseException as error:
                take_back(at, error)
        if not self._fits(list(chain.from_iterable(results))):  # seldom; only then is it asked call by call
            for at, result in enumerate(results):
                try:
                    rows_to_batch(result, self._spec.schema, self._operator)
                except OperatorError as error:
                    take_back(at, error)
        return results

    def _fits(self, rows: list[Any]) -> bool:
        try:
            rows_to_batch(rows, self._spec.schema, self._operator)
        except OperatorError:
            return False
        return True

    def _named(self, states: list[KeyState], results: list[list[Any]], error: OperatorError) -> OperatorError:
        """Say which key's rows did not fit."""
        for state, result in zip(states, results, strict=True):
            try:
                rows_to_batch(result, self._spec.schema, self._operator)
            except OperatorError as own:
                return OperatorError(f"{own} (key {show_key(state._key)})")
        return error


def _blocks(bounds: list[int]) -> Iterator[tuple[int, int]]:
    """Cut keys into ranges of about `_BLOCK_ROWS` rows, whatever the rows of a single key."""
    first, keys = 0, len(bounds) - 1
    while first < keys:
        last = max(first + 1, bisect_right(bounds, bounds[first] + _BLOCK_ROWS) - 1)
        yield first, last
        first = last


def operator_error(operator: str, key: Any, error: BaseException) -> OperatorError:
    """Return the error of a user function that raised, with its traceback; see `penstock.raised`."""
    if isinstance(error, ReturnedError):
        return OperatorError(
            f"operator {operator!r} {error}{'' if key is None else f' (key {show_key(key)})'}."
        )
    if isinstance(error, OperatorError) and str(error).startswith(f"operator {operator!r}"):  # of a write to its state
        return OperatorError(f"{describe_own(error)}\n{describe_traceback(error)}")
    where = "" if key is None else f" for key {show_key(key)}"
    return function_error(f"operator {operator!r} failed{where}", error, f"{hint_for(error)}\n{describe_traceback(error)}")


def show_key(key: Any) -> str:
    """Return a key as errors name it: its values, without the names of its columns."""
    return show(tuple(key))
