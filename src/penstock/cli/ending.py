"""How a program that `penstock run` started ends when it is told to: in order, as by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM ended, as shells and supervisors know it."""


@contextmanager
def in_order_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit: what the program has open is closed, and its queries are stopped at exit.

    Only the first one counts: a second must not cut the stopping in two. Must be entered in the main thread.
    """
    told = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if not told:
            told = True
            raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if not told:
            signal.signal(signal.SIGTERM, before)
