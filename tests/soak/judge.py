"""Whether something grows: a pure function over the samples of a soak. Reads no clock and no process.

A series has a trend when its growth over the judged part of the run is more than noise and allowance, and goes up
steadily. A saw-tooth (a collector, clean-up) comes back down; a leak does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Sample = Mapping[str, Any]
"""`at_s`: seconds since the query started; `values`: number of each series, named `kind: what`."""

SKIPPED_SHARE = 1 / 3
"""Part of the run that is warm-up: caches fill, Spark's lists reach their bounds, the JVM compiles."""
BINS = 40
COVERED_SHARE = 0.8
"""Part of the judged time that a series must cover; what comes and goes is judged in the totals."""
LEAST_POINTS = 6
STEADY_TAU = 0.6
"""Kendall's tau of medians in time order that counts as steady: 0 is noise, 0.5 one step, 1 always up."""
NOISE_MADS = 3.0

MIB = 1 << 20


@dataclass(frozen=True)
class Allowance:
    """Growth that is none: a share of the median, and a floor."""

    share: float
    floor: float
    unit: str


ALLOWANCES: Mapping[str, Allowance] = {
    "resident bytes": Allowance(0.03, 8 * MIB, "MiB"),
    "heap bytes": Allowance(0.05, 8 * MIB, "MiB"),
    "disk bytes": Allowance(
        0.10, 8 * MIB, "MiB"
    ),  # a slow writer fills a data file of 64 MiB in half an hour
    "disk files": Allowance(0.05, 8, ""),
    "open files": Allowance(0.05, 4, ""),
    "threads": Allowance(0.05, 4, ""),
    "processes": Allowance(0.05, 2, ""),
    "spark list": Allowance(0.05, 10, ""),
    "epoch ms": Allowance(0.10, 1.0, "ms"),
}


@dataclass(frozen=True)
class Verdict:
    """What is said of one series."""

    series: str
    median: float
    growth: float
    """Fitted over the judged time."""
    allowed: float
    tau: float
    trend: bool
    first: float
    """Median of the first third of the judged time, and of the last."""
    last: float
    points: int
    unit: str

    def as_json(self) -> dict[str, Any]:
        return {name: round(v, 3) if isinstance(v, float) else v for name, v in asdict(self).items()}


def judge(samples: Sequence[Sample], skipped_share: float = SKIPPED_SHARE) -> list[Verdict]:
    """Judge every series that covers the judged time; those that grow come first."""
    if not samples:
        return []
    end_s = max(float(sample["at_s"]) for sample in samples)
    begin_s = end_s * skipped_share
    kept = [sample for sample in samples if sample["at_s"] >= begin_s]
    names = sorted({name for sample in kept for name in sample["values"]})
    found = []
    for name in names:
        points = [(float(s["at_s"]), float(s["values"][name])) for s in kept if name in s["values"]]
        verdict = judge_series(name, points, begin_s, end_s)
        if verdict is not None:
            found.append(verdict)
    return sorted(found, key=lambda one: (not one.trend, one.series))


def judge_series(
    name: str, points: Sequence[tuple[float, float]], begin_s: float, end_s: float
) -> Verdict | None:
    """Judge one series; None where it has too few points, or covers too little of the time."""
    if len(points) < LEAST_POINTS or points[-1][0] - points[0][0] < COVERED_SHARE * (end_s - begin_s):
        return None
    allowance = ALLOWANCES[name.partition(":")[0]]
    at, value = (np.array(column) for column in zip(*points, strict=True))
    slope = _theil_sen(*_thinned(at, value))
    growth = slope * (end_s - begin_s)
    rest = value - slope * at
    noise = float(np.median(np.abs(rest - np.median(rest))))
    median = float(np.median(value))
    allowed = max(allowance.share * abs(median), NOISE_MADS * noise, allowance.floor)
    tau = _kendall_tau(_bin_medians(at, value, begin_s, end_s))
    third = (end_s - begin_s) / 3
    first, last = value[at < begin_s + third], value[at >= end_s - third]
    return Verdict(
        name,
        median,
        float(growth),
        allowed,
        tau,
        bool(growth > allowed and tau >= STEADY_TAU),
        float(np.median(first)) if len(first) else median,
        float(np.median(last)) if len(last) else median,
        len(points),
        allowance.unit,
    )


def _thinned(at: Any, value: Any, most: int = 500) -> tuple[Any, Any]:
    step = -(-len(at) // most)
    return at[::step], value[::step]


def _theil_sen(at: Any, value: Any) -> float:
    """The median of the slopes between all pairs of points."""
    low, high = np.triu_indices(len(at), 1)
    return float(np.median((value[high] - value[low]) / np.maximum(at[high] - at[low], 1e-9)))


def _bin_medians(at: Any, value: Any, begin_s: float, end_s: float) -> Any:
    bins = min(BINS, len(at))
    place = np.minimum(((at - begin_s) / max(end_s - begin_s, 1e-9) * bins).astype(int), bins - 1)
    return np.array([np.median(value[place == one]) for one in range(bins) if (place == one).any()])


def _kendall_tau(value: Any) -> float:
    """Share of pairs that go up less the share that go down; equal pairs count as neither."""
    low, high = np.triu_indices(len(value), 1)
    return float(np.mean(np.sign(value[high] - value[low]))) if len(low) else 0.0


def table(verdicts: Sequence[Verdict]) -> str:
    """Show verdicts as lines of text, trends first."""
    head = f"{'series':<46} {'median':>11} {'first third':>11} {'last third':>11} {'growth':>10} {'allowed':>10} {'tau':>6}"
    return "\n".join([head, *(_line(one) for one in verdicts)])


def _line(one: Verdict) -> str:
    numbers = [one.median, one.first, one.last, one.growth, one.allowed]
    shown = [_shown(number, one.unit) for number in numbers]
    widths = (11, 11, 11, 10, 10)
    cells = " ".join(f"{text:>{width}}" for text, width in zip(shown, widths, strict=True))
    mark = "  <- TREND" if one.trend else ""
    unit = f" ({one.unit})" if one.unit else ""
    return f"{one.series.replace(' bytes', '') + unit:<46} {cells} {one.tau:>6.2f}{mark}"


def _shown(number: float, unit: str) -> str:
    return f"{number / MIB:,.1f}" if unit == "MiB" else f"{number:,.2f}"
