"""Stateful processors as people write them for PySpark, for tests that run the same class here and there.

What each yields does not depend on where batches end: a row has its own answer, and what a timer would close is also
closed by the next row of its key.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

# Workers cannot import the tests, so what they define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

INPUT = "n long, user string, kind string, amount long, at timestamp"
OUTPUT = "processor string, user string, n long, a long, b string"


def ms(row: Any) -> int:
    return round(row.at.timestamp() * 1000)


class Named(StatefulProcessor):
    """What all have: a name in their output, rows in the order of their numbers."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def out(self, key: Any, n: int, a: int, b: str = "") -> Row:
        return Row(processor=type(self).__name__, user=key[-1], n=n, a=a, b=b)

    def close(self) -> None:
        pass


class RunningCount(Named):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = (self.count.get() or (0,))[0]
        for row in sorted(rows, key=lambda row: row.n):
            count += 1
            yield self.out(key, row.n, count)
        self.count.update((count,))


class RunningMean(Named):
    """Several rows out for one row in, and a state of several fields with a null among them."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "rows int, total double, best long, note string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            count, total, best, _ = self.seen.get() if self.seen.exists() else (0, 0.0, 0, None)
            self.seen.update((count + 1, total + row["amount"], max(best, row.amount), None))
            yield self.out(key, row.n, round(1000 * (total + row.amount) / (count + 1)), "mean")
            yield self.out(key, row.n, max(best, row.amount), "best")


class LastItems(Named):
    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "amount long, kind string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            self.items.appendValue((row.amount, row.kind))
            held = list(self.items.get())
            if len(held) > 3:
                self.items.put(held[-3:])
            kept = list(self.items.get())
            yield self.out(key, row.n, sum(amount for amount, _ in kept), "".join(kind for _, kind in kept))


class KindCounts(Named):
    def init(self, handle: Any) -> None:
        self.kinds = handle.getMapState("kinds", "kind string", "times int, last long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            times = self.kinds.getValue((row.kind,))[0] if self.kinds.containsKey((row.kind,)) else 0
            if times == 4:
                self.kinds.removeKey((row.kind,))
            else:
                self.kinds.updateValue((row.kind,), (times + 1, row.n))
            shown = ",".join(f"{kind}{times}" for (kind,), (times, _) in sorted(self.kinds.iterator()))
            yield self.out(key, row.n, sum(times for times, _ in self.kinds.values()), shown)


class TopThree(Named):
    def init(self, handle: Any) -> None:
        self.best = handle.getListState("best", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            before = [amount for (amount,) in self.best.get()]
            best = sorted([*before, row.amount], reverse=True)[:3]
            self.best.clear()
            self.best.appendList([(amount,) for amount in best])
            if best != before:
                yield self.out(key, row.n, best[0], str(best))


class Deduplicate(Named):
    def init(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "amount long, kind string", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            if not self.seen.containsKey((row.amount % 20, row.kind)):
                self.seen.updateValue((row.amount % 20, row.kind), (row.n,))
                yield self.out(key, row.n, row.amount % 20, row.kind)


class Session(Named):
    """Sessions that end after eight seconds of event time without a row."""

    GAP_MS = 8000

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "first long, last long, rows int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            first, last, count = self.session.get() or (ms(row), ms(row), 0)
            if ms(row) >= last + self.GAP_MS:
                yield self.out(key, first, count, "session")
                first, count = ms(row), 0
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(ms(row) + self.GAP_MS)
            self.session.update((first, ms(row), count + 1))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        first, last, count = self.session.get()
        assert (
            expiredTimerInfo.getExpiryTimeInMs()
            == last + self.GAP_MS
            <= timerValues.getCurrentWatermarkInMs()
        )
        self.session.clear()
        yield self.out(key, first, count, "session")


class FraudRule(Named):
    """A large amount soon after a small one; a timer forgets the small one."""

    SOON_MS = 5000

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.small = handle.getValueState("small", "at long, amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            small = self.small.get()
            if small is not None and row.amount > 60 and ms(row) < small[0] + self.SOON_MS:
                self.handle.deleteTimer(small[0] + self.SOON_MS)
                self.small.clear()
                yield self.out(key, row.n, row.amount, f"after {small[1]}")
            elif row.amount < 40:
                if small is not None:
                    self.handle.deleteTimer(small[0] + self.SOON_MS)
                self.small.update((ms(row), row.amount))
                self.handle.registerTimer(ms(row) + self.SOON_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self.small.clear()
        return iter(())


class SilenceAlarm(Named):
    """Says when a user was silent for twelve seconds of event time, once per silence."""

    LIMIT_MS = 12_000

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "at long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            last = self.last.get()
            if last is not None:
                self.handle.deleteTimer(last[0] + self.LIMIT_MS)
                if ms(row) >= last[0] + self.LIMIT_MS:
                    yield self.out(key, last[0], 0, "silent")
            self.last.update((ms(row),))
            self.handle.registerTimer(ms(row) + self.LIMIT_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        (last,) = self.last.get()
        self.last.clear()
        yield self.out(key, last, 0, "silent")


class Collected(Named):
    """Collects rows and flushes them by a timer of processing time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.held = handle.getListState("held", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if not self.held.exists():
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 50)
        self.held.appendList([(row.amount,) for row in rows])
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        amounts = [amount for (amount,) in self.held.get()]
        self.held.clear()
        yield self.out(key, len(amounts), sum(amounts), "flushed")


