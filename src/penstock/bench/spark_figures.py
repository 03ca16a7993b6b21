"""What a run of plain Spark comes to: rates and latencies from the times of its commits. Pure, no pyspark.

Also decides which rate a search for the highest one within a latency tries next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final

from penstock.bench.machine import CpuUse
from penstock.bench.result import Spread, spread


@dataclass(frozen=True)
class Latency:
    """Time from the rows' stamps to the commit that holds them, over `rows` rows."""

    mean_ms: float
    p99_ms: float
    worst_ms: float
    rows: int


@dataclass(frozen=True)
class BatchRun:
    """A closed-loop run. Intervals are from commit to commit, over the batches that count.

    `mean_latency_ms` is that of rows stamped when they were produced at exactly this rate: they wait half an
    interval on average for their batch to start, and then for the whole batch.
    """

    name: str
    rows_per_batch: int
    batches: int
    interval_ms: Spread
    rate_per_s: Spread

    @property
    def mean_latency_ms(self) -> float:
        return 1.5 * self.interval_ms.median


@dataclass(frozen=True)
class SteadyRun:
    """An open-loop run at `rate_per_s`; `latency` covers the batches that count, `cpu` the same time."""

    rate_per_s: float
    batches: int
    interval_ms: Spread
    latency: Latency
    cpu: CpuUse


@dataclass(frozen=True)
class HeldRate:
    """The highest rate within a mean latency, and the runs, fed at a set rate, that show it.

    `open_loop_per_s` was fed and held; it is the measured answer. `closed_loop_per_s` is what prepared
    batches came to where the latency *derived* from their interval is within the bound, and is reported
    beside it: it has been seen well above what Spark then held when fed. Either is 0 if nothing met it.
    """

    bound_ms: float
    open_loop_per_s: float
    closed_loop_per_s: float
    mean_latency_ms: float
    too_fast_per_s: float | None
    runs: tuple[SteadyRun, ...]

    @property
    def rate_per_s(self) -> float:
        """What stands for Spark: the measured rate, or the derived one where no fed rate was held."""
        return self.open_loop_per_s or self.closed_loop_per_s


@dataclass(frozen=True)
class Setting:
    """What one way of running plain Spark came to, in the words a reader needs to judge a comparison."""

    name: str
    rate_per_s: float
    mean_ms: float

    def __str__(self) -> str:
        return f"{self.name}: {self.rate_per_s:,.0f} rows/s at a mean latency of {self.mean_ms:,.0f} ms"


NEAR: Final = 1.5
"""How far above its lowest mean latency a setting of Spark's may lie to stand for it where none met the bound."""


BEYOND: Final = 2.0
"""How far above a bound a faster setting may lie to be worth naming."""


def of_batches(run: BatchRun) -> Setting:
    return Setting(f"prepared batches, {run.name}", run.rate_per_s.median, run.mean_latency_ms)


def of_feed(run: SteadyRun) -> Setting:
    return Setting("rows fed at a set rate", run.rate_per_s, run.latency.mean_ms)


@dataclass(frozen=True)
class Chosen:
    """What stands for plain Spark at a bound.

    `beyond` is the fastest with at most twice the latency of the bound, if that is faster: where a bound cuts
    between two settings, a reader should know of both.
    """

    setting: Setting
    met_bound: bool
    beyond: Setting | None


def choose_setting(settings: Sequence[Setting], bound_ms: float, otherwise: Setting | None = None) -> Chosen:
    """Choose what a rate within a mean latency is compared with.

    The fastest that met it. Where none did, the fastest of those near the lowest latency there was: neither a
    slow one that is a little quicker to answer, nor a fast one whose rows wait for seconds.

    Args:
        otherwise: a setting that is named beforehand for the case that none met the bound.

    Raises:
        ValueError: there is nothing to choose from.
    """
    if not settings:
        raise ValueError("plain Spark gave no run to compare with")
    lowest_ms = min(setting.mean_ms for setting in settings)
    limit_ms = bound_ms if lowest_ms <= bound_ms else lowest_ms * NEAR
    within = [setting for setting in settings if setting.mean_ms <= limit_ms]
    chosen = max(within, key=lambda setting: setting.rate_per_s)
    if otherwise is not None and lowest_ms > bound_ms:
        chosen = otherwise
    beyond = [setting for setting in settings if bound_ms < setting.mean_ms <= BEYOND * bound_ms]
    fastest = max(beyond, key=lambda setting: setting.rate_per_s, default=chosen)
    return Chosen(chosen, lowest_ms <= bound_ms, fastest if fastest.rate_per_s > chosen.rate_per_s else None)


