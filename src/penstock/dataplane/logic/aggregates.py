"""Built-in aggregates as logic: an epoch's rows are grouped by Arrow, then folded into columnar state.

Owns which state words an aggregate keeps, how partials are folded into them and what is emitted: every key
that had rows in the epoch, ordered by shard and key hash. Nothing runs per row or per key in Python.
Grouping is single-threaded, in row order, so that the same rows give the same bytes. Aggregates whose
values do not fit a word go to `wide_aggregates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.dataplane.keys.kinds import key_types
from penstock.dataplane.logic.aggregate_words import WordAggregates, aggregates_identity, is_fixed_width
from penstock.dataplane.logic.key_groups import Grouper
from penstock.dataplane.logic.protocol import EpochInput, Logic, PlainLogic, PlainSpec
from penstock.dataplane.logic.wide_aggregates import WideAggregateLogic
from penstock.dataplane.state.columns import ColumnState
from penstock.dataplane.state.protocol import TaskState
from penstock.topology.aggregates import Aggregate, output_schema


@dataclass
class AggregateSpec(PlainSpec):
    """The declared aggregates of one operator. Made by `declare`."""

    aggregates: tuple[Aggregate, ...]
    input_types: tuple[pa.DataType, ...]
    schema: pa.Schema

    @staticmethod
    def declare(
        aggregates: Sequence[Aggregate], keys: Sequence[str], input_schema: pa.Schema, operator: str
    ) -> AggregateSpec:
        """Check the aggregates against their input.

        Raises:
            DeclarationError: naming operator and column, when a key or an aggregate does not fit the input.
        """
        key_types(input_schema, keys, operator)
        schema = output_schema(aggregates, keys, input_schema, operator)
        types = tuple(one.input_type(input_schema, operator) for one in aggregates)
        return AggregateSpec(tuple(aggregates), types, schema)

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> Logic:
        if is_fixed_width(self.aggregates, self.input_types):
            return AggregateLogic(self, operator, keys, input_schema, shards, memory_bytes)
        declared = (self.aggregates, self.input_types, self.schema)
        return WideAggregateLogic(*declared, operator, keys, input_schema, shards, memory_bytes)

    def identity(self) -> dict[str, object]:
        return {"kind": "aggregates", "aggregates": aggregates_identity(self.aggregates, self.input_types)}


class AggregateLogic(PlainLogic):
    """Aggregates that fit words, over columnar state."""

    wants_shard_order = False
    """Grouping needs the order of rows within a key only, which concatenated pieces have already."""

    def __init__(
        self,
        spec: AggregateSpec,
        operator: str,
        keys: Sequence[str],
        input_schema: pa.Schema,
        shards: int,
        memory_bytes: int,
    ) -> None:
        self._spec = spec
        self._words = WordAggregates(spec.aggregates, spec.input_types, list(spec.schema)[len(keys) :])
        self._grouper = Grouper(operator, keys, input_schema, shards)
        types = key_types(input_schema, keys, operator)
        self._columns = ColumnState(self._words.format, types, keys, operator, shards, memory_bytes)
        self.state: TaskState | None = self._columns

    def run(self, given: EpochInput) -> pa.Table:
        taken = given.inputs[0]
        if not taken.rows.num_rows:
            return self._spec.schema.empty_table()
        groups = self._words.group(self._grouper, taken)
        combine = self._words.combiner(groups)
        rows = self._columns.update(given.epoch, groups.batch, self._words.initial, combine)
        return pa.Table.from_arrays([*groups.keys, *self._words.outputs(rows)], schema=self._spec.schema)
