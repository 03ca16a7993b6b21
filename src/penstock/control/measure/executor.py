"""What is remembered of one elastic executor between samples, and the estimate that follows from it.

`Measurer` decides which samples get here: counts never fall and time always passes between two of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.control.measure.dispersion import Dispersion
from penstock.control.measure.estimate import EpochCosts, ExecutorEstimate
from penstock.control.measure.lasting import LastingRates
from penstock.control.measure.sample import F64, I64, ExecutorSample, NodeSample
from penstock.control.measure.service import EWMA, ServiceRates
from penstock.control.measure.smoothing import Smoothing
from penstock.control.measure.spreading import SpreadMeasure
from penstock.control.measure.tracing import ShardTrace

EpochFit = Callable[[str, ExecutorSample, ExecutorSample, float | None], EpochCosts | None]
"""(executor, sample before, sample after, mean latency at the executor in between) -> the coefficients fitted so far;
None while there are none."""


@dataclass(frozen=True)
class Inherited:
    """What is known of shards from the executor that had them before."""

    arrival_per_s: F64
    row_s: F64


class ExecutorMeasure:
    """The memory of one elastic executor."""

    def __init__(self, name: str, at_s: float, sample: ExecutorSample, smoothing: Smoothing) -> None:
        sample = _with_arrivals(sample)
        self.name = name
        self.sample, self.at_s = sample, at_s
        self.intervals = 0
        self._trace = ShardTrace(at_s, sample.arrived, sample.completed)
        self._arrivals, self._completions = smoothing.start(), smoothing.start()
        self._bytes_in, self._bytes_out = smoothing.start(), smoothing.start()
        self._completed_per_s: float | None = None
        self._dispersion = Dispersion()
        self._measured: deque[tuple[float, float, int, ExecutorSample]] = deque()
        shards = len(sample.task_of)
        self._arrival_per_s = np.zeros(shards)
        self.known_per_s = np.zeros(shards)
        """Rate of every shard when it was last here."""
        self._bytes_per_s = (0.0, 0.0)
        self._shard_rows, self._shard_s = np.zeros(shards), np.zeros(shards)
        self._lasting = LastingRates(shards)
        self._epoch = EpochCosts()
        self._spread = SpreadMeasure()
        self.service = ServiceRates()

    def restart(self, at_s: float, sample: ExecutorSample, smoothing: Smoothing) -> ExecutorMeasure:
        """Return a memory that begins at this sample and keeps what restarting does not change: service rates."""
        fresh = ExecutorMeasure(self.name, at_s, sample, smoothing)
        fresh.service, fresh._epoch = self.service, self._epoch
        fresh._spread = self._spread
        if len(fresh._shard_rows) == len(self._shard_rows):
            fresh._shard_rows, fresh._shard_s = self._shard_rows, self._shard_s
            fresh._lasting = self._lasting
        return fresh

    def take(
        self,
        at_s: float,
        sample: ExecutorSample,
        speeds: Mapping[str, float],
        inherited: Inherited | None,
        missed_s: tuple[float, ...],
        fit: EpochFit | None,
    ) -> None:
        """Take the next sample; `missed_s` are the moments since the last one at which there was none."""
        sample, before, elapsed_s = _with_arrivals(sample), self.sample, at_s - self.at_s
        new, left = derive_new(before, sample), derive_new(sample, before)
        redealt = bool(new.any() or left.any())
        if redealt:
            before = _carried_over(before, sample, new | left)
            self._redeal(new, left, sample, inherited)
        self._count(at_s, before, sample, missed_s, inherited, new)
        self._disperse(before, sample, elapsed_s, redealt)
        self.service.update(before, sample, elapsed_s, speeds)
        rows = np.maximum(sample.completed - before.completed, 0)
        self._weigh_shards(before, sample, rows, speeds)
        self._measured.append((at_s, elapsed_s, int(np.add.reduce(rows)), _with_split(before, sample)))
        if sample.epochs > before.epochs:
            self._spread.take(before, sample, elapsed_s)
        if fit is not None and sample.epochs > before.epochs:
            latency_s = sample.latency_s
            if latency_s is None or not np.isfinite(latency_s):
                latency_s = self._trace.derive_mean_s()
            self._epoch = fit(self.name, before, sample, latency_s) or self._epoch
        self.sample, self.at_s = sample, at_s
        self.intervals += 1

    def _redeal(
        self,
        new: npt.NDArray[np.bool_],
        left: npt.NDArray[np.bool_],
        sample: ExecutorSample,
        inherited: Inherited | None,
    ) -> None:
        """Begin with shards that came, and forget those that went: their totals went with them."""
        self._trace.forget_shards(new | left, sample.arrived, sample.completed)
        self._arrivals.put(left, np.zeros(len(left)))
        if inherited is not None:
            self._arrivals.put(new, inherited.arrival_per_s)
            self._lasting.put(new, inherited.arrival_per_s)
            self._shard_rows[new], self._shard_s[new] = 1.0, inherited.row_s[new]

    def _count(
        self,
        at_s: float,
        before: ExecutorSample,
        after: ExecutorSample,
        missed_s: tuple[float, ...],
        inherited: Inherited | None,
        new: npt.NDArray[np.bool_],
    ) -> None:
        """Put arrivals and completions into slots; those that were missed are interpolated (StreamSwitch 4.3)."""
        elapsed_s = at_s - self.at_s
        arrived, completed = after.arrived - before.arrived, after.completed - before.completed
        per_s, completed_per_s = arrived / elapsed_s, max(float(completed.sum()), 0.0) / elapsed_s
        if inherited is not None:
            per_s = np.where(new, inherited.arrival_per_s, per_s)
        in_per_s = max((after.in_bytes - before.in_bytes) / elapsed_s, 0.0)
        out_per_s = max((after.out_bytes - before.out_bytes) / elapsed_s, 0.0)
        start_s = last_s = self.at_s
        for end_s in (*missed_s, at_s):
            if end_s < at_s:
                share = (end_s - start_s) / elapsed_s
                arrived_then = before.arrived + np.floor(arrived * share).astype(np.int64)
                self._trace.add(
                    end_s, arrived_then, before.completed + np.floor(completed * share).astype(np.int64)
                )
            else:
                self._trace.add(end_s, after.arrived, after.completed)
            self._arrival_per_s = self._arrivals.add(per_s, end_s - last_s)
            self._completed_per_s = self._completions.add_number(completed_per_s, end_s - last_s)
            self._bytes_per_s = (
                self._bytes_in.add_number(in_per_s, end_s - last_s),
                self._bytes_out.add_number(out_per_s, end_s - last_s),
            )
            last_s = end_s
        self._lasting.add(per_s, elapsed_s)
        held = after.task_of >= 0
        self._arrival_per_s[~held] = 0.0
        np.copyto(self.known_per_s, self._arrival_per_s, where=held)

    def _disperse(
        self, before: ExecutorSample, after: ExecutorSample, elapsed_s: float, redealt: bool
    ) -> None:
        """Follow how arrivals vary. A total that changes because shards came or went has not varied: such an interval
        counts for nothing, and the next one follows none."""
        if redealt:
            self._dispersion.break_off()
        else:
            self._dispersion.add(float((after.arrived - before.arrived).sum()) / elapsed_s, elapsed_s)

    def _weigh_shards(
        self, before: ExecutorSample, after: ExecutorSample, rows: I64, speeds: Mapping[str, float]
    ) -> None:
        """Follow rows and useful time of each shard, as on a node of speed 1."""
        indexes = [task.index for task in before.tasks]
        last = int(np.maximum.reduce(before.task_of, initial=0))
        speed_of = np.ones(max([last, *indexes]) + 2)  # the last is of no task
        speed_of[indexes] = [speeds.get(task.node, 1.0) for task in before.tasks]
        speed = speed_of[before.task_of]
        useful_s = np.maximum(after.busy_s - before.busy_s, 0.0) * speed
        seen = (rows > 0) & (useful_s > 0)
        np.add(self._shard_rows, EWMA * (rows - self._shard_rows), out=self._shard_rows, where=seen)
        np.add(self._shard_s, EWMA * (useful_s - self._shard_s), out=self._shard_s, where=seen)

    def derive_row_s(self, unknown_per_s: float) -> F64:
        """Return the useful time that a row of each shard takes on a node of speed 1."""
        mean = 1.0 / (self.service.service_per_s or unknown_per_s)
        row_s = np.empty(len(self._shard_s))
        row_s.fill(mean)
        np.divide(self._shard_s, self._shard_rows, out=row_s, where=self._shard_rows > 0)
        return row_s

    def estimate(
        self,
        window_s: float,
        nodes: Mapping[str, NodeSample],
        speeds: Mapping[str, float],
        unknown_per_s: float,
    ) -> ExecutorEstimate:
        """Return what is believed after the last sample."""
        sample, held = self.sample, self.sample.task_of >= 0
        latency_s = self._trace.derive_latency_s(window_s)
        latency_s[~held] = np.nan
        while len(self._measured) > 1 and self._measured[0][0] <= self.at_s - window_s:
            self._measured.popleft()
        rows = [count for _, _, count, _ in self._measured]
        seen = [one for _, _, _, one in self._measured]
        counted_s = sum(elapsed_s for _, elapsed_s, _, _ in self._measured)
        measured_s = _mean([one.latency_s for one in seen], rows)
        p99 = [p99_s for one in seen if _is_number(p99_s := one.latency_p99_s)]
        service_per_s = self.service.service_per_s or unknown_per_s
        row_s = self.derive_row_s(unknown_per_s)
        load = np.where(held, self._arrival_per_s * row_s, 0.0)
        return ExecutorEstimate(
            self.name,
            sample.operator,
            sample.task_of.copy(),
            self.service.estimate_tasks(sample, nodes, speeds, unknown_per_s),
            self._arrival_per_s.copy(),
            load,
            np.where(held, sample.arrived - sample.completed, 0.0),
            latency_s,
            sample.state_bytes.copy(),
            service_per_s,
            _or_one(self._dispersion.estimate_index()),
            self.service.estimate_scv(),
            measured_s,
            max((one for one in p99 if one is not None), default=None),
            self._epoch,
            self._bytes_per_s[0],
            self._bytes_per_s[1],
            _mean([one.waiting_s for one in seen], rows),
            _mean([one.processing_s for one in seen], rows),
            _mean([one.commit_s for one in seen], rows),
            _greatest([one.latency_quantiles_s for one in seen]),
            self._spread.known,
            sum(rows) / counted_s if counted_s > 0 else None,
            self._lasting.derive_load(self._arrival_per_s, load, row_s, held, self._arrivals.span_s),
            counted_s if counted_s > 0 else None,
            self._completed_per_s,
        )


_NONE: dict[int, npt.NDArray[np.bool_]] = {}


def derive_new(before: ExecutorSample, after: ExecutorSample) -> npt.NDArray[np.bool_]:
    """Return which shards an executor has and did not have; not to be written to."""
    if before.task_of is after.task_of:
        shards = len(after.task_of)
        if shards not in _NONE:
            _NONE[shards] = np.zeros(shards, np.bool_)
        return _NONE[shards]
    return (before.task_of < 0) & (after.task_of >= 0)


def _with_arrivals(sample: ExecutorSample) -> ExecutorSample:
    # Counters are not read at one instant; what is completed has arrived.
    if (sample.arrived >= sample.completed).all():
        return sample
    return replace(sample, arrived=np.maximum(sample.arrived, sample.completed))


def _carried_over(
    before: ExecutorSample, after: ExecutorSample, moved: npt.NDArray[np.bool_]
) -> ExecutorSample:
    """The sample before, as if shards that came or went had stood where they stand now: they count from here on."""
    return replace(
        before,
        arrived=np.where(moved, after.arrived, before.arrived),
        completed=np.where(moved, after.completed, before.completed),
        busy_s=np.where(moved, after.busy_s, before.busy_s),
    )


def _with_split(before: ExecutorSample, after: ExecutorSample) -> ExecutorSample:
    """Split latency by the times of epochs where the data plane did not."""
    epochs, latency_s = after.epochs - before.epochs, after.latency_s
    if after.waiting_s is not None or epochs <= 0 or latency_s is None or not _is_number(latency_s):
        return after
    epoch_s = max(after.epochs_s - before.epochs_s, 0.0) / epochs
    work_s = min(max(after.longest_task_s - before.longest_task_s, 0.0) / epochs, epoch_s)
    waiting_s = max(latency_s - epoch_s, 0.0)
    return replace(after, waiting_s=waiting_s, processing_s=work_s, commit_s=epoch_s - work_s)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _mean(values: list[float | None], weights: list[int]) -> float | None:
    total, weight = 0.0, 0
    for value, rows in zip(values, weights, strict=True):
        if value is not None and math.isfinite(value):
            rows = rows or 1
            total += value * rows
            weight += rows
    return total / weight if weight else None


def _greatest(found: list[Mapping[float, float]]) -> dict[float, float]:
    """Quantiles of the newest samples, each the greatest of them: a quantile of a whole is at most that of a part."""
    return (
        {
            quantile: max(one[quantile] for one in found if _is_number(one.get(quantile)))
            for quantile, value in found[-1].items()
            if _is_number(value)
        }
        if found
        else {}
    )


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value
