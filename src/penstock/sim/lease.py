"""A lease as an object: a real worker behind an inbox that can die, stop, stop inside its work, or answer too
late.

It serves one message at a time, as the task of a Spark job does. One that is stopped inside its work runs in
a thread of its own, of which no more than one step at a time is let go, so that the order of everything stays
that of the loop.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from penstock.dataplane import messages
from penstock.dataplane.disk import Disk, Step
from penstock.dataplane.lease_home import LeaseIdentity
from penstock.dataplane.worker import Worker
from penstock.testing.faults import SimCrash
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.sim.inprocess import Driver


class SimLease:
    """One leased task process of a driver."""

    def __init__(self, driver: Driver, life: int, name: str, node: str, disk: Disk) -> None:
        self.name = name
        self.node = node
        self.connected = False
        self.paused = False
        self.slow = False
        """Its answers take long to arrive."""
        self.ended = False
        self.handled = 0
        self.disk = disk
        self.gate: Gate | None = None
        """Set to stop the lease inside its next work."""
        self._driver = driver
        self._life = life
        self._loop = driver.loop
        identity = LeaseIdentity(name, driver.generation, driver.checkpoint, f"{driver.node_dir}/{node}")
        self._worker = Worker(identity, driver.program, disk, self._loop.clock)
        if driver.roll_bytes is not None:
            self._worker._segments._roll_bytes = self._worker._snapshots._roll_bytes = driver.roll_bytes
        self._inbox: deque[bytes] = deque()
        self._copies_at = 0.0
        """When the last copy that was asked for is made; they are made one after the other, beside the work."""
        self._busy = False
        self._no_driver = False

    def connect(self) -> None:
        """Say hello and begin to send heartbeats."""
        if self.ended:
            return
        self.connected = True
        self._answer(messages.Hello(self.name, self.node, "host", 1, __version__))
        self._beat()

    def receive(self, data: bytes) -> None:
        """A message has arrived."""
        if not self.ended:
            self._inbox.append(data)
            self._serve()

    def kill(self) -> None:
        """End as a killed process does: open files gone, nothing more said."""
        if self.ended:
            return
        self.ended = True
        crash = getattr(self.disk, "crash", None)
        if crash is not None:
            crash()
        if self.gate is not None and self.gate.holds:
            self.gate.give_up()
        self._worker.close()

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        if self.gate is not None and self.gate.holds:
            self._finish_gated(self.gate)
        self._serve()

    def lose_driver(self) -> None:
        """The connection is gone: what waits in the inbox is still served, then the lease ends."""
        self._no_driver = True
        self._serve()

    def _serve(self) -> None:
        if self.ended or self.paused or self._busy:
            return
        if not self._inbox:
            if self._no_driver:
                self._end()
            return
        self._busy = True
        self._loop.at(self._loop.between(*self._driver.delays.work), self._work)

    def _work(self) -> None:
        if self.ended:
            return
        if self.paused and self.gate is None:
            self._busy = False  # stopped before it began: resume serves it
            return
        message = messages.decode_to_lease(self._inbox.popleft())
        self._loop.note(f"{self.name} handles {type(message).__name__}")
        if isinstance(message, messages.End):
            self._end()
            return
        if self.gate is not None and isinstance(message, messages.Work):
            self.gate.begin(self._worker, message)
            if self.gate.holds:
                self.paused = True
            else:
                self._finish_gated(self.gate)
            return
        if isinstance(message, messages.Prepare):
            self._copies_at = max(self._copies_at, self._loop.now) + self._loop.between(
                *self._driver.delays.copy
            )
            self._loop.at(self._copies_at - self._loop.now, lambda: self._copy(message))
            self._done(None)
            return
        try:
            answer = self._worker.handle(message)
        except SimCrash:
            self._die()
            return
        self._done(answer)

    def _copy(self, message: messages.Prepare) -> None:
        """What the thread for copies does: the work goes on meanwhile."""
        if self.ended:
            return
        if self.paused:
            self._loop.at(0.01, lambda: self._copy(message))
            return
        self._loop.note(f"{self.name} copies")
        try:
            answer = self._worker.handle(message)
        except SimCrash:
            self._die()
            return
        if answer is not None:
            self._answer(answer)
        if isinstance(answer, messages.Failed):
            self._end()

    def owned(self) -> list[tuple[str, int, int, str]]:
        """Shards it has: stage, task, shard and environment."""
        return [
            (stage, index, shard, name)
            for (stage, index), task in self._worker._tasks.items()
            for shard, name in task.locals.items()
        ]

    def _finish_gated(self, gate: Gate) -> None:
        answer = gate.finish()
        self.gate = None
        if gate.crashed:
            self._die()
        else:
            self._done(answer)

    def _done(self, answer: messages.FromLease | None) -> None:
        self.handled += 1
        self._busy = False
        if answer is not None:
            self._answer(answer)
        if isinstance(answer, messages.Failed):
            self._end()
            return
        self._serve()

    def _answer(self, message: messages.FromLease) -> None:
        self._driver.hear(self._life, self.name, messages.encode(message), self.slow)

    def _beat(self) -> None:
        if self.ended:
            return
        if not self.paused:
            self._answer(messages.Alive())
        self._loop.at(self._driver.settings.lease_timeout_s / 3, self._beat)

    def _die(self) -> None:
        self.kill()
        self._driver.lose(self._life, self.name)

    def _end(self) -> None:
        self.ended = True
        self._worker.close()
        self._driver.lose(self._life, self.name)


class Gate:
    """Stops a worker at the nth disk step of its next work; put it in front of the lease's disk as its
    `Faults`."""

    def __init__(self, at_step: int) -> None:
        self.holds = False
        self.crashed = False
        self._at_step = at_step
        self._seen = 0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._go_on = threading.Event()
        self._dead = False
        self._answer: messages.FromLease | None = None

    def before(self, step: Step, path: str) -> None:
        if threading.current_thread() is not self._thread:
            return
        self._seen += 1
        if self._seen == self._at_step:
            self.holds = True
            self._stopped.set()
            self._go_on.wait(60)
            if self._dead:
                raise SimCrash("killed while stopped")

    def after(self, step: Step, path: str) -> None:
        pass

    def begin(self, worker: Worker, message: messages.ToLease) -> None:
        """Run the work up to the gate or to its end; returns when it stands still."""

        def run() -> None:
            try:
                self._answer = worker.handle(message)
            except SimCrash:
                self.crashed = True
            finally:
                self._stopped.set()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self._stopped.wait(60)

    def finish(self) -> messages.FromLease | None:
        """Open the gate and wait for the end of the work."""
        self.holds = False
        self._go_on.set()
        assert self._thread is not None
        self._thread.join(60)
        return self._answer

    def give_up(self) -> None:
        """The process was killed while it stood at the gate."""
        self._dead = True
        self.finish()
