"""When Python's cycle collector runs in a task: between the steps of an epoch, never inside one.

Rows and decoded state are many small objects without cycles. Left on, the collector walks all of them again
and again while they are made, which costs more than making them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the collector off inside the block; cycles that user code left are found after it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def relax_collector() -> None:
    """Let the collector run seldom in this process; for the start of a lease.

    The thresholds count objects made and not freed. A task in a steady state frees what it makes, so that
    only cycles and growing state add up to a collection.
    """
    gc.set_threshold(200_000, 20, 20)
