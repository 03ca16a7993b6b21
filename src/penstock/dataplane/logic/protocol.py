"""What a task's logic is: rows of its shards in, rows out, state changed on the way.

Logic never sees files, epochs of others, or any clock but the epoch time. The same input gives the same
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.dataplane.state.protocol import I64, U16, TaskState


@dataclass(frozen=True)
class ShardedRows:
    """Rows of one input, sorted by shard; within a shard in the one fixed order of the channel."""

    shards: U16
    """Shards that have rows, ascending."""
    offsets: I64
    """len(shards) + 1 row offsets into `rows`."""
    rows: pa.Table


@dataclass(frozen=True)
class EpochInput:
    """All that one task is given for one epoch."""

    epoch: int
    time_us: int
    """The epoch time: the only clock operators may read."""
    inputs: Sequence[ShardedRows]
    """One per declared input of the operator."""


class Logic(Protocol):
    """One operator's logic inside one task."""

    @property
    def state(self) -> TaskState | None:
        """State of the shards the task owns; None for logic without state."""
        ...

    def run(self, given: EpochInput) -> pa.Table:
        """Process one epoch; return the output rows (output schema), ordered by shard and then by emission.

        Raises OperatorError (naming operator, key and cause) when user code fails or returns rows that do not
        fit.
        """
        ...


class LogicSpec(Protocol):
    """A declared operator's logic, as shipped to tasks; `build` is called once per task, after the fork."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the output rows."""
        ...

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> Logic:
        """Make the logic with empty state; `memory_bytes` bounds its cache of decoded state."""
        ...

    def identity(self) -> dict[str, object]:
        """Return what must not change across restarts (kind, state names and types), JSON-able."""
        ...
