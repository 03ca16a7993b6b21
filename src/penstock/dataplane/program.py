"""The topology as tasks need it: stages with their logic and edges. Built once on the driver, shipped inside
the lease's closure.

Holds user functions, so it travels through Spark's own task channel only, never through the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.dataplane.channel import EdgeSpec, OlderSchema
from penstock.dataplane.logic.protocol import LogicSpec

Generate = Callable[[int, int], pa.RecordBatch]
EXECUTOR_MARK = "#"
"""Between the name of an operator and the number of one of its further executors; no name can hold it."""


def operator_of(chain: str) -> str:
    """Return the stage that a chain is of: the operator of a further executor, the chain itself otherwise."""
    return chain.partition(EXECUTOR_MARK)[0]


def executor_name(operator: str, number: int) -> str:
    """Name the chain of an operator's executor; the first one has the operator's own name."""
    return operator if number == 1 else f"{operator}{EXECUTOR_MARK}{number}"


@dataclass(frozen=True)
class InputSpec:
    """One declared input of a stage."""

    edge: int
    producer: str
    schema: pa.Schema
    slot: int = 0
    """Which input of the logic it is part of; the inputs of a union share one."""
    marked: bool = False
    """Whether the producer says when its rows have ended, and when it is idle."""
    feedback: bool = False
    """Whether the edge closes a loop; its rows are taken first."""
    older: tuple[OlderSchema, ...] = ()
    """Schemas that rows of this edge had before the topology gained fields, oldest first."""
    timed: bool = False
    """Whether it says a watermark too: then there is none here before it has said one."""


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
    """Of all its executors together."""
    logic: LogicSpec | None = None
    generate: Generate | None = None
    initial: bool = False
    """A source of initial state: other sources begin when all of it has been taken in."""
    min_epoch_s: float | None = None
    """Of a sink: shortest time from the start of one epoch to the next, where it is not that of the settings."""
    hold_s: float | None = None
    hold_bytes: int = 64 << 20
    """Of a sink: how long rows may gather, and how many bytes of them, where that is not as the settings say."""
    ingested: bool = False
    """A source fed by a Structured Streaming query instead of by tasks."""

    bounded: bool = False
    """Of a source: it ends."""
    idle_s: float | None = None
    """Of a source: seconds without rows after which it counts as idle."""
    executors: int = 1
    """Of an operator: how many executors share its shards on a new checkpoint; no part of its identity."""

    @property
    def clocked(self) -> bool:
        """Whether the logic is run without rows too, when time moves."""
        return self.logic is not None and self.logic.clocked

    @property
    def stateful(self) -> bool:
        """Whether there is state to bring."""
        return self.kind == "operator" and (self.logic is None or self.logic.stateful)

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

    def ahead_of_watermarks(self) -> set[str]:
        """Return the stages whose rows come to a place where a watermark is declared by their own event times."""
        found = {
            stage.name
            for stage in self.stages.values()
            if any(edge.delay_us is not None for edge in stage.edges)
        }
        while True:
            more = {
                stage.name
                for stage in self.stages.values()
                if any(edge.consumer in found for edge in stage.edges)
            } - found
            if not more:
                return found
            found |= more

    def path_ends(self) -> list[str]:
        """Return the operators at which the way of an input row can end: those that feed no other operator, those that feed
        a sink, whatever else they feed, and those on a loop, whose rows may end at any of them."""
        feeds = {
            name: {edge.consumer for edge in stage.edges if self.stages[edge.consumer].kind == "operator"}
            for name, stage in self.stages.items()
            if stage.kind == "operator"
        }
        fed = {edge.consumer for stage in self.stages.values() for edge in stage.edges}
        return [
            name
            for name, next_ones in feeds.items()
            if name in fed and (not next_ones or self._feeds_sink(name) or name in _reach(feeds, name))
        ]

    def _feeds_sink(self, name: str) -> bool:
        return any(self.stages[edge.consumer].kind == "sink" for edge in self.stages[name].edges)

    @property
    def loops(self) -> bool:
        """Whether rows can come back to an operator they went through."""
        return any(given.feedback for stage in self.stages.values() for given in stage.inputs)


def _reach(feeds: Mapping[str, set[str]], name: str) -> set[str]:
    """Return what rows of a stage can come to; itself only over a loop."""
    found: set[str] = set()
    pending = [name]
    while pending:
        more = feeds[pending.pop()] - found
        found |= more
        pending += more
    return found
