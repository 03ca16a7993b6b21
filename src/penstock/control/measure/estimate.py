"""What is believed about rates, loads and latencies: the smoothed form of samples, and the only thing models and
policies look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64, I64


@dataclass(frozen=True)
class EpochCosts:
    """Coefficients of the epoch model: D = (o0 + o1 k + o2 touched shards) / (1 - largest task's load), latency = c D."""

    o0_s: float = 0.004
    o1_s: float = 0.001
    o2_s: float = 0.00005
    c: float = 1.5


@dataclass(frozen=True)
class EpochSpread:
    """How task loads vary within epochs: in each some task is the busiest, and more so than any is on average."""

    imbalance: float = 1.0
    """Load of the busiest task of an epoch over the largest mean load of a task."""
    largest_load: float = 0.0
    """The largest mean load of a task at which that was seen."""
    delta: float = 1.0
    """δ of the mean loads of tasks: the largest over their mean."""


@dataclass(frozen=True)
class TaskEstimate:
    """One task: how many rows it completes in a second of useful time, and how much of its time is useful."""

    index: int
    node: str
    service_per_s: float
    useful_ratio: float = 0.0
    speed: float | None = None
    """Of its node, relative to one of speed 1; None: as its service rate says."""
    cpu_ratio: float = 0.0
    """r of Es-Stream eq. 4: share of what its node was given that it uses."""
    memory_ratio: float = 0.0
    io_ratio: float = 0.0


@dataclass(frozen=True)
class ExecutorEstimate:
    """One elastic executor. Arrays are by shard; shards of other executors hold zeros and task -1."""

    name: str
    operator: str
    task_of: npt.NDArray[np.int32]
    tasks: tuple[TaskEstimate, ...]
    arrival_per_s: F64
    """λ per shard."""
    load: F64
    """Core-seconds per second that each shard needs on a node of speed 1."""
    backlog_rows: F64
    """Rows that have arrived and are not completed."""
    latency_s: F64
    """Instantaneous latency l per shard (StreamSwitch 4.1); NaN where it is not known."""
    state_bytes: I64
    service_per_s: float
    """μ: rows a second of one task on a node of speed 1."""
    scv_arrival: float = 1.0
    """Squared coefficient of variation of inter-arrival times."""
    scv_service: float = 1.0
    measured_s: float | None = None
    """Mean latency of rows from their arrival at the executor to their commit, as measured."""
    measured_p99_s: float | None = None
    epoch: EpochCosts = EpochCosts()
    in_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0
    waiting_s: float | None = None
    """Part of the measured latency before an epoch takes the row."""
    processing_s: float | None = None
    commit_s: float | None = None
    measured_quantiles_s: Mapping[float, float] = field(default_factory=dict)
    """Quantile -> latency as measured: of the quantile that the SLA bounds, beside `measured_p99_s`."""
    spread: EpochSpread = EpochSpread()
    done_per_s: float | None = None
    """Rows a second that were completed; None where they were not counted."""
    lasting_load: F64 | None = None
    """`load` dealt among shards with few rows as it was over minutes, with the same sum; None where that is the same."""
    done_over_s: float | None = None
    """Time over which `done_per_s` was counted."""
    completed_per_s: float | None = None
    """The same, smoothed as the rates of arrivals and edges are, so that they may be compared."""

    @property
    def dealt_load(self) -> F64:
        """Load of each shard to deal shards to tasks by: of one with few rows, chance makes most of `load`."""
        return self.load if self.lasting_load is None else self.lasting_load

    @property
    def k(self) -> int:
        """Cores it holds."""
        return len(self.tasks)

    @property
    def rate_per_s(self) -> float:
        """λ of the whole executor."""
        return float(self.arrival_per_s.sum())

    def task_loads(self) -> F64:
        """Load of each task, in the order of `tasks`, on its own node: core-seconds per second."""
        size = len(self.tasks)
        highest = max((task.index for task in self.tasks), default=-1)
        place = np.full(max(highest, int(self.task_of.max(initial=-1))) + 2, size)  # the last is of no task
        speed = np.ones(size + 1)
        for at, task in enumerate(self.tasks):
            place[task.index], speed[at] = at, max(self._speed(task), 1e-9)
        line = place[self.task_of]
        found = np.bincount(line, self.load / speed[line], size + 1)[:size]
        return found.astype(np.float64, copy=False)

    def task_speeds(self) -> list[float]:
        """Speed of each task's node, in the order of `tasks`."""
        return [self._speed(task) for task in self.tasks]

    def _speed(self, task: TaskEstimate) -> float:
        # A task whose rows are dearer than the mean has a lower service rate and is no slower for it.
        if task.speed is not None:
            return task.speed
        return task.service_per_s / self.service_per_s if self.service_per_s else 1.0


@dataclass(frozen=True)
class NodeEstimate:
    """One node; loads are shares of what it was given."""

    name: str
    cores: int
    cpu_ratio: float = 0.0
    memory_ratio: float = 0.0
    io_ratio: float = 0.0
    speed: float = 1.0

    @property
    def load_ratio(self) -> float:
        """R: the greatest of its three loads (Es-Stream eq. 6)."""
        return max(self.cpu_ratio, self.memory_ratio, self.io_ratio)


@dataclass(frozen=True)
class Estimate:
    """The whole picture at one moment."""

    at_s: float
    executors: Mapping[str, ExecutorEstimate]
    nodes: Mapping[str, NodeEstimate]
    edges: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(producer, consumer) -> rows a second on that edge."""
    sources_per_s: Mapping[str, float] = field(default_factory=dict)
    """λ0: rows a second that each source takes in."""
    latency_s: float | None = None
    """Measured mean end-to-end latency."""
    latency_p99_s: float | None = None
    treating: bool = False
    """Whether a plan is still being carried out; most policies decide nothing meanwhile."""
    invalid: str | None = None
    """Why nothing should be decided on this estimate (missing samples, say); None where it holds."""
    latency_quantiles_s: Mapping[float, float] = field(default_factory=dict)
    """Quantile -> measured end-to-end latency: of the quantile that the SLA bounds, beside `latency_p99_s`."""
