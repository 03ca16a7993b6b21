"""The thread that writes the log: appends and parts, in the order they were asked for.

What waits together is written and synced together. Owns the `LogWriter`; tells others only after the sync, by the
calls it was given, on this thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from penstock.dataplane import paths
from penstock.dataplane.errands import plan_writes
from penstock.dataplane.recordlog import LogWriter
from penstock.dataplane.records import Base


class LogThread:
    """Runs a log until it is closed or fails.

    Args:
        appended: told how many records have become durable, the oldest first.
        part_started: told of a part whose base is durable.
        failed: told of the error that ended the thread.
    """

    def __init__(
        self,
        log: LogWriter,
        appended: Callable[[int], None],
        part_started: Callable[[paths.LogPart], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.log = log
        self.append_s = 0.0
        """Time spent appending records and syncing them; `appends` says how often."""
        self.appends = 0
        self.cpu_s = 0.0
        """CPU time of this thread as of its last write."""
        self._appended = appended
        self._part_started = part_started
        self._failed = failed
        self._queue: queue.SimpleQueue[list[bytes] | Base | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def append(self, encoded: Sequence[bytes]) -> None:
        """Make these records durable in order. Any thread."""
        self._queue.put(list(encoded))

    def start_part(self, base: Base) -> None:
        """Begin a part with this base, after all appends asked for. Any thread."""
        self._queue.put(base)

    def end(self) -> None:
        """Let the thread end when everything asked for is written. Any thread."""
        self._queue.put(None)

    def close(self, timeout_s: float) -> None:
        """Wait for the thread, not longer than this, and close the log. Call `end` first."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        self.log.close()

    def _run(self) -> None:
        try:
            over = False
            while not over:
                queued, over = self._wait_for_writes()
                for write in plan_writes(queued):
                    if isinstance(write, list):
                        self._append(write)
                    else:
                        self._part_started(self.log.start_part(write))
                self.cpu_s = time.thread_time()
        except BaseException as error:
            self._failed(error)

    def _wait_for_writes(self) -> tuple[list[list[bytes] | Base], bool]:
        """Return all that is queued, once there is something, and whether the log's work is over then."""
        queued: list[list[bytes] | Base] = []
        while (item := self._queue.get()) is not None:
            queued.append(item)
            if self._queue.empty():
                return queued, False
        return queued, True

    def _append(self, encoded: list[bytes]) -> None:
        began = time.perf_counter()
        self.log.append(encoded)
        self.append_s += time.perf_counter() - began
        self.appends += 1
        self._appended(len(encoded))
