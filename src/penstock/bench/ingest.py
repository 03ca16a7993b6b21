"""Through ingest: the streaming DataFrame that plain Spark reads in this bench, fed to our operators.

Reported, without a target. Rates are of prepared batches, the last half of each size.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import penstock
from penstock.bench import ours
from penstock.bench.matching_ours import MAX_EPOCH_S
from penstock.bench.spark_baseline import STEADY_PER_S, short
from penstock.bench.spark_feed import (
    PARTS,
    OpenLoopFeed,
    RowSpec,
    Workspace,
    prepare_batches,
    prepare_every_key,
    workspace,
    write_in_order,
)
from penstock.bench.spark_peer import DEFAULT_ROWS, UNIFORM_10M, read_rows
from penstock.bench.targets import INGEST
from penstock.workloads.exchange import matching
from penstock.workloads.exchange_orders import ORDER_DDL, WARM_UP_ORDERS, orders

Sizes = Sequence[tuple[int, int]]
Figures = dict[str, float]

ORDER_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class Taken:
    """What went through in batches of one size."""

    rows_per_batch: int
    rate_per_s: float
    mean_ms: float


def through_ingest(seconds: float, batches: int, whole: bool = True) -> Iterator[Figures]:
    """Measure everything again through ingest; yield figures as they come.

    Args:
        seconds: for which a steady rate is watched.
        batches: of the smallest size; larger ones get fewer.
        whole: also 10 million keys and order matching.
    """
    fewer, fewest = max(4, batches // 2), max(3, batches // 4)
    sizes = [(100_000, batches), (1_000_000, fewer), (4_000_000, fewest)]
    for taken in _take_keyed(ours.count_and_sum, sizes):
        yield _named(f"ours_aggregate_{short(taken.rows_per_batch)}", taken)
    for taken in _take_keyed(ours.row_count, sizes[:2]):
        yield _named(f"ours_row_function_{short(taken.rows_per_batch)}", taken)
    if whole:
        for taken in _take_keyed(ours.count_and_sum, [(1_000_000, fewer)], UNIFORM_10M, every_key=True):
            yield _named("ours_10m_keys", taken)
        yield _named("ours_matching", _take_orders(2 * batches))
    yield _steady(ours.count_and_sum, "counts", "ours_latency_20k", seconds)
    yield _steady(ours.two_operators, "second", "ours_latency_two_operators_20k", seconds)


def _named(name: str, taken: Taken) -> Figures:
    return {
        f"{name}_per_s{INGEST}": taken.rate_per_s,
        f"{name}_mean_latency_ms{INGEST}": taken.mean_ms,
    }


def _take_keyed(
    build: ours.Build, sizes: Sizes, spec: RowSpec = DEFAULT_ROWS, every_key: bool = False
) -> Iterator[Taken]:
    with workspace() as space:
        first = prepare_every_key(space, spec.keys, 1_000_000) if every_key else 0
        for rows, batches in sizes:
            prepare_batches(space, spec, rows, batches, first=first)
            first += batches
        with ours.running(build(_rows_of(space, PARTS))) as query:
            yield from _take(query, "counts", spec.keys if every_key else 0, sizes)


def _rows_of(space: Workspace, files: int | None, stamp: str | None = None) -> penstock.Stream:
    frame = read_rows(penstock.session(), str(space.rows), files)
    return penstock.from_dataframe(frame, name="rows", stamp=stamp)


def _take_orders(batches: int) -> Taken:
    """Match orders that come as a streaming DataFrame, on warm books."""
    warm = -(-2 * WARM_UP_ORDERS // ORDER_BATCH_ROWS)
    share = ORDER_BATCH_ROWS // PARTS
    with workspace() as space:
        for number in range((warm + batches) * PARTS):
            write_in_order(space.rows / f"{number:06d}.parquet", orders(number * share, share), number)
        reader = penstock.session().readStream.schema(ORDER_DDL).option("maxFilesPerTrigger", PARTS)
        placed = penstock.from_dataframe(reader.parquet(str(space.rows)), name="orders")
        # The very operator of the exchange, on another source.
        reports = penstock.Stream(dataclasses.replace(matching().node, inputs=(placed.node,)))
        with ours.running(reports, maxEpochSeconds=MAX_EPOCH_S) as query:
            return next(_take(query, "matching", warm * ORDER_BATCH_ROWS, [(ORDER_BATCH_ROWS, batches)]))


def _take(query: Any, operator: str, skip_rows: int, sizes: Sizes) -> Iterator[Taken]:
    done = skip_rows
    for rows, batches in sizes:
        began, before = _reach(query, operator, done + rows * (batches // 2))
        done += rows * batches
        ended, after = _reach(query, operator, done)
        rate = (after - before) / (ended - began) if after > before else 0.0
        latency = query.latency(operator, began)
        if not rate or latency is None:
            raise TimeoutError(
                f"'{operator}' took in all batches of {rows:,} rows at once; ask for more of them"
            )
        yield Taken(rows, rate, derive_latency_ms(1e3 * rows / rate, latency.mean_ms))


def derive_latency_ms(interval_ms: float, measured_ms: float) -> float:
    """Return the mean latency of rows that are produced at exactly the rate that went through.

    They wait half an interval for their batch, and then until the operator commits them. That was measured from
    the start of the batch; but prepared batches may pile up before an operator, which at this rate they would
    not: there, a batch and its epochs take one interval each at most.
    """
    return 0.5 * interval_ms + min(measured_ms, 2 * interval_ms)


def _reach(query: Any, operator: str, rows: int) -> tuple[float, int]:
    """Wait until an operator has committed so many rows; return when, and how many they were by then."""
    ours.await_rows(query, operator, rows - 1)
    reached = query.lastProgress["operators"][operator]["rowsIn"]
    return time.monotonic(), int(reached)


@contextmanager
def _fed(feed: OpenLoopFeed) -> Iterator[None]:
    feed.start()
    try:
        yield
    finally:
        feed.stop()


def _steady(
    build: Callable[[penstock.Stream], penstock.Stream], operator: str, name: str, seconds: float
) -> Figures:
    with workspace() as space:
        feed = OpenLoopFeed(space, DEFAULT_ROWS, STEADY_PER_S, stamped=True)
        with ours.running(build(_rows_of(space, None, "stamp"))) as query, _fed(feed):
            ours.await_rows(query, operator, int(STEADY_PER_S))
            time.sleep(2.0)
            since = time.monotonic()
            time.sleep(seconds)
            latency = query.latency(operator, since)
    if latency is None:
        raise TimeoutError(f"'{operator}' committed nothing in {seconds:.0f} s")
    return {f"{name}_mean_ms{INGEST}": latency.mean_ms, f"{name}_p99_ms{INGEST}": latency.p99_ms}
