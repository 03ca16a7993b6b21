"""A chain of three operators with an emulated service time, whose rate and cores are set and whose latency is looked at.

DRS V-B in small: unlike operators in a row, one row out for each row in. Declares, changes and reads; judges nothing.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import penstock
from penstock.bench.changing import apply_plan, ask, await_that
from penstock.bench.emulated import InTurn, serve, source
from penstock.bench.machine import CpuMeter
from penstock.bench.ours import await_rows, running
from penstock.bench.scaling import deal_by_load
from penstock.control.measure.sample import ExecutorSample, Sample
from penstock.control.model.epoch_fit import EpochObservation, derive_observation
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.spark.measuring import take_sample
from penstock.workloads.dynamics import shard_of_keys

SHARDS: Final = 64
KEYS: Final = 2_000
SERVICE_S: Final = {"extract": 8e-3, "match": 16e-3, "aggregate": 4e-3}
"""Operator, in the order of the chain -> time that a row takes: long beside what the machine's own scheduling takes."""
LAST: Final = tuple(SERVICE_S)[-1]
MAX_EPOCH_S: Final = 0.5
START_S: Final = 8.0
WORKED_OFF_S: Final = 1.5
"""Rows of so much time may wait at a moment that counts as steady."""


@dataclass(frozen=True)
class Serve:
    """`function(key, rows, state)` of an operator of the chain: sleeps for its rows and passes each on."""

    row_s: float

    def __call__(self, key: Any, rows: Any, state: Any) -> Any:
        state.seen.update((state.seen.get() or 0) + len(rows))
        serve(self.row_s * len(rows))
        return [(key.key, number) for number in range(len(rows))]


