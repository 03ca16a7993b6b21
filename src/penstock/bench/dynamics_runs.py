"""One run of `bench dynamics`: a query of the emulated operator under a policy, and what is seen of it. Says nothing of
which runs are made, nor what they are held against."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.bench import emulated
from penstock.bench.changing import ask
from penstock.bench.dynamics_figures import Sighting
from penstock.bench.emulated import NAME, Calculate
from penstock.bench.machine import CpuMeter
from penstock.bench.ours import await_rows, running
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan
from penstock.topology.sla import SLA
from penstock.workloads.dynamics import Dynamics

ROW_S: Final = 1e-3
EPOCH_S: Final = 0.4
LONG_EPOCH_S: Final = 1.0
"""Where frequencies change seldom. Rows come at random, so that of tasks with equal loads one has more to do in an epoch
than the mean, by a share that falls with the root of its length; static's busiest task is too far ahead to notice."""
WAITING_EPOCHS: Final = 3
"""Epochs of rows that may wait where frequencies change seldom: a task with few rows in one goes ahead with the next."""
EVERY_S: Final = 0.2
"""Time between two turns of the control loop."""
SLA_S: Final = 0.2
START_S: Final = 8.0
SETTLED_WITHIN_S: Final = 60.0
FEW_WAIT_S: Final = 0.5
"""Rows of so much time may wait at a moment that counts as steady."""
STALL_S: Final = 0.5
"""A sleep that takes this much longer than asked for means that the machine stood still."""
SATURATED: Final = Guards(
    cool_down_s=0.1, hysteresis_s=0.0, max_actions_per_minute=120, payback_s=math.inf, worse_ratio=math.inf
)
"""Guards for a source that gives more than is taken: rows then wait ever longer, whatever is done, so that no action can be
blamed for it; and the paper's scheduler, which answers every shuffle, has none of the others."""


@dataclass(frozen=True)
class Seen:
    """What a run at one policy came to."""

    sightings: tuple[Sighting, ...]
    task_of: Any
    mean_ms: float
    epoch_s: float
    interval_s: float
    """From one commit to the next."""
    longest_task_s: float
    waiting_rows: int
    actions: int
    moved_bytes: int
    real_cores: float
    stalled_s: float = 0.0
    """Time in which the machine let nobody work; it is left out."""
    unexplained: int = 0
    """Actions that have no sentence in the journal."""
    sentences: tuple[str, ...] = ()
    """What the journal says of each action."""

    @property
    def seconds(self) -> float:
        return self.sightings[-1].at_s - self.sightings[0].at_s


@contextmanager
def under(
    policy: str,
    rows: Dynamics,
    cores: int,
    rate: Any = None,
    epoch_s: float = EPOCH_S,
    *,
    executors: int = 1,
    shards: int = emulated.SHARDS,
) -> Iterator[Any]:
    """A query of the operator on so many cores under a policy; by default its source gives as much as is taken."""
    offered = emulated.UNBOUNDED_PER_S if rate is None else rate
    work = Calculate(ROW_S, emulated.key_bytes_for(32 << 10))
    stream = emulated.calculate(emulated.source(rows, offered), work, cores=cores, shards=shards)
    options: dict[str, object] = {"maxEpochSeconds": epoch_s, "executors": executors}
    if rate is None:
        # What waits is bounded to a few epochs of rows, or one where frequencies change often: the rows at work are then
        # those of the shuffle of the moment, and rows arrive at the rate at which they are worked off.
        a_row = rows.payload_bytes + 32
        epochs = WAITING_EPOCHS if epoch_s >= LONG_EPOCH_S else 1
        options["maxWaitingBytes"] = int(epochs * cores / ROW_S * epoch_s * a_row)
    with running(stream, **options) as query:
        await_rows(query, NAME, 0)
        query.elasticity.hold(SLA(SLA_S), policy, EVERY_S)
        if rate is None:
            query.elasticity._steering.loop.guards = SATURATED
        yield query


def rising(rate_per_s: float) -> list[tuple[float, float]]:
    """Return a rate that comes slowly at first: tasks take a while to start, and what gathered meanwhile would wait for
    as long as the policy with least to spare needs to work it off."""
    return [(START_S, rate_per_s / 10), (0.0, rate_per_s)]


