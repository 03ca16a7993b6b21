"""How task loads vary within epochs: what is learnt of it, and what the epoch model makes of that."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from penstock.control.measure.estimate import EpochCosts, EpochSpread, ExecutorEstimate
from penstock.control.measure.estimating import Measurer
from penstock.control.measure.sample import ExecutorSample, NodeSample, Sample, TaskSample
from penstock.control.measure.spreading import SpreadMeasure
from penstock.control.model.epoch import derive_busiest_load, derive_epoch_station

COSTS = EpochCosts(0.004, 0.001, 0.00005, 1.5)
ROW_S = 1 / 300


def run_epochs(
    k: int, rate_per_s: float, seconds: int
) -> tuple[ExecutorEstimate, float, list[ExecutorSample]]:
    """Poisson arrivals for 64 shards dealt by turns; each epoch takes what came during the one before it."""
    chance, shards = np.random.default_rng(2), 64
    task_of = (np.arange(shards) % k).astype(np.int32)
    rows, busy_s = np.zeros(shards, np.int64), np.zeros(k)
    at_s = epochs_s = longest_s = 0.0
    epochs = touched = 0
    duration_s, measurer, samples = 0.05, Measurer(), []
    for second in range(seconds):
        while at_s < second:
            come = chance.poisson(rate_per_s / shards * duration_s, shards)
            work_s = np.bincount(task_of, come * ROW_S, k)
            here = int(np.count_nonzero(come))
            duration_s = COSTS.o0_s + COSTS.o1_s * k + COSTS.o2_s * here + float(work_s.max())
            rows, busy_s, at_s = rows + come, busy_s + work_s, at_s + duration_s
            epochs, touched = epochs + 1, touched + here
            epochs_s, longest_s = epochs_s + duration_s, longest_s + float(work_s.max())
        tasks = tuple(TaskSample(t, "n1", float(busy_s[t]), int(rows[task_of == t].sum())) for t in range(k))
        one = ExecutorSample(
            "match", task_of, rows, rows, rows * ROW_S, np.zeros(shards, np.int64), tasks,
            epochs, epochs_s, longest_s, touched,
        )  # fmt: skip
        samples.append(one)
        found = measurer.measure(Sample(max(at_s, second), {"match": one}, {"n1": NodeSample("n1", 32)}))
    return replace(found.executors["match"], epoch=COSTS), epochs_s / epochs, samples


@pytest.mark.parametrize(("k", "rate_per_s"), [(9, 2000.0), (12, 2000.0), (16, 4000.0), (4, 300.0)])
def test_the_epoch_model_predicts_epochs_whose_busiest_task_changes(k: int, rate_per_s: float) -> None:
    executor, duration_s, _ = run_epochs(k, rate_per_s, 60)
    learnt = derive_epoch_station(executor, 32).latency_s(k) / COSTS.c
    means_only = derive_epoch_station(executor, 32, imbalance=1.0).latency_s(k) / COSTS.c
    assert learnt == pytest.approx(duration_s, rel=0.25)
    assert means_only < 0.75 * duration_s


def test_a_load_that_is_served_stays_so_however_loads_vary() -> None:
    load = np.linspace(0.01, 0.99, 99)
    for ratio, seen in ((1.3, 0.6), (1.05, 0.9), (2.5, 0.3)):
        busiest = derive_busiest_load(EpochSpread(ratio, seen), load)
        assert (busiest < 1).all() and (busiest >= load).all() and (np.diff(busiest) > 0).all()
        at_seen = derive_busiest_load(EpochSpread(ratio, seen), np.array([seen]))
        assert at_seen == pytest.approx([ratio * seen])
    assert derive_busiest_load(EpochSpread(), load) == pytest.approx(load)


def test_what_is_known_stays_while_epochs_are_saturated_and_when_tasks_change() -> None:
    _, _, samples = run_epochs(4, 300.0, 10)
    measure = SpreadMeasure()
    for before, after in pairwise(samples):
        measure.take(before, after, 1.0)
    known = measure.known
    assert known.imbalance > 1.2
    last = samples[-1]
    full = replace(last, epochs_s=last.epochs_s + 1, longest_task_s=last.longest_task_s + 0.99)
    measure.take(last, full, 1.0)
    fewer = replace(full, tasks=full.tasks[:3], epochs_s=full.epochs_s + 1)
    measure.take(full, fewer, 1.0)
    assert measure.known == known
