"""The topology as tasks need it: stages with their logic and edges. Built once on the driver, shipped inside
the lease's closure.

Holds user functions, so it travels through Spark's own task channel only, never through the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.logic.protocol import LogicSpec

Generate = Callable[[int, int], pa.RecordBatch]


@dataclass(frozen=True)
class InputSpec:
    """One declared input of a stage."""

    edge: int
    producer: str
    schema: pa.Schema
    slot: int = 0
    """Which input of the logic it is part of; the inputs of a union share one."""


@dataclass(frozen=True)
class StageSpec:
    """One source, operator or sink."""

    name: str
    kind: str
    """source | operator | sink"""
    schema: pa.Schema
    """Of the rows it puts out; for a sink, of the rows it takes."""
    inputs: Sequence[InputSpec] = ()
    edges: Sequence[EdgeSpec] = ()
    keys: tuple[str, ...] = ()
    shards: int = 1
    tasks: int = 1
    logic: LogicSpec | None = None
    generate: Generate | None = None
    min_epoch_s: float | None = None
    """Of a sink: shortest time from the start of one epoch to the next, where it is not that of the settings."""
    ingested: bool = False
    """A source fed by a Structured Streaming query instead of by tasks."""

    @property
    def slots(self) -> int:
        """How many inputs the logic has."""
        return 1 + max((given.slot for given in self.inputs), default=-1)


@dataclass(frozen=True)
class Program:
    """All stages, in declared order."""

    stages: Mapping[str, StageSpec]
    memory_bytes: int = 512 << 20
    """Bound of decoded state kept in memory, per task."""
    code: bytes = b""
