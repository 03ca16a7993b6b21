"""The thread that turns the control loop of one query: sample, turn, wait. Reasons and plans are the loop's.

A turn that fails is logged and the next one tried: the query itself never ends because of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.control.loop import ControlLoop
from penstock.control.measure.sample import Sample
from penstock.spark.hub import HubOver

_log = logging.getLogger("penstock")
MENTIONED_FAILURES = 3
"""Turns that fail in a row and are logged; more of the same are not."""


class Steering:
    """Turns a loop until it is closed."""

    def __init__(
        self,
        loop: ControlLoop,
        take: Callable[[], Sample | None],
        every_s: float,
        refresh: Callable[[ControlLoop], None],
    ) -> None:
        """`take` returns a sample, None when the query is over; `refresh` tells the loop how many cores there are."""
        self.loop = loop
        self._take = take
        self._refresh = refresh
        self._every_s = every_s
        self._over = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="penstock-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the turn under way."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self.loop.journal.close_run()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._refresh(self.loop)
                sample = self._take()
                if sample is None:
                    return
                decision = self.loop.turn(sample)
                if decision.acted:
                    _log.info("%s", decision)
                self._failures = 0
            except HubOver:
                return  # the query has ended in the middle of a turn
            except Exception:
                self._failures += 1
                if self._over.is_set():
                    return
                if self._failures <= MENTIONED_FAILURES:
                    _log.exception("a turn of the control loop failed; the query goes on as it is.")
