"""Built-in aggregates of which at least one does not fit a word: text, decimals, top-n.

Rows are grouped and reduced by Arrow, as for any aggregate; then each key's partials are folded in Python
into one entry, a msgpack list with an element per aggregate: None, a number, bytes, or a list of these.
Python runs per key and epoch here, never per row.
"""

from __future__ import annotations

import decimal
import heapq
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.keys.encoding import decode_keys, encode_keys
from penstock.dataplane.logic.aggregate_words import (
    View,
    WordReader,
    derive_words,
    mean_of,
    read_words,
    view_column,
)
from penstock.dataplane.logic.key_groups import Grouper, KeyGroups, Question
from penstock.dataplane.logic.protocol import EpochInput, PlainLogic, ShardedRows
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.protocol import TaskState
from penstock.errors import OperatorError
from penstock.topology.aggregates import Aggregate, AggregateKind, is_word_type
from penstock.topology.states import ValueState
from penstock.topology.type_words import type_words

_ROW: Final = "row"
_EXACT: Final = decimal.Context(prec=80)
_BIGINT: Final = 1 << 64
_SELECTING: Final = {AggregateKind.MIN: "min", AggregateKind.MAX: "max"}

Merge = Callable[[Any, Any], Any]
"""Fold a key's partial (second) into what its state holds (first); neither is None but for `last`."""


class _Column:
    """One aggregate: its partials, how they fold, and its output."""

    def __init__(
        self, aggregate: Aggregate, type_: pa.DataType, field: pa.Field, operator: str, at: int
    ) -> None:
        self.aggregate, self.type, self.field, self.operator = aggregate, type_, field, operator
        self.name = f"a{at}"
        self.keeps_nulls = aggregate.kind is AggregateKind.LAST

    def columns(self, rows: pa.Table) -> dict[str, Any]:
        """Return the columns to group."""
        raise NotImplementedError

    questions: Sequence[Question] = ()

    def partials(self, groups: KeyGroups, taken: ShardedRows, grouper: Grouper) -> list[Any]:
        """Return a value per key, None where it has none."""
        raise NotImplementedError

    def merge(self, state: Any, partial: Any) -> Any:
        raise NotImplementedError

    def output(self, states: list[Any]) -> pa.Array:
        """Return the output column from what the state of each key holds."""
        raise NotImplementedError


class _WordColumn(_Column):
    """An aggregate that alone would fit words: its words as numbers."""

    def __init__(
        self, aggregate: Aggregate, type_: pa.DataType, field: pa.Field, operator: str, at: int
    ) -> None:
        super().__init__(aggregate, type_, field, operator, at)
        self._words, _ = derive_words([aggregate], [type_])
        self._reader = WordReader(self._words, f"{self.name}_")
        self.questions = self._reader.questions

    def columns(self, rows: pa.Table) -> dict[str, Any]:
        return self._reader.columns(rows)

    def partials(self, groups: KeyGroups, taken: ShardedRows, grouper: Grouper) -> list[Any]:
        lists = []
        for word, partial in zip(self._words, self._reader.partials(groups), strict=True):
            values = partial.values.tolist()
            if partial.present is not None and word.bit is not None:
                pairs = zip(values, partial.present.tolist(), strict=True)
                values = [value if present else None for value, present in pairs]
            lists.append(values)
        return lists[0] if len(lists) == 1 else [list(each) for each in zip(*lists, strict=True)]

    def merge(self, state: Any, partial: Any) -> Any:
        kind = self.aggregate.kind
        if kind is AggregateKind.LAST:
            return partial
        if kind is AggregateKind.MIN:
            return min(state, partial)
        if kind is AggregateKind.MAX:
            return max(state, partial)
        if kind is AggregateKind.MEAN:
            return [_plain_nan(state[0] + partial[0]), state[1] + partial[1]]
        total = state + partial
        return _plain_nan(total) if isinstance(total, float) else _wrapped(total)

    def output(self, states: list[Any]) -> pa.Array:
        kind = self.aggregate.kind
        if kind is AggregateKind.MEAN:
            return mean_of(
                np.array([s for s, _ in states]), np.array([count for _, count in states], np.int64)
            )
        if kind in (AggregateKind.MIN, AggregateKind.MAX, AggregateKind.LAST):
            return _words_to_array(states, self._words[0].view, self.type)
        return pa.array(states, self.field.type)


