"""The in-process harness: the real engine, log, checkpoint opening and workers, with leases as objects on a
virtual clock.

Owns what the Spark shell owns there: when a message arrives, when an append is acknowledged, when a lease
dies. Messages go through the real codecs. Every delay is drawn from the loop's seed, so that a seed is a
schedule. Never touches a file but through the disks it is given.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence

from penstock.dataplane import messages, paths, recordlog, records
from penstock.dataplane.disk import Disk
from penstock.dataplane.engine import PLAN_TIMEOUT_S, Engine
from penstock.dataplane.errands import data_files, old_parts, plan_writes, read_sink_rows
from penstock.dataplane.holding import give_back
from penstock.dataplane.opening import Opened, open_checkpoint
from penstock.dataplane.placement import Placement
from penstock.dataplane.program import Program, StageSpec
from penstock.dataplane.recordlog import Claim, Heartbeat, LogWriter
from penstock.dataplane.run import SinkWork
from penstock.dataplane.settings import Settings
from penstock.dataplane.sourcing import Arrivals
from penstock.dataplane.state.protocol import U16
from penstock.errors import PenstockError
from penstock.sim.lease import SimLease
from penstock.sim.loop import Loop
from penstock.sim.process import Process
from penstock.sim.surroundings import NO_STATE_DIR, DiskOf, SinkLog, disks_beside
from penstock.sim.timing import SMALL, Delays, UnevenRates
from penstock.testing.faults import SimCrash

LANDS_THERE = 0.9
"""Chance that a lease comes up on the node it was asked for."""


class Driver(Process):
    """One driver process with its leases; survives its own crashes as a handle that can start it again.

    Args:
        disk: the disk of the driver (a `SimDisk` gives every lease a disk of its own on the same device), or
            a function from process name to disk.
        node_dir: where leases keep local state; needed unless all state is in memory.
        rows: how many rows every native source makes; they arrive at `rate` a second.
        arrivals: when the rows of a native source arrive, given its stage, instead of `rows` and `rate`; asked at every
            start.
        loop: shared by drivers that are to live at the same time.
        roll_bytes: size at which leases begin another data file.
        sink: is told of every sink epoch; shared by drivers of one checkpoint.
        uneven: seed by which tasks of an executor are fast and slow in turn; None for tasks that keep in step.

    Raises:
        PenstockError: the checkpoint cannot be opened.
    """

    def __init__(
        self,
        disk: Disk | DiskOf,
        checkpoint: str,
        program: Program,
        settings: Settings = SMALL,
        seed: int = 0,
        node_dir: str | None = None,
        *,
        rows: int = 400,
        rate: float = 2_000.0,
        capacity: int = 2,
        nodes: int = 2,
        loop: Loop | None = None,
        delays: Delays | None = None,
        sink: SinkLog | None = None,
        name: str = "driver",
        roll_bytes: int | None = None,
        start: bool = True,
        arrivals: Callable[[StageSpec], Arrivals] | None = None,
        uneven: int | None = None,
    ) -> None:
        super().__init__(loop or Loop(seed), delays or Delays())
        self.checkpoint = checkpoint
        self.program = program
        self.settings = settings
        self.node_dir = node_dir or f"{NO_STATE_DIR}/{os.getpid()}"
        self.sink = sink if sink is not None else SinkLog()
        self.name = name
        self.rows, self.rate = rows, rate
        self._arrivals = arrivals or (lambda _: Arrivals([(1.0, self.rate)], self.rows))
        self.roll_bytes = roll_bytes
        self.capacity, self.nodes = capacity, nodes
        self.failed: PenstockError | None = None
        self.leases: dict[str, SimLease] = {}
        self.acknowledged: list[tuple[int, bytes]] = []
        """Every record that was published, with the generation that published it."""
        self.on_published: Callable[[Driver, bytes], None] | None = None
        self.on_append: Callable[[Driver, bytes], None] | None = None
        self.on_deleting: Callable[[Driver, list[str]], None] | None = None
        self._disk_of = disk if callable(disk) else disks_beside(disk)
        self._count = 0
        self._uneven = uneven
        if start:
            self.restart()

    # -- life ---------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Start a new driver process on the checkpoint, taking it over from whoever holds it."""
        assert not self.running, "crash or stop it first"
        self._life += 1
        self.failed = None
        self.disk = self._disk_of(f"{self.name}{self._life}")
        self.opened: Opened = open_checkpoint(
            self.disk, self.checkpoint, self.program, takeover=True, who=self._who(), wall=self.loop.wall
        )
        self.program = self.opened.program
        self.generation = self.opened.claim.generation
        self.engine = Engine(
            self.program,
            self.opened.chains,
            self,
            self.settings,
            query=self.opened.query,
            generation=self.generation,
            identity=self.opened.identity,
            clock=self.loop.clock,
            wall=self.loop.wall,
        )
        if self._uneven is not None:
            for number, run in enumerate(self.engine.runs.values()):
                run.intake.rates = UnevenRates(self._uneven + number)
        self._log = LogWriter(self.disk, self.checkpoint, self.opened.claim)
        self._log_queue: deque[list[bytes] | records.Base] = deque()
        self._log_awake = False
        self._unpublished: deque[bytes] = deque()
        self._beaten_at = self._cleaned_at = self.loop.now
        self.leases = {}
        self._run()
        self.loop.note(f"{self.name} generation {self.generation} starts")
        for stage in self.program.stages.values():
            if stage.generate is not None:
                self.engine.sources.set_arrivals(stage.name, self._arrivals(stage))
        self._soon(0.0, lambda: self.engine.start(self.capacity))
        self._soon(0.0, self._office)

    def crash(self) -> None:
        """End the driver process as `kill -9` does; its leases find out in their own time."""
        if not self.running:
            return
        self.loop.note(f"{self.name} generation {self.generation} crashes")
        self._leave()
        crash = getattr(self.disk, "crash", None)
        if crash is not None:
            crash()

    def stop(self) -> None:
        """End the driver in order, in the middle of whatever it does: leases ended, checkpoint given back."""
        self._end(None)

    def run_until(self, done: str | float | Callable[[], bool] = "drained", limit_s: float = 60.0) -> bool:
        """Run the loop until `done`: "drained", a number of virtual seconds from now, or a predicate.

        Returns whether it came true within `limit_s`; also returns when the driver is over.
        """
        if isinstance(done, float | int):
            return self.loop.run_until(lambda: False, float(done)) or True
        wanted = self.drained if done == "drained" else done
        assert callable(wanted)
        self.loop.run_until(lambda: wanted() or not self.running, limit_s)
        return wanted()

    def drained(self) -> bool:
        """Whether everything the sources will ever make is consumed, committed and done at the sinks."""
        return self.running and self.engine.draining.is_drained()

    # -- faults -------------------------------------------------------------------------------------------------------

    def live_leases(self) -> list[str]:
        """Leases that the engine holds and whose process is there."""
        return [name for name, lease in self.leases.items() if not lease.ended and name in self.engine.leases]

    def kill(self, lease: str) -> None:
        """End a lease's process; what it had sent still arrives, then the end of its connection."""
        self.loop.note(f"{lease} killed")
        self.leases[lease].kill()
        self._post(f"from {lease}", self.delays.message, lambda: self.engine.on_lease_down(lease, "killed"))

    def pause(self, lease: str) -> None:
        """Stop a lease where it stands, heartbeats too; after the time-out the engine gives it up."""
        self.loop.note(f"{lease} paused")
        self.leases[lease].paused = True

    def resume(self, lease: str) -> None:
        """Let a paused lease go on, given up or not."""
        self.loop.note(f"{lease} resumed")
        self.leases[lease].resume()

    def cut(self, lease: str) -> None:
        """Tell the engine that a lease is gone while it works on: a zombie whose answers arrive late."""
        self.loop.note(f"{lease} cut off")
        self.leases[lease].slow = True
        self._soon(0.0, lambda: self.engine.on_lease_down(lease, "cut off"))

    def set_capacity(self, leases: int) -> None:
        """Let the machine grow or shrink: more leases are asked for, or those too many given back."""
        self.loop.note(f"capacity {leases}")
        self.capacity = leases
        self._soon(0.0, lambda: self._resize(leases))

    def place(self, plan: Sequence[Placement], timeout_s: float = PLAN_TIMEOUT_S) -> None:
        """Give the engine a plan.

        Raises:
            PlanError: it cannot be carried out.
        """
        names = ", ".join(f"{one.stage} {dict(one.tasks)}" for one in plan)
        self.loop.note(f"plan {names}", b"".join(one.task_of.tobytes() for one in plan))
        self.engine.place(plan, timeout_s)
        self._soon(0.0, lambda: None)

    def redeal(self, giver: str, taker: str, shards: U16, tasks: int = 1) -> None:
        """Let shards pass from one executor of an operator to another.

        Raises:
            PlanError: it cannot be carried out.
        """
        self.loop.note(f"deal {giver} -> {taker}", shards.tobytes())
        self.engine.redeal(giver, taker, shards, tasks)
        self._soon(0.0, lambda: None)

    def _resize(self, leases: int) -> None:
        self.engine.set_capacity(leases)
        for lease in list(self.engine.leases)[leases:]:
            self.drop_lease(lease, "its slot is needed")
            self.engine.on_lease_down(lease, "its slot is needed")

    # -- Shell --------------------------------------------------------------------------------------------------------

    def send(self, lease: str, message: messages.ToLease) -> None:
        data = messages.encode(message)
        target = self.leases.get(lease)
        if target is not None:
            self.loop.at(self._fifo(f"to {lease}", self.delays.message), lambda: target.receive(data))

    def append(self, encoded: Sequence[bytes]) -> None:
        self._log_queue.append(list(encoded))
        self._wake_log()

    def start_part(self, base: records.Base) -> None:
        self._log_queue.append(base)
        self._wake_log()

    def drop_lease(self, lease: str, reason: str) -> None:
        self.send(lease, messages.End(reason))

    def run_sink(self, work: SinkWork) -> None:
        self._soon(self.loop.between(*self.delays.sink), lambda: self._run_sink(work))

    def clean_up(self, names: Sequence[str]) -> None:
        doomed = list(names)
        self._soon(self.loop.between(0.0, 0.05), lambda: self._delete(doomed))

    def fail(self, error: PenstockError) -> None:
        self._end(error)

    # -- from leases --------------------------------------------------------------------------------------------------

    def hear(self, life: int, lease: str, data: bytes, slow: bool) -> None:
        """A lease of the driver's `life`-th process sent something; a dead process hears nothing."""
        if life == self._life and self.running:
            bounds = (0.05, 0.5) if slow else self.delays.message
            self._post(f"from {lease}", bounds, lambda: self._hear(lease, data))

    def lose(self, life: int, lease: str) -> None:
        """The connection of a lease ended."""
        if life == self._life and self.running:
            self._post(
                f"from {lease}",
                self.delays.message,
                lambda: self.engine.on_lease_down(lease, "connection ended"),
            )

    def _hear(self, lease: str, data: bytes) -> None:
        message = messages.decode_from_lease(data)
        self.loop.note(f"from {lease} {type(message).__name__}", _stable(message))
        if isinstance(message, messages.Hello):
            self.engine.on_lease_up(lease, message.node)
        else:
            self.engine.on_message(lease, message)

    # -- the log's thread ---------------------------------------------------------------------------------------------

    def _wake_log(self) -> None:
        if not self._log_awake:
            self._log_awake = True
            self._soon(self._draw(self.delays.append), self._log_turn)

    def _log_turn(self) -> None:
        self._log_awake = False
        queued = list(self._log_queue)
        self._log_queue.clear()
        for write in plan_writes(queued):
            if isinstance(write, list):
                self._commit(write)
            else:
                self._start_part(write)

    def _commit(self, encoded: list[bytes]) -> None:
        if self.on_append is not None:
            for one in encoded:
                self.on_append(self, one)
        self._log.append(encoded)
        self._post("log", self.delays.message, lambda: self._publish(encoded))

    def _start_part(self, base: records.Base) -> None:
        part = self._log.start_part(base)
        self.loop.note(f"part {part.part} of generation {part.generation}")
        self._post("log", self.delays.message, self.engine.on_part_started)
        if not self.settings.retain_all:
            self._remove(old_parts(self.disk, self.checkpoint, part))

    def _publish(self, encoded: list[bytes]) -> None:
        for one in encoded:
            self.loop.note("published", one)
            self.acknowledged.append((self.generation, one))
            if self.on_published is not None:
                self.on_published(self, one)
        self.engine.on_appended(len(encoded))

    # -- the sink's and the office's threads --------------------------------------------------------------------------

    def _run_sink(self, work: SinkWork) -> None:
        table = read_sink_rows(self.disk, self.checkpoint, self.program, work)
        self.loop.note(f"sink epoch {work.epoch}: {table.num_rows} rows")
        self.sink.calls.append((self.generation, work.epoch, table))
        self._post("sink", self.delays.message, lambda: self.engine.on_sink_done(work.stage, work.epoch))

    def _office(self) -> None:
        self._soon(self.delays.office_s, self._office)
        gone = [name for name, lease in self.leases.items() if lease.ended and name not in self.engine.leases]
        for name in gone:
            del self.leases[name]
        awaited = [name for name, lease in self.leases.items() if not lease.connected]
        missing = self.engine.wanted_leases() - len(self.engine.leases) - len(awaited)
        asked = [f"{self.name}l{self._count + number + 1}" for number in range(missing)]
        serves = self.engine.serving.foresee(awaited, asked) if asked else {}
        for name in asked:
            self._start_lease(name, next((slot.node for slot in serves[name] if slot.node), None))
        if self.loop.now - self._beaten_at >= self.settings.heartbeat_s:
            self._beaten_at = self.loop.now
            self._log.check_claim()
            recordlog.write_heartbeat(
                self.disk, self.checkpoint, Heartbeat(self.opened.claim, self.loop.wall())
            )
        if self.loop.now - self._cleaned_at >= self.delays.cleanup_s and not self.settings.retain_all:
            self._cleaned_at = self.loop.now
            self.list_for_cleanup()

    def _start_lease(self, name: str, wanted: str | None) -> None:
        self._count += 1
        node = f"n{self._count % self.nodes}"
        if (
            wanted in {f"n{number}" for number in range(self.nodes)}
            and self.loop.between(0.0, 1.0) < LANDS_THERE
        ):
            node = wanted or node
        lease = SimLease(self, self._life, name, node, self._disk_of(name))
        self.leases[name] = lease
        self.loop.at(self.loop.between(*self.delays.lease_start), lease.connect)

    def clean_up_soon(self) -> None:
        """Begin a round of clean-up at the next event."""
        self._soon(0.0, self.list_for_cleanup)

    def list_for_cleanup(self) -> None:
        """List the data folder now and let the engine plan with the listing a little later."""
        names = data_files(self.disk, self.checkpoint)
        self._soon(self.loop.between(0.0, 0.03), lambda: self.engine.on_files(names, []))

    def _delete(self, names: Sequence[str]) -> None:
        self._log.check_claim()
        self._remove([paths.data_file(self.checkpoint, name) for name in names])

    def _remove(self, doomed: list[str]) -> None:
        if self.on_deleting is not None and doomed:
            self.on_deleting(self, doomed)
        for path in doomed:
            self.loop.note(f"delete {path}")
            self.disk.delete(path)

    # -- Process ------------------------------------------------------------------------------------------------------

    def _step(self) -> float:
        return self.engine.step()

    def _end(self, error: PenstockError | None) -> None:
        """What the Spark shell does when a query ends by itself."""
        if not self.running:
            return
        for name in list(self.leases):
            self.send(name, messages.End("the query ended"))
        with contextlib.suppress(SimCrash):
            claim = self.opened.claim
            error = give_back(self.disk, self.checkpoint, claim, self.loop.wall(), error)
        self.failed = error
        how = type(error).__name__ if error else "stopped"
        self.loop.note(f"{self.name} generation {self.generation} ends: {how}")
        self._log.close()
        self._leave()

    def _leave(self) -> None:
        self._die()
        for lease in self.leases.values():
            self.loop.at(self.loop.between(0.0, 0.1), lease.lose_driver)

    def _who(self) -> Claim:
        return Claim(0, "host", self._life, "boot", float(self._life), self.loop.wall())


def _stable(message: messages.FromLease) -> bytes:
    """The bytes of a message for the trace, without what differs from run to run: addresses in a traceback, the
    process id in the name of an environment."""
    if isinstance(message, messages.Failed):
        return message.kind.encode()
    if isinstance(message, messages.Released):
        message = messages.Released(
            message.stage, message.task, [messages.ReleasedShard(s.shard, "") for s in message.shards]
        )
    if isinstance(message, messages.Prepared):
        shards = [messages.PreparedShard(s.shard, "", s.version, s.why) for s in message.shards]
        message = messages.Prepared(message.stage, message.task, shards)
    return messages.encode(message)
