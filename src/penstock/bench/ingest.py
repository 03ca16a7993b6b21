"""Through ingest: the streaming DataFrame that plain Spark reads in this bench, fed to our operators.
Reported, without a target."""

from __future__ import annotations

import time

import penstock
from penstock.bench import ours
from penstock.bench.spark_feed import PARTS, OpenLoopFeed, prepare_batches, workspace
from penstock.bench.spark_peer import DEFAULT_ROWS, read_rows

BATCHES = 12


def through_ingest(seconds: float) -> dict[str, float | None]:
    """Return rate at 100,000 and 1 million rows a batch, and latency at 20,000 rows/s."""
    figures: dict[str, float | None] = {}
    for rows, name in ((100_000, "100k"), (1_000_000, "1m")):
        figures[f"ours_aggregate_{name}_per_s_through_ingest"] = _batches(rows)
    figures.update(_steady(20_000.0, 2 * seconds))
    return figures


def _stream(folder: str, files: int | None) -> penstock.Stream:
    frame = read_rows(penstock.session(), folder, files)
    return ours.count_and_sum(penstock.from_dataframe(frame, name="rows"))


def _batches(rows_per_batch: int) -> float:
    with workspace() as space:
        prepare_batches(space, DEFAULT_ROWS, rows_per_batch, BATCHES)
        with ours.running(_stream(str(space.rows), PARTS)) as query:
            half = rows_per_batch * BATCHES // 2
            began = ours._await_rows(query, "counts", half - 1)
            first = query.lastProgress["operators"]["counts"]["rowsIn"]
            ended = ours._await_rows(query, "counts", rows_per_batch * BATCHES - 1)
            return float(rows_per_batch * BATCHES - first) / (ended - began)


def _steady(rate_per_s: float, seconds: float) -> dict[str, float | None]:
    with workspace() as space:
        feed = OpenLoopFeed(space, DEFAULT_ROWS, rate_per_s)
        with ours.running(_stream(str(space.rows), None)) as query:
            feed.start()
            try:
                ours._await_rows(query, "counts", int(rate_per_s))
                time.sleep(3.0)
                since = time.monotonic()
                time.sleep(seconds)
                latency = query.latency("counts", since)
            finally:
                feed.stop()
    # The files' stamps are not in their rows, so this latency runs from the start of the batch that read them.
    return {
        "ours_latency_20k_mean_ms_through_ingest": latency.mean_ms if latency else None,
        "ours_latency_20k_p99_ms_through_ingest": latency.p99_ms if latency else None,
    }
