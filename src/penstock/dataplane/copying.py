"""Copies of shards that another task still works on, made beside the work of a lease.

One thread at most, one request after another; it has a state of its own, so that nothing of the lease's tasks is
touched, and says what came of it when it is done. Without anybody to tell it later, it works in turn.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping

from penstock.dataplane import messages
from penstock.dataplane.logic.protocol import Logic, close_logic
from penstock.dataplane.state.protocol import TaskState
from penstock.raised import describe_own, pass_on_end

Copy = Callable[[TaskState, messages.Prepare, str], list[messages.PreparedShard]]
Later = Callable[[messages.FromLease], None]


class Copier:
    """Makes copies of shards, and lets go of those that nobody wants."""

    def __init__(self, copy: Copy, later: Later | None) -> None:
        self._copy = copy
        self._later = later
        self._requests: queue.SimpleQueue[tuple[messages.Prepare, Logic, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._over = False
        self._guard = threading.Lock()
        self._made: dict[tuple[str, int], str] = {}
        """Folder of each copy that was made and not asked to be forgotten."""

    def copy(self, message: messages.Prepare, logic: Logic | None, home: str) -> messages.FromLease | None:
        """Begin to copy; the answer comes later, or now when there is nobody to tell it later."""
        assert logic is not None
        if self._later is None:
            return self._carry_out(message, logic, home)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-copies", daemon=True)
            self._thread.start()
        self._requests.put((message, logic, home))
        return None

    def forget(self, stage: str, shards: Iterable[int]) -> None:
        """Delete copies that are there; one that is being made is deleted with the lease."""
        with self._guard:
            paths = [self._made.pop((stage, shard), None) for shard in shards]
        for path in paths:
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)

    def taken(self, stage: str, paths: Mapping[int, str]) -> None:
        """A task works on these shards now, each in its folder: a copy in another one is of no use."""
        with self._guard:
            made = {shard: self._made.pop((stage, shard), None) for shard in paths}
        for shard, path in made.items():
            if path is not None and path != paths[shard]:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Begin nothing more, and delete what nobody took."""
        self._over = True
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(5.0)
        for stage, shard in list(self._made):
            self.forget(stage, [shard])

    def _run(self) -> None:
        while (request := self._requests.get()) is not None and not self._over:
            answer = self._carry_out(*request)
            if self._later is not None and not self._over:
                try:
                    self._later(answer)
                except OSError:  # a driver that is gone is the main loop's news
                    return

    def _carry_out(self, message: messages.Prepare, logic: Logic, home: str) -> messages.Prepared:
        state = logic.state
        assert state is not None
        try:
            made = self._copy(state, message, home)
        except BaseException as error:
            pass_on_end(error)
            # A file may be gone because the shard was snapshotted meanwhile: the driver asks again with what there is.
            # Whatever else it was, the shard can move without a copy.
            made = [
                messages.PreparedShard(shard.shard, "", 0, describe_own(error)) for shard in message.shards
            ]
        finally:
            state.close()
            close_logic(logic)
        node_dir = os.path.dirname(home)
        with self._guard:
            for shard in made:
                if shard.local:
                    self._made[message.stage, shard.shard] = f"{node_dir}/{shard.local}"
        return messages.Prepared(message.stage, message.task, made)
