"""Progress reports: what Spark's StreamingQueryProgress has, and our figures of every stage beside it.

A report is a real `StreamingQueryProgress`, so that code written for Spark reads it; ours stand in it under
`inputs`, `operators` and `outputs`, by name. Counters that Spark gives per trigger are given since the report before.
Reads the engine on the hub's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.dataplane.compile import SINK
from penstock.dataplane.engine import Engine
from penstock.dataplane.metrics import (
    INPUT,
    OPERATOR,
    OUTPUT,
    QUERY,
    STAGE,
    WINDOW_S,
    QueryLook,
    StageLook,
    iso_time,
    read_all,
    read_together,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

MIN_SPAN_S = 0.5
"""Shortest time over which a rate is worth telling."""


@dataclass(frozen=True)
class Identity:
    """What a report says of the query itself."""

    id: str
    run_id: str
    name: str | None
    sink: str = ""
    kinds: dict[str, str] = field(default_factory=dict)
    """What each source is: generate or dataframe."""


@dataclass(frozen=True)
class Reading:
    """The counters of all stages at one moment."""

    at: float
    facts: dict[str, Any]
    due: dict[str, int]
    """Rows that have arrived at each source."""
    offsets: dict[str, int]

    def of(self, stage: str, counter: str) -> float:
        for part in ("inputs", "operators", "outputs"):
            if stage in self.facts[part]:
                return float(self.facts[part][stage].get(counter, 0))
        return 0.0


def take_reading(engine: Engine, log: tuple[float, int] = (0.0, 0)) -> Reading:
    """Read all metrics off the engine.

    Args:
        log: seconds spent on appending records so far, and how many appends that were.
    """
    now = time.monotonic()
    looks = {name: StageLook(engine, engine.runs[name], now) for name in engine.program.stages}
    tables = {"source": INPUT, "operator": OPERATOR, "sink": OUTPUT}
    facts: dict[str, Any] = read_all(QUERY, QueryLook(engine, *log))
    facts |= {"control": None, "inputs": {}, "operators": {}, "outputs": {}}
    parts = {"source": "inputs", "operator": "operators", "sink": "outputs"}
    for name, look in looks.items():
        kind = look.run.spec.kind
        told = _executors(engine, name, now) if len(engine.runs_of(name)) > 1 else None
        facts[parts[kind]][name] = told or read_all(STAGE, look) | read_all(tables[kind], look)
    sources = {name: look for name, look in looks.items() if look.run.spec.kind == "source"}
    due = {name: look.due_rows for name, look in sources.items()}
    return Reading(now, facts, due, {name: _offset(look) for name, look in sources.items()})


def _executors(engine: Engine, operator: str, now: float) -> dict[str, Any]:
    """An operator as all its executors together give it, and each of those that has shards below it. What one did before
    its shards went to another still counts."""
    every = [StageLook(engine, run, now) for run in engine.runs_of(operator)]
    looks = [look for look in every if look.run.chain.groups]
    told = read_together(STAGE, looks, every) | read_together(OPERATOR, looks, every)
    latency = engine.latency_since(operator, now - WINDOW_S)
    if latency is not None:
        told |= {
            "rowsPerSecond": round(latency.rows / WINDOW_S, 1),
            "latencyMeanMs": round(latency.mean_ms, 3),
            "latencyP99Ms": round(latency.p99_ms, 3),
        }
    each = {look.run.spec.name: read_all(STAGE, look) | read_all(OPERATOR, look) for look in looks}
    return told | {"executors": each}


def _offset(look: StageLook) -> int:
    chain = look.run.chain
    if look.run.spec.ingested:
        return chain.batch.number if chain.batch is not None else -1
    return chain.offset


def make_report(now: Reading, before: Reading | None, identity: Identity) -> StreamingQueryProgress:
    """Return what happened between two readings, in Spark's shape, and all of ours as of the later one."""
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    report = StreamingQueryProgress.fromJson({**_spark_shaped(now, before, identity), **now.facts})
    report.update(now.facts)
    return report