@dataclass(frozen=True)
class Setting:
    """A rate, and the cores of each operator in the order of the chain."""

    rate_per_s: float
    cores: tuple[int, ...]

    def loads(self) -> dict[str, float]:
        """Cores that each operator needs."""
        return {name: self.rate_per_s * row_s for name, row_s in SERVICE_S.items()}

    @property
    def utilisation(self) -> float:
        """Share of all cores that is needed."""
        return sum(self.loads().values()) / sum(self.cores)

    @property
    def busiest(self) -> float:
        """Load of a core of the operator that has fewest for its load."""
        return max(load / k for load, k in zip(self.loads().values(), self.cores, strict=True))

    def work_off_s(self, backlog_s: float) -> float:
        """Time in which the operator with least to spare works off the rows of so much time."""
        return backlog_s * max(
            load / max(k - load, 0.1 * load)
            for load, k in zip(self.loads().values(), self.cores, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s on {':'.join(map(str, self.cores))}"


@dataclass(frozen=True)
class Stage:
    """One operator over one setting."""

    mean_s: float
    """From the arrival of rows at it to their commit."""
    p99_s: float
    whole: EpochObservation
    """Means of all its epochs."""
    observations: tuple[EpochObservation, ...]
    """The same second by second, for a fit."""
    row_s: float
    """Useful time of a row."""


@dataclass(frozen=True)
class Seen:
    """What came of one setting."""

    setting: Setting
    mean_s: float
    """End to end."""
    p99_s: float
    stages: Mapping[str, Stage]
    rate_per_s: float
    """Rows that went through, a second."""
    source_epoch_s: float
    real_cores: float
    system_load: float
    """Processes that wanted a core of the machine, ours included, over the last minute."""


def shard_loads() -> npt.NDArray[np.float64]:
    """Return the share of rows that each shard has."""
    return np.bincount(shard_of_keys(KEYS, SHARDS), minlength=SHARDS) / KEYS


@contextmanager
def chain(rate_per_s: float, cores: tuple[int, ...]) -> Iterator[Any]:
    """The chain at a rate, on these cores. Rows come slowly at first: tasks take a while to start."""
    stream = source(InTurn(KEYS, 16), [(START_S, rate_per_s / 10), (0.0, rate_per_s)])
    for (name, row_s), k in zip(SERVICE_S.items(), cores, strict=True):
        stream = stream.groupBy("key").apply_rows(
            Serve(row_s),
            schema="key long, row long",
            state={"seen": penstock.ValueState("long")},
            name=name,
            shards=SHARDS,
            cores=k,
        )
    with running(stream, maxEpochSeconds=MAX_EPOCH_S) as query:
        await_rows(query, LAST, 0)
        time.sleep(START_S)
        yield query


def place(query: Any, cores: tuple[int, ...]) -> None:
    """Give the operators these cores, their shards dealt by load."""
    loads = shard_loads()
    plans = {
        name: ExecutorPlan(dict.fromkeys(range(k), ""), deal_by_load(loads, k))
        for name, k in zip(SERVICE_S, cores, strict=True)
    }
    apply_plan(query, Plan(plans))


def settle(query: Any, setting: Setting, warm_s: float, timeout_s: float = 60.0) -> None:
    """Wait until what gathered before is worked off, the little that may still wait then too, and for a while more.

    Raises:
        ChangeError: rows still wait after so long: the setting does not keep up.
    """

    def is_worked_off() -> bool:
        time.sleep(0.2)
        report = query.lastProgress
        waiting = [report["operators"][name]["waitingRows"] for name in SERVICE_S]
        return bool(sum(waiting) + report["inputs"]["rows"]["behindRows"] < WORKED_OFF_S * setting.rate_per_s)

    await_that(is_worked_off, "an end of the backlog", timeout_s, query)
    time.sleep(max(warm_s, setting.work_off_s(WORKED_OFF_S)))


def look(query: Any, setting: Setting, warm_s: float, seconds: float) -> Seen:
    """Look at a setting second by second, once what gathered before is worked off and some time has passed."""
    settle(query, setting, warm_s)
    meter = CpuMeter()
    began = time.monotonic()
    before = ask(query, _source_epochs)
    samples = [_sample(query, began)]
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(min(1.0, seconds - passed + 0.01))
        if query.exception() is not None:
            raise query.exception()
        samples.append(_sample(query, samples[-1].at_s))
    whole = _sample(query, began)
    epochs, epochs_s = (now - was for was, now in zip(before, ask(query, _source_epochs), strict=True))
    latency = query.latency(LAST, began)
    rows = whole.executors[LAST].completed.sum() - samples[0].executors[LAST].completed.sum()
    return Seen(
        setting,
        latency.mean_ms / 1e3,
        latency.p99_ms / 1e3,
        {name: _stage(name, samples, whole) for name in SERVICE_S},
        float(rows) / (whole.at_s - samples[0].at_s),
        epochs_s / max(1, epochs),
        meter.read().cores,
        os.getloadavg()[0],
    )


def _source_epochs(engine: Any) -> tuple[int, float]:
    run = engine.runs["rows"]
    return run.epochs, run.epochs_s


def _sample(query: Any, since_s: float) -> Sample:
    found: Sample = ask(query, lambda engine: take_sample(engine, [], since_s))
    return found


def _stage(name: str, samples: list[Sample], whole: Sample) -> Stage:
    each = [sample.executors[name] for sample in samples]
    last: ExecutorSample = whole.executors[name]
    seen = [
        found
        for before, after in itertools.pairwise(each)
        if (found := derive_observation(before, after, after.latency_s)) is not None
    ]
    together = derive_observation(each[0], last, last.latency_s)
    if together is None or last.latency_s is None or last.latency_p99_s is None:
        raise TimeoutError(f"'{name}' committed nothing while it was looked at")
    rows = last.completed.sum() - each[0].completed.sum()
    busy_s = float(last.busy_s.sum() - each[0].busy_s.sum())
    return Stage(last.latency_s, last.latency_p99_s, together, tuple(seen), busy_s / max(1, int(rows)))
