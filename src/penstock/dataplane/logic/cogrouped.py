"""Row functions over two inputs: `fn(key, left rows, right rows, state)` once per key that has rows on either side.

Both sides are keyed alike, so rows of a key meet in one shard. Keys come in the order of their first row, left rows
before right ones; rows of a side keep their channel order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.dataplane.collector import collector_off
from penstock.dataplane.logic.grouping import Groups, group_by_key
from penstock.dataplane.logic.letters import Letters
from penstock.dataplane.logic.protocol import EpochInput, PlainLogic, PlainSpec, ShardedRows
from penstock.dataplane.logic.rows import operator_error, states_identity
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.protocol import I64
from penstock.topology.batches import rows_to_batch
from penstock.topology.returned import returned_rows
from penstock.topology.rows import batch_to_rows, row_class
from penstock.topology.states import StateSpec

CogroupedFunction = Callable[[Any, list[Any], list[Any], KeyState], "Iterable[Any] | None"]


@dataclass(frozen=True)
class CogroupedLogicSpec(PlainSpec):
    """A function of two inputs with its output schema and states, as declared."""

    fn: CogroupedFunction
    schema: pa.Schema
    right_keys: tuple[str, ...]
    right_schema: pa.Schema
    states: Mapping[str, StateSpec] = field(default_factory=dict)
    dead_letters: bool = False

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> CogroupedLogic:
        return CogroupedLogic(self, operator, tuple(keys), input_schema, memory_bytes)

    def identity(self) -> dict[str, object]:
        return {"kind": "cogrouped", **states_identity(self.schema, self.states)}


class CogroupedLogic(PlainLogic):
    """A function of two inputs inside one task."""

    def __init__(
        self,
        spec: CogroupedLogicSpec,
        operator: str,
        keys: tuple[str, ...],
        left_schema: pa.Schema,
        memory_bytes: int,
    ) -> None:
        self._spec = spec
        self._operator = operator
        self._keys = keys
        self._classes = (row_class(left_schema), row_class(spec.right_schema))
        key_fields = [left_schema.field(name) for name in keys]
        self.state: EntryState = EntryState(operator, key_fields, dict(spec.states), memory_bytes)

    def run(self, given: EpochInput) -> pa.Table:
        """Call the function for every key that has rows on either side."""
        left, right = given.inputs
        self.sides = {}
        if not left.rows.num_rows and not right.rows.num_rows:
            return self._spec.schema.empty_table()
        letters = Letters(self._operator, given.time_us) if self._spec.dead_letters else None
        with collector_off():
            made = self._run(left, right, letters)
        self.sides = letters.sides() if letters is not None else {}
        return made

    def _run(self, left: ShardedRows, right: ShardedRows, letters: Letters | None) -> pa.Table:
        both, places = _merge_keys(left, right, self._keys, self._spec.right_keys)
        groups = group_by_key(both, self._keys, self._operator)
        places = places if groups.order is None else places[groups.order]
        sides = [
            self._side(rows, places, first, groups, cls)
            for rows, first, cls in zip(
                (left.rows, right.rows), (0, left.rows.num_rows), self._classes, strict=True
            )
        ]
        cuts = groups.shard_bounds
        touched = (
            self.state.touch(shard, groups.keys[cuts[at] : cuts[at + 1]])
            for at, shard in enumerate(both.shards.tolist())
        )
        states = list(chain.from_iterable(touched))
        made = self._call(states, sides, groups.keys, letters)
        self.state.settle(states)
        return pa.Table.from_batches(
            [rows_to_batch(made, self._spec.schema, self._operator)], self._spec.schema
        )

    def _side(
        self, rows: pa.Table, places: I64, first: int, groups: Groups, cls: type[Any]
    ) -> tuple[list[Any], list[int]]:
        """Return the rows of one side, key by key, and where those of each key begin."""
        mine = (places >= first) & (places < first + rows.num_rows)
        before = np.concatenate([[0], np.cumsum(mine)])
        table = rows.take(pa.array(places[mine] - first))
        return batch_to_rows(table, cls), before[np.asarray(groups.bounds)].tolist()

    def _call(
        self,
        states: list[KeyState],
        sides: list[tuple[list[Any], list[int]]],
        keys: list[bytes],
        letters: Letters | None,
    ) -> list[Any]:
        (left, left_at), (right, right_at) = sides
        made: list[Any] = []
        for at, state in enumerate(states):
            mine, theirs = left[left_at[at] : left_at[at + 1]], right[right_at[at] : right_at[at + 1]]
            try:
                # A generator that raises puts nothing out.
                result = returned_rows(self._spec.fn(state._key, mine, theirs, state))
                if letters is not None and result:
                    rows_to_batch(result, self._spec.schema, self._operator)
                made.extend(result)
            except BaseException as error:
                if letters is None:
                    raise operator_error(self._operator, state._key, error) from error
                letters.add(state._key, [*mine, *theirs], error)
                self.state.roll_back(state, keys[at])
        return made


def _merge_keys(
    left: ShardedRows, right: ShardedRows, names: tuple[str, ...], right_names: tuple[str, ...]
) -> tuple[ShardedRows, I64]:
    """Put the key columns of both sides together, by shard, left rows first; and where each row stood: rows of the right
    side are numbered behind those of the left."""
    shards = np.concatenate([np.repeat(side.shards, np.diff(side.offsets)) for side in (left, right)])
    order = np.argsort(shards, kind="stable")
    keys = pa.concat_tables(
        [left.rows.select(list(names)), right.rows.select(list(right_names)).rename_columns(list(names))],
        promote_options="permissive",
    )
    distinct, counts = np.unique(shards, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ShardedRows(distinct.astype(np.uint16), offsets, keys.take(pa.array(order))), order.astype(
        np.int64
    )
