"""Scripted sources: rows, pauses and deaths in the order in which they happen, as one list.

A script is a bounded source like any other. Its deaths are part of the declaration, and only `penstock.testing.run` can
carry them out; a query on Spark refuses them when it starts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from penstock.dataplane.sourcing import Arrivals
from penstock.errors import DeclarationError
from penstock.testing.clocks import parse_positive
from penstock.topology.sources import from_rows
from penstock.topology.stream import Stream

_BURST_S: Final = 2.0**-20
"""Time in which rows without a pause between them arrive on Spark; a power of two keeps the arithmetic exact."""


@dataclass(frozen=True)
class Pause:
    """Let time pass before what follows.

    Processing-time timers that fall into it fire. At the end of a script it keeps `run` going for that long.

    Args:
        duration: such as "10 seconds", or a timedelta.

    Raises:
        DeclarationError: it is no duration, or a negative one.
    """

    duration: object

    def __post_init__(self) -> None:
        parse_positive(self.duration, "Pause(...)")

    @property
    def seconds(self) -> float:
        return parse_positive(self.duration, "Pause(...)") / 1e6


@dataclass(frozen=True)
class Crash:
    """Kill the driver process, as `kill -9` does, once the source has made the rows before this.

    How far those rows have come by then depends on the seed of the run: some may be at the sink, others not committed
    anywhere. The run restarts by itself from the checkpoint; rows after this are made by the new driver.
    """


@dataclass(frozen=True)
class LoseLease:
    """Kill one lease, whichever the seed says, once the source has made the rows before this; the run goes on."""


@dataclass(frozen=True)
class Fault:
    """Where in a script something dies: after `row` rows, not before `at_s` seconds of the script."""

    row: int
    at_s: float
    what: Crash | LoseLease


class Script:
    """The rows of a scripted source with their times and deaths; called as the function of a native source."""

    def __init__(
        self, rows: pa.Table, times_s: Sequence[float], faults: Sequence[Fault], length_s: float
    ) -> None:
        self.rows = rows
        self.times_s = tuple(times_s)
        self.faults = tuple(faults)
        self.length_s = length_s

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        cut = self.rows.slice(offset, count).combine_chunks().to_batches()
        return cut[0] if cut else pa.RecordBatch.from_pylist([], schema=self.rows.schema)

    def rates(self) -> tuple[tuple[float, float], ...]:
        """The times of the rows as (seconds, rows per second), for a source that runs by a real clock."""
        steps: list[tuple[float, float]] = []
        before = 0.0
        for at_s, count in sorted(Counter(self.times_s).items()):
            steps.extend([(at_s - before, 0.0)] if at_s > before else [])
            steps.append((_BURST_S, count / _BURST_S))
            before = at_s
        return tuple(steps) or ((0.0, 1.0),)


def script(items: Sequence[object], *, schema: object, name: str = "source") -> Stream:
    """Declare a bounded source that puts out what stands in a list, in order.

    Rows without a `Pause` between them arrive together. On Spark the rows and pauses are those of a real clock, the
    query ends after the last row, and a script with `Crash()` or `LoseLease()` is refused.

    Args:
        items: rows (tuples, dicts or named tuples), `Pause(...)`, `Crash()` and `LoseLease()`.
        schema: of the rows, as DDL string, StructType or Arrow schema.
        name: of the source.

    Raises:
        DeclarationError: a row does not fit the schema, or something else stands in the list.
    """
    if not isinstance(items, list | tuple):
        raise DeclarationError(f"source '{name}': script(...) takes a list, not {type(items).__name__}.")
    rows: list[Any] = []
    times_s: list[float] = []
    faults: list[Fault] = []
    clock_s = 0.0
    for item in items:
        if isinstance(item, type):
            raise DeclarationError(
                f"source '{name}': {item.__name__} in a script is a class; write {item.__name__}(...)."
            )
        if isinstance(item, Pause):
            clock_s += item.seconds
        elif isinstance(item, Crash | LoseLease):
            faults.append(Fault(len(rows), clock_s, item))
        else:
            rows.append(item)
            times_s.append(clock_s)
    node = from_rows(rows, schema=schema, name=name).node
    assert node.function is not None
    made = Script(pa.Table.from_batches([node.function(0, len(rows))]), times_s, faults, clock_s)
    return Stream(replace(node, function=made, rate=made.rates(), faults=bool(faults)))


class ScriptArrivals(Arrivals):
    """The schedule of a script on a virtual clock: stops before every death until that has happened, and stands still
    while there is no driver."""

    def __init__(self, script: Script) -> None:
        super().__init__(((0.0, 1.0),), len(script.times_s))
        self.script = script
        self._faults = list(script.faults)
        self._position_s = 0.0

    @property
    def next_fault(self) -> Fault | None:
        """The next death that has not happened."""
        return self._faults[0] if self._faults else None

    def pass_fault(self) -> None:
        """The next death has happened."""
        self._faults.pop(0)

    def elapsed_s(self, now: float) -> float:
        """How far the script has come."""
        return self._position_s if self._origin is None else now - self._origin

    def next_in_s(self, now: float) -> float | None:
        """Seconds until something comes that was not due before: a row, a death or the end of the script."""
        elapsed_s = self.elapsed_s(now)
        upcoming = [*self.script.times_s, *(fault.at_s for fault in self._faults), self.script.length_s]
        return min((at_s - elapsed_s for at_s in upcoming if at_s > elapsed_s), default=None)

    def stand(self, now: float) -> None:
        """Note how far the script has come; the driver is about to go."""
        self._position_s, self._origin = self.elapsed_s(now), None

    def resume(self, offset: int, now: float) -> None:
        self._origin = now - self._position_s

    def due(self, now: float) -> int:
        if self._origin is None:
            return 0
        arrived = bisect_right(self.script.times_s, now - self._origin + 1e-6)
        return arrived if self.next_fault is None else min(arrived, self.next_fault.row)

    def _time_of(self, row: int) -> float:
        return self.script.times_s[row - 1]
