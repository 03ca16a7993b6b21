"""How the rows of a test come to the operator it holds: through the steps before it, keyed, with their event time.

As a producer's task would have written them, for one shard; nothing is written here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.dataplane.channel import EdgeSpec, deal_rows
from penstock.dataplane.logic.protocol import MAIN, ShardedRows
from penstock.dataplane.program import Program, StageSpec
from penstock.dataplane.state.protocol import U16
from penstock.topology.sources import from_rows
from penstock.topology.stateless import Watermark

SHARD: Final[U16] = np.zeros(1, np.uint16)
"""The one shard of an operator in a test."""


class Intake:
    """One input of the operator: what becomes of a test's rows on the way in."""

    def __init__(self, program: Program, spec: StageSpec, slot: int) -> None:
        self._name = spec.name
        feeding = [
            (stage, edge)
            for given in spec.inputs
            if given.slot == slot
            for stage in program.stages.values()
            for edge in stage.edges
            if edge.edge == given.edge
        ]
        self.schema = next((given.schema for given in spec.inputs if given.slot == slot), spec.schema)
        self._edge = EdgeSpec(0, (), 1, spec.name)
        self._given = self.schema
        if feeding:
            stage, edge = feeding[0]
            whole = len(feeding) == 1 and edge.output == MAIN
            self._given = stage.schema if whole else self.schema
            steps = edge.steps if whole else tuple(s for s in edge.steps if _still_fits(s, self.schema))
            self._edge = replace(edge, shards=1, steps=steps)
        self.marked = self._edge.delay_us is not None and spec.clocked
        self.mark_us: int | None = None

    def take(self, rows: object, late_us: int | None) -> ShardedRows:
        """Return rows as the operator gets them, and follow their event time."""
        given = from_rows(rows, schema=self._given, name=self._name).node
        assert given.function is not None and given.limit is not None
        table = pa.Table.from_batches([given.function(0, given.limit)])
        if table.num_rows:
            table, event_us = self._edge.observe(table)
            if event_us is not None and self._edge.delay_us is not None:
                latest = event_us - self._edge.delay_us
                self.mark_us = latest if self.mark_us is None else max(latest, self.mark_us)
        else:
            table = self.schema.empty_table()
        if not table.num_rows:
            return ShardedRows(SHARD[:0], np.zeros(1, np.int64), self.schema.empty_table())
        _, batch = deal_rows(self._edge, table, self._name)
        late = None if late_us is None else np.full(batch.num_rows, late_us, np.int64)
        return ShardedRows(
            SHARD, np.array([0, batch.num_rows], np.int64), pa.Table.from_batches([batch]), late
        )


def _still_fits(step: object, schema: pa.Schema) -> bool:
    """Whether a watermark that is declared on one branch of a union can be followed on the rows of the union."""
    return isinstance(step, Watermark) and step.column in schema.names