def settle(query: Any, rate_per_s: float) -> bool:
    """Wait for the whole rate of `rising` and until few rows wait; return whether that came about in time."""
    time.sleep(START_S)
    ends = time.monotonic() + SETTLED_WITHIN_S
    while time.monotonic() < ends:
        if waiting_rows(query) < FEW_WAIT_S * rate_per_s:
            return True
        time.sleep(0.2)
    return False


def waiting_rows(query: Any) -> int:
    """Return the rows that have come and are not worked off, as last reported."""
    report = query.lastProgress
    return int(report["operators"][NAME]["waitingRows"] + report["inputs"]["rows"]["behindRows"])


def look(query: Any, warm_s: float, seconds: float) -> Seen:
    """Look at a query once a second, after a while that is not looked at."""
    time.sleep(warm_s)
    meter = CpuMeter([os.getpid()])
    before = ask(query, _totals)
    sightings = [Sighting(*ask(query, _sight))]
    began, stalled_s = time.monotonic(), 0.0
    while (passed := time.monotonic() - began - stalled_s) < seconds:
        slept_s = sleep_and_time(min(1.0, seconds - passed + 0.01))
        # A sleep that took far too long says that the machine stood still, which is no policy's doing.
        stalled_s += slept_s if slept_s > STALL_S else 0.0
        if query.exception() is not None:
            raise query.exception()
        at_s, rows = ask(query, _sight)
        sightings.append(Sighting(at_s - stalled_s, rows))
    after = ask(query, _totals)
    epochs, epochs_s, longest_s, moved = (now - was for was, now in zip(before, after, strict=True))
    latency = query.latency(NAME, began)
    acted = [one for one in query.decisions() if one.acted]
    return Seen(
        tuple(sightings),
        _task_of(query.elasticity._actuator.current()),
        latency.mean_ms if latency is not None else float("inf"),
        epochs_s / max(1, epochs),
        (sightings[-1].at_s - sightings[0].at_s) / max(1, epochs),
        longest_s / max(1, epochs),
        waiting_rows(query),
        len(acted),
        int(moved),
        meter.read().cores,
        stalled_s,
        sum(not explains(str(one)) for one in acted),
        tuple(str(one) for one in acted),
    )


def sleep_and_time(seconds: float) -> float:
    """Sleep; return by how much longer it took than asked for."""
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began - seconds


def explains(sentence: str) -> bool:
    """Whether a sentence of the journal says what was wrong and what was done about it."""
    symptom, _, action = sentence.partition(";")
    return bool(symptom.strip() and action.strip())


def _task_of(plans: Mapping[str, ExecutorPlan]) -> npt.NDArray[np.int64]:
    """Shard -> task, tasks of all executors numbered through."""
    found = np.zeros(len(next(iter(plans.values())).task_of), np.int64)
    first = 0
    for plan in plans.values():
        mine = plan.task_of >= 0
        found[mine] = plan.task_of[mine] + first
        first += 1 + max(plan.tasks, default=0)
    return found


def _sight(engine: Any) -> tuple[float, int]:
    return engine.now(), sum(int(run.counts.completed.sum()) for run in engine.runs_of(NAME))


def _totals(engine: Any) -> tuple[float, float, float, float]:
    runs = engine.runs_of(NAME)
    counts = [run.counts for run in runs]
    moved = sum(engine.placing.moves.bytes_of[run.spec.name] for run in runs)
    return (
        sum(one.epochs for one in counts),
        sum(one.epochs_s for one in counts),
        sum(one.longest_task_s for one in counts),
        moved,
    )


def turn_s(query: Any) -> float:
    """Return what one more turn of the control loop takes."""
    elasticity = query.elasticity
    began = time.perf_counter()
    sample = elasticity._take()
    if sample is not None and elasticity._steering is not None:
        elasticity._steering.loop.policy.propose(
            elasticity._steering.loop.measurer.measure(sample, 1.0),
            SLA(SLA_S),
            elasticity._steering.loop.limits,
        )
    return time.perf_counter() - began
