"""How an epoch ends: what its tasks report becomes a record, which goes to the log and is published once it is durable.

Owns what a record or base says and what follows from its being durable. A part of the engine: it does no I/O, begins no
epoch, and publishes nothing before the log has confirmed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dataplane import messages, records
from penstock.dataplane.logline import Pending
from penstock.dataplane.program import operator_of
from penstock.dataplane.records import Group, Record, Stamp, TaskPart
from penstock.dataplane.run import Phase, Run
from penstock.dataplane.snapshots import complete_snapshots
from penstock.dataplane.taking import stamp_of
from penstock.errors import CorruptFileError, OperatorError, PenstockError, StorageError

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine

STORAGE_RETRIES = 8
"""Times in a row that the tasks of a stage may fail to read or write before the query ends."""


class Committing:
    """The epochs of one engine that tasks are at or have done, until they are published.

    Args:
        query: the query's id, for bases.
        identity: of the program, for bases.
    """

    def __init__(self, engine: Engine, query: str, identity: bytes) -> None:
        self._engine = engine
        self._query = query
        self._identity = identity
        self._storage_failures: dict[str, int] = {}

    # -- reports ------------------------------------------------------------------------------------------------------

    def on_done(self, lease: str, done: messages.Done) -> None:
        """A task has done its part; ignored of a task that is not waited for."""
        run = self._engine.runs.get(done.stage)
        if run is None or run.phase is not Phase.WORKING or done.epoch != run.epoch:
            return
        slot = run.slots.get(done.part.task)
        if slot is None or slot.index not in run.waiting_for or slot.lease != lease:
            return
        run.waiting_for.discard(done.part.task)
        run.losses.pop(done.part.task, None)
        run.note_timer(done.part.task, done.next_timer_us)
        run.counts.note_costs(done.shard_us, run.takes)
        run.parts[done.part.task] = complete_snapshots(run.chain, done.part)
        self.settle(run)

    def on_failed(self, lease: str, failed: messages.Failed) -> None:
        """A task cannot go on: it is tried on another lease where that may help, else the query ends."""
        if failed.kind in ("storage", "local"):
            count = self._storage_failures.get(failed.stage, 0) + 1
            self._storage_failures[failed.stage] = count
            if count <= STORAGE_RETRIES:
                self._engine.end_lease(lease, failed.message)
                self._engine.step()
                return
        kinds: dict[str, type[PenstockError]] = {
            "user": OperatorError, "storage": StorageError, "local": StorageError, "corrupt": CorruptFileError,
        }  # fmt: skip
        error = kinds.get(failed.kind, PenstockError)(failed.message)
        if (
            "\nTraceback (most recent call last)" not in failed.message
        ):  # else it tells where the user's code is
            error.add_note(failed.detail)
        self._engine.fail(error)

    def settle(self, run: Run) -> None:
        """Commit the epoch when nobody is waited for; give it up when nobody has done anything."""
        if run.phase is not Phase.WORKING or run.waiting_for or run.spec.kind == "sink":
            return
        whole = run.spec.kind == "operator" or sum(part.rows_in for part in run.parts.values()) == run.rows
        if not whole or (run.rows and not run.parts):
            run.to(Phase.IDLE)
            run.attempt += 1
            self._engine.placing.bring_absent(run)
            return
        self._storage_failures.pop(run.spec.name, None)
        self.commit(
            run,
            run.epoch,
            groups=run.groups() if run.spec.kind == "operator" else [],
            parts=[run.parts[index] for index in sorted(run.parts)],
            stamp=run.stamp if run.spec.kind == "source" else stamp_of(run.takes),
            offsets=run.offsets,
        )

    # -- records and bases --------------------------------------------------------------------------------------------

    def commit(
        self,
        run: Run,
        epoch: int,
        *,
        kind: str = "epoch",
        groups: list[Group] | None = None,
        parts: list[TaskPart] | None = None,
        stamp: Stamp | None = None,
        offsets: tuple[int, int] | None = None,
        batch: records.Batch | None = None,
        ended: bool = False,
        idle: bool = False,
    ) -> None:
        """Make the record of an epoch that is done, and hand it to the log."""
        run.to(Phase.COMMITTING)
        record = Record(
            chain=run.spec.name,
            epoch=epoch,
            kind=kind,
            generation=self._engine.generation,
            previous=run.chain.hash,
            time_us=run.time_us or round(self._engine.epoch_time() * 1e6),
            groups=groups or [],
            parts=parts or [],
            stamp=stamp,
            offsets=offsets,
            batch=batch,
            watermark_us=records.END_US if ended else None,
            idle=idle,
            code=self._engine.program.code,
            attempt=run.attempt,
        )
        self._engine.line.submit(Pending(record, records.encode(record), run))

    def make_base(self, part: int) -> records.Base:
        """Restate all chains for a part of the log, with the deals that are ready."""
        time_us = round(self._engine.epoch_time() * 1e6)
        redeals = self._engine.redealing.apply_ready()
        self._engine.placing.note_placed()
        return self._engine.chains.to_base(
            self._query, self._engine.generation, part, self._identity, time_us, redeals
        )

    def publish(self, pending: Pending) -> None:
        """A record is durable: let positions move, consumers see its rows, and its stage go on."""
        run, record = pending.run, pending.record
        now, wall_us = self._engine.now(), round(self._engine.wall() * 1e6)
        published = self._engine.chains.apply(record, pending.encoded)
        for edge, rows in published:
            if run.spec.kind != "source":
                rows.arrived_us = wall_us
            for consumer in self._engine.runs_of(edge.consumer):
                mine = None if self._engine.chains.is_plain else consumer.chain.is_mine()
                consumer.counts.arrive(run.spec.name, rows, mine)
        if run.spec.kind == "source":
            self._engine.sources.note_published(run, sum(part.rows_in for part in record.parts), published)
        if record.stamp is not None and record.kind != "intent":
            self._engine.latency[run.spec.name].add(now, wall_us, record.stamp)
            if run.spec.kind == "operator":
                run.counts.sojourns.add(now, wall_us, run.takes, record)
        run.finish(now, record)
        self.let_others_say(run)
        self._engine.placing.bring_absent(run)
        if record.batch is not None:
            self._engine.sources.say_committed(record.chain)
        if record.kind != "intent":
            run.next_start = max(run.next_start, self._engine.pace.next_start(run.started_at, self._active()))
        self._engine.sources.take_waiting_batch(record.chain)

    def let_others_say(self, run: Run) -> None:
        """Other executors of the operator that stand still, but have come as far, say what event time this one has reached
        in an epoch without rows: they may get none for long.

        That they owe it is in no record, so it is found again whenever one may come to lag behind: as a record or a deal is
        durable, and as a driver starts.
        """
        if self._engine.chains.is_plain or run.spec.kind != "operator":
            return
        for other in self._engine.runs_of(operator_of(run.spec.name)):
            if other.phase is Phase.IDLE and other.chain.lags_behind(run.chain):
                other.force_empty = True

    def _active(self) -> int:
        return max(1, sum(1 for run in self._engine.runs.values() if run.phase is not Phase.IDLE))

    def files(self) -> set[str]:
        """Files that reports or records on their way to the log name; the lease that wrote them may be gone by now."""
        runs = self._engine.runs.values()
        parts = [part for run in runs if run.phase is Phase.WORKING for part in run.parts.values()]
        under_way = [item.record for item in self._engine.line.under_way()]
        parts.extend(part for record in under_way for part in record.parts)
        plans = [records.files_of_batch(record.batch) for record in under_way]
        return set().union(*map(records.files_of, parts), *plans)
