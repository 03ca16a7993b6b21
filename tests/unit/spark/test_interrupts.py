from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator

import pytest

from penstock.spark.interrupts import whole_or_undone


def test_a_step_gives_what_it_returns_and_is_not_undone() -> None:
    assert whole_or_undone(lambda: 7, lambda made: pytest.fail("undone")) == 7


def test_a_step_that_fails_fails_as_it_is_and_there_is_nothing_to_undo() -> None:
    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        whole_or_undone(fail, lambda made: pytest.fail("undone"))


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A program that was started in the background may ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_step_ends_and_is_undone_before_the_interrupt_goes_on() -> None:
    events: list[str] = []

    def step() -> int:
        _thread.interrupt_main()
        threading.Event().wait(0.2)
        events.append("done")
        return 7

    with pytest.raises(KeyboardInterrupt):
        whole_or_undone(step, lambda made: events.append(f"undone {made}"))
    assert events == ["done", "undone 7"]


def test_a_step_that_has_not_begun_when_the_interrupt_comes_never_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        whole_or_undone(lambda: pytest.fail("begun"), lambda made: pytest.fail("undone"))