def _spark_shaped(now: Reading, before: Reading | None, identity: Identity) -> dict[str, Any]:
    span_s = max(now.at - before.at, 1e-3) if before is not None else 1.0
    sources = [_source(name, now, before, span_s, identity) for name in now.facts["inputs"]]
    sink = now.facts["outputs"].get(SINK, {})
    stages = [facts for part in ("inputs", "operators", "outputs") for facts in now.facts[part].values()]
    longest = round(max((facts["epochMs"] for facts in stages), default=0.0))
    appends = now.facts["logAppends"] - (before.facts["logAppends"] if before else 0)
    log_s = now.facts["logSeconds"] - (before.facts["logSeconds"] if before else 0.0)
    marks = [
        facts["watermark"] for facts in now.facts["operators"].values() if facts["watermark"] is not None
    ]
    return {
        "id": identity.id,
        "runId": identity.run_id,
        "name": identity.name,
        "timestamp": iso_time(time.time()),
        "batchId": sink.get("epoch", 0),
        "batchDuration": longest,
        "numInputRows": sum(one["numInputRows"] for one in sources),
        "inputRowsPerSecond": round(sum(one["inputRowsPerSecond"] for one in sources), 1),
        "processedRowsPerSecond": round(sum(one["processedRowsPerSecond"] for one in sources), 1),
        "durationMs": {
            "triggerExecution": longest,
            "addBatch": round(sink.get("epochMs", 0.0)),
            "walCommit": round(log_s * 1e3 / max(1, appends)),
        },
        "eventTime": {"watermark": min(marks)} if marks else {},
        "stateOperators": [_operator(name, now, before) for name in now.facts["operators"]],
        "sources": sources,
        "sink": {
            "description": identity.sink,
            "numOutputRows": round(_grown(SINK, "rowsIn", now, before)),
            "metrics": {},
        },
        "observedMetrics": {},
    }


def _source(
    name: str, now: Reading, before: Reading | None, span_s: float, identity: Identity
) -> dict[str, Any]:
    facts = now.facts["inputs"][name]
    rows = round(_grown(name, "rows", now, before))
    arrived = now.due[name] - (before.due[name] if before is not None else 0)
    ends = now.offsets[name]
    behind = facts["behindRows"]
    return {
        "description": f"{identity.kinds.get(name, 'source')}[{name}]",
        "startOffset": {name: before.offsets[name] if before is not None else 0},
        "endOffset": {name: ends},
        "latestOffset": {name: ends + behind},
        "numInputRows": rows,
        "inputRowsPerSecond": round(arrived / span_s, 1),
        "processedRowsPerSecond": round(rows / span_s, 1),
        "metrics": {"behindRows": str(behind), "blocked": str(facts["blocked"]).lower()},
    }


def _operator(name: str, now: Reading, before: Reading | None) -> dict[str, Any]:
    facts = now.facts["operators"][name]
    return {
        "operatorName": name,
        "numRowsTotal": -1,
        "numRowsUpdated": round(_grown(name, "rowsIn", now, before)),
        "numRowsRemoved": -1,
        "allUpdatesTimeMs": round(_grown(name, "busySeconds", now, before) * 1e3),
        "allRemovalsTimeMs": 0,
        "commitTimeMs": round(_grown(name, "syncSeconds", now, before) * 1e3),
        "memoryUsedBytes": facts["stateBytes"],
        "numRowsDroppedByWatermark": round(_grown(name, "lateRows", now, before)),
        "numShufflePartitions": facts["shards"],
        "numStateStoreInstances": facts["tasks"],
        "customMetrics": {
            "latencyMeanMs": round(facts["latencyMeanMs"] or 0),
            "latencyP99Ms": round(facts["latencyP99Ms"] or 0),
            "waitingRows": facts["waitingRows"],
        },
    }


def _grown(stage: str, counter: str, now: Reading, before: Reading | None) -> float:
    return now.of(stage, counter) - (before.of(stage, counter) if before is not None else 0.0)
