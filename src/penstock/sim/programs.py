"""The topology that simulations and fault tests run: a native source, two operators keyed differently, a
sink.

Its logic is made to give faults away. `fold` keeps, per key, a count and a running hash over the ids of its
rows: a row lost, doubled or out of order changes everything after it, whatever the epochs were. `gather`,
keyed by another column, checks the counts of every key of the first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import xxhash

from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.logic.protocol import EpochInput, LogicSpec, PlainLogic, PlainSpec, ShardedRows
from penstock.dataplane.logic.rows import RowLogicSpec
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.errors import OperatorError
from penstock.sim.memory_state import Kept, MemoryState
from penstock.topology.states import ListState, MapState, StateSpec, ValueState

SOURCE = pa.schema([("id", pa.int64()), ("k", pa.int64())])
FOLDED = pa.schema(
    [("id", pa.int64()), ("k", pa.int64()), ("g", pa.int64()), ("seq", pa.int64()), ("mark", pa.int64())]
)
GATHERED = pa.schema([("id", pa.int64()), ("g", pa.int64()), ("seq", pa.int64()), ("mark", pa.int64())])
KEYS = 37
GROUPS = 11
_PAIR = struct.Struct("<qq")
Row = tuple[int, ...]


def key_of(row: int) -> int:
    """The key of the source's row: skewed, so that shards are unlike."""
    mixed = (row * 2654435761 + 12345) & 0xFFFFFFFF
    return (mixed >> 7) % KEYS if mixed % 3 else (mixed >> 7) % 3


def make_rows(start: int, count: int) -> pa.RecordBatch:
    """The native source: row i is (i, key_of(i))."""
    ids = list(range(start, start + count))
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([key_of(i) for i in ids], pa.int64())], schema=SOURCE
    )


def mix(mark: int, value: int) -> int:
    """Fold a value into a running hash; order matters."""
    return xxhash.xxh3_64_intdigest(_PAIR.pack(mark, value)) >> 1


Step = Callable[[MemoryState, int, Row], Row]


def state_key(*parts: int) -> bytes:
    return b"\x01" + struct.pack(f"<{len(parts)}q", *parts)


def fold_row(state: MemoryState, shard: int, row: Row) -> Row:
    """Count and mark one row of a key."""
    number, k = row
    seq, mark = _PAIR.unpack(state.get(shard, state_key(k)) or bytes(16))
    seq, mark = seq + 1, mix(mark, number)
    state.put(shard, state_key(k), _PAIR.pack(seq, mark))
    return number, k, k % GROUPS, seq, mark


def gather_row(state: MemoryState, shard: int, row: Row) -> Row:
    """Check that a key's counts come without gap or repetition; count and mark the rows of a group."""
    number, k, g, seq, mark = row
    (last, _) = _PAIR.unpack(state.get(shard, state_key(g, k)) or bytes(16))
    if seq != last + 1:
        raise OperatorError(f"operator 'gather' got row {seq} of key {k} after row {last}")
    state.put(shard, state_key(g, k), _PAIR.pack(seq, 0))
    total, running = _PAIR.unpack(state.get(shard, state_key(g)) or bytes(16))
    total, running = total + 1, mix(running, mark)
    state.put(shard, state_key(g), _PAIR.pack(total, running))
    return number, g, total, running


@dataclass
class StepSpec(PlainSpec):
    """Logic that takes one row after the other, over memory state; the `LogicSpec` of simulations."""

    step: Step
    schema: pa.Schema
    node: dict[str, Kept] = field(default_factory=dict)

    def build(
        self, operator: str, keys: Sequence[str], input_schema: pa.Schema, shards: int, memory_bytes: int
    ) -> StepLogic:
        return StepLogic(self)

    def identity(self) -> dict[str, object]:
        return {"kind": "step", "schema": self.schema.names}


class StepLogic(PlainLogic):
    """One task's step logic."""

    def __init__(self, spec: StepSpec) -> None:
        self._spec = spec
        self.state: MemoryState = MemoryState(spec.node)

    def run(self, given: EpochInput) -> pa.Table:
        (rows,) = given.inputs
        out = [self._spec.step(self.state, shard, row) for shard, row in _by_shard(rows)]
        columns = list(zip(*out, strict=True)) if out else [()] * len(self._spec.schema)
        return pa.Table.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, self._spec.schema, strict=True)],
            schema=self._spec.schema,
        )


