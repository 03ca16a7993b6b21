"""Vectorised functions: `fn(table, state)` once per shard and epoch, over Arrow tables.

Value states are read and written by column (`lookup`, `update`); anything else goes key by key through
`state.key(...)`. The function's table is checked against the declared schema before it goes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.logic.protocol import EpochInput, PlainLogic, PlainSpec
from penstock.dataplane.logic.rows import operator_error, states_identity
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.misuse import (
    COLUMN_STATE,
    refuse_assignment,
    refuse_deletion,
    refuse_subscript,
    with_words,
)
from penstock.errors import OperatorError
from penstock.topology.batches import conform_batch
from penstock.topology.returned import refuse_asynchronous
from penstock.topology.states import StateSpec, ValueState

ArrowFunction = Callable[[pa.Table, "ShardState"], pa.Table]
Keys = Any
"""Key columns: a table or batch that has them by name, or a sequence of columns in key order, or one
column."""


@dataclass(frozen=True)
class ArrowLogicSpec(PlainSpec):
    """A vectorised function with its output schema and states, as declared."""

    fn: ArrowFunction
    schema: pa.Schema
    states: Mapping[str, StateSpec] = field(default_factory=dict)

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> ArrowLogic:
        return ArrowLogic(self, operator, tuple(keys), input_schema, memory_bytes)

    def identity(self) -> dict[str, object]:
        return {"kind": "arrow", **states_identity(self.schema, self.states)}


class ArrowLogic(PlainLogic):
    """A vectorised function inside one task."""

    def __init__(
        self,
        spec: ArrowLogicSpec,
        operator: str,
        keys: tuple[str, ...],
        input_schema: pa.Schema,
        memory_bytes: int,
    ) -> None:
        self._spec = spec
        self._operator = operator
        self._key_fields = [input_schema.field(name) for name in keys]
        self.state: EntryState = EntryState(operator, self._key_fields, dict(spec.states), memory_bytes)

    def run(self, given: EpochInput) -> pa.Table:
        """Call the function for every shard that has rows."""
        (rows,) = given.inputs
        tables = []
        for at, shard in enumerate(rows.shards.tolist()):
            start, end = int(rows.offsets[at]), int(rows.offsets[at + 1])
            tables.append(self._run_shard(shard, rows.rows.slice(start, end - start)))
        return pa.Table.from_batches([table for table in tables if table.num_rows], self._spec.schema)

    def _run_shard(self, shard: int, rows: pa.Table) -> pa.RecordBatch:
        state = ShardState(self.state, shard, rows, self._key_fields, self._spec.states)
        try:
            result = self._spec.fn(rows, state)
            refuse_asynchronous(result)
        except BaseException as error:
            raise operator_error(self._operator, None, error) from error
        if result is None:
            return pa.RecordBatch.from_pylist([], schema=self._spec.schema)
        if not isinstance(result, (pa.Table, pa.RecordBatch)):
            raise OperatorError(
                f"operator {self._operator!r} returned a {type(result).__name__}; return a pyarrow.Table with the "
                f"columns {', '.join(map(repr, self._spec.schema.names))}"
            )
        return conform_batch(result, self._spec.schema, self._operator)


class ShardState:
    """The state of one shard's keys: one attribute per declared state, and `key(...)` for the state of one
    key."""

    def __init__(
        self,
        state: EntryState,
        shard: int,
        rows: pa.Table,
        keys: Sequence[pa.Field],
        specs: Mapping[str, StateSpec],
    ) -> None:
        self._state = state
        self._shard = shard
        self._rows = rows
        self._keys = keys
        self._present: set[bytes] | None = None
        for name, spec in specs.items():
            if isinstance(spec, ValueState):
                setattr(self, name, ColumnHandle(self, name, spec.value_type))
        self._open = True

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"there is no value state named {name!r} here; a list or map state is reached through "
            f"state.key(...).{name}, and any state has to be declared"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if "_open" in self.__dict__ and not name.startswith("_"):
            refuse_assignment(name, value, self.__dict__.get(name))
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> NoReturn:
        refuse_deletion(name)

    def __getitem__(self, name: object) -> NoReturn:
        refuse_subscript(name)

    def key(self, *values: Any) -> KeyState:
        """Return the state of one key that has rows in the table, as a row function sees it."""
        return self._touch([self._state.key_codec.encode(values)])[0]

    def _of(self, keys: Keys) -> list[KeyState]:
        """Return the state of each row's key."""
        columns = self._columns(keys)
        distinct = self._encode(columns).dictionary_encode()
        states = self._touch(distinct.dictionary.to_pylist())
        return [states[code] for code in distinct.indices.to_numpy().tolist()]

    def _encode(self, columns: list[Any]) -> pa.BinaryArray:
        return encode_keys(columns, [key.name for key in self._keys], self._state.operator)

    def _touch(self, keys: list[bytes]) -> list[KeyState]:
        # A key of another shard would be written here and read there; only keys with rows are sure to be ours.
        if self._present is None:
            self._present = set(self._encode(self._columns(self._rows)).unique().to_pylist())
        for key in set(keys) - self._present:
            raise KeyError(
                f"key {self._state.key_codec.decode(key)!r} has no row in this table; state can be reached only for "
                "keys that have"
            )
        return self._state.touch(self._shard, keys)

    def _columns(self, keys: Keys) -> list[Any]:
        if isinstance(keys, (pa.Table, pa.RecordBatch)):
            columns = [keys.column(key.name) for key in self._keys]
        else:
            columns = [keys] if isinstance(keys, (pa.Array, pa.ChunkedArray)) else list(keys)
        if len(columns) != len(self._keys):
            raise ValueError(f"{len(columns)} key column(s) given, {len(self._keys)} needed")
        return [
            column if column.type == key.type else column.cast(key.type)
            for column, key in zip(columns, self._keys, strict=True)
        ]


class ColumnHandle:
    """A value state, by column."""

    def __init__(self, shard: ShardState, name: str, type_: pa.DataType) -> None:
        self._shard = shard
        self._name = name
        self._type = type_

    def lookup(self, keys: Keys) -> pa.Array:
        """Return the value of each row's key, null where there is none."""
        name = self._name
        return pa.array([getattr(state, name).get() for state in self._shard._of(keys)], self._type)

    def update(self, keys: Keys, values: pa.Array | pa.ChunkedArray) -> None:
        """Set the value of each row's key (of the last row, where a key has several); a null clears it."""
        name = self._name
        states = self._shard._of(keys)
        if len(states) != len(values):
            raise ValueError(f"{len(states)} keys but {len(values)} values")
        plain = (values if values.type == self._type else values.cast(self._type)).to_pylist()
        for state, value in zip(states, plain, strict=True):
            handle = getattr(state, name)
            if value is None:
                handle.clear()
            else:
                handle.update(value)


with_words(ColumnHandle, COLUMN_STATE)
