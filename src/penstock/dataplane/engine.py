"""The driver's core: which epoch runs when, on which tasks, and what is committed. Events in, calls on a
`Shell` out.

Owns leases as names and epochs in flight. Opens no file and no socket, reads no clock
but the one it is given, never blocks: the Spark shell, the in-process harness and the simulator drive the
same code. Only what `on_appended` confirmed is ever published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from penstock.dataplane import messages, records
from penstock.dataplane.chains import Chains
from penstock.dataplane.cleanup import plan_cleanup
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.draining import DrainMark
from penstock.dataplane.handing import HANDOVER_S
from penstock.dataplane.latency import Latency, LatencyLog
from penstock.dataplane.logline import Appender, LogLine, Pending
from penstock.dataplane.operator_steps import OperatorSteps
from penstock.dataplane.pace import Pace
from penstock.dataplane.placement import Placement
from penstock.dataplane.placing import Placing
from penstock.dataplane.positions import GroupTake, stamp_of, take_epoch
from penstock.dataplane.program import Program, operator_of
from penstock.dataplane.records import Group, Record, Stamp, TaskPart
from penstock.dataplane.redealing import Redealing
from penstock.dataplane.run import Lease, Phase, Run, SinkWork
from penstock.dataplane.settings import Settings
from penstock.dataplane.sink_steps import SinkSteps
from penstock.dataplane.snapshots import complete_snapshots
from penstock.dataplane.source_steps import SourceSteps
from penstock.dataplane.standing import waiting_rows
from penstock.dataplane.state.protocol import U16
from penstock.errors import CorruptFileError, OperatorError, PenstockError, StorageError

STORAGE_RETRIES = 8
SLOW_S = 5.0
"""Time after which an epoch in work is worth a word to the user."""
PACED_S = 0.1
"""Shortest time between epochs from which on it is a wish of the user's, and not a bound of what they cost."""
PLAN_TIMEOUT_S = 60.0
"""Time in which the leases that a plan needs have to come up."""
PLACED_S = 1.0
"""Time in which a plan that was carried out is durable, for the next driver to begin with."""
BY_HAND = "hand"
"""In whose name a person pauses."""
STALL_S = 2.0
"""Gap between two steps after which this process itself was held up, and silence proves nothing."""


class Shell(Appender, Protocol):
    """What the engine asks of the world. None of these calls may call back into the engine."""

    def send(self, lease: str, message: messages.ToLease) -> None: ...

    def drop_lease(self, lease: str, reason: str) -> None:
        """End a lease and make sure that nothing more is heard of it."""

    def run_sink(self, work: SinkWork) -> None:
        """Hand the rows of an intended sink epoch to the sink; answered by `on_sink_done`."""

    def clean_up(self, names: Sequence[str]) -> None:
        """Delete these data files."""

    def fail(self, error: PenstockError) -> None:
        """End the query with this error."""


