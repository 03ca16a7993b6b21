"""The simple model: what the committed schedule of `programs.memory_program` must have given, from its
records alone.

Reads no data file. Follows the records of each chain in order and checks, on the way, that ranges tile what
was published, that counts and digests are those of the model, and that sink epochs hold the rows they
intended.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.dataplane.keys.hashing import hash_keys, shards_of
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.records import Group, Position, Record, TaskPart, unpack_u16, unpack_u32
from penstock.sim.memory_state import digest_of
from penstock.sim.programs import GROUPS, KEYS, Row, StepSpec, key_of

FIRST = Position(1, 0)
_DIGEST = struct.Struct("16s")


class Violation(AssertionError):
    """A promise was broken."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


@lru_cache(maxsize=64)
def _shard_table(values: int, shards: int) -> tuple[int, ...]:
    hashes = hash_keys([pa.array(list(range(values)), pa.int64())], ["key"], "model")
    return tuple(shards_of(hashes, shards).tolist())


def shard_of_row(spec: StageSpec, producer: StageSpec, row: Row) -> int:
    """The shard of a consumer that a producer's row goes to."""
    if not spec.keys:
        return 0
    (key,) = spec.keys
    value = int(row[producer.schema.get_field_index(key)])
    return _shard_table(max(KEYS, GROUPS), spec.shards)[value]


class PlainState:
    """State of one shard as a dictionary, with the two calls that a step uses."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def get(self, _shard: int, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def put(self, _shard: int, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = value


@dataclass
class _Stage:
    spec: StageSpec
    offset: int = 0
    published: dict[tuple[str, int], list[Row]] = field(default_factory=dict)
    """Rows of each chain and epoch, in the order of tasks and emission."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Newest epoch of each chain."""
    at: list[dict[str, Position]] = field(default_factory=list)
    """By shard, and by producer chain."""
    states: list[PlainState] = field(default_factory=list)
    intent: Record | None = None


