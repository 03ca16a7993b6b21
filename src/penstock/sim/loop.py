"""The virtual clock and the one queue of events that everything simulated shares.

Events run one at a time, in the order of their times; equal seeds give equal traces. Reads no real clock,
starts no thread.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable

START_S = 1_700_000_000.0
"""Wall time at which a simulation begins unless it is told otherwise."""


class Loop:
    """A deterministic event queue.

    Args:
        seed: of every delay and choice drawn from `rng`.
        start_s: wall time at which it begins.
    """

    def __init__(self, seed: int = 0, start_s: float = START_S) -> None:
        self.start_s = start_s
        self.rng = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self.recent: list[str] = []
        """The last lines of the trace, for a person who reads a failure."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._hash = hashlib.blake2b(digest_size=16)

    def clock(self) -> float:
        """Return virtual seconds since the beginning."""
        return self.now

    def wall(self) -> float:
        """Return virtual wall time."""
        return self.start_s + self.now

    def set_wall(self, by_s: float) -> None:
        """Set the wall clock ahead, or back, as an operator or a time server does."""
        self.start_s += by_s

    def at(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run `call` after `delay_s` virtual seconds."""
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), call))

    def between(self, low_s: float, high_s: float) -> float:
        """Draw a delay."""
        return self.rng.uniform(low_s, high_s)

    def run_one(self) -> bool:
        """Run the next event; False when there is none."""
        if not self._queue:
            return False
        when, _, call = heapq.heappop(self._queue)
        self.now = max(self.now, when)
        self.events += 1
        call()
        return True

    def run_some(self, events: int, within_s: float) -> None:
        """Run up to `events` events that are due within `within_s`; may be called inside an event."""
        deadline = self.now + within_s
        for _ in range(events):
            if not self._queue or self._queue[0][0] > deadline:
                return
            self.run_one()

    def run_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Run events until `done`, or for `limit_s` virtual seconds; return whether it is done."""
        deadline = self.now + limit_s
        while not done():
            if not self._queue or self._queue[0][0] > deadline:
                self.now = max(self.now, deadline)
                return done()
            self.run_one()
        return True

    def skip_to(self, when_s: float) -> None:
        """Let time pass at once; events that were due meanwhile run late, in their order, as in a process that was
        held up."""
        self.now = max(self.now, when_s)

    def note(self, what: str, data: bytes = b"") -> None:
        """Add a line to the trace."""
        line = f"{self.now:.6f} {what}"
        self._hash.update(line.encode() + b"\0" + data)
        self.recent.append(line)
        if len(self.recent) > 400:
            del self.recent[:200]

    def trace(self) -> str:
        """Return the hash of everything noted so far."""
        return self._hash.copy().hexdigest()
