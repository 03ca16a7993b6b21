"""What the sightings of a run under shuffles come to: rate, shuffles met, length of the dips, shares of a ceiling. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from penstock.control.measure.estimate import EpochCosts
from penstock.control.model.epoch import epoch_latency_s
from penstock.workloads.dynamics import Dynamics

RECOVERED = 0.9
"""Share of the usual rate at which a dip is over."""
C = 1.5
"""Latency over the length of an epoch: half of one to wait for the next, and that one."""


@dataclass(frozen=True)
class Sighting:
    """Rows that were committed up to some time."""

    at_s: float
    rows: int


@dataclass(frozen=True)
class Throughput:
    """What a run let through, and the permutations its rows were made under."""

    rate_per_s: float
    shuffles: range
    shuffles_per_minute: float
    by_second: tuple[float, ...]
    dips_s: tuple[float, ...]
    """After each shuffle, the time until the rate was back."""


def derive_throughput(sightings: Sequence[Sighting], rows: Dynamics) -> Throughput:
    """Take a run apart.

    Raises:
        ValueError: there are fewer than two sightings.
    """
    if len(sightings) < 2:
        raise ValueError("a rate needs two sightings")
    first, last = sightings[0], sightings[-1]
    seconds = last.at_s - first.at_s
    met = range(rows.shuffle_at(first.rows), rows.shuffle_at(max(last.rows - 1, first.rows)) + 1)
    pairs = list(itertools.pairwise(sightings))
    rates = tuple((two.rows - one.rows) / max(two.at_s - one.at_s, 1e-9) for one, two in pairs)
    return Throughput(
        (last.rows - first.rows) / seconds,
        met,
        (len(met) - 1) * 60.0 / seconds,
        rates,
        tuple(_dips(sightings, rates, rows)),
    )


def _dips(sightings: Sequence[Sighting], rates: Sequence[float], rows: Dynamics) -> Iterable[float]:
    """Yield the time from the sighting at which each shuffle had come to the end of the first interval at the usual rate;
    0 where the rate never fell. A dip that the next shuffle or the end cuts short is left out."""
    usual = RECOVERED * median(rates)
    turns = [
        at
        for at, (one, two) in enumerate(itertools.pairwise(sightings))
        if rows.shuffle_at(two.rows) > rows.shuffle_at(one.rows)
    ]
    for turn, until in zip(turns, [*turns, len(rates)][1:], strict=True):
        back = next((at for at in range(turn + 1, until) if rates[at] >= usual), None)
        if back is not None:
            yield 0.0 if back == turn + 1 else sightings[back].at_s - sightings[turn + 1].at_s


def derive_share_of_ceiling(shares: Iterable[float | None]) -> float | None:
    """Return the least of the shares that were measured; None where none was."""
    return min((one for one in shares if one is not None), default=None)


def predict_latency_ms(epoch_s: float, longest_task_s: float, largest_load: float) -> float:
    """Return the mean latency that the epoch model predicts.

    D = o / (1 - w), latency = c D, with o what an epoch takes beyond its longest task and w the largest task's load in
    time; infinite where that task cannot keep up.
    """
    if largest_load >= 1.0:
        return float("inf")
    costs = EpochCosts(max(epoch_s - longest_task_s, 0.0), 0.0, 0.0, C)
    return 1e3 * epoch_latency_s(costs, 1, 0.0, largest_load)