def _by_shard(rows: ShardedRows) -> Iterator[tuple[int, Row]]:
    columns = [column.to_pylist() for column in rows.rows.columns]
    listed = list(zip(*columns, strict=True))
    bounds = rows.offsets.tolist()
    for number, shard in enumerate(rows.shards.tolist()):
        for row in listed[bounds[number] : bounds[number + 1]]:
            yield shard, row


def memory_program(*, shards: tuple[int, int] = (8, 12), tasks: tuple[int, int, int] = (1, 2, 2)) -> Program:
    """source -> fold by k -> gather by g -> sink, on memory state.

    Args:
        shards: of fold and gather.
        tasks: of source, fold and gather.
    """
    return two_operators(StepSpec(fold_row, FOLDED), StepSpec(gather_row, GATHERED), shards, tasks)


def fold_rows(key: Any, rows: list[Any], state: Any) -> list[Row]:
    """`fold_row` as a user writes it: a row function with value state."""
    seq, mark = state.count.get() or 0, state.mark.get() or 0
    out: list[Row] = []
    for row in rows:
        seq, mark = seq + 1, mix(mark, row.id)
        out.append((row.id, key.k, key.k % GROUPS, seq, mark))
    state.count.update(seq)
    state.mark.update(mark)
    return out


def gather_rows(key: Any, rows: list[Any], state: Any) -> list[Row]:
    """`gather_row` as a user writes it: a row function with value, map and list state."""
    total, running = state.count.get() or 0, state.mark.get() or 0
    out: list[Row] = []
    for row in rows:
        last = state.seen.get(row.k, 0)
        if row.seq != last + 1:
            raise ValueError(f"row {row.seq} of key {row.k} came after row {last}")
        state.seen[row.k] = row.seq
        if row.seq % 8 == 0:
            state.notes.appendValue(row.id)
        total, running = total + 1, mix(running, row.mark)
        out.append((row.id, key.g, total, running))
    state.count.update(total)
    state.mark.update(running)
    return out


def local_program(*, shards: tuple[int, int] = (8, 12), tasks: tuple[int, int, int] = (1, 2, 2)) -> Program:
    """The same topology with row functions on real state in LMDB."""
    kept: dict[str, StateSpec] = {"count": ValueState("long"), "mark": ValueState("long")}
    seen: dict[str, StateSpec] = {**kept, "seen": MapState("long", "long"), "notes": ListState("long")}
    return two_operators(
        RowLogicSpec(fold_rows, FOLDED, kept), RowLogicSpec(gather_rows, GATHERED, seen), shards, tasks
    )


def two_operators(
    fold: LogicSpec,
    gather: LogicSpec,
    shards: tuple[int, int] = (8, 12),
    tasks: tuple[int, int, int] = (1, 2, 2),
) -> Program:
    """The same topology with any logic whose `fold` is keyed by k and gives a column g, by which `gather` is
    keyed."""
    edges = [
        EdgeSpec(0, ("k",), shards[0], "fold"),
        EdgeSpec(1, ("g",), shards[1], "gather"),
        EdgeSpec(2, (), 1, "sink"),
    ]
    stages = [
        StageSpec("source", "source", SOURCE, edges=[edges[0]], tasks=tasks[0], generate=make_rows),
        StageSpec(
            "fold",
            "operator",
            fold.schema,
            [InputSpec(0, "source", SOURCE)],
            [edges[1]],
            ("k",),
            shards[0],
            tasks[1],
            fold,
        ),
        StageSpec(
            "gather",
            "operator",
            gather.schema,
            [InputSpec(1, "fold", fold.schema)],
            [edges[2]],
            ("g",),
            shards[1],
            tasks[2],
            gather,
        ),
        StageSpec("sink", "sink", gather.schema, inputs=[InputSpec(2, "gather", gather.schema)]),
    ]
    return Program({stage.name: stage for stage in stages}, 16 << 20, b"sim")
