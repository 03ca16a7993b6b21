"""Row functions beside a broadcast: every shard gets all broadcast rows, keeps what it needs of them in states of its
own, and its keys read them.

In an epoch the broadcast rows of a shard come before the rows of its keys. The shared states belong to the shard: they
are committed, moved and brought with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.dataplane.collector import collector_off
from penstock.dataplane.logic.grouping import group_by_key
from penstock.dataplane.logic.letters import Letters
from penstock.dataplane.logic.protocol import EpochInput, PlainLogic, PlainSpec, ShardedRows
from penstock.dataplane.logic.rows import operator_error, states_identity
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.errors import OperatorError
from penstock.topology.batches import rows_to_batch
from penstock.topology.returned import returned_rows
from penstock.topology.rows import batch_to_rows, row_class
from penstock.topology.states import StateSpec

KeyedFunction = Callable[[Any, list[Any], KeyState, KeyState], "Iterable[Any] | None"]
BroadcastFunction = Callable[[list[Any], KeyState], "Iterable[Any] | None"]


@dataclass(frozen=True)
class BroadcastLogicSpec(PlainSpec):
    """A function of keyed rows and one of broadcast rows, with their states, as declared."""

    fn: KeyedFunction
    on_broadcast: BroadcastFunction
    schema: pa.Schema
    broadcast_schema: pa.Schema
    states: Mapping[str, StateSpec] = field(default_factory=dict)
    shared: Mapping[str, StateSpec] = field(default_factory=dict)
    dead_letters: bool = False

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> BroadcastLogic:
        return BroadcastLogic(self, operator, tuple(keys), input_schema, memory_bytes)

    def identity(self) -> dict[str, object]:
        shared = [[name, spec.identity()] for name, spec in self.shared.items()]
        return {"kind": "broadcast", **states_identity(self.schema, self.states), "shared": shared}


class BroadcastLogic(PlainLogic):
    """Both functions inside one task."""

    def __init__(
        self,
        spec: BroadcastLogicSpec,
        operator: str,
        keys: tuple[str, ...],
        input_schema: pa.Schema,
        memory_bytes: int,
    ) -> None:
        self._spec = spec
        self._operator = operator
        self._keys = keys
        self._classes = (row_class(input_schema), row_class(spec.broadcast_schema))
        fields = [input_schema.field(name) for name in keys]
        self.state: EntryState = EntryState(
            operator, fields, dict(spec.states), memory_bytes, shared=dict(spec.shared)
        )

    def run(self, given: EpochInput) -> pa.Table:
        """Hand broadcast rows to every shard that has some, then the rows of keys to their function."""
        keyed, broadcast = given.inputs
        letters = Letters(self._operator, given.time_us)
        with collector_off():
            made = self._take_broadcast(broadcast)
            if keyed.rows.num_rows:
                made.extend(self._run_keys(keyed, letters))
        self.sides = letters.sides()
        return pa.Table.from_batches(
            [rows_to_batch(made, self._spec.schema, self._operator)], self._spec.schema
        )

    def _take_broadcast(self, given: ShardedRows) -> list[Any]:
        made: list[Any] = []
        for at, shard in enumerate(given.shards.tolist()):
            start, end = int(given.offsets[at]), int(given.offsets[at + 1])
            rows = batch_to_rows(given.rows.slice(start, end - start), self._classes[1])
            shared = self.state.shared(shard)
            try:
                made.extend(returned_rows(self._spec.on_broadcast(rows, shared)))
            except BaseException as error:
                raise operator_error(self._operator, None, error) from error
            self.state.settle_shared(shared)
        return made

    def _run_keys(self, given: ShardedRows, letters: Letters) -> list[Any]:
        groups = group_by_key(given, self._keys, self._operator)
        table = given.rows if groups.order is None else given.rows.take(pa.array(groups.order))
        rows, cuts = batch_to_rows(table, self._classes[0]), groups.shard_bounds
        shards = given.shards.tolist()
        touched = (
            self.state.touch(shard, groups.keys[cuts[at] : cuts[at + 1]]) for at, shard in enumerate(shards)
        )
        states = list(chain.from_iterable(touched))
        shared = [self.state.shared(shard) for shard in shards]
        owner = np.repeat(np.arange(len(shards)), np.diff(cuts)).tolist()
        made: list[Any] = []
        for at, state in enumerate(states):
            mine = rows[groups.bounds[at] : groups.bounds[at + 1]]
            try:
                # A generator that raises puts nothing out.
                result = returned_rows(self._spec.fn(state._key, mine, state, shared[owner[at]]))
                if self._spec.dead_letters and result:
                    rows_to_batch(result, self._spec.schema, self._operator)
                made.extend(result)
            except BaseException as error:
                if not self._spec.dead_letters:
                    raise operator_error(self._operator, state._key, error) from error
                letters.add(state._key, mine, error)
                self.state.roll_back(state, groups.keys[at])
        self.state.settle(states)
        if any(map(self.state.is_changed, shared)):
            raise OperatorError(
                f"operator {self._operator!r}: its function changed shared state, which is read there only; change it in "
                "on_broadcast, or keep it in state."
            )
        return made