class Engine:
    """Steps every stage of one query through its epochs."""

    def __init__(
        self,
        program: Program,
        chains: Chains,
        shell: Shell,
        settings: Settings,
        *,
        query: str,
        generation: int,
        identity: bytes,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.program = program
        self.chains = chains
        self.settings = settings
        self.generation = generation
        self.leases: dict[str, Lease] = {}
        self.runs = {
            name: Run(chain, settings, chains.placed.get(name)) for name, chain in chains.by_name.items()
        }
        for run in self.runs.values():
            run.counts.arrived += waiting_rows(run.chain.groups, chains.waiting(run.chain), run.spec.shards)
        self.pace = Pace(settings)
        self.latency = {name: LatencyLog() for name in self.runs}
        self.failed: PenstockError | None = None
        self.stopping = False
        self._shell = shell
        self._query = query
        self._identity = identity
        self._clock = clock
        self._wall = wall
        self._line = LogLine(shell, self._make_base, settings.base_interval_s)
        self._stepped_at = 0.0
        self._storage_failures: dict[str, int] = {}
        self.sources = SourceSteps(self)
        self.operators = OperatorSteps(self)
        self.sinks = SinkSteps(self)
        self.placing = Placing(self)
        self.redealing = Redealing(self)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, capacity: int) -> None:
        """Begin: write the first base of this generation, then accept leases."""
        self.placing.capacity = capacity
        self.placing.fit(capacity)
        for run in self.runs.values():
            run.rows_at = self._clock()
        self._line.start_base()

    def set_capacity(self, leases: int) -> None:
        """Say how many leases can be held at most; tasks are dealt over what there is."""
        self.placing.capacity = max(1, leases)
        self.placing.assign()
        self.step()

    def set_nodes(self, nodes: Iterable[str], slots: Mapping[str, int] | None = None) -> None:
        """Say which nodes there are, leases on them or not, and how many tasks each can run for this query."""
        self.placing.set_nodes(nodes, slots or {})

    def place(self, wanted: Sequence[Placement], timeout_s: float = PLAN_TIMEOUT_S) -> None:
        """Give stages other tasks, nodes or shards; each begins at its next boundary, the others do not notice.

        A plan whose leases do not come within `timeout_s` is given up, and what ran before goes on.

        Raises:
            PlanError: it cannot be carried out; nothing has changed.
        """
        self.placing.place(wanted, timeout_s)
        self.step()

    def redeal(self, giver: str, taker: str, shards: U16, tasks: int = 1) -> None:
        """Let shards pass from one executor of an operator to another, which may be the next one (`redealing.next_name`)
        and gets `tasks` more tasks for them; both stand still for as long as it takes to write one base.

        Raises:
            PlanError: it cannot be carried out; nothing has changed.
        """
        self.redealing.ask(giver, taker, shards, tasks)
        self.step()

    def pause(self, stages: Iterable[str], by: str = BY_HAND) -> None:
        """Let stages begin no epoch until everybody who paused them has resumed them; those in flight are committed."""
        for stage in stages:
            self.runs[stage].pausers.add(by)

    def resume(self, stages: Iterable[str], by: str = BY_HAND) -> None:
        """Take back a `pause` of the same owner."""
        for stage in stages:
            self.runs[stage].pausers.discard(by)
        self.step()

    def is_paused_by_hand(self) -> bool:
        """Whether a person has paused some stage."""
        return any(BY_HAND in run.pausers for run in self.runs.values())

    def ask_empty_epoch(self, stage: str) -> None:
        """Let an operator have its next boundary even if no rows wait for it: an epoch without rows."""
        self.runs[stage].force_empty = True
        self.step()

    def note_placed(self, within_s: float = PLACED_S) -> None:
        """A plan was carried out: let the next base come soon, with where everything is."""
        self._line.want_base(self._clock() + within_s)

    def begin_stop(self) -> None:
        """Start no more epochs; what plans have done is made durable now."""
        self.stopping = True
        if self._line.owes_base:
            self.note_placed(0.0)
        self.step()

    def is_quiet(self) -> bool:
        """Whether, while it stops, nothing is on its way any more."""
        return all(run.phase is Phase.IDLE for run in self.runs.values()) and not self._line.owes_base

    def wanted_leases(self) -> int:
        """How many leases the stages could use, at most the capacity."""
        return 0 if self.stopping or self.failed else self.placing.wanted_leases()

    def foresee_leases(self, awaited: Sequence[str], asked: Sequence[str]) -> dict[str, list[TaskSlot]]:
        """Return which tasks each lease that is asked for now will serve if all goes as foreseen."""
        return self.placing.foresee(awaited, asked)

    # -- events -------------------------------------------------------------------------------------------------------

    def on_lease_up(self, lease: str, node: str) -> None:
        """A lease has said hello."""
        self.leases[lease] = Lease(lease, node, self._clock())
        self.placing.assign()
        self.step()

    def on_lease_down(self, lease: str, reason: str) -> None:
        """A lease is gone; its shards sit out until another one has them."""
        if lease in self.leases:
            self._lose(lease)
            self.step()

    def _lose(self, lease: str) -> None:
        del self.leases[lease]
        self.placing.lose_lease(lease)

    def end_lease(self, lease: str, reason: str) -> None:
        """End a lease that is of no use, or not needed any more. Starts nothing."""
        self._shell.drop_lease(lease, reason)
        self._lose(lease)

    def on_message(self, lease: str, message: messages.FromLease) -> None:
        """A lease reports. Anything from a lease that is not held any more is ignored."""
        held = self.leases.get(lease)
        if held is None or self.failed is not None:
            return
        held.heard_at = self._clock()
        if isinstance(message, messages.Done):
            self._on_done(lease, message)
        elif isinstance(message, messages.Brought):
            self.placing.on_brought(lease, message)
            self.step()
        elif isinstance(message, messages.Prepared):
            self.placing.copies.on_prepared(lease, message)
            self.step()
        elif isinstance(message, messages.Released):
            self.placing.on_released(lease, message)
            self.step()
        elif isinstance(message, messages.Failed):
            self._on_failed(lease, message)
        elif isinstance(message, messages.Alive):
            held.load = message.own

    def on_appended(self, count: int) -> None:
        """The oldest `count` records handed to `append` are durable and this driver still owns the
        checkpoint."""
        for pending in self._line.pop_durable(count):
            self._publish(pending)
        self.step()

    def on_part_started(self) -> None:
        """The base that was asked for is durable."""
        self._line.part_started(self._clock())
        self.redealing.part_started()
        self.step()

    def on_files(self, names: Sequence[str], batches: Sequence[str]) -> None:
        """The data folder was listed; plan the clean-up. `batches` are prefixes of writers besides the
        leases."""
        if self._line.begins:
            return  # until the first base is durable, a restart reads the older driver's log and what that names
        serves = dict.fromkeys(self.leases, 0)
        for slot in self.placing.slots():
            if slot.lease in serves:
                serves[slot.lease] += 1
        live = self.chains.live_files() | self._files_under_way()
        dead = plan_cleanup(names, live, serves, batches, self.generation)
        if dead:
            self._shell.clean_up(dead)

    def _files_under_way(self) -> set[str]:
        """Files that reports or records on their way to the log name; the lease that wrote them may be gone by now."""
        parts = [
            part for run in self.runs.values() if run.phase is Phase.WORKING for part in run.parts.values()
        ]
        parts.extend(part for item in self._line.under_way() for part in item.record.parts)
        return self.placing.copies.files().union(*map(records.files_of, parts))

    def on_sink_done(self, stage: str, epoch: int) -> None:
        """The side effect of a sink epoch is complete."""
        self.sinks.on_done(self.runs[stage], epoch)
        self.step()

    # -- stepping -----------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Start every epoch that may start; return the seconds until something may be due again."""
        if self.failed is not None:
            return 1.0
        now = self._clock()
        self._check_heartbeats(now)
        self._stepped_at = now
        wait = 1.0
        self.redealing.step(now)
        self._line.start_base_if_due(now)
        self.placing.give_up_late_plans(now)
        self.placing.serving.look_again(now)
        for run in self.runs.values():
            wait = min(wait, self._step_run(run, now))
        return wait

    def _step_run(self, run: Run, now: float) -> float:
        if run.phase is not Phase.IDLE or self._line.part == 0 or self.stopping:
            return 1.0
        self.placing.move(run)
        if run.paused or self.redealing.holds(run):
            return 1.0
        if self.placing.handing.is_awaited(run, now):
            return HANDOVER_S
        if now < run.next_start and not (self.settings.min_epoch_s >= PACED_S and self._is_brimming(run)):
            return run.next_start - now
        if run.spec.kind == "source":
            return self.sources.step(run, now)
        if run.spec.kind == "sink":
            return self.sinks.step(run, now)
        return self.operators.step(run, now)

    def takes(self, run: Run) -> list[GroupTake]:
        waiting = self.chains.waiting(run.chain)
        if not any(waiting.values()) and not run.force_empty:
            return []
        chain, levels = run.chain, self.operators.levels(run, waiting)
        budget = run.budget(self.operators.keeps_in_step(run))
        return take_epoch(chain.groups, run.ready, waiting, budget, chain.channels, run.task_of, levels)

    def _is_brimming(self, run: Run) -> bool:
        """Whether so much waits that a whole epoch of it is there before its time: then the pace gives way."""
        if run.spec.kind == "source":
            return self.sources.is_brimming(run)
        return self.chains.waiting_bytes_for(run.chain) >= self.settings.max_epoch_bytes

    # -- reports ------------------------------------------------------------------------------------------------------

    def _on_done(self, lease: str, done: messages.Done) -> None:
        run = self.runs.get(done.stage)
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

    def settle(self, run: Run) -> None:
        """Commit the epoch when nobody is waited for; give it up when nobody has done anything."""
        if run.phase is not Phase.WORKING or run.waiting_for or run.spec.kind == "sink":
            return
        whole = run.spec.kind == "operator" or sum(part.rows_in for part in run.parts.values()) == run.rows
        if not whole or (run.rows and not run.parts):
            run.to(Phase.IDLE)
            run.attempt += 1
            self.placing.bring_absent(run)
            return
        self._storage_failures.pop(run.spec.name, None)
        run.to(Phase.COMMITTING)
        record = self.record(
            run,
            run.epoch,
            groups=run.groups() if run.spec.kind == "operator" else [],
            parts=[run.parts[index] for index in sorted(run.parts)],
            stamp=run.stamp if run.spec.kind == "source" else stamp_of(run.takes),
            offsets=run.offsets,
        )
        self.submit(run, record)

    def record(
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
    ) -> Record:
        return Record(
            chain=run.spec.name,
            epoch=epoch,
            kind=kind,
            generation=self.generation,
            previous=run.chain.hash,
            time_us=run.time_us or round(self._wall() * 1e6),
            groups=groups or [],
            parts=parts or [],
            stamp=stamp,
            offsets=offsets,
            batch=batch,
            watermark_us=records.END_US if ended else None,
            idle=idle,
            code=self.program.code,
            attempt=run.attempt,
        )

    def submit(self, run: Run, record: Record) -> None:
        self._line.submit(Pending(record, records.encode(record), run))

    def _make_base(self, part: int) -> records.Base:
        time_us = round(self._wall() * 1e6)
        redeals = self.redealing.apply_ready()
        self.placing.note_placed()
        return self.chains.to_base(self._query, self.generation, part, self._identity, time_us, redeals)

    def _publish(self, pending: Pending) -> None:
        run, record = pending.run, pending.record
        now, wall_us = self._clock(), round(self._wall() * 1e6)
        published = self.chains.apply(record, pending.encoded)
        for edge, rows in published:
            if run.spec.kind != "source":
                rows.arrived_us = wall_us
            for consumer in self.runs_of(edge.consumer):
                mine = None if self.chains.is_plain else consumer.chain.is_mine()
                consumer.counts.arrive(run.spec.name, rows, mine)
        if run.spec.kind == "source":
            self.sources.note_published(run, sum(part.rows_in for part in record.parts), published)
        if record.stamp is not None and record.kind != "intent":
            self.latency[run.spec.name].add(now, wall_us, record.stamp)
            if run.spec.kind == "operator":
                run.counts.sojourns.add(now, wall_us, run.takes, record)
        run.finish(now, record)
        self.placing.bring_absent(run)
        if record.batch is not None:
            self.sources.say_committed(record.chain)
        if record.kind != "intent":
            run.next_start = max(run.next_start, self.pace.next_start(run.started_at, self._active()))
        self.sources.take_waiting_batch(record.chain)

    def _active(self) -> int:
        return max(1, sum(1 for run in self.runs.values() if run.phase is not Phase.IDLE))

    def _on_failed(self, lease: str, failed: messages.Failed) -> None:
        if failed.kind in ("storage", "local"):
            count = self._storage_failures.get(failed.stage, 0) + 1
            self._storage_failures[failed.stage] = count
            if count <= STORAGE_RETRIES:
                self.end_lease(lease, failed.message)
                self.step()
                return
        kinds: dict[str, type[PenstockError]] = {
            "user": OperatorError, "storage": StorageError, "local": StorageError, "corrupt": CorruptFileError,
        }  # fmt: skip
        error = kinds.get(failed.kind, PenstockError)(failed.message)
        error.add_note(failed.detail)
        self.fail(error)

    def _check_heartbeats(self, now: float) -> None:
        if now - self._stepped_at > STALL_S:
            for lease in self.leases.values():
                lease.heard_at = now
        late = [
            lease.name
            for lease in self.leases.values()
            if now - lease.heard_at > self.settings.lease_timeout_s
        ]
        for name in late:
            self.end_lease(name, "no heartbeat")

    def fail(self, error: PenstockError) -> None:
        """End the query with its first error."""
        if self.failed is None:
            self.failed = error
            self._shell.fail(error)

    # -- what its parts ask of it ----------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._clock()

    def want_base(self, at: float) -> None:
        self._line.want_base(at)

    def runs_of(self, stage: str) -> list[Run]:
        """Return what runs for a stage: itself, or all executors of an operator."""
        return [self.runs[chain.name] for chain in self.chains.of(stage)]

    def latency_since(self, stage: str, at: float, quantile: float | None = None) -> Latency | None:
        """Return the latency of rows that a stage, all its executors together, committed at or after clock time `at`."""
        first, *others = [self.latency[run.spec.name] for run in self.runs_of(stage)]
        return first.since(at, *others, quantile=quantile)

    def run_of(self, chain: str) -> Run:
        """Return what runs for a chain, from now on if it is a new one."""
        if chain not in self.runs:
            run = self.runs[chain] = Run(self.chains[chain], self.settings, begins=False)
            run.counts.sojourns.pairs = self.runs[operator_of(chain)].counts.sojourns.pairs
            self.latency[chain] = LatencyLog()
        return self.runs[chain]

    def wall(self) -> float:
        return self._wall()

    def send(self, lease: str, message: messages.ToLease) -> None:
        self._shell.send(lease, message)

    def run_sink(self, work: SinkWork) -> None:
        self._shell.run_sink(work)

    # -- looks --------------------------------------------------------------------------------------------------------

    def quiet(self) -> bool:
        """Whether, in this one look, nothing waits, no epoch is in flight and every sink is done; sources may have
        more."""
        if not self._line.empty or any(run.phase is not Phase.IDLE for run in self.runs.values()):
            return False
        if any(chain.intent is not None for chain in self.chains.by_name.values()):
            return False
        return not any(queue for chain in self.chains.by_name.values() for queue in chain.out.values())

    def drained(self) -> bool:
        """Whether, in this one look, sources are drained and all is quiet; never on a source without an end."""
        for name, arrivals in self.sources.arrivals.items():
            if arrivals.limit is None or self.chains[name].offset < arrivals.limit:
                return False
            if not self.chains[name].has_said_its_end():
                return False
        return self.quiet()

    def mark(self) -> DrainMark:
        """Mark the rows that have arrived by now; ask `passed_mark` until they are through."""
        return DrainMark(self.chains, self.sources.arrivals)

    def passed_mark(self, mark: DrainMark) -> bool:
        """Whether the marked rows are through. Sinks that let rows gather take them when they are the last."""
        if mark.passed(self._wall()):
            return True
        held = [
            run for name, run in self.runs.items() if run.gathers_since is not None and mark.is_next(name)
        ]
        for run in held:
            run.flush = True
        if held:
            self.step()
        return False

    def slow_epochs(self) -> dict[str, tuple[int, float]]:
        """Return, by stage, epochs that tasks have been at for long, and for how many seconds."""
        now = self._clock()
        return {
            name: (run.epoch, now - run.started_at)
            for name, run in self.runs.items()
            if run.phase is Phase.WORKING and now - run.started_at > SLOW_S
        }
