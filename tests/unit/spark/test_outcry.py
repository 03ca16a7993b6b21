"""A failed query says so once on standard error and in the log, and tells a traceback of user code once."""

from __future__ import annotations

import contextlib
import io
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import OperatorError, QueryError
from penstock.spark.outcry import Outcry, reaches_stderr
from penstock.spark.query import Query
from penstock.spark.shell import SparkShell

SENTENCE = "operator 'o' failed for key ('a',): ZeroDivisionError: division by zero"
TRACEBACK = 'Traceback (most recent call last):\n  File "mine.py", line 7, in broken'


@pytest.fixture
def bare() -> Iterator[logging.Logger]:
    """The log as in a program that sets nothing up."""
    logger = logging.getLogger("penstock")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [], False
    yield logger
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


def failure() -> OperatorError:
    return OperatorError(f"{SENTENCE}\n{TRACEBACK}")


def test_nobody_waits_and_nothing_is_set_up(bare: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    outcry = Outcry("mine")
    outcry.tell(failure())
    outcry.tell(failure())
    told = capsys.readouterr().err.removeprefix("penstock: ")
    assert told == f"query mine has failed: {SENTENCE}\n{TRACEBACK}\n"
    raised = outcry.as_raised(failure())
    assert str(raised) == f"Query mine ended: {SENTENCE}"
    assert isinstance(raised.__cause__, OperatorError) and TRACEBACK not in str(raised.__cause__)


def test_whoever_waits_gets_the_traceback_and_the_log_the_sentence(
    bare: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    outcry, error = Outcry("mine"), failure()
    with outcry.waiting():
        outcry.tell(error)
    assert capsys.readouterr().err.removeprefix("penstock: ") == f"query mine has failed: {SENTENCE}\n"
    raised = outcry.as_raised(error)
    assert raised.__cause__ is error and TRACEBACK not in str(raised)


@pytest.mark.parametrize("level", [logging.WARNING, logging.CRITICAL])
def test_a_log_that_goes_elsewhere_leaves_standard_error_to_be_told(
    bare: logging.Logger, capsys: pytest.CaptureFixture[str], level: int
) -> None:
    elsewhere = io.StringIO()
    bare.addHandler(logging.StreamHandler(elsewhere))
    bare.setLevel(level)
    Outcry("mine").tell(failure())
    assert elsewhere.getvalue().count(SENTENCE) == (level <= logging.ERROR)
    assert capsys.readouterr().err.count(SENTENCE) == 1


def test_a_log_on_standard_error_is_enough(bare: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    bare.addHandler(logging.StreamHandler(sys.stderr))
    Outcry("mine").tell(failure())
    assert capsys.readouterr().err.count(SENTENCE) == 1
    assert reaches_stderr(logging.getLogger("penstock.below"))


def test_the_traceback_of_a_function_on_the_driver_is_told_too(
    bare: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise KeyError("nope")
    except KeyError as cause:
        error = OperatorError("the sink's function failed")
        error.__cause__ = cause
    outcry = Outcry("mine")
    outcry.tell(error)
    assert capsys.readouterr().err.count("KeyError: 'nope'") == 1
    assert outcry.as_raised(error).__cause__ is not error


def test_a_handler_that_raises_does_not_keep_the_query_from_ending(bare: logging.Logger) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no disk")

    bare.addHandler(Broken())
    Outcry("mine").tell(failure())


def test_a_traceback_that_stands_in_a_note_is_told_once_too(
    bare: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OperatorError("map(...) after 's' failed: ZeroDivisionError: division by zero")
    error.add_note(TRACEBACK)
    outcry = Outcry("mine")
    outcry.tell(error)
    assert capsys.readouterr().err.count(TRACEBACK) == 1
    assert not getattr(outcry.as_raised(error).__cause__, "__notes__", [])


class Noted(Exception):
    @property
    def __notes__(self) -> Any:
        raise RuntimeError("no notes")


class Closed(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def failure_of(cause: BaseException) -> OperatorError:
    error = OperatorError(SENTENCE)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "make",
    [lambda: Noted("a"), lambda: Closed("b"), lambda: ValueError("x" * 50_000_000)],
    ids=["Noted", "Closed", "ValueError"],
)
def test_whatever_the_cause_does_the_query_ends_and_whoever_waits_is_told(
    bare: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[], BaseException],
    request: pytest.FixtureRequest,
) -> None:
    query = Query("mine")
    query._begun = True
    query._ended(failure_of(make()))
    with pytest.raises(QueryError, match="ZeroDivisionError"):
        query.awaitTermination(5.0)
    told = capsys.readouterr().err
    assert SENTENCE in told and request.node.callspec.id in told and len(told) < 50_000


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_nothing_that_is_closed_at_the_end_keeps_the_query_from_ending(
    bare: logging.Logger, kind: type[BaseException]
) -> None:
    class Broken:
        def close(self) -> None:
            raise kind("no end")

        stop = close

    query = Query("mine")
    query._elasticity, query._ingests = Broken(), [Broken()]  # type: ignore[assignment, list-item]
    with contextlib.suppress(SystemExit):
        query._ended(None)
    assert not query.isActive and query.awaitTermination(1.0)


def test_a_shell_ends_its_query_whatever_breaks_on_the_way() -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    bad: Any = SimpleNamespace(
        close=broken, end=broken, cancel=broken, note_failure=broken, jobs=broken, ask=broken
    )
    bad._thread = bad.engine = None
    over = threading.Event()
    shell = SparkShell.__new__(SparkShell)
    shell._ended, shell._finishing, shell._threads = threading.Event(), threading.Lock(), []
    shell.chores, shell.log, shell.hub, shell._office, shell.hearing = (
        SimpleNamespace(wake=broken),
        bad,
        bad,
        bad,
        bad,
    )  # type: ignore[assignment]
    shell._sinks, shell._sink_queue, shell.label, shell.engine = (
        {"a": bad, "b": bad},
        queue.SimpleQueue(),
        "q",
        bad,
    )
    shell.disk = shell.opened = shell.settings = bad
    shell._on_end = lambda error: over.set()
    shell.finish(failure())
    assert over.wait(10.0)
