"""The handle of a running query, with StreamingQuery's names: it answers questions and starts nothing.

Reads the engine on the hub's thread; owns nothing of the protocol. Made by `penstock.spark.starting`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from penstock.control.apply.journal import Decision
from penstock.dataplane.compile import SINK, sink_stage
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.draining import DrainMark
from penstock.dataplane.explain import explain_program, tasks_of
from penstock.dataplane.latency import Latency
from penstock.dataplane.metrics import iso_time
from penstock.dataplane.requests import Desk
from penstock.errors import DeclarationError, PenstockError, QueryError
from penstock.raised import describe
from penstock.spark import listening
from penstock.spark.answering import SLOW, carry_out
from penstock.spark.asking import Asking
from penstock.spark.elasticity import Elasticity
from penstock.spark.hub import HubOver
from penstock.spark.ingest import Ingest
from penstock.spark.listening import announcer
from penstock.spark.outcry import Outcry, brief
from penstock.spark.progress import Identity, Reading, take_reading
from penstock.spark.reports import Reports
from penstock.spark.running import check_since, check_timeout, note_end, remember
from penstock.spark.session import PenstockWarning
from penstock.spark.shell import SparkShell
from penstock.spark.showing import Shown, show_html, show_line
from penstock.topology.substitutes import QUERY, refuse_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_log = logging.getLogger("penstock")
REPORT_INTERVAL_S = 1.0
"""Time between two reports of a query."""
WATCH_INTERVAL_S = 0.25
ANSWER_INTERVAL_S = 0.5
"""Time between two looks for requests from other processes."""


class Query(Asking):
    """A started query. Made by `writeStream...start()`."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.runId = str(uuid.uuid4())
        self.id = ""
        self.checkpoint = ""
        self._spark: SparkSession
        self._shell: SparkShell | None = None
        self._ingests: list[Ingest] = []
        self._over = threading.Event()
        self._begun = False
        self._outcry = Outcry(name or "")
        self._error: PenstockError | None = None
        self._reports = Reports(Identity("", self.runId, name), self._read, lambda: self.isActive)
        self._tables: dict[str, list[pa.Table]] = {}
        """By sink stage: the rows that memory sinks were handed."""
        self._sinks: dict[str, str] = {}
        """By sink stage: its kind."""
        self._schema: pa.Schema = pa.schema([])
        self._elasticity: Elasticity | None = None
        self._guard = threading.Lock()
        self._started = time.time()

    # -- StreamingQuery's names ---------------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        """Whether the query runs."""
        return not self._over.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing, in Spark's words."""
        if not self.isActive:
            return {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
        waiting = self._ask(lambda shell: shell.engine.chains.waiting_bytes()) or 0
        working = self._ask(lambda shell: any(run.phase != "idle" for run in shell.engine.runs.values()))
        told = ["Paused"] if self._ask(lambda shell: shell.engine.is_paused_by_hand()) else []
        slow = self._ask(lambda shell: shell.engine.slow_epochs()) or {}
        told += [ingest.planned.told for ingest in self._ingests if ingest.planned.told]
        told += [
            f"'{stage}' has been at epoch {epoch} for {seconds:.0f} s"
            for stage, (epoch, seconds) in slow.items()
        ]
        message = "; ".join(told) or ("Processing new data" if working else "Waiting for data to arrive")
        return {"message": message, "isDataAvailable": waiting > 0, "isTriggerActive": bool(working)}

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Rates, epochs, latency and state as of now; the last report, once the query has ended."""
        return self._reports.as_of_now()

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The last hundred reports; one is made every second, and one at the end."""
        return self._reports.kept()

    def explain(self, extended: bool = False) -> None:
        """Print the topology as it runs: stages, channels, keys and shards, and the executors and tasks that there are now.

        Args:
            extended: with the columns of every stage.
        """
        if self._shell is not None:
            tasks = self._ask(lambda shell: tasks_of(shell.engine)) or {}
            print(explain_program(self._shell.engine.program, extended, tasks))

    def exception(self) -> PenstockError | None:
        """Return the error that ended the query, None when there was none."""
        return self._error

    def stop(self) -> None:
        """End the query: epochs in flight are committed, leases end, the checkpoint is free for the next
        start."""
        for ingest in self._ingests:
            with contextlib.suppress(Exception):
                ingest.stop()
        if self._shell is not None:
            self._shell.stop()
        self._over.wait(30.0)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; True when it did within `timeout` seconds, None without a timeout.

        Raises:
            QueryError: the query ended with an error.
            DeclarationError: the timeout is no number of seconds.
        """
        check_timeout("awaitTermination", timeout)
        with self._outcry.waiting():
            ended = self._over.wait(timeout)
        self._raise()
        return ended if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until everything that has arrived by now is processed and every sink has it.

        A source with a limit counts as arrived as a whole. A source without an end is waited for up to the
        rows that are due at this moment; it goes on meanwhile.

        Raises:
            QueryError: the query ended with an error, or is paused, so that it would wait for ever.
        """
        self._ask(self._check_flows)
        with self._outcry.waiting():
            self._drain()
        self._raise()

    def _drain(self) -> None:
        for ingest in self._ingests:
            try:
                ingest.drain()
            except Exception:
                # Spark's query failed, mostly because ours did; what ours has to say is better.
                self._over.wait(15.0)
                self._raise()
                raise
        marks: list[DrainMark] = []
        while self.isActive:
            if not marks:
                marks = self._ask(lambda shell: [shell.engine.draining.mark()]) or []
            elif self._ask(lambda shell, mark=marks[0]: self._has_passed(shell, mark)):
                return
            time.sleep(0.005)

    def _has_passed(self, shell: SparkShell, mark: DrainMark) -> bool:
        if shell.engine.draining.has_passed(mark):
            return True
        self._check_flows(shell)
        return False

    def _check_flows(self, shell: SparkShell) -> None:
        if self.isActive and shell.engine.is_paused_by_hand():
            raise QueryError(
                f"Query {self.name or self.id} is paused, and what has arrived waits; call resume() first."
            )

    # -- ours ---------------------------------------------------------------------------------------------------------

    def table(self, sink: str | None = None) -> pa.Table:
        """Return all rows that reached a memory sink since this start.

        Of a query that has failed these are the rows that reached it before: a `PenstockWarning` says so.

        Args:
            sink: the name that a further sink was given with `also(name, ...)`.

        Raises:
            DeclarationError: the query has no sink of that name, or it is no memory sink.
        """
        stage = SINK if sink is None else sink_stage(sink)
        shell = self._shell
        if shell is not None and stage not in shell.engine.program.stages:
            raise DeclarationError(
                f"query {self.name or self.id} has no sink {sink!r}; give one with also({sink!r}, ...)."
            )
        if (kind := self._sinks.get(stage, "memory")) != "memory":
            whose = "its sink" if sink is None else f"sink {sink!r}"
            raise DeclarationError(
                f"query {self.name or self.id} keeps no rows for table(): {whose} is {kind!r}; declare it with "
                "format('memory'), or let a further one have them: also(name, ...).format('memory')."
            )
        schema = self._schema if shell is None else shell.engine.program.stages[stage].schema
        if self._error is not None:
            warnings.warn(
                f"query {self.name or self.id} has failed, and these are the rows that reached its sink before: "
                f"{brief(self._error)}",
                PenstockWarning,
                stacklevel=2,
            )
        with self._guard:
            found = self._tables.get(stage, [])
            return pa.concat_tables(found) if found else schema.empty_table()

    def to_stream(self, name: str) -> DataFrame:
        """Return the rows of a source or operator as a streaming DataFrame, from the oldest that are kept.

        It must be exported: `option("export", name)`. A Spark query over it has each row exactly once, with its own
        checkpoint; it may outlive this query and go on with the next one on the same checkpoint.

        Raises:
            DeclarationError: there is no such stage, or it is not exported.
        """
        from penstock.spark.exported import check_exported, read_export

        assert self._shell is not None
        check_exported(self._shell.engine.program, name)
        return read_export(self._spark, self.checkpoint, name)

    def latency(self, operator: str, since: float | None = None) -> Latency | None:
        """Return the latency of an operator's rows, from arrival at the source to commit.

        Args:
            since: `time.monotonic()` value, of the last five minutes; ten seconds ago when not given.

        Raises:
            DeclarationError: the query has no operator of that name, or `since` is no such value.
        """
        self._check_operator(operator)
        check_since(since)
        start = time.monotonic() - 10.0 if since is None else since
        found: Latency | None = self._ask(lambda shell: shell.engine.latency_since(operator, start))
        return found

    # -- elasticity ---------------------------------------------------------------------------------------------------

    @property
    def elasticity(self) -> Elasticity:
        """What is done about cores, nodes and shards while the query runs."""
        with self._guard:
            if self._elasticity is None:
                assert self._shell is not None
                self._elasticity = Elasticity(self._shell, self._spark, self.name or self.id)
            return self._elasticity

    def decisions(self) -> tuple[Decision, ...]:
        """Return what the control loop has decided, oldest first, with reasons; `str()` of one is a sentence."""
        return self.elasticity.decisions()

    def digests(self, operator: str) -> list[tuple[int, bytes]]:
        """Return version and digest of every shard of an operator.

        Raises:
            DeclarationError: the query has no operator of that name.
        """
        self._check_operator(operator)
        return self._ask(lambda shell: shell.engine.chains.digests_of(operator)) or []

    if not TYPE_CHECKING:  # type checkers are to find what is not there

        def __getattr__(self, name: str) -> NoReturn:
            refuse_missing(self, name, QUERY)

    def __repr__(self) -> str:
        return show_line(self._shown())

    def _repr_html_(self) -> str:
        return show_html(self._shown())

    def _shown(self) -> Shown:
        """What is known without asking the engine, which may be busy."""
        state = "running" if self.isActive else "stopped" if self._error is None else "failed"
        error = str(self._error) if self._error is not None else None
        return Shown(self.name or self.id, state, self.checkpoint, error, self._reports.newest())

    # -- the life of the query ----------------------------------------------------------------------------------------

    def _read(self) -> Reading | None:
        found: Reading | None = self._ask(
            lambda shell: take_reading(shell.engine, (shell.log.append_s, shell.log.appends))
        )
        if found is not None and self._elasticity is not None:
            found.facts["control"] = self._elasticity.control()
        return found

    def _begin(self) -> None:
        """Let the query be known: to this process, to listeners, and to the thread that reports on it."""
        self._begun = True
        self._outcry.query = self.name or self.id
        remember(self)
        if not self.isActive:  # it failed before anybody had it
            self._tell()
        self._reports.begin()
        started = listening.started_event(self.id, self.runId, self.name, iso_time(self._started))
        announcer.announce_and_wait("onQueryStarted", started)
        threading.Thread(target=self._watch, name="penstock-watch", daemon=True).start()
        threading.Thread(target=self._answer, name="penstock-answers", daemon=True).start()

    def _ask(self, question: Any) -> Any:
        shell = self._shell
        if shell is None:
            return None
        if not self.isActive:
            return question(shell)
        try:
            return shell.hub.ask(lambda: question(shell), timeout=10.0)
        except (TimeoutError, RuntimeError):
            return question(shell) if not self.isActive else None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._outcry.as_raised(self._error)

    def _ended(self, error: PenstockError | None) -> None:
        self._error = self._error or error
        try:
            self._close()
            if self._begun:
                self._tell()
        finally:  # whatever went wrong: whoever waits for the end gets it
            self._over.set()
            note_end(self)

    def _close(self) -> None:
        """End what belongs to the query; what cannot be ended keeps nothing else from it."""
        closed = [ingest.stop for ingest in self._ingests]
        if self._elasticity is not None:
            closed.insert(0, self._elasticity.close)
        for close in closed:
            try:
                close()
            except Exception as error:
                _log.warning("query %s: its end is not in order: %s", self.name or self.id, describe(error))

    def awaited(self) -> contextlib.AbstractContextManager[None]:
        """Let the query know that somebody waits who will be handed its error."""
        return self._outcry.waiting()

    def _tell(self) -> None:
        """Say that the query has failed, where it has: to the log and standard error, and to those who read its rows."""
        if self._error is not None:
            self._outcry.query = self.name or self.id
            self._outcry.tell(self._error)

    def _remember(self, stage: str, table: pa.Table) -> None:
        with self._guard:
            self._tables.setdefault(stage, []).append(table)

    def _answer(self) -> None:
        """Do what `penstock query` asks, until the query ends; a disk that fails now and then is asked again."""
        desk = Desk(PosixDisk(), self.checkpoint, lambda asked: carry_out(self, asked), SLOW)
        told = ""
        while not self._over.wait(ANSWER_INTERVAL_S):
            try:
                desk.look(time.time())
                told = ""
            except Exception as error:
                if self.isActive and str(error) != told:  # the same trouble is told once
                    told = str(error)
                    unforeseen = None if isinstance(error, PenstockError) else error
                    _log.error(
                        "requests to query %s cannot be answered: %s",
                        self.name or self.id,
                        told,
                        exc_info=unforeseen,
                    )

    def _follow_up(self) -> None:
        """Say what came of what a person asked for."""
        if self._elasticity is not None:
            with contextlib.suppress(HubOver):
                self._elasticity.by_hand.follow_up()

    def _watch(self) -> None:
        """Look after ingest and reports until the query ends. What is raised here ends it: else nobody would see it, and
        the query might stand still for ever."""
        assert self._shell is not None
        due = time.monotonic() + REPORT_INTERVAL_S
        while not self._over.wait(WATCH_INTERVAL_S):
            try:
                for error in filter(None, (ingest.failure() for ingest in self._ingests)):
                    self._shell.end_with(error)
                self._follow_up()
                if time.monotonic() >= due:
                    due = max(due + REPORT_INTERVAL_S, time.monotonic())
                    self._reports.add()
            except Exception as error:
                # Mostly because the query ends, or its session: that has a reason of its own, known in a moment.
                self._over.wait(REPORT_INTERVAL_S)
                if not self._shell.over:
                    ours = error if isinstance(error, PenstockError) else PenstockError(describe(error))
                    ours.__cause__ = error if ours is not error else error.__cause__
                    self._shell.end_with(ours)
        self._reports.end()
        ended = listening.terminated_event(self.id, self.runId, self._error)
        announcer.announce("onQueryTerminated", ended)