def derive_latency(waits_ms: Sequence[float], rows_each: int) -> Latency:
    """Summarise the waits of files that hold `rows_each` rows, from the rows' stamp to the commit.

    Raises:
        ValueError: no file was waited for.
    """
    if not waits_ms:
        raise ValueError("a latency needs at least one row that was committed")
    ordered = sorted(waits_ms)
    at_p99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    return Latency(fmean(ordered), at_p99, ordered[-1], rows_each * len(ordered))


def derive_batch_run(name: str, rows_per_batch: int, committed_s: Sequence[float]) -> BatchRun:
    """Turn commit times into intervals and rates; the last half of the batches counts, two at least."""
    gaps_s = [later - earlier for earlier, later in pairwise(committed_s)]
    counted = gaps_s[-max(2, len(committed_s) // 2) :]
    return BatchRun(
        name,
        rows_per_batch,
        len(committed_s),
        spread([gap * 1000 for gap in counted]),
        spread([rows_per_batch / gap for gap in counted]),
    )


def estimate_held_rate(known: Sequence[BatchRun], bound_ms: float, least_per_s: float = 500_000.0) -> float:
    """Estimate the rate at which one and a half intervals reach the bound.

    An interval grows with the rows of a batch as `a + b n`; at the bound it is `bound / 1.5` long, so it
    holds `n = (bound / 1.5 - a) / b` rows. Below `least_per_s` rows cost next to nothing, only batches do.
    """
    interval_ms = bound_ms / 1.5
    fewest = min(known, key=lambda run: run.rows_per_batch)
    most = max(known, key=lambda run: run.rows_per_batch)
    rows_apart = max(1, most.rows_per_batch - fewest.rows_per_batch)
    slope = max((most.interval_ms.median - fewest.interval_ms.median) / rows_apart, 1e-6)
    rows = fewest.rows_per_batch + (interval_ms - fewest.interval_ms.median) / slope
    best = max(run.rate_per_s.median for run in known)
    return min(max(rows * 1000 / interval_ms, least_per_s), best)


def propose_rate(held: float | None, too_fast: float | None) -> float:
    """Say what to try next: between what held and what did not, or twice as much, or a quarter."""
    if held is not None and too_fast is not None:
        return math.sqrt(held * too_fast)
    if held is not None:
        return held * 2
    return (too_fast or 2_000_000.0) / 4


def derive_held_rate(known: Sequence[BatchRun], runs: Sequence[SteadyRun], bound_ms: float) -> HeldRate:
    """Sum up a search: what was fed and held, and what prepared batches of any size came to."""
    held = max(
        (run for run in runs if run.latency.mean_ms <= bound_ms), key=lambda run: run.rate_per_s, default=None
    )
    prepared = fastest_within(known, bound_ms)
    open_loop = held.rate_per_s if held else 0.0
    closed_loop = prepared.rate_per_s.median if prepared else 0.0
    latency_ms = 0.0
    if held:
        latency_ms = held.latency.mean_ms
    elif prepared:
        latency_ms = prepared.mean_latency_ms
    too_fast = [run.rate_per_s for run in runs if run.latency.mean_ms > bound_ms]
    return HeldRate(bound_ms, open_loop, closed_loop, latency_ms, min(too_fast, default=None), tuple(runs))


def propose_batch_rows(known: Sequence[BatchRun], bound_ms: float, most: int = 4_000_000) -> int:
    """Say which batch size should reach, but not pass, a mean latency, judging by the runs made so far.

    An interval grows as `a + b n`, through the two largest sizes known; a tenth of the bound is kept in hand.
    """
    target_ms = 0.9 * bound_ms / 1.5
    ordered = sorted(known, key=lambda run: run.rows_per_batch)
    last = ordered[-1]
    if len(ordered) == 1:
        share = target_ms / last.interval_ms.median
        return _whole(last.rows_per_batch * share, most)
    first = ordered[-2]
    rows_apart = max(1, last.rows_per_batch - first.rows_per_batch)
    slope = max((last.interval_ms.median - first.interval_ms.median) / rows_apart, 1e-5)
    rows = last.rows_per_batch + (target_ms - last.interval_ms.median) / slope
    return _whole(rows, most)


def fastest_within(runs: Sequence[BatchRun], bound_ms: float) -> BatchRun | None:
    """Return the run with the highest rate whose mean latency is within the bound; None if there is none."""
    within = [run for run in runs if run.mean_latency_ms <= bound_ms]
    return max(within, key=lambda run: run.rate_per_s.median, default=None)


def _whole(rows: float, most: int) -> int:
    return min(most, max(1000, int(rows // 1000) * 1000))
