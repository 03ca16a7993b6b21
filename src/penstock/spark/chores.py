"""What a running query's office thread does, turn after turn: ask Spark for leases, watch their jobs, say how many there
may be, beat in the checkpoint, plan clean-up, and notice that a bounded query is through.

Talks to the engine on the hub's thread only. Ends with the query.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from penstock.dataplane import recordlog
from penstock.dataplane.draining import DrainMark
from penstock.dataplane.driver_time import describe_step
from penstock.dataplane.errands import data_files
from penstock.dataplane.recordlog import Heartbeat
from penstock.errors import PenstockError, SessionError, StorageError
from penstock.spark.hub import HubOver
from penstock.spark.leases import CONNECT_TIMEOUT_S, JobOver, LeaseOffice, Stuck, describe_lease
from penstock.spark.session import is_alive
from penstock.spark.slots import is_local, nodes, slots_of_nodes, usable_slots
from penstock.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.shell import SparkShell

OFFICE_INTERVAL_S = 0.25
CLEANUP_INTERVAL_S = 5.0
MAX_LEASE_FAILURES = 12
MAX_CHORE_FAILURES = 5
"""Heartbeats or listings that may fail in a row."""

MENTION_S = 30.0
"""Time after which an epoch in work is mentioned in the log, once."""
_log = logging.getLogger("penstock")


class Chores:
    """The office thread of one query."""

    def __init__(self, shell: SparkShell, spark: SparkSession, office: LeaseOffice, reserve: int) -> None:
        self._shell = shell
        self._spark = spark
        self._office = office
        self._reserve = reserve
        self.had_leases = False
        self.lease_failures = 0
        self._began = time.monotonic()
        """Leases in a row that ended before they could work."""
        self._due = threading.Event()
        self._looking = threading.Lock()
        self._end_mark: DrainMark | None = None
        self._slots = self._usable = 0
        self._nodes: set[str] = set()
        """Nodes that are not drained, as of the last look."""
        self._silent: set[str] = set()
        """Those of them that are avoided because nothing is heard of them."""
        self._chore_failures = 0
        self._mentioned: dict[str, int] = {}
        self._cleaned_at = 0.0
        self._beaten_at = 0.0

    def wake(self) -> None:
        """Take the next turn now. Any thread."""
        self._due.set()

    def run(self) -> None:
        while not self._shell.over:
            try:
                self._turn()
            except HubOver:
                return
            except PenstockError:
                raise
            except Exception as error:
                if self._shell.over:
                    return
                if is_alive(self._spark):
                    raise
                raise SessionError(
                    "the SparkSession was stopped while the query ran; everything committed is in the checkpoint, so "
                    "open a session, such as penstock.session(), and start the query again."
                ) from error
            self._due.wait(OFFICE_INTERVAL_S if self._office.asked else 0.02)
            self._due.clear()

    def _turn(self) -> None:
        now = time.monotonic()
        for over in self._office.ended():
            self._shell.hub.forget(over.name)
            self._shell.hub.post(lambda over=over: self._job_ended(over))  # type: ignore[misc]
        for name in self._office.lingering():
            self._office.cancel(name)
        if self._office.silent(self._nodes) != self._silent:
            self.check_capacity()
        self._drop_stuck()
        self._ask_for_leases()
        if now - self._beaten_at > self._shell.settings.heartbeat_s:
            self._beaten_at = now
            self._shell.log.log.check_claim()
            self._tolerantly(self._beat)
            self._look_at_clock()
            self.check_capacity()
            self._mention_slow_epochs()
        if (
            self._shell.sources_ended is not None
            and self._shell.sources_ended()
            and self._shell.hub.ask(self._went_through)
        ):
            self._shell.finish(None)
            return
        if now - self._cleaned_at > CLEANUP_INTERVAL_S and not self._shell.settings.retain_all:
            self._cleaned_at = now
            self._tolerantly(self._list_for_cleanup)

    def _went_through(self) -> bool:
        """Whether all rows of sources that have ended are through every sink."""
        if self._end_mark is None:
            self._end_mark = self._shell.engine.draining.mark()
        if not self._shell.engine.draining.has_passed(self._end_mark):
            return False
        self._end_mark = None  # what timers have put out since is not in front of it
        return self._shell.engine.draining.is_drained()

    def _mention_slow_epochs(self) -> None:
        for stage, (epoch, seconds) in self._shell.hub.ask(self._shell.engine.slow_epochs).items():
            if seconds > MENTION_S and self._mentioned.get(stage) != epoch:
                self._mentioned[stage] = epoch
                _log.warning(
                    "'%s' has been at epoch %d for %.0f s; does its function return?", stage, epoch, seconds
                )

    def _look_at_clock(self) -> None:
        step_s = self._shell.engine.time.look()
        if step_s is not None:
            _log.warning("%s", describe_step(step_s))

    def _beat(self) -> None:
        recordlog.write_heartbeat(
            self._shell.disk, self._shell.opened.checkpoint, Heartbeat(self._shell.opened.claim, time.time())
        )

    def _tolerantly(self, chore: Callable[[], None]) -> None:
        """Run a chore on which no promise hangs; a disk that fails it now and then must not end the query."""
        try:
            chore()
            self._chore_failures = 0
        except StorageError:
            self._chore_failures += 1
            if self._chore_failures >= MAX_CHORE_FAILURES:
                raise

    def _drop_stuck(self) -> None:
        """Cancel leases that did not connect in time; without any lease so far, say why nothing happens."""
        for stuck in self._office.stuck(self._silent, self._nodes):
            self._shell.hub.forget(stuck.name)
            self._office.cancel(stuck.name)
            if self._is_to_blame(stuck):
                self._office.note_silent(stuck.node, "a lease that Spark has started there does not connect")
                continue
            if not self.had_leases:
                raise SessionError(
                    f"Spark did not start a lease within {CONNECT_TIMEOUT_S:.0f} s: its slots are taken by other jobs, or "
                    "its executors cannot reach the driver; free at least two slots, or use penstock.session()."
                )
            where = (
                f"node {stuck.node} started it, but does not let it connect"
                if stuck.node
                else "other jobs hold its slots"
            )
            _log.warning(
                "another lease did not come up within %.0f s: %s; the %d leases there are serve all tasks until it does.",
                CONNECT_TIMEOUT_S, where, len(self._office.asked),
            )  # fmt: skip
            self._shell.hub.post(lambda: self._shell.engine.set_capacity(len(self._shell.engine.leases)))

    def _is_to_blame(self, stuck: Stuck) -> bool:
        """Whether it is the node's silence that a lease does not connect; for a query that never had one, not for ever.

        In local mode there is no other node to go to, and no silence that would be said.
        """
        if is_local(self._spark):
            return False
        if not self.had_leases and time.monotonic() - self._began > CONNECT_TIMEOUT_S:
            return False
        return bool(stuck.node) and (stuck.doubted or not self._office.is_heard(stuck.node))

    def _ask_for_leases(self) -> None:
        if self._shell.hub.ask(self._shell.engine.wanted_leases) <= len(self._office.asked):
            return
        self.check_capacity()
        missing = self._shell.hub.ask(self._shell.engine.wanted_leases) - len(self._office.asked)
        serving = self._shell.engine.serving
        avoid = serving.avoid | self._silent
        room = self._office.room(self._reserve, self._usable, avoid)
        offers = [self._office.prepare() for _ in range(min(missing, room))]
        if not offers:
            return
        awaited, asked = self._office.awaited(), [offer.lease for offer in offers]
        serves = self._shell.hub.ask(lambda: self._shell.engine.serving.foresee(awaited, asked))
        tasks_of = {name: len(run.slots) for name, run in list(self._shell.engine.runs.items())}
        for offer in offers:
            self._shell.hub.expect(offer.lease, offer.token)
            served = serves[offer.lease]
            wanted = next((slot.node for slot in served if slot.node is not None), None)
            named = describe_lease(served, tasks_of)
            self._office.submit(offer, named, wanted, serving.avoid, self._silent)

    def check_capacity(self) -> None:
        """Tell the engine what nodes and slots Spark has now. Any thread but the hub's."""
        with self._looking:
            self._check_capacity()

    def _check_capacity(self) -> None:
        slots, held = self._office.slots(), len(self._office.asked)
        known = nodes(self._spark)
        drained = self._shell.engine.serving.avoid
        names = {node.executor_id for node in known}
        self._office.forget_others(names)
        self._nodes = names - drained
        self._silent = self._office.silent(self._nodes)
        avoid = drained | self._silent
        usable = self._usable = usable_slots(slots, slots_of_nodes(self._spark, known), avoid)
        # Leases on drained and silent nodes have slots of their own until they end, and take none from those that replace
        # them.
        leaving = sum(asked.node in avoid for asked in list(self._office.asked.values()))
        capacity = max(1, self._office.capacity(self._reserve, usable, avoid)) + leaving
        # A lost node takes slots; what is missing from the reserve then is taken from the leases that are left. What
        # other queries take of the slots costs this one no lease that it has.
        surplus = held - capacity if slots < self._slots else 0
        capacity = capacity if slots < self._slots else max(capacity, held)
        self._slots = slots
        free, silent = self._office.slots_of(known), set(self._silent)
        self._shell.hub.post(lambda: self._set_capacity(capacity, surplus, free, silent))

    def _set_capacity(
        self, capacity: int, surplus: int, slots_of: Mapping[str, int], silent: Collection[str] = ()
    ) -> None:
        self._shell.engine.serving.set_nodes(slots_of, slots_of, silent)
        self._shell.engine.set_capacity(capacity)
        for lease in list(self._shell.engine.leases)[1:][: max(0, surplus)]:
            self._shell.drop_lease(lease, "its slot is needed")
            self._shell.engine.on_lease_down(lease, "its slot is needed")

    def _job_ended(self, over: JobOver) -> None:
        if over.name in self._shell.engine.leases:
            self._shell.hub.drop(over.name)
            self._shell.engine.on_lease_down(over.name, over.reason)
        if over.served:
            return
        self.lease_failures += 1
        # Where there is one node, what cannot be imported now never can.
        hopeless = is_local(self._spark) and " cannot import " in over.reason
        if (hopeless or self.lease_failures >= MAX_LEASE_FAILURES) and not self._shell.engine.stopping:
            self._shell.engine.fail(
                SessionError(
                    f"{counted(self.lease_failures, 'lease')} in a row ended before they could work; the last one: "
                    f"{over.reason}"
                )
            )

    def _list_for_cleanup(self) -> None:
        names = data_files(self._shell.disk, self._shell.opened.checkpoint)
        writers = list(self._shell.writers)
        self._shell.hub.post(lambda: self._shell.engine.on_files(names, writers))
