"""Steps that Ctrl-C must not cut in two."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from penstock.errors import CheckpointError

T = TypeVar("T")


def whole_or_undone(step: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Return what a step gives; where this thread is interrupted meanwhile, let it end, undo it and pass the
    interrupt on.

    An interrupt arrives in the main thread only, so the step runs on another one. It must not use Spark, whose calls
    depend on the thread.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(step())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        threading.Thread(target=run, name="penstock-step").start()
        error = outcome.exception()
        if isinstance(error, CheckpointError) and error.__cause__ is None:
            raise error.with_traceback(None)  # a refusal, whose sentence is all there is to say
        return outcome.result()
    except BaseException:
        # The interrupt may have come before the step began: then it never will, and there is nothing to undo.
        if not outcome.cancel() and outcome.exception() is None:
            with contextlib.suppress(Exception):
                undo(outcome.result())
        raise
