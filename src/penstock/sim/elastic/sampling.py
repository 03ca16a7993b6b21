"""What a data plane would have counted: samples of a simulation. The truth stays in `truth`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64, ExecutorSample, NodeSample, Sample, TaskSample
from penstock.sim.elastic.flow import Flow
from penstock.sim.elastic.placement import Placed, Placement


class Sampler:
    """Makes samples; remembers only what is counted since the last one."""

    def __init__(self, placement: Placement, flow: Flow, quantile: float | None = None) -> None:
        self._placement, self._flow, self._quantile = placement, flow, quantile
        self._latencies: dict[str, list[F64]] = {name: [] for name in placement.executors}
        self._end_to_end: list[F64] = []
        self._busy_s: dict[str, dict[int, float]] = {}
        self._at_s = 0.0
        self._kept: dict[str, npt.NDArray[np.int32]] = {}
        self._declared = {node.name: node.speed for node in placement.nodes.values()}
        self._state = {
            name: np.where(placed.task_of >= 0, placed.queues.operator.shard_bytes(), 0)
            for name, placed in placement.executors.items()
        }

    def note(self, executor: str, latency_s: F64) -> None:
        self._latencies[executor].append(latency_s)

    def note_end_to_end(self, latency_s: F64) -> None:
        self._end_to_end.append(latency_s)

    def sample(self, now_s: float, treating: bool) -> Sample:
        executors = {name: self._executor(placed) for name, placed in self._placement.executors.items()}
        nodes = self._nodes(executors, now_s - self._at_s)
        self._at_s = now_s
        mean, p99, quantiles = _latency(self._end_to_end, self._quantile)
        if self._flow.roots is None:
            only = next(iter(executors.values()))
            mean, p99, quantiles = only.latency_s, only.latency_p99_s, only.latency_quantiles_s
        return Sample(
            now_s,
            executors,
            nodes,
            {("source", name): rows for name, rows in self._flow.source_rows.items()} | self._flow.edge_rows,
            {"source": sum(self._flow.source_rows.values())},
            treating,
            mean,
            p99,
            quantiles,
        )

    def _executor(self, placed: Placed) -> ExecutorSample:
        totals, row_bytes = placed.queues.totals, placed.queues.operator.row_bytes
        mean, p99, quantiles = _latency(self._latencies[placed.name], self._quantile)
        busy, rows = totals.task_busy_s.tolist(), totals.task_rows.tolist()
        done = sum(rows)
        return ExecutorSample(
            placed.operator,
            self._task_of(placed),
            totals.arrived.copy(),
            totals.completed.copy(),
            totals.busy_s.copy(),
            self._state[placed.name],
            tuple(
                TaskSample(task, node, busy[task], rows[task])
                for task, node in sorted(placed.tasks.items())
                if task in placed.queues.lanes
            ),
            totals.epochs,
            totals.epochs_s,
            totals.longest_task_s,
            totals.touched_shards,
            done * row_bytes,
            done * row_bytes,
            brought_bytes=placed.brought_bytes,
            latency_s=mean,
            latency_p99_s=p99,
            latency_quantiles_s=quantiles,
        )

    def _task_of(self, placed: Placed) -> npt.NDArray[np.int32]:
        """Return a copy of where shards are, the same one as long as they stay: whoever compares sees that at once."""
        kept = self._kept.get(placed.name)
        if kept is None or not np.array_equal(kept, placed.task_of):
            kept = self._kept[placed.name] = placed.task_of.copy()
        return kept

    def _nodes(self, executors: dict[str, ExecutorSample], passed_s: float) -> dict[str, NodeSample]:
        busy_s = dict.fromkeys(self._placement.nodes, 0.0)
        for name, one in executors.items():
            before = self._busy_s.get(name, {})
            self._busy_s[name] = now = {task.index: task.busy_s for task in one.tasks}
            for task in one.tasks:
                busy_s[task.node] += now[task.index] - before.get(task.index, now[task.index])
        return {
            name: NodeSample(
                name,
                node.cores,
                min(1.0, busy_s[name] / (node.cores * passed_s)) if passed_s > 0 else 0.0,
                speed=self._declared.get(name, 1.0),
            )
            for name, node in self._placement.nodes.items()
        }


def _latency(
    parts: list[F64], quantile: float | None
) -> tuple[float | None, float | None, Mapping[float, float]]:
    """Return mean, p99 and one more quantile of latencies, and forget them; None where there are none."""
    if not parts:
        return None, None, {}
    found = parts[0] if len(parts) == 1 else np.concatenate(parts)  # ours to put in another order
    parts.clear()
    place = min(len(found) - 1, int(0.99 * len(found)))
    mean_s = float(np.add.reduce(found)) / len(found)
    found.partition(place)
    p99_s = float(found[place])
    if quantile is None:
        return mean_s, p99_s, {}
    place = min(len(found) - 1, int(quantile * len(found)))
    found.partition(place)
    return mean_s, p99_s, {quantile: float(found[place])}
