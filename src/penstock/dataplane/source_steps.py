"""How native and ingested sources step: which rows are due, when a batch of Spark's is committed, when a source says
that it is idle or has ended. A part of the engine; it does no I/O and decides nothing about other stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataplane import messages, records
from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.intake import FIRST_PORTION_ROWS
from penstock.dataplane.positions import PublishedRows
from penstock.dataplane.records import Stamp, TaskPart
from penstock.dataplane.run import Phase, Run
from penstock.dataplane.sourcing import Arrivals
from penstock.errors import CheckpointError

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine

PASSED_KEPT = 0.8
"""Of what is known of how many rows a source's steps let pass, when an epoch tells it again."""


class SourceSteps:
    """The sources of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.arrivals: dict[str, Arrivals] = {}
        """When the rows of each native source arrive."""
        self._committed: dict[str, Callable[[], None]] = {}
        self._batches: dict[str, Callable[[], None]] = {}
        """Batches that wait for the record of their source before them."""
        self._passed: dict[tuple[str, int], float] = {}
        """By source and edge: rows on the edge for each row that is made."""
        self._over: set[str] = set()
        self._at_batch: set[str] = set()
        """Sources whose Spark query is at a batch."""

    def set_arrivals(self, source: str, arrivals: Arrivals) -> None:
        """Say when the rows of a native source arrive; the schedule begins when everything downstream is
        ready."""
        chain = self._engine.chains[source]
        if chain.ended and arrivals.limit is not None and arrivals.limit > chain.offset:
            raise CheckpointError(
                f"source '{source}' had ended after {chain.offset} rows, which closed what was open in event time, and has "
                "more rows now; use a new checkpointLocation, or a source that does not end."
            )
        self.arrivals[source] = arrivals

    def on_batch(
        self,
        stage: str,
        batch: records.Batch,
        parts: list[TaskPart],
        stamp: Stamp | None,
        committed: Callable[[], None],
    ) -> None:
        """A Structured Streaming batch was written; commit it and then say so."""
        run = self._engine.runs[stage]
        if self.batch_is_known(stage, batch):
            committed()
            return
        if run.phase is not Phase.IDLE:  # it says that it was idle; that comes first
            self._batches[stage] = lambda: self.on_batch(stage, batch, parts, stamp, committed)
            return
        self._committed[stage] = committed
        run.begin(
            run.chain.epoch + 1,
            (),
            sum(part.rows_in for part in parts),
            self._engine.now(),
            self._engine.epoch_time(),
        )
        self._engine.committing.commit(run, run.chain.epoch + 1, parts=parts, stamp=stamp, batch=batch)

    def on_batch_begun(self, stage: str, begun: bool) -> None:
        """Spark has begun a batch of a source, or is done with it, however it ended."""
        (self._at_batch.add if begun else self._at_batch.discard)(stage)

    def on_source_over(self, stage: str) -> None:
        """A bounded source that is fed by a Spark query has had its last batch."""
        self._over.add(stage)
        self._engine.step()

    def batch_is_known(self, stage: str, batch: records.Batch) -> bool:
        known = self._engine.chains[stage].batch
        return known is not None and known.query == batch.query and batch.number <= known.number

    def say_committed(self, source: str) -> None:
        """The record of a batch is durable."""
        self._committed.pop(source, lambda: None)()

    def take_waiting_batch(self, source: str) -> None:
        """A record of a source is durable: the batch that waited for it is next."""
        self._batches.pop(source, lambda: None)()

    def step(self, run: Run, now: float) -> float:
        arrivals = self.arrivals.get(run.spec.name)
        if run.spec.ingested:
            held_up = self._engine.chains.waiting_bytes() > self._engine.settings.max_waiting_bytes
            if held_up or run.spec.name in self._at_batch or not self.may_begin(run.spec.name):
                run.rows_at = now  # it is at work, or may not; that is no silence
            self._say_idle_or_ended(run, now, run.spec.name in self._over)
            return 1.0
        # By their numbers, as a record lists their parts: consumers take the rows in that order.
        slots = [run.slots[index] for index in sorted(run.slots) if run.slots[index].lease is not None]
        if arrivals is None or not slots:
            return 1.0
        if not self.may_begin(run.spec.name):
            return self._engine.settings.min_epoch_s
        if not arrivals.running:
            if not all(other.is_whole for other in self._engine.runs.values()):
                return 1.0
            arrivals.resume(run.chain.offset, self._engine.wall())
        if self._engine.chains.waiting_bytes() > self._engine.settings.max_waiting_bytes:
            run.blocked = True
            return 0.01
        run.blocked = False
        start = run.chain.offset
        due = arrivals.due(self._engine.wall())
        if due - start >= FIRST_PORTION_ROWS and self._waits_for_first(run):
            return 0.01
        end = min(due, start + self._rows_at_once(run))
        if end <= start:
            if self._say_idle_or_ended(run, now, arrivals.limit is not None and start >= arrivals.limit):
                return 1.0
            return arrivals.next_due_in(start, self._engine.wall(), self._engine.settings.min_epoch_s)
        run.begin(run.chain.epoch + 1, (), end - start, now, self._engine.epoch_time())
        run.offsets, run.stamp = (start, end), arrivals.stamp(start, end)
        edges = np.linspace(start, end, len(slots) + 1).astype(np.int64).tolist()
        for slot, low, high in zip(slots, edges, edges[1:], strict=False):
            if high > low and slot.lease is not None:
                run.ask(slot)
                work = messages.Work(
                    run.spec.name, slot.index, run.epoch, run.chain.epoch, run.time_us, offsets=(low, high),
                    lanes=self._engine.operators.lanes(run, slot),
                )  # fmt: skip
                self._engine.send(slot.lease, work)
        return 1.0

    def note_published(
        self, run: Run, made: int, published: Sequence[tuple[EdgeSpec, PublishedRows]]
    ) -> None:
        """An epoch of a source made so many rows and published these: what stands on an edge for each row that is made
        tells how many to make for a portion of it."""
        if not made:
            return
        rows = {edge.edge: item.rows for edge, item in published}
        for edge in run.spec.edges:
            at = (run.spec.name, edge.edge)
            found = rows.get(edge.edge, 0) / made
            self._passed[at] = found + PASSED_KEPT * (self._passed.get(at, found) - found)

    def _rows_at_once(self, run: Run) -> int:
        """Rows that the next epoch of a source makes at most: what it may, and no more than suits those it feeds."""
        most = run.intake.source_rows()
        for edge in run.spec.edges:
            takers = [one.intake.portion_rows() for one in self._engine.runs_of(edge.consumer) if one.slots]
            portions = [rows for rows in takers if rows is not None]
            passed = self._passed.get((run.spec.name, edge.edge), 1.0)
            if portions and passed > 0:
                most = min(most, round(sum(portions) / passed))
        return max(1, most)

    def _waits_for_first(self, run: Run) -> bool:
        """Whether a source that has many rows should first see how fast those are taken that it has published: more of
        them would be in portions that suit nobody."""
        return any(
            run.chain.out.get(edge.edge)
            and not any(one.epochs for one in self._engine.runs_of(edge.consumer))
            for edge in run.spec.edges
            if self._engine.runs[edge.consumer].spec.kind == "operator"
        )

    def may_begin(self, source: str) -> bool:
        """Whether a source may make rows: it is not paused, and holds initial state, or all of that has been taken in."""
        if self._engine.runs[source].paused:
            return False
        initial = [run for run in self._engine.runs.values() if run.spec.initial]
        return self._engine.runs[source] in initial or all(map(self._is_all_taken, initial))

    def _is_all_taken(self, run: Run) -> bool:
        name, arrivals = run.spec.name, self.arrivals.get(run.spec.name)
        made = name in self._over or (
            arrivals is not None and arrivals.limit is not None and run.chain.offset >= arrivals.limit
        )
        return made and not any(run.chain.out.values())

    def _say_idle_or_ended(self, run: Run, now: float, limit_reached: bool) -> bool:
        """Where event time is read: commit an epoch without rows that says that a source has ended, or is idle."""
        chain, spec = run.chain, run.spec
        if not any(edge.marked for edge in spec.edges) or chain.ended:
            return False
        ended = spec.bounded and limit_reached
        silent_s = now - run.rows_at
        idle = spec.idle_s is not None and silent_s >= spec.idle_s and not chain.idle
        if not (ended or idle):
            return False
        run.begin(chain.epoch + 1, (), 0, now, self._engine.epoch_time())
        self._engine.committing.commit(run, run.epoch, ended=ended, idle=idle and not ended)
        return True

    def is_brimming(self, run: Run) -> bool:
        """Whether so many rows are due that a whole epoch of them is there before its time."""
        arrivals = self.arrivals.get(run.spec.name)
        due = 0 if arrivals is None else arrivals.due(self._engine.wall())
        return arrivals is not None and due - run.chain.offset >= self._rows_at_once(run)

    def due_now(self) -> dict[str, int]:
        """Row numbers that native sources have reached by the clock."""
        return {name: arrivals.due(self._engine.wall()) for name, arrivals in self.arrivals.items()}
