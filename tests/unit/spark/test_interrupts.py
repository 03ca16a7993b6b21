from __future__ import annotations

import _thread
import signal
import threading
import traceback
from collections.abc import Iterator

import pytest

from penstock.errors import CheckpointError
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


def test_a_refusal_comes_without_the_frames_that_led_to_it_and_a_failure_with_them() -> None:
    def refuse() -> None:
        raise CheckpointError("held by another query")

    def fail() -> None:
        try:
            raise OSError("no disk")
        except OSError as error:
            raise CheckpointError("cannot be used") from error

    for step, shown in ((refuse, False), (fail, True)):
        with pytest.raises(CheckpointError) as raised:
            whole_or_undone(step, print)
        frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert (step.__name__ in frames) == shown and ("result" in frames) == shown
