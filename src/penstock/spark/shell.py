"""The engine's shell on Spark: carries out what the engine asks, and feeds back what happened.

Threads: the hub (engine and sockets), the log (appends and bases), the sink (side effects), the office
(leases, heartbeats, clean-up). Each owns its resources; they meet only by `post`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.dataplane import messages, paths, records
from penstock.dataplane.disk import Disk
from penstock.dataplane.driver_time import steady_s
from penstock.dataplane.engine import Engine
from penstock.dataplane.errands import old_parts, read_sink_rows
from penstock.dataplane.exports import ExportFolder
from penstock.dataplane.heartbeats import NO_HEARTBEAT, is_silent
from penstock.dataplane.holding import give_back
from penstock.dataplane.logthread import LogThread
from penstock.dataplane.opening import Opened
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import LogWriter
from penstock.dataplane.run import SinkWork
from penstock.dataplane.settings import Settings
from penstock.errors import FencedError, PenstockError, SessionError, StorageError
from penstock.raised import describe, function_error
from penstock.spark import core_shares
from penstock.spark.chores import Chores
from penstock.spark.hearing import Hearing
from penstock.spark.hub import Hub, Listener
from penstock.spark.lease_task import HEARTBEAT_S
from penstock.spark.leases import LeaseOffice
from penstock.spark.outcry import brief
from penstock.spark.sinks import Sink
from penstock.spark.slots import LOCAL_NODE, is_local
from penstock.spark.versions import check_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock")
_AGAIN = "; the epoch will be handed over again, with the same rows, when the query is restarted."


class SparkShell(Listener):
    """Runs one query's engine on Spark."""

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        opened: Opened,
        disk: Disk,
        settings: Settings,
        *,
        hosts: tuple[str, str],
        label: str,
        reserve: int,
        sinks: Mapping[str, Sink] | None = None,
        exports: Mapping[str, ExportFolder] | None = None,
        on_end: Callable[[PenstockError | None], None],
    ) -> None:
        self.opened = opened
        self.label = label
        """What jobs other than leases are named after."""
        self.hub = Hub(hosts[0], self, hosts[1])
        self.engine = Engine(
            program,
            opened.chains,
            self,
            settings,
            query=opened.query,
            generation=opened.claim.generation,
            identity=opened.identity,
            clock=time.monotonic,
            wall=time.time,
            steady=steady_s,
        )
        self._spark = spark
        self._local = is_local(spark)
        self._program = program
        self.disk = disk
        self.settings = settings
        self._sinks = dict(sinks or {})
        self._exports = dict(exports or {})
        self._on_end = on_end
        self._office = LeaseOffice(
            spark,
            program,
            self.hub.address,
            opened.claim.generation,
            opened.checkpoint,
            label,
            min(HEARTBEAT_S, settings.lease_timeout_s / 4),
        )
        self._reserve = reserve
        self.chores = Chores(self, spark, self._office, reserve)
        self.log = LogThread(
            LogWriter(disk, opened.checkpoint, opened.claim),
            self._appended,
            self._part_started,
            self._crashed,
        )
        self.hearing = Hearing()
        self._sink_queue: queue.SimpleQueue[SinkWork | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._finishing = threading.Lock()
        self.sources_ended: Callable[[], bool] | None = None
        """Of a query that ends by itself: whether its sources have nothing more to give than what was committed and what
        native sources are bound to make."""
        self.lease_pids: dict[str, int] = {}
        """Process of each lease that is held, for tests and for people who look for a process."""
        self.node_loads: dict[str, tuple[float, float, float]] = {}
        """By node: shares of CPU, memory and I/O in use, as one of its leases said last."""
        self.writers: set[str] = set()
        """Writers of batches under way; clean-up spares their files."""
        self._cost = (0.0, 0)
        self._threads: list[threading.Thread] = []

    # -- life (the user's thread) -------------------------------------------------------------------------------------

    def start(self) -> None:
        reserve = self._reserve
        capacity = self._office.capacity(reserve)
        if capacity < 1:
            raise SessionError(self._office.no_room(capacity + reserve, reserve + 1))
        core_shares.join(self.engine)
        self.hub.start(self._crashed)
        self.log.start()
        for name, target in (("sink", self._run_sink_thread), ("office", self.chores.run)):
            thread = threading.Thread(target=self._guarded(target), name=f"penstock-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self.hub.ask(lambda: self.engine.start(capacity))

    def stop(self, drain_s: float = 10.0) -> None:
        """End the query in order: no new epochs, those in flight committed, leases ended, checkpoint given
        back."""
        if self._ended.is_set():
            return
        with contextlib.suppress(Exception):
            self.hub.ask(self.engine.begin_stop)
            deadline = time.monotonic() + drain_s
            while time.monotonic() < deadline and not self.hub.ask(self.engine.is_quiet):
                time.sleep(0.01)
        self.finish(None)

    def end_with(self, error: PenstockError) -> None:
        """End the query with an error that arose outside the engine. Any thread."""
        self.hub.post(lambda: self.engine.fail(error))

    @property
    def landed(self) -> tuple[int, int]:
        """Leases that came up on the node they were asked for, and those that came up elsewhere."""
        return self._office.landed, self._office.landed_elsewhere

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    def finish(self, error: PenstockError | None) -> None:
        with self._finishing:
            if self._ended.is_set():
                return
            self._ended.set()
        self._in_order(self.chores.wake)
        reason = "the query stopped" if error is None else "the query failed"

        def end_leases() -> None:
            for lease in list(self.engine.leases):
                self.hub.send(lease, messages.End(reason))

        with contextlib.suppress(Exception):
            if threading.current_thread() is self.hub._thread:
                end_leases()
            else:
                self.hub.ask(end_leases, timeout=5.0)
        self._in_order(self.log.end, lambda: self._sink_queue.put(None))
        self._in_order(*(sink.cancel for sink in self._sinks.values()))
        try:
            threading.Thread(target=self._wind_up, args=(error,), name="penstock-end", daemon=True).start()
        except RuntimeError:  # the interpreter is on its way out and starts no more threads
            self._wind_up(error)

    def _in_order(self, *steps: Callable[[], object]) -> None:
        """Take the steps of an end, each of them whatever became of the others: the query is over all the same."""
        for step in steps:
            try:
                step()
            except Exception as error:
                _log.warning("query %s: its end is not in order: %s", self.label, describe(error))

    def _wind_up(self, error: PenstockError | None) -> None:
        try:
            self._in_order(
                self._await_jobs,
                self.hub.close,
                self._office.close,
                lambda: core_shares.leave(self.engine),
                *(functools.partial(one.join, 5.0) for one in self._other_threads()),
                lambda: self.log.close(5.0),
                self.hearing.close,
            )
            with contextlib.suppress(Exception):
                error = give_back(self.disk, self.opened.checkpoint, self.opened.claim, time.time(), error)
            if error is not None:
                told = f"query {self.label} has failed: {brief(error)}"
                for sink in self._sinks.values():
                    with contextlib.suppress(Exception):  # Spark may be gone, and what it showed with it
                        sink.note_failure(told)
        finally:
            self._on_end(error)

    def _other_threads(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread is not threading.current_thread()]

    def _await_jobs(self) -> None:
        deadline = time.monotonic() + 3.0
        while self._office.jobs() and time.monotonic() < deadline:
            try:
                self._office.ended()
            except Exception:  # Spark is gone, and every job with it
                break
            time.sleep(0.02)

    def _crashed(self, error: BaseException) -> None:
        wrapped = error if isinstance(error, PenstockError) else PenstockError(describe(error))
        if wrapped is not error:
            wrapped.__cause__ = error
        self.finish(wrapped)

    def _guarded(self, target: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                target()
            except BaseException as error:
                self._crashed(error)

        return run

    # -- Listener (hub's thread) --------------------------------------------------------------------------------------

    def lease_up(self, lease: str, hello: messages.Hello) -> None:
        wrong = check_version(hello.node, hello.host, hello.version)
        if wrong is not None:
            self.engine.fail(SessionError(wrong))
            return
        node = LOCAL_NODE if self._local else hello.node
        self._office.note_up(lease, node)
        self._office.note_heard(node)
        self.lease_pids[lease] = hello.pid
        self.chores.had_leases = True
        self.chores.lease_failures = 0
        if self._ended.is_set():  # a query with little to do may be over before its leases are up
            self.hub.send(lease, messages.End("the query is over"))
            return
        self.engine.on_lease_up(lease, node)

    def lease_down(self, lease: str, reason: str) -> None:
        self._give_up(lease)
        self.engine.on_lease_down(lease, reason)

    def message(self, lease: str, message: messages.FromLease) -> None:
        if isinstance(message, messages.Said):
            self.hearing.hear(message)
        elif isinstance(message, messages.Alive) and lease in self.engine.leases:
            self._note_alive(self.engine.leases[lease].node, message)
        self.engine.on_message(lease, message)

    def _note_alive(self, node: str, message: messages.Alive) -> None:
        self._office.note_heard(node)
        if message.load is not None:
            self.node_loads[node] = message.load

    def step(self) -> float:
        wait = self.engine.step()
        epochs = sum(run.epochs for run in self.engine.runs.values())
        cpu_s = time.thread_time() + self.log.cpu_s
        if epochs - self._cost[1] >= 100:
            self.engine.pace.note_cost(cpu_s - self._cost[0], epochs - self._cost[1])
            self._cost = (cpu_s, epochs)
        return wait

    # -- Shell (hub's thread) -----------------------------------------------------------------------------------------

    def send(self, lease: str, message: messages.ToLease) -> None:
        self.hub.send(lease, message)

    def append(self, encoded: Sequence[bytes]) -> None:
        self.log.append(encoded)

    def start_part(self, base: records.Base) -> None:
        self.log.start_part(base)

    def drop_lease(self, lease: str, reason: str) -> None:
        if reason == NO_HEARTBEAT:
            self._note_silence(lease)
        self.hub.send(lease, messages.End(reason))
        self.hub.drop(lease)
        self._give_up(lease)

    def _note_silence(self, lease: str) -> None:
        """A lease was not heard of: where no other of its node is either, the node is silent."""
        engine, held = self.engine, self.engine.leases.get(lease)
        timeout_s = self.settings.lease_timeout_s
        if held is not None and is_silent(held.node, engine.leases, engine.now(), timeout_s):
            self._office.note_silent(held.node, f"its leases sent no heartbeat for {timeout_s:.0f} s")

    def run_sink(self, work: SinkWork) -> None:
        self._sink_queue.put(work)

    def clean_up(self, names: Sequence[str]) -> None:
        doomed = list(names)
        with contextlib.suppress(RuntimeError):  # the interpreter is on its way out; the next start cleans up
            threading.Thread(target=self._delete, args=(doomed,), name="penstock-clean", daemon=True).start()

    def fail(self, error: PenstockError) -> None:
        self.finish(error)

    # -- log thread ---------------------------------------------------------------------------------------------------

    def _appended(self, count: int) -> None:
        self.hub.post(lambda: self.engine.on_appended(count))

    def _part_started(self, part: paths.LogPart) -> None:
        self.hub.post(self.engine.on_part_started)
        if not self.settings.retain_all:
            with contextlib.suppress(StorageError):  # the next base tries again
                for path in old_parts(self.disk, self.opened.checkpoint, part):
                    self.disk.delete(path)

    # -- sink thread --------------------------------------------------------------------------------------------------

    def _run_sink_thread(self) -> None:
        while (work := self._sink_queue.get()) is not None:
            if work.stage in self._exports:
                self._exports[work.stage].take(work)
            elif work.stage in self._sinks:
                table = read_sink_rows(self.disk, self.opened.checkpoint, self._program, work)
                try:
                    if table.num_rows:  # a change of executors may pass without a row
                        self._sinks[work.stage].take(table, work.epoch)
                except BaseException as error:
                    raise function_error(
                        f"the function of sink '{work.stage}' failed for sink epoch {work.epoch}",
                        error,
                        _AGAIN,
                    ) from error
            self.hub.post(lambda work=work: self.engine.on_sink_done(work.stage, work.epoch))  # type: ignore[misc]

    def _give_up(self, lease: str) -> None:
        self.lease_pids.pop(lease, None)
        self._office.give_up(lease)
        self.chores.wake()

    def _delete(self, names: Sequence[str]) -> None:
        with contextlib.suppress(FencedError):
            self.log.log.check_claim()
            # Asked for now: a file that an export began to hold since the plan was made stays.
            held = set().union(*(export.pinned() for export in self._exports.values()))
            for name in (name for name in names if name not in held):
                with contextlib.suppress(StorageError):  # the next round tries again
                    self.disk.delete(paths.data_file(self.opened.checkpoint, name))

    # -- ingest (any thread) ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self, writer: str) -> Any:
        """Protect files of a writer that is no lease from clean-up while it writes and commits."""
        self.writers.add(writer)
        try:
            yield
        finally:
            self.writers.discard(writer)
