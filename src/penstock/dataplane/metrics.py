"""Every metric of a query: each defined once, with its unit, its sentence and how it is read off the engine.

Progress is made from these tables and docs/metrics.md is written from them, so that neither can lag behind the
other. Reads the engine; changes nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.dataplane.engine import Engine
from penstock.dataplane.latency import Latency
from penstock.dataplane.program import operator_of
from penstock.dataplane.records import IDLE_US
from penstock.dataplane.run import Run
from penstock.dataplane.sojourns import Success
from penstock.dataplane.standing import waiting_rows

WINDOW_S = 5.0
"""Over which rates and latencies are taken."""

L = TypeVar("L")


@dataclass(frozen=True)
class Metric(Generic[L]):
    """One figure of a progress report."""

    name: str
    kind: str
    """counter (since the checkpoint began), counter since start, or gauge"""
    unit: str
    meaning: str
    read: Callable[[L], Any]
    together: Callable[[Sequence[Any]], Any] = sum
    """What the figures of several executors of an operator come to."""

    @property
    def counts(self) -> bool:
        """Whether it only grows."""
        return self.kind.startswith("counter")


def least(found: Sequence[Any]) -> Any:
    """Return the least of all, None where one is not known."""
    return None if None in found else min(found)


def greatest(found: Sequence[Any]) -> Any:
    """Return the greatest of those that are known."""
    return max((one for one in found if one is not None), default=None)


@dataclass(frozen=True)
class QueryLook:
    """One look at a whole query."""

    engine: Engine
    log_s: float = 0.0
    log_appends: int = 0


@dataclass(frozen=True)
class StageLook:
    """One look at a stage."""

    engine: Engine
    run: Run
    now: float

    @cached_property
    def latency(self) -> Latency | None:
        return self.engine.latency[self.run.spec.name].since(self.now - WINDOW_S)

    @cached_property
    def own_latency(self) -> Latency | None:
        return self.run.counts.sojourns.log.since(self.now - WINDOW_S)

    @property
    def sla_success(self) -> float | None:
        """Share of (shard, window) pairs that met the bound that is held; None where none is."""
        found = success_of(self.engine, operator_of(self.run.spec.name), self.now)
        return found.ratio if found is not None else None

    @property
    def rows_per_s(self) -> float:
        return round(self.latency.rows / WINDOW_S, 1) if self.latency else 0.0

    @property
    def due_rows(self) -> int:
        """Rows of a native source that have arrived by the clock; those taken in, for any other one."""
        due = self.engine.sources.due_now().get(self.run.spec.name)
        return self.run.chain.rows_out if due is None else max(due, self.run.chain.offset)

    @property
    def behind_rows(self) -> int:
        due = self.engine.sources.due_now().get(self.run.spec.name)
        return max(0, due - self.run.chain.offset) if due is not None else 0

    @property
    def watermark_us(self) -> int | None:
        """The watermark, unless there is none or all that would move it is idle or has ended."""
        mark = self.run.chain.watermark_us
        return None if mark is None or mark >= IDLE_US else mark

    @property
    def waiting_rows(self) -> int:
        chain, waiting = self.run.chain, self.engine.chains.waiting(self.run.chain)
        if not self.engine.chains.is_plain:
            return int(waiting_rows(chain.groups, waiting, chain.spec.shards).sum())
        return sum(item.rows for queue in waiting.values() for item in queue)


def success_of(engine: Engine, stage: str, now: float) -> Success | None:
    """Return how many (shard, window) pairs of a stage met the bound that is held; None where none is."""
    counts = [run.counts for run in engine.runs_of(stage)]  # whose executors are judged as one
    pairs = counts[0].sojourns.pairs
    waiting = np.any([one.arrived > one.completed for one in counts], axis=0)
    return pairs.success(now, waiting) if pairs is not None else None


QUERY: Sequence[Metric[QueryLook]] = (
    Metric("generation", "gauge", "", "driver generation that holds the checkpoint", lambda q: q.engine.generation),
    Metric("leases", "gauge", "leases", "leases held", lambda q: len(q.engine.leases)),
    Metric(
        "waitingBytes", "gauge", "bytes", "published in channels and not consumed",
        lambda q: q.engine.chains.waiting_bytes(),
    ),
    Metric(
        "driverMsPerEpoch", "gauge", "ms", "CPU time of the driver per epoch, smoothed",
        lambda q: round(q.engine.pace.driver_s_per_epoch * 1e3, 4),
    ),
    Metric("logSeconds", "counter since start", "s", "time spent on appending records", lambda q: round(q.log_s, 6)),
    Metric("logAppends", "counter since start", "appends", "appends to the log", lambda q: q.log_appends),
)  # fmt: skip

STAGE: Sequence[Metric[StageLook]] = (
    Metric(
        "epoch", "counter", "epochs", "number of the last committed epoch", lambda s: s.run.chain.epoch, greatest
    ),
    Metric("epochs", "counter since start", "epochs", "epochs committed", lambda s: s.run.epochs),
    Metric("rowsIn", "counter", "rows", "rows taken in", lambda s: s.run.chain.rows_in),
    Metric("rowsOut", "counter", "rows", "rows put out", lambda s: s.run.chain.rows_out),
    Metric(
        "epochMs", "gauge", "ms", "last epoch, from dispatch to commit", lambda s: round(s.run.epoch_s * 1e3, 3),
        greatest,
    ),
    Metric(
        "epochSeconds", "counter since start", "s", "all epochs, from dispatch to commit",
        lambda s: round(s.run.epochs_s, 6),
    ),
    Metric("busySeconds", "counter since start", "s", "work of all tasks", lambda s: round(s.run.busy_s, 6)),
    Metric(
        "syncSeconds", "counter since start", "s", "time tasks waited for the disk", lambda s: round(s.run.sync_s, 6)
    ),
)  # fmt: skip

INPUT: Sequence[Metric[StageLook]] = (
    Metric("rows", "counter", "rows", "rows committed to its channels", lambda s: s.run.chain.rows_out),
    Metric("rowsPerSecond", "gauge", "rows/s", "rows committed, over the last 5 s", lambda s: s.rows_per_s),
    Metric(
        "behindRows", "gauge", "rows", "rows of a native source that have arrived and are not committed",
        lambda s: s.behind_rows,
    ),
    Metric(
        "blocked", "gauge", "", "whether it waits because too much waits downstream", lambda s: s.run.blocked
    ),
)  # fmt: skip

OPERATOR: Sequence[Metric[StageLook]] = (
    Metric("rowsPerSecond", "gauge", "rows/s", "rows committed, over the last 5 s", lambda s: s.rows_per_s),
    Metric(
        "latencyMeanMs", "gauge", "ms", "from arrival at the source to commit, mean of the last 5 s",
        lambda s: round(s.latency.mean_ms, 3) if s.latency else None, greatest,
    ),
    Metric(
        "latencyP99Ms", "gauge", "ms", "from arrival at the source to commit, 99th percentile of the last 5 s",
        lambda s: round(s.latency.p99_ms, 3) if s.latency else None, greatest,
    ),
    Metric(
        "ownLatencyMeanMs", "gauge", "ms",
        "from arrival at the operator (at the source, where a source feeds it) to commit, mean of the last 5 s",
        lambda s: round(s.own_latency.mean_ms, 3) if s.own_latency else None, greatest,
    ),
    Metric(
        "ownLatencyP99Ms", "gauge", "ms", "the same, 99th percentile of the last 5 s",
        lambda s: round(s.own_latency.p99_ms, 3) if s.own_latency else None, greatest,
    ),
    Metric(
        "slaSuccessRatio", "gauge", "",
        "share of (shard, window) pairs that met the SLA since it is held; null without one",
        lambda s: round(s.sla_success, 6) if s.sla_success is not None else None, greatest,
    ),
    Metric("stateBytes", "gauge", "bytes", "state of all its keys", lambda s: s.run.state_bytes),
    Metric(
        "tasks", "gauge", "tasks", "tasks that have a lease",
        lambda s: sum(1 for slot in s.run.slots.values() if slot.lease is not None),
    ),
    Metric(
        "waitingRows", "gauge", "rows", "published for it and not taken by all of its shards",
        lambda s: s.waiting_rows,
    ),
    Metric(
        "watermark", "gauge", "UTC", "event time that it has reached, where there is any; the least of its shards",
        lambda s: iso_time(s.watermark_us / 1e6) if s.watermark_us is not None else None, least,
    ),
    Metric("lateRows", "counter", "rows", "rows left out because they were late", lambda s: s.run.chain.late_rows),
    Metric("deadRows", "counter", "rows", "calls that ended as dead letters", lambda s: s.run.chain.dead_rows),
    Metric("shards", "gauge", "shards", "hash buckets of its keys", lambda s: len(s.run.chain.shards())),
    Metric(
        "shardsReady", "gauge", "shards", "shards whose state is present on a node", lambda s: int(s.run.ready.sum())
    ),
    Metric(
        "positionGroups", "gauge", "groups", "groups of shards that stand at different positions",
        lambda s: len(s.run.chain.groups),
    ),
)  # fmt: skip

OUTPUT: Sequence[Metric[StageLook]] = (
    Metric("rowsIn", "counter since start", "rows", "rows handed to the sink", lambda s: s.run.sunk_rows),
)


@dataclass(frozen=True)
class Field:
    """One field of a report that has Spark's name, and what it means here."""

    name: str
    meaning: str


