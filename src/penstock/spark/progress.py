"""Progress as JSON-able facts: Spark's names where Spark has one, ours beside them. Reads the engine on the
hub's thread."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

from penstock.dataplane.engine import Engine
from penstock.dataplane.run import Run

if TYPE_CHECKING:
    from penstock.spark.query import Query

_WINDOW_S = 5.0


def progress_of(engine: Engine, query: Query, log: tuple[float, int] = (0.0, 0)) -> dict[str, Any]:
    """Return the state of every stage as of now.

    Args:
        log: seconds spent on appending records so far, and how many appends that were.
    """
    now = time.monotonic()
    stages = engine.runs
    return {
        "id": query.id,
        "runId": query.runId,
        "name": query.name,
        "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "generation": engine.generation,
        "leases": len(engine.leases),
        "waitingBytes": engine.chains.waiting_bytes(),
        "driverMsPerEpoch": round(engine.pace.driver_s_per_epoch * 1e3, 4),
        "logSeconds": round(log[0], 6),
        "logAppends": log[1],
        "sources": {n: _source(engine, r, now) for n, r in stages.items() if r.spec.kind == "source"},
        "operators": {n: _operator(engine, r, now) for n, r in stages.items() if r.spec.kind == "operator"},
        "sinks": {
            n: {**_stage(r), "rowsIn": r.sunk_rows} for n, r in stages.items() if r.spec.kind == "sink"
        },
    }


def _stage(run: Run) -> dict[str, Any]:
    return {
        "epoch": run.chain.epoch,
        "epochs": run.epochs,
        "rowsIn": run.chain.rows_in,
        "rowsOut": run.chain.rows_out,
        "epochMs": round(run.epoch_s * 1e3, 3),
        "epochSeconds": round(run.epochs_s, 6),
        "busySeconds": round(run.busy_s, 6),
        "syncSeconds": round(run.sync_s, 6),
    }


def _source(engine: Engine, run: Run, now: float) -> dict[str, Any]:
    latency = engine.latency[run.spec.name].since(now - _WINDOW_S)
    due = engine.due_now().get(run.spec.name)
    return {
        **_stage(run),
        "rows": run.chain.rows_out,
        "rowsPerSecond": round(latency.rows / _WINDOW_S, 1) if latency else 0.0,
        "behindRows": max(0, due - run.chain.offset) if due is not None else 0,
        "blocked": run.blocked,
    }


def _operator(engine: Engine, run: Run, now: float) -> dict[str, Any]:
    latency = engine.latency[run.spec.name].since(now - _WINDOW_S)
    waiting = engine.chains.waiting(run.chain)
    return {
        **_stage(run),
        "rowsPerSecond": round(latency.rows / _WINDOW_S, 1) if latency else 0.0,
        "latencyMeanMs": round(latency.mean_ms, 3) if latency else None,
        "latencyP99Ms": round(latency.p99_ms, 3) if latency else None,
        "stateBytes": run.state_bytes,
        "tasks": sum(1 for slot in run.slots if slot.lease is not None),
        "waitingRows": sum(item.rows for queue in waiting.values() for item in queue),
        "shards": run.spec.shards,
        "shardsReady": int(run.ready.sum()),
        "positionGroups": len(run.chain.groups),
    }