class Cache(Named):
    """Says for each row what it finds of earlier ones: one state forgets soon, the others late."""

    def init(self, handle: Any) -> None:
        self.soon = handle.getValueState("soon", "n long", ttlDurationMs=1000)
        self.late = handle.getValueState("late", "n long", ttlDurationMs=3_600_000)
        self.map = handle.getMapState("map", "kind string", "n long", ttlDurationMs=1000)
        self.items = handle.getListState("items", "n long", ttlDurationMs=3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        rows = sorted(rows, key=lambda row: row.n)
        found = [self.soon.exists(), self.late.exists(), self.map.exists(), self.items.exists()]
        yield self.out(key, rows[0].n, len(rows), "".join("y" if one else "n" for one in found))
        self.soon.update((rows[-1].n,))
        self.late.update((rows[-1].n,))
        self.map.updateValue((rows[-1].kind,), (rows[-1].n,))
        self.items.appendValue((rows[-1].n,))


class Started(RunningCount):
    """A running count that begins with what initial rows say."""

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.count.update(((self.count.get() or (0,))[0] + initialState.seen,))


class Continued(RunningCount):
    """A running count that begins with the state of another one."""

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        assert tuple(key) == (initialState.which, initialState.user)
        self.count.update((initialState["count"],))


EVENT = (
    RunningCount,
    RunningMean,
    LastItems,
    KindCounts,
    TopThree,
    Deduplicate,
    Session,
    FraudRule,
    SilenceAlarm,
)
"""Those that a query by event time runs."""
PROCESSING = (Collected, Cache)


class Many(StatefulProcessor):
    """Several processors as one, told apart by the first key column: one query on Spark serves them all."""

    def __init__(self, kinds: tuple[type[Named], ...]) -> None:
        self.parts = {kind.__name__: kind() for kind in kinds}

    def init(self, handle: Any) -> None:
        for name, part in self.parts.items():
            part.init(Prefixed(handle, name))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self.parts[key[0]].handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return self.parts[key[0]].handleExpiredTimer(key, timerValues, expiredTimerInfo)

    def close(self) -> None:
        pass


class Prefixed:
    """A handle whose states have the processor's name before their own."""

    def __init__(self, handle: Any, name: str) -> None:
        self._handle, self._name = handle, name

    def getValueState(self, stateName: str, *more: Any, **named: Any) -> Any:
        return self._handle.getValueState(f"{self._name}_{stateName}", *more, **named)

    def getListState(self, stateName: str, *more: Any, **named: Any) -> Any:
        return self._handle.getListState(f"{self._name}_{stateName}", *more, **named)

    def getMapState(self, stateName: str, *more: Any, **named: Any) -> Any:
        return self._handle.getMapState(f"{self._name}_{stateName}", *more, **named)

    def deleteIfExists(self, stateName: str) -> None:
        self._handle.deleteIfExists(f"{self._name}_{stateName}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


class PandasCount(StatefulProcessor):
    """The running count on frames."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count long, last timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        import pandas as pd

        for frame in rows:
            frame = frame.sort_values("n")
            count = (self.count.get() or (0,))[0]
            counts = range(count + 1, count + len(frame) + 1)
            self.count.update((count + len(frame), frame["at"].max()))
            yield pd.DataFrame(
                {
                    "n": frame["n"].to_numpy(),
                    "processor": "PandasCount",
                    "user": key[0],
                    "a": list(counts),
                    "b": [str(at) for at in frame["at"]],
                }
            )

    def close(self) -> None:
        pass


def count_group(key: Any, frames: Any, state: Any) -> Any:
    """The running count as an `applyInPandasWithState` function."""
    import pandas as pd

    for frame in frames:
        frame = frame.sort_values("n")
        count = (state.getOption or (0,))[0]
        state.update((count + len(frame),))
        yield pd.DataFrame(
            {
                "processor": "count_group",
                "user": key[0],
                "n": frame["n"].to_numpy(),
                "a": list(range(count + 1, count + len(frame) + 1)),
                "b": "",
            }
        )


def flush_group(key: Any, frames: Any, state: Any) -> Any:
    """Counts rows and puts the count out when none came for half a second."""
    import pandas as pd

    if state.hasTimedOut:
        (count,) = state.get
        state.remove()
        yield pd.DataFrame(
            {"processor": ["flush_group"], "user": [key[0]], "n": [count], "a": [0], "b": [""]}
        )
    else:
        state.update(((state.getOption or (0,))[0] + sum(len(frame) for frame in frames),))
        state.setTimeoutDuration(500)