SPARK: Mapping[str, Sequence[Field]] = {
    "report": (
        Field("id", "of the query, the same across restarts"),
        Field("runId", "of this start"),
        Field("name", "the `queryName`, or null"),
        Field("timestamp", "when the report was made, UTC"),
        Field("batchId", "last sink epoch that is done"),
        Field("batchDuration", "the longest last epoch of any stage, ms; `durationMs.triggerExecution` too"),
        Field("numInputRows", "rows that all sources committed since the report before"),
        Field("inputRowsPerSecond", "rows that arrived at all sources, per second"),
        Field(
            "processedRowsPerSecond",
            "rows that all sources committed, per second; less while they are blocked",
        ),
        Field(
            "durationMs",
            "`triggerExecution`; `addBatch`: last sink epoch; `walCommit`: mean append of records",
        ),
        Field("eventTime", "`watermark`: the least of all operators, where there is one"),
        Field("stateOperators", "a list, one per operator"),
        Field("sources", "a list, one per source"),
        Field("sink", "the sink"),
        Field("observedMetrics", "empty"),
    ),
    "stateOperators": (
        Field("operatorName", "the operator's name"),
        Field("numRowsTotal", "-1: keys are not counted"),
        Field("numRowsUpdated", "rows taken in since the report before"),
        Field("numRowsRemoved", "-1: not counted"),
        Field("allUpdatesTimeMs", "work of its tasks since the report before"),
        Field("allRemovalsTimeMs", "0: part of the work"),
        Field("commitTimeMs", "time its tasks waited for the disk since the report before"),
        Field("memoryUsedBytes", "its state"),
        Field("numRowsDroppedByWatermark", "late rows since the report before"),
        Field("numShufflePartitions", "its shards"),
        Field("numStateStoreInstances", "its tasks that have a lease"),
        Field("customMetrics", "`latencyMeanMs`, `latencyP99Ms`, `waitingRows`, whole numbers"),
    ),
    "sources": (
        Field("description", "kind and name, such as `generate[orders]`"),
        Field(
            "startOffset", "where it stood at the report before: a row number, or the number of a Spark batch"
        ),
        Field("endOffset", "where it stands"),
        Field("latestOffset", "where it would stand if nothing held it up"),
        Field("numInputRows", "rows committed since the report before"),
        Field("inputRowsPerSecond", "rows that arrived, per second"),
        Field("processedRowsPerSecond", "rows committed, per second"),
        Field("metrics", "`behindRows` and `blocked`, as words"),
    ),
    "sink": (
        Field("description", "its kind"),
        Field("numOutputRows", "rows handed to it since the report before"),
        Field("metrics", "empty"),
    ),
}
"""The fields of a report with Spark's names; `penstock.spark.progress` fills exactly these."""


