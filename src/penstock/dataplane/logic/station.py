"""Stations: stateless steps as an operator of their own, with a queue and cores of its own. No keys, no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.dataplane.logic.protocol import EpochInput, Logic, PlainLogic, PlainSpec
from penstock.dataplane.state.protocol import TaskState
from penstock.topology.stateless import FusedStep
from penstock.topology.types import ddl_of


@dataclass(frozen=True)
class StationSpec(PlainSpec):
    """The steps of a station, as declared."""

    steps: tuple[FusedStep, ...]
    schema: pa.Schema
    stateful = False

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> Logic:
        return StationLogic(self)

    def identity(self) -> dict[str, object]:
        return {"kind": "station", "schema": ddl_of(self.schema)}


class StationLogic(PlainLogic):
    """The steps of a station inside one task."""

    state: TaskState | None = None

    def __init__(self, spec: StationSpec) -> None:
        self._spec = spec

    def run(self, given: EpochInput) -> pa.Table:
        """Put all rows through the steps, in the order in which they came."""
        (rows,) = given.inputs
        table = rows.rows
        for step in self._spec.steps:
            table = step.apply(table)
        return table if table.num_rows else self._spec.schema.empty_table()