class _SelectingColumn(_Column):
    """Least, greatest or last value of a wide type: Arrow finds its row."""

    def __init__(
        self, aggregate: Aggregate, type_: pa.DataType, field: pa.Field, operator: str, at: int
    ) -> None:
        super().__init__(aggregate, type_, field, operator, at)
        self.questions = [(self.name, _SELECTING.get(aggregate.kind, "max"))]

    def columns(self, rows: pa.Table) -> dict[str, Any]:
        column = rows.column(str(self.aggregate.column))
        if self.keeps_nulls:
            return {self.name: pa.array(np.arange(len(column)))}
        order = pc.sort_indices(column).to_numpy()
        ranks = np.empty(len(column), np.int64)
        ranks[order] = np.arange(len(column))
        self._order = order
        absent = column.is_null().to_numpy() if column.null_count else None
        return {self.name: pa.array(ranks, mask=absent)}

    def partials(self, groups: KeyGroups, taken: ShardedRows, grouper: Grouper) -> list[Any]:
        chosen = groups.partial(self.questions[0])
        rows = chosen.values if self.keeps_nulls else self._order.take(chosen.values)
        mask = None if chosen.present is None else ~chosen.present
        values = taken.rows.column(str(self.aggregate.column)).take(pa.array(rows, mask=mask))
        return _wide_values(values.combine_chunks())

    def merge(self, state: Any, partial: Any) -> Any:
        if self.keeps_nulls:
            return partial
        return min(state, partial) if self.aggregate.kind is AggregateKind.MIN else max(state, partial)

    def output(self, states: list[Any]) -> pa.Array:
        return _wide_array(states, self.type)


class _DecimalSum(_Column):
    """The sum of a decimal column: the unscaled integer, as signed big-endian bytes."""

    def __init__(
        self, aggregate: Aggregate, type_: pa.DataType, field: pa.Field, operator: str, at: int
    ) -> None:
        super().__init__(aggregate, type_, field, operator, at)
        self.questions = [(self.name, "sum")]
        self._limit = 10**field.type.precision

    def columns(self, rows: pa.Table) -> dict[str, Any]:
        return {self.name: rows.column(str(self.aggregate.column)).cast(pa.decimal128(38, self.type.scale))}

    def partials(self, groups: KeyGroups, taken: ShardedRows, grouper: Grouper) -> list[Any]:
        sums = groups.column(self.questions[0]).to_pylist()
        scale = self.type.scale
        return [None if one is None else self._bytes(int(_EXACT.scaleb(one, scale))) for one in sums]

    def merge(self, state: Any, partial: Any) -> Any:
        return self._bytes(
            int.from_bytes(state, "big", signed=True) + int.from_bytes(partial, "big", signed=True)
        )

    def output(self, states: list[Any]) -> pa.Array:
        scale = self.type.scale
        sums = [None if one is None else int.from_bytes(one, "big", signed=True) for one in states]
        scaled = [None if one is None else _EXACT.scaleb(decimal.Decimal(one), -scale) for one in sums]
        return pa.array(scaled, self.field.type)

    def _bytes(self, unscaled: int) -> bytes:
        if abs(unscaled) >= self._limit:
            raise OperatorError(
                f"operator {self.operator!r}: {self.field.name!r} goes beyond {type_words(self.field.type)}; "
                "sum a column of fewer digits, or cast it to double"
            )
        return unscaled.to_bytes(16, "big", signed=True)


class _TopN(_Column):
    """The greatest values, greatest first: words as numbers, anything else as bytes."""

    def __init__(
        self, aggregate: Aggregate, type_: pa.DataType, field: pa.Field, operator: str, at: int
    ) -> None:
        super().__init__(aggregate, type_, field, operator, at)
        self._word = is_word_type(type_)

    def columns(self, rows: pa.Table) -> dict[str, Any]:
        return {}

    def partials(self, groups: KeyGroups, taken: ShardedRows, grouper: Grouper) -> list[Any]:
        column = taken.rows.column(str(self.aggregate.column))
        ordered = view_column(column, View.ORDERED) if self._word else column
        order = pc.sort_indices(ordered, sort_keys=[("", "descending")])
        order = order.slice(0, len(column) - column.null_count)
        values = ordered.take(order)
        # Rows in descending order of their value, grouped again: each key's list begins with its greatest.
        lists = grouper.lists(taken.rows.take(order), values, self.aggregate.n)
        flat, sizes = lists.values, lists.sizes
        items = iter(flat.to_pylist() if self._word else _wide_values(flat))
        found = {
            key: list(islice(items, size)) for key, size in zip(lists.keys.to_pylist(), sizes, strict=True)
        }
        return [found.get(key, []) for key in groups.batch.keys.to_pylist()]

    def merge(self, state: Any, partial: Any) -> Any:
        return list(islice(heapq.merge(state, partial, reverse=True), self.aggregate.n))

    def output(self, states: list[Any]) -> pa.Array:
        flat = [value for state in states for value in state]
        bounds = np.concatenate(([0], np.cumsum([len(state) for state in states], dtype=np.int64)))
        values = (
            _words_to_array(flat, View.ORDERED, self.type) if self._word else _wide_array(flat, self.type)
        )
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values).cast(self.field.type)