class Model:
    """Replays chains of records; every check that fails raises `Violation`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stages = {name: _Stage(spec) for name, spec in program.stages.items()}
        self.sink_rows: dict[int, list[Row]] = {}
        for stage in self._stages.values():
            stage.at = [{} for _ in range(stage.spec.shards)]
            stage.states = [PlainState() for _ in range(stage.spec.shards)]

    def replay(self, lines: Mapping[str, Sequence[Record]], ends: Mapping[str, int] | None = None) -> None:
        """Follow all chains, producers first.

        Args:
            ends: epoch at which each chain stands, where that may be behind its last record: shards were dealt anew.

        Executors of one operator are followed by epoch, since the epochs of one shard grow whichever chain it is in.
        """
        for name, stage in self._stages.items():
            chains = [chain for chain in lines if operator_of(chain) == name]
            found = [record for chain in chains for record in lines[chain]]
            if len(chains) > 1:
                found.sort(key=lambda record: record.epoch)
            for record in found:
                self._apply(stage, record, alone=len(chains) == 1)
            stage.epochs.update({chain: (ends or stage.epochs).get(chain, 0) for chain in chains})

    def check_end(self, rows: int) -> None:
        """After a drained run: everything the source makes went all the way."""
        for stage in self._stages.values():
            if stage.spec.kind == "source":
                require(stage.offset == rows, f"the source made {stage.offset} rows, not {rows}")
            for given in stage.spec.inputs:
                left = self._left(stage, self._stages[given.producer])
                require(not left, f"'{stage.spec.name}' never took {left} rows of '{given.producer}'")

    def digest(self, stage: str, shard: int) -> bytes:
        return digest_of(self._stages[stage].states[shard].entries)

    def _left(self, stage: _Stage, producer: _Stage) -> int:
        return sum(
            len(self._rows(stage, producer, chain, shard, stage.at[shard].get(chain, FIRST), None))
            for shard in range(stage.spec.shards)
            for chain in producer.epochs
        )

    def _apply(self, stage: _Stage, record: Record, alone: bool) -> None:
        name = f"epoch {record.epoch} of '{record.chain}'"
        before = stage.epochs.get(record.chain, 0)
        expected = before if record.kind == "done" else before + 1
        follows = record.epoch == expected if alone else record.epoch >= expected
        require(follows, f"{name} follows epoch {before}")
        stage.epochs[record.chain] = record.epoch
        if stage.spec.kind == "source":
            self._apply_source(stage, record, name)
        elif stage.spec.kind == "sink":
            self._apply_sink(stage, record, name)
        else:
            self._apply_operator(stage, record, name)

    def _apply_source(self, stage: _Stage, record: Record, name: str) -> None:
        require(record.offsets is not None, f"{name} has no offsets")
        assert record.offsets is not None
        start, end = record.offsets
        require(
            start == stage.offset and end > start, f"{name} takes rows {start} to {end} after {stage.offset}"
        )
        require(sum(part.rows_in for part in record.parts) == end - start, f"{name} lacks rows")
        stage.offset = end
        self._publish(stage, record, [[(number, key_of(number)) for number in range(start, end)]], name)

    def _apply_sink(self, stage: _Stage, record: Record, name: str) -> None:
        if record.kind == "intent":
            require(stage.intent is None, f"{name} is intended before the last one is done")
            stage.intent = record
            taken = self._take(stage, record.groups, name)
            self.sink_rows[record.epoch] = [row for rows in taken.values() for row in rows]
            return
        require(stage.intent is not None, f"{name} is done and was never intended")
        assert stage.intent is not None
        self._advance(stage, stage.intent.groups)
        stage.intent = None

    def _apply_operator(self, stage: _Stage, record: Record, name: str) -> None:
        taken = self._take(stage, record.groups, name)
        self._advance(stage, record.groups)
        outputs: list[list[Row]] = []
        done: set[int] = set()
        for part in record.parts:
            outputs.append(self._run_part(stage, part, taken, name))
            done.update(unpack_u16(part.shards).tolist())
        missed = [shard for shard, rows in taken.items() if rows and shard not in done]
        require(not missed, f"{name} moved past rows of shards {missed} that no task worked on")
        self._publish(stage, record, outputs, name)

    def _run_part(
        self, stage: _Stage, part: TaskPart, taken: Mapping[int, list[Row]], name: str
    ) -> list[Row]:
        spec = stage.spec.logic
        assert isinstance(spec, StepSpec)
        shards = sorted(unpack_u16(part.shards).tolist())
        out: list[Row] = []
        state: Any
        for shard in shards:
            state = stage.states[shard]
            require(
                shard in taken, f"{name}: a task worked on shard {shard}, which is in no group of the record"
            )
            out.extend(spec.step(state, shard, row) for row in taken[shard])
        rows_in = sum(len(taken[shard]) for shard in shards)
        require(part.rows_in == rows_in, f"{name}: task {part.task} took {part.rows_in} rows, not {rows_in}")
        require(
            part.rows_out == len(out), f"{name}: task {part.task} gave {part.rows_out} rows, not {len(out)}"
        )
        for number, shard in enumerate(unpack_u16(part.changed).tolist()):
            expected = digest_of(stage.states[shard].entries)
            found = part.digests[16 * number : 16 * number + 16]
            require(expected == found, f"{name}: shard {shard} has another digest than the model")
        return out

    def _take(self, stage: _Stage, groups: Sequence[Group], name: str) -> dict[int, list[Row]]:
        """Rows that each shard takes; checks that its range begins where the last one ended, and ends in what
        is published."""
        taken: dict[int, list[Row]] = {}
        for group in groups:
            shards = unpack_u16(group.shards).tolist()
            twice = [shard for shard in shards if shard in taken]
            require(not twice, f"{name} takes shard {twice[:1]} twice")
            taken.update({shard: [] for shard in shards})
            for span in group.ranges:
                producer = self._stages[operator_of(span.chain)]
                last = span.end.epoch if span.end.row else span.end.epoch - 1
                require(span.start <= span.end, f"{name} goes back from {span.start} to {span.end}")
                require(
                    last <= producer.epochs.get(span.chain, 0),
                    f"{name} takes epoch {last} of '{span.chain}', which was never committed",
                )
                for shard in shards:
                    at = stage.at[shard].get(span.chain, FIRST)
                    require(
                        span.start == at, f"{name}: shard {shard} takes from {span.start} and stood at {at}"
                    )
                    taken[shard] += self._rows(stage, producer, span.chain, shard, span.start, span.end)
        return taken

    def _advance(self, stage: _Stage, groups: Sequence[Group]) -> None:
        for group in groups:
            for shard in unpack_u16(group.shards).tolist():
                stage.at[shard].update({span.chain: span.end for span in group.ranges})

    def _rows(
        self,
        stage: _Stage,
        producer: _Stage,
        chain: str,
        shard: int,
        start: Position,
        end: Position | None,
    ) -> list[Row]:
        found: list[Row] = []
        for (made_by, epoch), rows in producer.published.items():
            if (
                made_by != chain
                or epoch < start.epoch
                or (end is not None and (epoch, 0) >= (end.epoch, end.row))
            ):
                continue
            mine = [row for row in rows if shard_of_row(stage.spec, producer.spec, row) == shard]
            low = start.row if epoch == start.epoch else 0
            high = end.row if end is not None and epoch == end.epoch else len(mine)
            found.extend(mine[low:high])
        return found

    def _publish(self, stage: _Stage, record: Record, outputs: Sequence[list[Row]], name: str) -> None:
        rows = [row for part in outputs for row in part]
        stage.published[record.chain, record.epoch] = rows
        segments = [segment for part in record.parts for segment in part.segments]
        require(
            sum(segment.rows for segment in segments) == len(rows), f"{name} published another number of rows"
        )
        for spec in self._program.stages.values():
            for given in spec.inputs:
                if given.producer == operator_of(record.chain):
                    self._check_counts(
                        spec, stage.spec, rows, [s.shard_rows for s in segments if s.edge == given.edge], name
                    )

    def _check_counts(
        self, spec: StageSpec, producer: StageSpec, rows: Sequence[Row], found: Sequence[bytes], name: str
    ) -> None:
        expected = [0] * spec.shards
        for row in rows:
            expected[shard_of_row(spec, producer, row)] += 1
        counted = [0] * spec.shards
        for packed in found:
            counted = [have + more for have, more in zip(counted, unpack_u32(packed).tolist(), strict=True)]
        require(counted == expected, f"{name} dealt its rows to other shards of '{spec.name}'")
