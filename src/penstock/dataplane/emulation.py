"""Makes a node slow on purpose: after each piece of work it waits as much longer as a slower machine would have taken.

For tests and benchmarks of unlike nodes (StreamSwitch 6.4): with PENSTOCK_SLOW=2.0 in its environment a node has half
the service rate (α = 1/2) of one without. It changes times only, never rows.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SLOW = "PENSTOCK_SLOW"
"""Environment variable of a node: how many times as long its work takes; 1 or absent changes nothing."""


@dataclass
class Slowness:
    """Stretches measured work by a factor. One for each task's process; used by one thread.

    Sleeps take a little longer than asked for, and short ones much longer; what was slept too much is taken off the
    next ones, so that the factor holds over many short epochs.
    """

    factor: float = 1.0
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _owed_s: float = field(default=0.0, repr=False)

    def stretch(self, busy_s: float) -> float:
        """Wait ``(factor - 1) * busy_s`` and return how long it was.

        ``busy_s`` is all of the work, emulated service time (a sleep per row) included; a caller that measures its busy
        time up to after this call has the stretched one.
        """
        if self.factor <= 1.0:
            return 0.0
        self._owed_s += (self.factor - 1.0) * busy_s
        if self._owed_s <= 0.0:
            return 0.0
        began = self.clock()
        self.sleep(self._owed_s)
        waited = self.clock() - began
        self._owed_s -= waited
        return waited


def read_slowness(environ: Mapping[str, str] | None = None) -> Slowness:
    """Read this node's factor from its environment; one that is no number of at least 1 counts as 1."""
    text = (os.environ if environ is None else environ).get(SLOW, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 1.0
    return Slowness(factor if math.isfinite(factor) and factor >= 1.0 else 1.0)