class WideAggregateLogic(PlainLogic):
    """Aggregates over one entry per key."""

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        types: Sequence[pa.DataType],
        schema: pa.Schema,
        operator: str,
        keys: Sequence[str],
        input_schema: pa.Schema,
        shards: int,
        memory_bytes: int,
    ) -> None:
        fields = list(schema)[len(keys) :]
        self._columns = make_columns(aggregates, types, fields, operator)
        self._schema = schema
        self._questions = [question for column in self._columns for question in column.questions]
        self._grouper = Grouper(operator, keys, input_schema, shards)
        key_fields = [input_schema.field(key) for key in keys]
        self._entries = EntryState(operator, key_fields, {"aggregates": ValueState("binary")}, memory_bytes)
        self.state: TaskState | None = self._entries

    def run(self, given: EpochInput) -> pa.Table:
        taken = given.inputs[0]
        if not taken.rows.num_rows:
            return self._schema.empty_table()
        inputs: dict[str, Any] = {}
        for column in self._columns:
            inputs.update(column.columns(taken.rows))
        groups = self._grouper.group(taken, inputs, self._questions)
        partials = [column.partials(groups, taken, self._grouper) for column in self._columns]
        states = self._fold(groups, list(zip(*partials, strict=True)))
        columns = zip(self._columns, zip(*states, strict=True), strict=True)
        outputs = [column.output(list(values)) for column, values in columns]
        return pa.Table.from_arrays([*groups.keys, *outputs], schema=self._schema)

    def _fold(self, groups: KeyGroups, partials: list[tuple[Any, ...]]) -> list[list[Any]]:
        """Fold each key's partials into its entry; return what the entries hold now."""
        keys, shards = groups.batch.keys.to_pylist(), groups.batch.shards
        bounds = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(keys)]
        merges = [(column.merge, column.keeps_nulls) for column in self._columns]
        encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
        states: list[list[Any]] = []
        for start, end in pairwise(bounds):
            held = self._entries.touch(int(shards[start]), keys[start:end])
            for state, new in zip(held, partials[start:end], strict=True):
                stored = state.aggregates.get()
                if stored is None:
                    folded = list(new)
                else:
                    olds = decode(stored)
                    folded = [merged_partials(*each) for each in zip(merges, olds, new, strict=True)]
                state.aggregates.update(encode(folded))
                states.append(folded)
        return states


def make_columns(
    aggregates: Sequence[Aggregate], types: Sequence[pa.DataType], fields: Sequence[pa.Field], operator: str
) -> list[_Column]:
    """Return what folds each aggregate, whatever its type."""
    return [
        _column(one, type_, field, operator, at)
        for at, (one, type_, field) in enumerate(zip(aggregates, types, fields, strict=True))
    ]


def _column(aggregate: Aggregate, type_: pa.DataType, field: pa.Field, operator: str, at: int) -> _Column:
    counts = (AggregateKind.COUNT, AggregateKind.COUNT_ROWS)
    if aggregate.kind is AggregateKind.TOP_N:
        return _TopN(aggregate, type_, field, operator, at)
    if aggregate.kind in counts or is_word_type(type_):
        return _WordColumn(aggregate, type_, field, operator, at)
    if aggregate.kind is AggregateKind.SUM:
        return _DecimalSum(aggregate, type_, field, operator, at)
    return _SelectingColumn(aggregate, type_, field, operator, at)


def merged_partials(merge: tuple[Merge, bool], state: Any, partial: Any) -> Any:
    """Fold a partial into what is held, either of which may be None; the flag says that None is a value."""
    fold, keeps_nulls = merge
    if keeps_nulls:
        return partial
    return partial if state is None else state if partial is None else fold(state, partial)


def _plain_nan(value: float) -> float:
    return value if value == value else float("nan")  # processors differ in the bits of a NaN they make


def _wrapped(total: int) -> int:
    return (total + (_BIGINT >> 1)) % _BIGINT - (_BIGINT >> 1)


def _words_to_array(values: list[Any], view: View, type_: pa.DataType) -> pa.Array:
    absent = np.array([value is None for value in values], np.bool_)
    words = np.array([0 if value is None else value for value in values], np.int64).view(np.uint64)
    return read_words(words, view, type_, absent if absent.any() else None)


def _wide_values(values: pa.Array) -> list[bytes | None]:
    """Return text and decimals as bytes that order as they do."""
    if not pa.types.is_decimal(values.type):
        texts: list[bytes | None] = values.cast(pa.large_binary()).to_pylist()
        return texts
    encoded = encode_keys([values.fill_null(0)], ["value"], "").to_pylist()
    return [one if valid else None for one, valid in zip(encoded, values.is_valid().to_pylist(), strict=True)]


def _wide_array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Undo `_wide_values`."""
    if not pa.types.is_decimal(type_):
        return pa.array(values, pa.large_binary()).cast(type_)
    zero = (1 << 127).to_bytes(16, "big")
    array = decode_keys(pa.array([zero if one is None else one for one in values], pa.binary()), [type_])[0]
    return pc.if_else(
        pa.array([one is not None for one in values], pa.bool_()), array, pa.scalar(None, type_)
    )
