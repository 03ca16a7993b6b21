"""What the control plane is told of a running query: the engine's running totals as a `Sample`. Decides nothing.

Called in the hub's thread, where nothing changes meanwhile; it takes well under a millisecond for a few hundred shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from penstock.control.measure.sample import ExecutorSample, NodeSample, Sample, TaskSample
from penstock.control.sla import END_TO_END, SLA
from penstock.dataplane.engine import Engine
from penstock.dataplane.latency import Latency
from penstock.dataplane.program import operator_of
from penstock.dataplane.run import Lease, Run
from penstock.dataplane.shards import NOBODY
from penstock.dataplane.sojourns import Bound, Pairs


def take_sample(
    engine: Engine, nodes: Iterable[NodeSample], since_s: float, quantile: float | None = None
) -> Sample:
    """Return what was counted up to now.

    Args:
        nodes: as Spark knows them.
        since_s: when the sample before was taken; latency is of rows committed since then.
        quantile: of latency, beside mean and p99: the one that an SLA bounds.
    """
    now = engine.now()
    operators = {
        name: run for name, run in engine.runs.items() if run.spec.kind == "operator" and run.chain.groups
    }
    served = Counter(slot.lease for run in engine.runs.values() for slot in run.slots.values() if slot.lease)
    executors = {name: _executor(engine, run, served, since_s, quantile) for name, run in operators.items()}
    edges: Counter[tuple[str, str]] = Counter()
    for name, run in engine.runs.items():
        for producer, rows in run.counts.arrived_from.items() if run.spec.kind == "operator" else ():
            edges[operator_of(producer), operator_of(name)] += rows
    sources = {name: run.chain.rows_in for name, run in engine.runs.items() if run.spec.kind == "source"}
    # The bound holds for every path, so the slowest end counts.
    last = [engine.latency_since(name, since_s, quantile) for name in engine.program.path_ends()]
    found = [one for one in last if one is not None]
    return Sample(
        now,
        executors,
        {node.name: node for node in nodes},
        edges,
        sources,
        treating=not all(engine.placing.is_settled(name) for name in operators)
        or any(map(engine.redealing.is_under_way, engine.program.stages)),
        latency_s=max(one.mean_ms for one in found) / 1e3 if found else None,
        latency_p99_s=max(one.p99_ms for one in found) / 1e3 if found else None,
        latency_quantiles_s=_quantiles(found, quantile),
        paused=engine.is_paused_by_hand(),
    )


def judge_by(engine: Engine, sla: SLA) -> None:
    """Count from now on which (shard, window) pairs meet an SLA: of every operator, or of those at the end of paths where
    it bounds whole paths. What was counted under the same one goes on."""
    quantile = None if sla.is_mean else float(sla.quantile)
    bound = Bound(sla.latency, sla.window, quantile, sla.scope == END_TO_END)
    judged = engine.program.path_ends() if bound.from_source else list(engine.runs)
    for name in engine.program.stages:
        first, *others = engine.runs_of(name)
        kept = first.counts.sojourns
        if name not in judged or first.spec.kind != "operator":
            kept.pairs = None
        elif kept.pairs is None or kept.pairs.bound != bound:
            kept.pairs = Pairs(first.spec.shards, bound, engine.now())
        for run in others:  # executors of one operator are judged as one
            run.counts.sojourns.pairs = kept.pairs


def _executor(
    engine: Engine, run: Run, served: Mapping[str, int], since_s: float, quantile: float | None
) -> ExecutorSample:
    counts, leases = run.counts, engine.leases
    latency = counts.sojourns.log.since(since_s, quantile=quantile)
    tasks = tuple(
        TaskSample(
            slot.index,
            leases[slot.lease].node,
            counts.task_busy_s.get(slot.index, 0.0),
            counts.task_rows.get(slot.index, 0),
            *_shares(leases[slot.lease], served[slot.lease]),
        )
        for slot in run.slots.values()
        if slot.lease in leases
    )
    chain = run.chain
    goal = run.shards.goal.astype(np.int32)
    return ExecutorSample(
        operator_of(run.spec.name),
        np.where(goal == NOBODY, -1, goal).astype(np.int32),
        counts.arrived.copy(),
        counts.completed.copy(),
        counts.busy_s.copy(),
        (chain.snapshot_bytes + chain.delta_bytes).astype(np.int64),
        tasks,
        counts.epochs,
        counts.epochs_s,
        counts.longest_task_s,
        counts.touched_shards,
        counts.in_bytes,
        counts.out_bytes,
        counts.remote_bytes,
        engine.placing.moves.bytes_of[run.spec.name],
        latency.mean_ms / 1e3 if latency is not None else None,
        latency.p99_ms / 1e3 if latency is not None else None,
        latency_quantiles_s=_quantiles([latency] if latency is not None else [], quantile),
    )


def _shares(lease: Lease, tasks: int) -> tuple[float | None, float | None, float | None]:
    """Return what a task uses of its node: its lease's process; an even part of it where a lease has several tasks."""
    if lease.load is None:
        return None, None, None
    cpu, memory, io = lease.load
    return cpu / tasks, memory / tasks, io / tasks


def _quantiles(found: Sequence[Latency], quantile: float | None) -> dict[float, float]:
    """Return the greatest of a quantile that was asked for, in seconds."""
    known = [one.quantile_ms for one in found if one.quantile_ms is not None]
    return {quantile: max(known) / 1e3} if quantile is not None and known else {}
