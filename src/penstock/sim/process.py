"""A simulated process: what it asked for happens later, on the loop, and only while the same life of it lasts.

Owns delays, the order of what goes through one pipe, and what becomes of an error in an event. Starts no thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.sim.loop import Loop
from penstock.sim.timing import Delays
from penstock.testing.faults import SimCrash

SHORTEST_WAIT_S = 0.0005


class Process(ABC):
    """A process with an engine to step after every event, and with lives that are told apart by number."""

    def __init__(self, loop: Loop, delays: Delays) -> None:
        self.loop = loop
        self.delays = delays
        self.running = False
        self._life = 0
        self._pipes: dict[str, float] = {}
        self._timer_at = float("inf")

    @abstractmethod
    def crash(self) -> None:
        """End as `kill -9` does."""

    @abstractmethod
    def _end(self, error: PenstockError | None) -> None:
        """End in order, or by an error."""

    @abstractmethod
    def _step(self) -> float:
        """Let the engine go on; return the seconds after which it wants to be asked again."""

    def _run(self) -> None:
        """Begin to run: nothing is under way."""
        self._pipes = {}
        self._timer_at = float("inf")
        self.running = True

    def _die(self) -> None:
        """Stop running; what was under way is lost."""
        self.running = False
        self._life += 1

    def _fifo(self, pipe: str, bounds: tuple[float, float]) -> float:
        """Return a delay after which the next thing in a pipe arrives, never before what was sent earlier."""
        arrives = max(self._pipes.get(pipe, 0.0), self.loop.now + self._draw(bounds))
        self._pipes[pipe] = arrives
        return arrives - self.loop.now

    def _draw(self, bounds: tuple[float, float]) -> float:
        delay_s = self.loop.between(*bounds)
        ratio = self.delays.stall_ratio
        return delay_s * self.loop.between(10, 100) if ratio and self.loop.rng.random() < ratio else delay_s

    def _post(self, pipe: str, bounds: tuple[float, float], call: Callable[[], None]) -> None:
        self._soon(self._fifo(pipe, bounds), call)

    def _soon(self, delay_s: float, call: Callable[[], None]) -> None:
        life = self._life
        self.loop.at(delay_s, lambda: self._guarded(life, call))

    def _guarded(self, life: int, call: Callable[[], None]) -> None:
        if life != self._life or not self.running:
            return
        try:
            call()
            if self.running and life == self._life:
                self._set_timer(self._step())
        except SimCrash:
            self.crash()
        except PenstockError as error:
            self._end(error)

    def _set_timer(self, wait_s: float) -> None:
        when = self.loop.now + max(wait_s, SHORTEST_WAIT_S)
        if when < self._timer_at:
            self._timer_at = when
            self._soon(when - self.loop.now, self._timer)

    def _timer(self) -> None:
        self._timer_at = float("inf")
