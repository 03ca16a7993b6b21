"""A failed query says so once on standard error and in the log, and tells a traceback of user code once."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from penstock.errors import OperatorError
from penstock.spark.outcry import Outcry, reaches_stderr

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
