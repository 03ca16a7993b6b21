"""Commands that are tried in the tests' own process give back what they take over of it."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator

import pytest

from penstock.spark import ctrl_c


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    handler, hook, filters = signal.getsignal(signal.SIGINT), sys.excepthook, logging.getLogger().filters[:]
    last_s, ending = ctrl_c._presses._last_s, ctrl_c._presses.ending
    yield
    signal.signal(signal.SIGINT, handler)
    sys.excepthook, logging.getLogger().filters = hook, filters
    ctrl_c._presses._last_s, ctrl_c._presses.ending = last_s, ending
