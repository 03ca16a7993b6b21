"""What a task's logic is: rows of its shards in, rows out, state changed on the way.

Logic never sees files, epochs of others, or any clock but the epoch time. The same input gives the same
bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from penstock.dataplane.state.protocol import I64, U16, TaskState
from penstock.raised import describe_own, pass_on_end

MAIN: Final = "main"
"""The output that every logic has: what `run` returns."""
DEAD: Final = "dead"
"""Side output: rows of calls that raised, with the traceback."""
LATE: Final = "late"
"""Side output: rows that came behind the watermark."""


@dataclass(frozen=True)
class ShardedRows:
    """Rows of one input, sorted by shard; within a shard in the one fixed order of the channel."""

    shards: U16
    """Shards that have rows, ascending."""
    offsets: I64
    """len(shards) + 1 row offsets into `rows`."""
    rows: pa.Table
    late_us: I64 | None = None
    """For each row: it is late if its event time is not after this. It follows from what the row's producer had
    published before it, not from how epochs were cut here. None where the input has no watermark."""


@dataclass(frozen=True)
class ShardClock:
    """Shards that take part in an epoch, with or without rows, and their watermark after its rows."""

    shards: U16
    watermark_us: int | None


@dataclass(frozen=True)
class EpochInput:
    """All that one task is given for one epoch."""

    epoch: int
    time_us: int
    """The epoch time: the only clock operators may read."""
    inputs: Sequence[ShardedRows]
    """One per declared input of the operator."""
    clocks: Sequence[ShardClock] = ()
    """All shards that take part. An operator that is `clocked` is also run without rows, when its watermark moved or
    one of its timers is due."""


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

    @property
    def sides(self) -> Mapping[str, pa.Table]:
        """Side outputs of the last `run`, by name; what is empty may be left out."""
        ...

    @property
    def late_rows(self) -> int:
        """How many rows of the last `run` were left out because they were late."""
        ...


def close_logic(logic: Logic | None) -> None:
    """Let logic that has something to clean up do so; what goes wrong then is told and changes nothing."""
    close = getattr(logic, "close", None)
    if close is not None:
        try:
            close()
        except BaseException as error:
            pass_on_end(error)
            logging.getLogger("penstock").warning("%s", describe_own(error))


class PlainLogic:
    """What logic without side outputs and without event time has of them: nothing."""

    sides: Mapping[str, pa.Table] = {}
    late_rows = 0


class LogicSpec(Protocol):
    """A declared operator's logic, as shipped to tasks; `build` is called once per task, after the fork."""

    @property
    def clocked(self) -> bool:
        """Whether the logic acts on watermarks or timers, and so is run without rows too."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether the logic keeps state per shard."""
        ...

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


class PlainSpec:
    """A spec whose logic keeps state and acts on rows alone."""

    clocked = False
    stateful = True