def iso_time(seconds: float) -> str:
    """Return a time stamp as Spark writes it, such as 2026-01-31T12:00:00.123Z."""
    return (
        dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def read_all(metrics: Sequence[Metric[L]], look: L) -> dict[str, Any]:
    """Return the metrics of one table as of one look."""
    return {metric.name: metric.read(look) for metric in metrics}


def read_together(
    metrics: Sequence[Metric[StageLook]], looks: Sequence[StageLook], every: Sequence[StageLook]
) -> dict[str, Any]:
    """Return the metrics of an operator as its executors together give them.

    Args:
        looks: at its executors.
        every: at those too that have no shards any more, whose counts would else be lost.
    """
    return {
        metric.name: metric.together([metric.read(look) for look in (every if metric.counts else looks)])
        for metric in metrics
    }


def metrics_table(metrics: Sequence[Metric[Any]]) -> str:
    """Return the reference of some metrics, as a table in Markdown."""
    head = ["| metric | kind | unit | meaning |", "|---|---|---|---|"]
    rows = [f"| `{one.name}` | {one.kind} | {one.unit} | {one.meaning} |" for one in metrics]
    return "\n".join([*head, *rows]) + "\n"


def fields_table(fields: Sequence[Field]) -> str:
    """Return the reference of some fields with Spark's names, as a table in Markdown."""
    return (
        "\n".join(["| field | here |", "|---|---|", *(f"| `{one.name}` | {one.meaning} |" for one in fields)])
        + "\n"
    )
