"""The loop of a lease: what it does while nobody asks anything of it."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.dataplane import messages
from penstock.spark import lease_task
from penstock.spark.wire import send_frame


class Worker:
    """Has so many parts of state to write behind."""

    def __init__(self, parts: int, over: threading.Event) -> None:
        self.parts, self.calls, self._over = parts, 0, over

    def idle(self) -> None:
        self.calls += 1
        self.parts -= 1
        if not self.parts:
            self._over.set()

    def is_behind(self) -> bool:
        return self.parts > 0


def test_state_is_written_behind_as_long_as_a_pause_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_task, "IDLE_FLUSH_S", 0.01)
    over = threading.Event()
    worker, (ours, theirs) = Worker(5, over), socket.socketpair()
    voice: Any = SimpleNamespace(pass_on=lambda: None)
    ended: list[str] = []
    with ours, theirs:
        thread = threading.Thread(
            target=lambda: ended.append(lease_task._loop(ours, worker, lambda answer: None, voice))  # type: ignore[arg-type]
        )
        thread.start()
        assert over.wait(5.0), "a pause of the driver ends nothing that is left to write"
        send_frame(theirs, messages.encode(messages.End("enough")))
        thread.join(5.0)
    assert (worker.calls, ended) == (5, ["ended: enough"]), "and then it sleeps"
