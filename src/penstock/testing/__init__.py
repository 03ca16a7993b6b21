"""The testing kit: run a topology, or one operator of it, without Spark and without waiting.

A test reads as a story, since what dies stands in the data:

```python
from penstock.testing import Crash, Pause, assert_frames_equal, run, script

visits = script([("ann", 1), ("bob", 1), Crash(), ("ann", 2), Pause("1 hour"), ("bob", 2)], schema="user string, page int")
assert_frames_equal(run(visits.groupBy("user").apply_rows(...)), [...])
```

`run` runs a whole topology on a virtual clock, `operator` and `outputs_of` take one operator by itself, and
`assert_frames_equal` compares what came out. Needs no Spark; the engine never imports this package.

The other modules of the package are for tests of Penstock itself: `disk` and `faults` disturb a run; `line`, `schedule`,
`replay` and `outputs` check from its checkpoint what it committed; `tamper` forges checkpoints to prove that the checks
notice.
"""

from __future__ import annotations

from penstock.testing.clocks import ManualClock
from penstock.testing.frames import assert_frames_equal
from penstock.testing.harness import OperatorHarness, operator, outputs_of
from penstock.testing.runs import DidNotFinish, run
from penstock.testing.scripts import Crash, LoseLease, Pause, script

__all__ = [
    "Crash",
    "DidNotFinish",
    "LoseLease",
    "ManualClock",
    "OperatorHarness",
    "Pause",
    "assert_frames_equal",
    "operator",
    "outputs_of",
    "run",
    "script",
]
