"""Our side of the benches: start a query, let it run at a rate, read rate and latency off its commits.

Latency runs from the producer's stamp (the scheduled arrival of a row) to the commit that holds it, as the
engine logs it; where more is offered than is taken it is derived from the epochs, as plain Spark's is from its
batches. Every run has its own checkpoint on the same disk that Spark's has, everything durable.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import penstock
from penstock.bench.machine import CpuMeter, CpuUse, python_resident_bytes
from penstock.workloads.keyed import keyed_rows

ROWS = "key long, value long, stamp long"
UNBOUNDED_PER_S = 1e9
SINGLE_ROWS_PER_S = 50.0
"""Slow enough that every row has an epoch of its own."""
CLIMB_WARM_S = 2.0
SETTLE_S = 1.0
"""Time after a change of rate that is not looked at."""
Build = Callable[[penstock.Stream], penstock.Stream]


@dataclass(frozen=True)
class Held:
    """One run at one offered rate. `epoch_ms` is from commit to commit of the operator."""

    offered_per_s: float
    rate_per_s: float
    mean_ms: float
    p99_ms: float
    epoch_ms: float
    derived_ms: float
    rows_per_epoch: float
    driver_ms_per_epoch: float
    start_s: float
    cpu_cores: float
    resident_bytes: int
    state_bytes: int

    def holds(self, bound_ms: float) -> bool:
        """Whether the offered rate was kept up with at this mean latency."""
        return self.mean_ms <= bound_ms and self.keeps_up()

    def keeps_up(self) -> bool:
        """Whether all that was offered went through."""
        return self.rate_per_s >= 0.97 * self.offered_per_s


@dataclass(frozen=True)
class Overhead:
    """An epoch that carries next to no rows, from dispatch to commit, and where its time goes.

    `work_ms` and `sync_ms` are the task's (its files synced), `log_ms` is appending and syncing the record,
    and `rest_ms` is what is left: the driver, the wire, and waking up on both ends.
    """

    epoch_ms: float
    work_ms: float
    sync_ms: float
    log_ms: float
    rest_ms: float
    rows_per_epoch: float


@dataclass(frozen=True)
class KeyedSource:
    """The rows of the keyed bench as a native source; deterministic in offset, the first `prefill` rows touch
    every key once."""

    keys: int = 10_000
    zipf: float = 0.5
    prefill: int = 0

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        if offset >= self.prefill:
            return keyed_rows(offset, count, self.keys, self.zipf)
        import numpy as np

        first = np.arange(offset, min(offset + count, self.prefill), dtype=np.int64)
        filled = pa.record_batch({"key": first, "value": first, "stamp": first * 0})
        rest = offset + count - self.prefill
        if rest <= 0:
            return filled
        more = keyed_rows(self.prefill, rest, self.keys, self.zipf)
        table = pa.Table.from_batches([filled, more.cast(filled.schema)]).combine_chunks()
        return table.to_batches()[0]


def count_and_sum(rows: penstock.Stream) -> penstock.Stream:
    return rows.groupBy("key").agg(penstock.count(), penstock.sum("value").alias("total"), name="counts")


def two_operators(rows: penstock.Stream) -> penstock.Stream:
    """Counts per key, then how often each count is reached: two operators keyed differently."""
    return count_and_sum(rows).groupBy("count").agg(penstock.count().alias("times"), name="second")


def row_count(rows: penstock.Stream) -> penstock.Stream:
    """The same count and sum as a Python function per key."""

    def add(key: Any, given: Any, state: Any) -> Any:
        count, total = state.kept.get() or (0, 0)
        count += len(given)
        for row in given:
            total += row.value
        state.kept.update((count, total))
        return [(key.key, count, total)]

    return rows.groupBy("key").apply_rows(
        add,
        schema="key long, count long, total long",
        state={"kept": penstock.ValueState("struct<count:long,total:long>")},
        name="counts",
    )


def processor_count(rows: penstock.Stream) -> penstock.Stream:
    """The same by the class that plain Spark runs, unchanged."""
    from penstock.bench.spark_rows import OUTPUT, CountRows

    return rows.groupBy("key").transformWithState(CountRows(), OUTPUT, "Update", "None", name="counts")


def processor_count_in_pandas(rows: penstock.Stream) -> penstock.Stream:
    from penstock.bench.spark_rows import OUTPUT, CountFrames

    return rows.groupBy("key").transformWithStateInPandas(
        CountFrames(), OUTPUT, "Update", "None", name="counts"
    )


@contextmanager
def running(stream: penstock.Stream, **options: object) -> Iterator[Any]:
    """A query on a fresh checkpoint, stopped and removed at the end."""
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    query = stream.writeStream.format("noop").options(checkpointLocation=folder, **options).start()
    try:
        yield query
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)
        if query.exception() is not None:
            raise query.exception()


def run_at(
    build: Build,
    rate_per_s: float,
    seconds: float,
    *,
    source: KeyedSource | None = None,
    warm_s: float = 2.0,
    operator: str = "counts",
    apart_from: Sequence[int] = (),
    **options: object,
) -> Held:
    """Offer rows at a rate for a while after warming up, and measure the operator named.

    Args:
        apart_from: processes below this one whose CPU and memory are not ours: the peer's.
    """
    source = source or KeyedSource()
    rows = penstock.generate(source, schema=ROWS, rate=rate_per_s, name="rows")
    began = time.monotonic()
    with running(build(rows), **options) as query:
        start_s = await_rows(query, operator, source.prefill) - began
        time.sleep(warm_s)
        meter = CpuMeter([os.getpid()], apart_from=apart_from)
        window = watch(query, operator, seconds)
        latency = query.latency(operator, window.since)
        cpu = meter.read()
        resident = python_resident_bytes([os.getpid()], apart_from=apart_from)
    return _held(rate_per_s, window, latency, start_s, cpu, resident, operator)


def _held(
    offered_per_s: float,
    window: Window,
    latency: Any,
    start_s: float,
    cpu: CpuUse,
    resident_bytes: int,
    operator: str = "counts",
) -> Held:
    was, now = window.of(operator)
    epochs = max(1, now["epochs"] - was["epochs"])
    rate = (now["rowsIn"] - was["rowsIn"]) / window.seconds
    return Held(
        offered_per_s=offered_per_s,
        rate_per_s=rate,
        mean_ms=latency.mean_ms if latency else float("inf"),
        p99_ms=latency.p99_ms if latency else float("inf"),
        epoch_ms=window.seconds * 1e3 / epochs,
        derived_ms=window.derived_ms(operator, "rows"),
        rows_per_epoch=rate * window.seconds / epochs,
        driver_ms_per_epoch=window.after["driverMsPerEpoch"],
        start_s=start_s,
        cpu_cores=cpu.cores,
        resident_bytes=resident_bytes,
        state_bytes=now["stateBytes"],
    )


def run_saturated(build: Build, seconds: float, **more: Any) -> Held:
    """Offer more than can be taken; the rate is what goes through."""
    return run_at(build, UNBOUNDED_PER_S, seconds, **more)


def epoch_overhead(seconds: float) -> Overhead:
    """Measure epochs of about one row each."""
    rows = penstock.generate(KeyedSource(), schema=ROWS, rate=SINGLE_ROWS_PER_S, name="rows")
    with running(count_and_sum(rows)) as query:
        await_rows(query, "counts", int(SINGLE_ROWS_PER_S))
        window = watch(query, "counts", seconds)
    return derive_overhead(window.before, window.after, "counts")


def derive_overhead(before: Mapping[str, Any], after: Mapping[str, Any], operator: str) -> Overhead:
    """Take the time of an operator's epochs between two progress reports apart."""
    was, now = before["operators"][operator], after["operators"][operator]
    epochs = max(1, now["epochs"] - was["epochs"])
    whole, work, sync = (
        (now[name] - was[name]) * 1e3 / epochs for name in ("epochSeconds", "busySeconds", "syncSeconds")
    )
    appends = max(1, after["logAppends"] - before["logAppends"])
    log = (after["logSeconds"] - before["logSeconds"]) * 1e3 / appends
    rows = (now["rowsIn"] - was["rowsIn"]) / epochs
    return Overhead(whole, work, sync, log, max(0.0, whole - work - sync - log), rows)


