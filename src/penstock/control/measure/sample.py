"""What a data plane has counted by one moment: running totals and the present placement. No smoothing, no opinion.

Totals only ever grow, so that a lost sample loses nothing but resolution; whoever wants a rate takes two samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TaskSample:
    """One task of an elastic executor: a core, the node it is on, and what it has done."""

    index: int
    node: str
    busy_s: float
    """Total useful time: working on rows, not waiting for them."""
    rows: int
    """Total rows it has completed."""
    cpu_ratio: float | None = None
    """Share of what its node was given that it uses; None where it is not measured."""
    memory_ratio: float | None = None
    io_ratio: float | None = None


@dataclass(frozen=True)
class ExecutorSample:
    """One elastic executor. Arrays are by shard of the operator; shards of other executors hold zeros and task -1."""

    operator: str
    task_of: npt.NDArray[np.int32]
    """Shard -> index of the task that has it."""
    arrived: I64
    """a[m]: rows that have arrived, per shard (StreamSwitch 4.1)."""
    completed: I64
    """c[m]: rows whose epoch is committed, per shard."""
    busy_s: F64
    """Useful time spent on each shard."""
    state_bytes: I64
    tasks: tuple[TaskSample, ...]
    epochs: int = 0
    epochs_s: float = 0.0
    """Total time of all epochs, from their start to their commit."""
    longest_task_s: float = 0.0
    """Total, over all epochs, of the time that the busiest task of each was at work."""
    touched_shards: int = 0
    """Total, over all epochs, of the shards that had rows."""
    in_bytes: int = 0
    out_bytes: int = 0
    remote_bytes: int = 0
    """Bytes that tasks read of what another node wrote."""
    brought_bytes: int = 0
    """State that was copied to another node."""
    latency_s: float | None = None
    """Mean latency of rows committed since the sample before, from their arrival at the executor (at the source, where a
    source feeds it) to their commit; None where there were none."""
    latency_p99_s: float | None = None
    waiting_s: float | None = None
    """Part of `latency_s` before the epoch that took the row began; None where it is not measured."""
    processing_s: float | None = None
    """Part of it in which tasks worked."""
    commit_s: float | None = None
    """Part of it from the end of work to the commit."""
    latency_quantiles_s: Mapping[float, float] = field(default_factory=dict)
    """Quantile -> latency, of the same rows: the quantile that an SLA bounds, where that is none of the others."""


@dataclass(frozen=True)
class NodeSample:
    """One node: the cores it may give, and the share of each resource it was given that is in use."""

    name: str
    cores: int
    cpu_ratio: float = 0.0
    memory_ratio: float = 0.0
    io_ratio: float = 0.0
    speed: float = 1.0
    """Service rate relative to a node of speed 1, as far as it is known."""


@dataclass(frozen=True)
class Sample:
    """All that was counted, at one moment of the data plane's own clock."""

    at_s: float
    executors: Mapping[str, ExecutorSample]
    """By executor; an operator with one executor gives it its own name."""
    nodes: Mapping[str, NodeSample]
    edges: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(producer, consumer) operator -> total rows; a source is a producer."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Source -> total rows it has taken in."""
    treating: bool = False
    """Whether a plan is still being carried out."""
    latency_s: float | None = None
    """Mean end-to-end latency of input rows since the sample before."""
    latency_p99_s: float | None = None
    latency_quantiles_s: Mapping[float, float] = field(default_factory=dict)
    paused: bool = False
    """Whether a person has paused the data plane: nothing is done, and that says nothing about rates."""
