"""Our side of the benches: start a query, let it run at a rate, read rate and latency off its commits.

Latency runs from the producer's stamp (the scheduled arrival of a row) to the commit that holds it, as the
engine logs it. Every run has its own checkpoint on the same disk that Spark's has, everything durable.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import penstock
from penstock.bench.machine import CpuMeter, python_resident_bytes
from penstock.workloads.keyed import keyed_rows

ROWS = "key long, value long, stamp long"
UNBOUNDED_PER_S = 1e9
Build = Callable[[penstock.Stream], penstock.Stream]


@dataclass(frozen=True)
class Held:
    """One run at one offered rate."""

    offered_per_s: float
    rate_per_s: float
    mean_ms: float
    p99_ms: float
    epoch_ms: float
    driver_ms_per_epoch: float
    start_s: float
    cpu_cores: float
    resident_bytes: int
    state_bytes: int

    def holds(self, bound_ms: float) -> bool:
        """Whether the offered rate was kept up with at this mean latency."""
        return self.mean_ms <= bound_ms and self.rate_per_s >= 0.97 * self.offered_per_s


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
    **options: object,
) -> Held:
    """Offer rows at a rate for a while after warming up, and measure the last operator named."""
    source = source or KeyedSource()
    rows = penstock.generate(source, schema=ROWS, rate=rate_per_s, name="rows")
    began = time.monotonic()
    with running(build(rows), **options) as query:
        start_s = _await_rows(query, operator, source.prefill) - began
        time.sleep(warm_s)
        meter = CpuMeter([os.getpid()])
        before, since = query.lastProgress, time.monotonic()
        time.sleep(seconds)
        after, spent = query.lastProgress, time.monotonic() - since
        latency = query.latency(operator, since)
        cpu = meter.read()
        resident = python_resident_bytes([os.getpid()])
    was, now = before["operators"][operator], after["operators"][operator]
    return Held(
        offered_per_s=rate_per_s,
        rate_per_s=(now["rowsIn"] - was["rowsIn"]) / spent,
        mean_ms=latency.mean_ms if latency else float("inf"),
        p99_ms=latency.p99_ms if latency else float("inf"),
        epoch_ms=spent * 1e3 / max(1, now["epochs"] - was["epochs"]),
        driver_ms_per_epoch=after["driverMsPerEpoch"],
        start_s=start_s,
        cpu_cores=cpu.cores,
        resident_bytes=resident,
        state_bytes=now["stateBytes"],
    )


def run_saturated(build: Build, seconds: float, **more: Any) -> Held:
    """Offer more than can be taken; the rate is what goes through."""
    return run_at(build, UNBOUNDED_PER_S, seconds, **more)


def find_rate(
    build: Build, bound_ms: float, first_per_s: float, *, probes: int, seconds: float, **more: Any
) -> list[Held]:
    """Search the highest offered rate held at a mean latency; return all runs, the held ones among them."""
    runs: list[Held] = []
    low, high, rate = 0.0, float("inf"), first_per_s
    for _ in range(probes):
        run = run_at(build, rate, seconds, **more)
        runs.append(run)
        if run.holds(bound_ms):
            low = max(low, rate)
        else:
            high = min(high, rate)
        rate = rate * 1.5 if high == float("inf") else (low + high) / 2 if low else rate * 0.6
    return runs


def middle(runs: list[Held]) -> Held:
    """Return the run of median rate, so that its rate and its latency belong together."""
    return sorted(runs, key=lambda run: run.rate_per_s)[len(runs) // 2]


def best_held(runs: list[Held], bound_ms: float) -> Held | None:
    """Return the run with the highest rate that held the bound."""
    return max((run for run in runs if run.holds(bound_ms)), key=lambda run: run.rate_per_s, default=None)


def idle_cores(seconds: float) -> float:
    """CPU of all our processes while a warmed query has nothing to do."""
    rows = penstock.generate(KeyedSource(), schema=ROWS, rate=[(1.0, 20_000), (0.0, 0.0)], name="rows")
    with running(count_and_sum(rows)) as query:
        _await_rows(query, "counts", 1)
        time.sleep(3.0)
        meter = CpuMeter([os.getpid()])
        time.sleep(seconds)
        return meter.read().cores


def _await_rows(query: Any, operator: str, rows: int, timeout_s: float = 240.0) -> float:
    """Wait until an operator has committed more than `rows` rows; return when."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if query.exception() is not None:
            raise query.exception()
        if query.lastProgress["operators"][operator]["rowsIn"] > rows:
            return time.monotonic()
        time.sleep(0.02)
    raise TimeoutError(f"'{operator}' took in no more than {rows} rows in {timeout_s} s")