def climb(build: Build, rates_per_s: Sequence[float], seconds: float) -> list[Held]:
    """Offer one rate after the other, rising, in one query; return a run for each, up to the first that fails.

    A rate that was not kept up with leaves rows behind that would spoil every later one, so it is the last.
    """
    step_s = SETTLE_S + seconds
    steps = [(step_s, round(rate)) for rate in rates_per_s]
    rows = penstock.generate(
        KeyedSource(), schema=ROWS, rate=[(CLIMB_WARM_S, steps[0][1]), *steps], name="rows"
    )
    began = time.monotonic()
    runs: list[Held] = []
    with running(build(rows)) as query:
        up = await_rows(query, "counts", 0)
        for number, rate in enumerate(rates_per_s):
            meter = CpuMeter()
            _sleep_until(up + CLIMB_WARM_S + number * step_s + SETTLE_S)
            # A look lasts until the next commit, so it is kept a little shorter than the step.
            window = watch(query, "counts", 0.9 * seconds)
            latency = query.latency("counts", window.since)
            runs.append(_held(rate, window, latency, up - began, meter.read(), 0))
            if not runs[-1].keeps_up():
                break
    return runs


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def middle(runs: list[Held]) -> Held:
    """Return the run of median rate, so that its rate and its latency belong together."""
    return sorted(runs, key=lambda run: run.rate_per_s)[len(runs) // 2]


def best_held(runs: list[Held], bound_ms: float) -> Held | None:
    """Return the run with the highest rate that held the bound."""
    return max((run for run in runs if run.holds(bound_ms)), key=lambda run: run.rate_per_s, default=None)


def idle_cores(seconds: float, apart_from: Sequence[int] = ()) -> float:
    """CPU of all our processes while a warmed query has nothing to do."""
    rows = penstock.generate(KeyedSource(), schema=ROWS, rate=[(1.0, 20_000), (0.0, 0.0)], name="rows")
    with running(count_and_sum(rows)) as query:
        await_rows(query, "counts", 1)
        time.sleep(3.0)
        meter = CpuMeter([os.getpid()], apart_from=apart_from)
        time.sleep(seconds)
        return meter.read().cores


@dataclass(frozen=True)
class Window:
    """Two progress reports, each taken right after a commit, and the time between them."""

    since: float
    seconds: float
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def of(self, operator: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return both reports of one operator."""
        return self.before["operators"][operator], self.after["operators"][operator]

    def derived_ms(self, operator: str, source: str) -> float:
        """Return the mean latency of rows that are produced at exactly the rate that went through.

        As with Spark's prepared batches, a row waits half an interval for its epoch and then for the whole epoch;
        here it does so at the source and at the operator. A source that is offered too much runs ahead and is
        held back, so its interval says nothing: what counts is the time it takes for as many rows.
        """
        was, now = self.of(operator)
        made, makes = self.before["inputs"][source], self.after["inputs"][source]
        epochs = max(1, now["epochs"] - was["epochs"])
        rows_per_epoch = (now["rowsIn"] - was["rowsIn"]) / epochs
        source_s = makes["epochSeconds"] - made["epochSeconds"]
        source_s_per_row = source_s / max(1, makes["rowsIn"] - made["rowsIn"])
        return float(1.5 * 1e3 * (self.seconds / epochs + source_s_per_row * rows_per_epoch))


def watch(query: Any, operator: str, seconds: float) -> Window:
    """Look at a query from one commit of an operator to the first one after so many seconds.

    From commit to commit, because with long epochs a window that begins anywhere counts up to one too many.
    """
    since, before = _next_commit(query, operator)
    time.sleep(seconds)
    ended, after = _next_commit(query, operator)
    return Window(since, ended - since, before, after)


def _next_commit(query: Any, operator: str, timeout_s: float = 10.0) -> tuple[float, Mapping[str, Any]]:
    first = query.lastProgress
    deadline = time.monotonic() + timeout_s
    while True:
        report, now = query.lastProgress, time.monotonic()
        if report["operators"][operator]["epochs"] > first["operators"][operator]["epochs"]:
            return now, report
        if query.exception() is not None:
            raise query.exception()
        if now > deadline:
            raise TimeoutError(f"'{operator}' committed nothing for {timeout_s:.0f} s")
        time.sleep(0.01)


def await_rows(query: Any, operator: str, rows: int, timeout_s: float = 240.0) -> float:
    """Wait until an operator has committed more than `rows` rows; return when."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if query.exception() is not None:
            raise query.exception()
        if query.lastProgress["operators"][operator]["rowsIn"] > rows:
            return time.monotonic()
        time.sleep(0.02)
    raise TimeoutError(f"'{operator}' took in no more than {rows} rows in {timeout_s} s")
