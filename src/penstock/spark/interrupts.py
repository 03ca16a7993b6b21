"""Steps that Ctrl-C must not cut in two."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def whole_or_undone(step: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Return what a step gives; where this thread is interrupted meanwhile, let it end, undo it and pass the
    interrupt on.

    An interrupt arrives in the main thread only, so the step runs on another one. It must not use Spark, whose calls
    depend on the thread.
    """
    with ThreadPoolExecutor(1, "penstock-step") as pool:
        running = pool.submit(step)
        try:
            return running.result()
        except BaseException:
            with contextlib.suppress(Exception):
                undo(running.result())
            raise
