"""The epoch model of operators in a row: what one operator's epochs do to the next, and what chance does to the tasks.

Two things that a station alone does not see. Rows come in the portions in which the operator before commits them: one
whose own epochs are shorter waits for each portion and takes it whole. And the rows of one epoch do not fall evenly on
tasks: the busiest has more than the mean, by what chance makes of as many. Predicts; fits and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from penstock.control.measure.estimate import EpochCosts

_ROUNDS = 1000
IN_STEP = 1.0
"""Latency over the length of an epoch where each portion finds the operator idle."""
BACK_TO_BACK = 1.5
"""The same where an epoch is always under way: half of it to wait for the next, and that one."""


@dataclass(frozen=True)
class EpochLink:
    """One operator of a chain, its load dealt evenly."""

    name: str
    costs: EpochCosts
    rate_per_s: float
    row_s: float
    """Useful time of a row."""
    shards: int


@dataclass(frozen=True)
class PredictedEpoch:
    """Epochs of one operator, and the latency of its rows from their arrival at it."""

    duration_s: float
    latency_s: float


def expected_most(k: int) -> float:
    """Return by how many standard deviations the largest of k normal draws is above their mean (Blom's approximation)."""
    return NormalDist().inv_cdf((k - 0.375) / (k + 0.25)) if k > 1 else 0.0


def predict_chain(
    links: Sequence[EpochLink], cores: Mapping[str, int], intake_s: float = 0.0
) -> dict[str, PredictedEpoch]:
    """Return what each operator's epochs take and its rows wait, in the order of the chain; infinite where it cannot keep
    up, and for all that comes after.

    Args:
        intake_s: what a row takes from its arrival at the source until the first operator can have it.
    """
    found: dict[str, PredictedEpoch] = {}
    portion_s = 0.0
    for at, link in enumerate(links):
        duration_s = _back_to_back_s(link, cores[link.name]) if portion_s < math.inf else math.inf
        times = BACK_TO_BACK
        if duration_s < portion_s:
            duration_s, times = min(_epoch_s(link, cores[link.name], portion_s), portion_s), IN_STEP
        found[link.name] = PredictedEpoch(duration_s, times * duration_s + (intake_s if at == 0 else 0.0))
        portion_s = max(portion_s, duration_s)
    return found


def _epoch_s(link: EpochLink, k: int, portion_s: float) -> float:
    """Return the length of an epoch that takes the rows of so much time: D = o0 + o1 k + o2 touched + the busiest task."""
    rows = link.rate_per_s * portion_s
    touched = link.shards * -math.expm1(-rows / link.shards)
    overhead_s = link.costs.o0_s + link.costs.o1_s * k + link.costs.o2_s * touched
    return overhead_s + link.row_s * (rows / k + expected_most(k) * math.sqrt(rows / k))


def _back_to_back_s(link: EpochLink, k: int) -> float:
    """Return the D of epochs that each take what came during the one before; the largest load counts chance in."""
    if link.rate_per_s * link.row_s / k >= 1.0:
        return math.inf
    duration_s = link.costs.o0_s + link.costs.o1_s * k
    for _ in range(_ROUNDS):
        longer_s = _epoch_s(link, k, duration_s)
        if longer_s - duration_s < 1e-6 * duration_s:
            break
        duration_s = longer_s
    return duration_s
