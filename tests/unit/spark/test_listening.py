"""Listeners are told one thing after the other, whatever they do."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQueryListener

from penstock.errors import DeclarationError
from penstock.spark import listening
from penstock.spark.listening import Announcer


class Heard(StreamingQueryListener):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.gate: threading.Event | None = None

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:
        if self.gate is not None:
            self.gate.wait(5.0)
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(event)


class Broken(Heard):
    def onQueryStarted(self, event: Any) -> None:
        raise ValueError("no")


def test_a_listener_that_raises_is_logged_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    announcer, heard = Announcer(), Heard()
    announcer.add(Broken())
    announcer.add(heard)
    with caplog.at_level(logging.ERROR, "penstock"):
        announcer.announce_and_wait("onQueryStarted", 1)
    assert heard.events == [1]
    assert "Broken.onQueryStarted failed" in caplog.text


def test_what_is_no_listener_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"takes an instance of pyspark.sql.streaming"):
        Announcer().add(object())  # type: ignore[arg-type]


def test_a_listener_that_was_removed_is_told_nothing_more() -> None:
    announcer, heard = Announcer(), Heard()
    announcer.add(heard)
    announcer.add(heard)
    announcer.announce_and_wait("onQueryStarted", 1)
    announcer.remove(heard)
    announcer.announce_and_wait("onQueryStarted", 2)
    assert heard.events == [1]


def test_behind_a_slow_listener_the_oldest_progress_is_dropped_and_never_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "MAX_WAITING", 3)
    announcer, heard = Announcer(), Heard()
    heard.gate = threading.Event()
    announcer.add(heard)
    for number in range(10):
        announcer.announce("onQueryProgress", number)
    last = announcer.announce("onQueryTerminated", "end")
    heard.gate.set()
    assert last.told.wait(5.0)
    assert heard.events[-4:] == [7, 8, 9, "end"] and len(heard.events) <= 5


def test_a_listener_may_announce_from_inside_without_waiting_for_itself() -> None:
    announcer, heard = Announcer(), Heard()

    class Nested(Heard):
        def onQueryStarted(self, event: Any) -> None:
            if event == 1:
                announcer.announce_and_wait("onQueryStarted", 2)
            self.events.append(event)

    nested = Nested()
    announcer.add(nested)
    announcer.add(heard)
    announcer.announce_and_wait("onQueryStarted", 1)
    announcer.announce_and_wait("onQueryStarted", 3)
    assert nested.events == heard.events == [1, 2, 3]
