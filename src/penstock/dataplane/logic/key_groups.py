"""One epoch's rows grouped by key, by Arrow: the step that all built-in aggregates share.

Grouping is single-threaded and folds in row order; groups come out ordered by shard and key hash, so that the
same rows give the same bytes, whatever order Arrow found them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.keys import hashing
from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.keys.kinds import key_types
from penstock.dataplane.logic.protocol import ShardedRows
from penstock.dataplane.state.column_changes import KeyBatch
from penstock.dataplane.state.column_reading import hashes_are_exact
from penstock.dataplane.state.protocol import I64, U16, U64

ROWS: Final = ("", "count_all")
"""The answer that is always there: the rows of each key."""

_SHARD: Final = "shard"

Question = tuple[str, str]
"""Name of a column, and Arrow's grouping function."""


@dataclass(frozen=True)
class Partial:
    """A value per key; `present` is None when every key has one."""

    values: npt.NDArray[Any]
    present: npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class KeyGroups:
    """The distinct keys of an epoch, and what was asked about the rows of each."""

    keys: list[pa.Array]
    batch: KeyBatch
    _table: pa.Table
    _order: I64

    def partial(self, question: Question, absent: int = 0) -> Partial:
        """Return a fixed-width answer, `absent` where it is null."""
        column = self._table.column(_answer(question))
        if not column.null_count:
            return Partial(column.to_numpy().take(self._order), None)
        values = column.fill_null(absent).to_numpy()
        return Partial(values.take(self._order), column.is_valid().to_numpy().take(self._order))

    def column(self, question: Question) -> pa.Array:
        """Return an answer of any type."""
        return self._table.column(_answer(question)).combine_chunks().take(pa.array(self._order))


@dataclass(frozen=True)
class KeyLists:
    """The first values of each key's rows, in row order."""

    keys: pa.BinaryArray
    sizes: list[int]
    values: pa.Array
    """All lists one behind the other."""


class Grouper:
    """Groups the rows of one operator's input."""

    def __init__(self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int) -> None:
        self._operator, self._keys, self._shards = operator, tuple(keys), shards
        self._exact = hashes_are_exact(key_types(input_schema, keys, operator))

    def group(
        self, taken: ShardedRows, columns: Mapping[str, Any], questions: Sequence[Question]
    ) -> KeyGroups:
        """Answer questions about `columns` (as long as the rows) for each key; there is at least one row.

        Raises:
            OperatorError: a key is null or too long.
        """
        table, keys = self._grouped(taken.rows, columns, questions)
        hashes = hashing.hash_keys(keys, self._keys, self._operator)
        shards = self._dealt(keys, hashes)
        if _agree(shards, table.column(_answer(ROWS)).to_numpy(), taken):
            order = self._sorted(hashes, shards)
        else:
            # An explicit table sent some keys elsewhere: the rows know.
            of_rows = pa.array(np.repeat(taken.shards, np.diff(taken.offsets)))
            table, keys = self._grouped(
                taken.rows, {**columns, _SHARD: of_rows}, [*questions, (_SHARD, "min")]
            )
            hashes = hashing.hash_keys(keys, self._keys, self._operator)
            shards = table.column(f"{_SHARD}_min").to_numpy()
            order = np.lexsort((hashes, shards))
        keys = [column.take(pa.array(order)) for column in keys]
        encoded = encode_keys(keys, self._keys, self._operator)
        return KeyGroups(keys, KeyBatch(hashes.take(order), shards.take(order), encoded), table, order)

    def _dealt(self, keys: list[pa.Array], hashes: U64) -> U16:
        """Return the shard that each key's rows are dealt to."""
        return hashing.shards_of(hashes, self._shards)

    def _sorted(self, hashes: U64, shards: U16) -> I64:
        """Return the order by shard and hash: shards ascend with hashes."""
        return np.argsort(hashes, kind=None if self._exact else "stable")

    def lists(self, rows: pa.Table, values: Any, limit: int) -> KeyLists:
        """Return the first `limit` of `values` (as long as the rows) for each key."""
        table, keys = self._grouped(rows, {"value": values}, [("value", "list")])
        lists = pc.list_slice(table.column("value_list").combine_chunks(), 0, limit)
        encoded = encode_keys(keys, self._keys, self._operator)
        return KeyLists(encoded, pc.list_value_length(lists).to_pylist(), lists.flatten())

    def _grouped(
        self, rows: pa.Table, columns: Mapping[str, Any], questions: Sequence[Question]
    ) -> tuple[pa.Table, list[pa.Array]]:
        names = [f"k{at}" for at in range(len(self._keys))]
        arrays: list[Any] = [canonical_key_column(rows.column(key)) for key in self._keys]
        table = pa.Table.from_arrays([*arrays, *columns.values()], names=[*names, *columns])
        asked: list[Any] = [([], "count_all")]
        asked.extend((name, function, _options(function)) for name, function in dict.fromkeys(questions))
        groups = table.group_by(names, use_threads=False).aggregate(asked)
        return groups, [groups.column(name).combine_chunks() for name in names]


def canonical_key_column(column: pa.ChunkedArray) -> Any:
    """Return a key column in which equal keys have equal bits."""
    type_ = column.type
    if pa.types.is_floating(type_) and not column.null_count:
        floats = column.to_numpy() + type_.to_pandas_dtype()(0)  # -0.0 + 0.0 is 0.0
        floats[np.isnan(floats)] = np.nan
        return pa.array(floats)
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        words = column.combine_chunks().view(pa.int64())
        micros = np.floor_divide(words.fill_null(0).to_numpy(), 1000) * 1000
        return pa.array(micros, mask=words.is_null().to_numpy(zero_copy_only=False)).view(type_)
    return column


def _options(function: str) -> Any:
    if function == "count":
        return pc.CountOptions(mode="only_valid")
    if function == "list":
        return None
    return pc.ScalarAggregateOptions(skip_nulls=function != "last", min_count=0 if function == "last" else 1)


def _answer(question: Question) -> str:
    return "_".join(part for part in question if part)


def _agree(shards: U16, counts: I64, taken: ShardedRows) -> bool:
    """Whether the shards that hashes give have as many rows as came for them."""
    rows = np.bincount(shards, weights=counts, minlength=int(taken.shards[-1]) + 1)  # exact below 2**53
    expected = np.zeros(len(rows))
    expected[taken.shards] = np.diff(taken.offsets)
    return bool(np.array_equal(rows, expected))
