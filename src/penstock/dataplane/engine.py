"""The driver's core: which epoch runs when, on which tasks, and what is committed. Events in, calls on a
`Shell` out.

Owns leases as names and the stages at work, and gives every event to the part whose it is. Opens no file and no socket,
reads no clock but the one it is given, never blocks: the Spark shell, the in-process harness and the simulator drive the
same code. Only what `on_appended` confirmed is ever published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from penstock.dataplane import messages
from penstock.dataplane.chains import Chains
from penstock.dataplane.cleanup import plan_cleanup
from penstock.dataplane.committing import Committing
from penstock.dataplane.draining import Draining
from penstock.dataplane.driver_time import DriverTime
from penstock.dataplane.handing import HANDOVER_S
from penstock.dataplane.heartbeats import NO_HEARTBEAT, late_leases
from penstock.dataplane.latency import Latency, LatencyLog
from penstock.dataplane.logline import Appender, LogLine
from penstock.dataplane.operator_steps import OperatorSteps
from penstock.dataplane.pace import Pace
from penstock.dataplane.placement import Placement
from penstock.dataplane.placing import Placing
from penstock.dataplane.program import Program, operator_of
from penstock.dataplane.redealing import Redealing
from penstock.dataplane.run import Lease, Phase, Run, SinkWork
from penstock.dataplane.serving import Serving
from penstock.dataplane.settings import Settings
from penstock.dataplane.sink_steps import SinkSteps
from penstock.dataplane.source_steps import SourceSteps
from penstock.dataplane.standing import waiting_rows
from penstock.dataplane.state.protocol import U16
from penstock.dataplane.taking import GroupTake, take_epoch
from penstock.errors import PenstockError

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
        steady: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            clock: for intervals and time-outs, which a sleep of the machine must not use up.
            wall: the system's clock, which may be set at any moment.
            steady: goes on as the wall does and cannot be set; `clock` when not given.
        """
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
        self._clock = clock
        recorded_us = max((chain.time_us for chain in chains.by_name.values()), default=0)
        self.time = DriverTime(wall, steady or clock, recorded_us / 1e6)
        self._stepped_at = 0.0
        self.committing = Committing(self, query, identity)
        self.line = LogLine(shell, self.committing.make_base, settings.base_interval_s)
        self.sources = SourceSteps(self)
        self.operators = OperatorSteps(self)
        self.sinks = SinkSteps(self)
        self.placing = Placing(self)
        self.serving = Serving(self, self.placing.is_planned, self.placing.on_served)
        self.redealing = Redealing(self)
        self.draining = Draining(self)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, capacity: int) -> None:
        """Begin: write the first base of this generation, then accept leases."""
        self.serving.capacity = capacity
        self.placing.fit(capacity)
        for run in self.runs.values():
            run.rows_at = self._clock()
            self.committing.let_others_say(run)  # what was owed when the driver before ended
        self.line.start_base()

    def set_capacity(self, leases: int) -> None:
        """Say how many leases can be held at most; tasks are dealt over what there is."""
        self.serving.capacity = max(1, leases)
        self.serving.assign()
        self.step()

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
        self.line.want_base(self._clock() + within_s)

    def begin_stop(self) -> None:
        """Start no more epochs; what plans have done is made durable now."""
        self.stopping = True
        if self.line.owes_base:
            self.note_placed(0.0)
        self.step()

    def is_quiet(self) -> bool:
        """Whether, while it stops, nothing is on its way any more."""
        return all(run.phase is Phase.IDLE for run in self.runs.values()) and not self.line.owes_base

    def wanted_leases(self) -> int:
        """How many leases the stages could use, at most the capacity."""
        return 0 if self.stopping or self.failed else self.serving.wanted_leases()

    # -- events -------------------------------------------------------------------------------------------------------

    def on_lease_up(self, lease: str, node: str) -> None:
        """A lease has said hello."""
        self.leases[lease] = Lease(lease, node, self._clock())
        self.serving.assign()
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
            self.committing.on_done(lease, message)
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
            self.committing.on_failed(lease, message)
        elif isinstance(message, messages.Alive):
            held.load = message.own

    def on_appended(self, count: int) -> None:
        """The oldest `count` records handed to `append` are durable and this driver still owns the
        checkpoint."""
        for pending in self.line.pop_durable(count):
            self.committing.publish(pending)
        self.step()

    def on_part_started(self) -> None:
        """The base that was asked for is durable."""
        self.line.part_started(self._clock())
        self.redealing.part_started()
        self.step()

    def on_files(self, names: Sequence[str], batches: Sequence[str]) -> None:
        """The data folder was listed; plan the clean-up. `batches` are prefixes of writers besides the
        leases."""
        if self.line.begins:
            return  # until the first base is durable, a restart reads the older driver's log and what that names
        serves = dict.fromkeys(self.leases, 0)
        for slot in self.serving.slots():
            if slot.lease in serves:
                serves[slot.lease] += 1
        live = self.chains.live_files() | self._files_under_way()
        dead = plan_cleanup(names, live, serves, batches, self.generation)
        if dead:
            self._shell.clean_up(dead)

    def _files_under_way(self) -> set[str]:
        """Files that are needed though no chain names them: of what is being committed, and of copies."""
        return self.placing.copies.files().union(self.committing.files())

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
        self.line.start_base_if_due(now)
        self.placing.give_up_late_plans(now)
        self.serving.look_again(now)
        for run in self.runs.values():
            wait = min(wait, self._step_run(run, now))
        return wait

    def _step_run(self, run: Run, now: float) -> float:
        if run.phase is not Phase.IDLE or self.line.part == 0 or self.stopping:
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
        budget = run.intake.budget(self.operators.keeps_in_step(run))
        absent = None if run.is_whole else run.free_of_rows()
        return take_epoch(
            chain.groups, run.ready, waiting, budget, chain.channels, run.task_of, levels, absent
        )

    def _is_brimming(self, run: Run) -> bool:
        """Whether so much waits that a whole epoch of it is there before its time: then the pace gives way."""
        if run.spec.kind == "source":
            return self.sources.is_brimming(run)
        return self.chains.waiting_bytes_for(run.chain) >= self.settings.max_epoch_bytes

    # -- heartbeats and failure ---------------------------------------------------------------------------------------

    def _check_heartbeats(self, now: float) -> None:
        if now - self._stepped_at > STALL_S:
            for lease in self.leases.values():
                lease.heard_at = now
        for name in late_leases(self.leases, now, self.settings.lease_timeout_s):
            self.end_lease(name, NO_HEARTBEAT)

    def fail(self, error: PenstockError) -> None:
        """End the query with its first error."""
        if self.failed is None:
            self.failed = error
            self._shell.fail(error)

    # -- what its parts ask of it ----------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._clock()

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
        """Return the driver's time, by which rows arrive and latency is measured."""
        return self.time.now()

    def epoch_time(self) -> float:
        """Return the time that an epoch which begins now is given, and by which timers fire."""
        return self.time.epoch_time()

    def send(self, lease: str, message: messages.ToLease) -> None:
        self._shell.send(lease, message)

    def run_sink(self, work: SinkWork) -> None:
        self._shell.run_sink(work)

    # -- looks --------------------------------------------------------------------------------------------------------

    def slow_epochs(self) -> dict[str, tuple[int, float]]:
        """Return, by stage, epochs that tasks have been at for long, and for how many seconds."""
        now = self._clock()
        return {
            name: (run.epoch, now - run.started_at)
            for name, run in self.runs.items()
            if run.phase is Phase.WORKING and now - run.started_at > SLOW_S
        }
