"""Whether latency as measured holds the bound where rows are taken by epochs, and whether more tasks lowered it.

A model of epochs may be right in its shape and wrong in its height: what is late is what was measured late, more often
than chance explains. A look begins anew whenever shards are dealt and passes over turns at which rows wait for more than
epochs, so that a backlog that is worked off never counts. Remembers looks, decides nothing.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import numpy.typing as npt

from penstock.control.policy.studying import Study

SETTLE_S = 3.0
"""Time after a change that is not looked at."""
LOOK_S, LOOK_TURNS = 10.0, 10
"""Least time, and least number of turns, that say anything."""
LONGEST_S, LONGEST_TURNS = 30.0, 30
"""Time, or turns where that is more, that are looked back."""
TOLERATED = 0.05
"""Share of windows that may miss the bound."""
Z = 2.0
"""Deviations beyond it that chance does not explain."""
HELPED = 0.1
"""Share of what was promised by which latency must have fallen for more tasks to have helped."""
SAME_LOAD = 1.1
"""A load that has grown by more says nothing about what more tasks did."""
LEAST_RATIO, MOST_RATIO = 0.5, 3.0
"""Measured latency over what was predicted, as far as it is believed."""


@dataclass(frozen=True)
class Late:
    """What a look at some executors under one bound found. Latencies are means over the look."""

    latency_s: float
    """Of what the SLA bounds."""
    measured_s: Mapping[str, float]
    """By executor, as means of exponential ones that the SLA would bound alike."""
    said_s: Mapping[str, float]
    """By executor, as the model had it before it was brought to what is measured."""
    is_late: bool


@dataclass(frozen=True)
class _Turn:
    at_s: float
    latency_s: float
    measured_s: Mapping[str, float]
    said_s: Mapping[str, float]


@dataclass(frozen=True)
class _Widened:
    """Tasks that were added for shorter epochs, until it is known what came of them."""

    names: frozenset[str]
    at_s: float
    k: int
    rate_per_s: float
    before_s: float
    promised_s: float


@dataclass(frozen=True)
class Unhelped:
    """Executors whose latency did not fall, and whether they were given tasks for that, or had their shards dealt anew."""

    names: frozenset[str] = frozenset()
    added: bool = False


@dataclass
class _Look:
    dealt: tuple[npt.NDArray[np.int32], ...]
    since_s: float
    disturbed_s: float
    """When shards were dealt, or rows last waited for more than epochs."""
    turns: deque[_Turn] = field(default_factory=deque)


@dataclass
class Lateness:
    """Looks at executors, taken together where they share a bound: by key."""

    _looks: dict[str, _Look] = field(default_factory=dict)
    _widened: dict[str, _Widened] = field(default_factory=dict)
    _ratios: dict[str, float] = field(default_factory=dict)

    def take(
        self,
        at_s: float,
        key: str,
        studies: Sequence[Study],
        latency_s: float,
        bound_s: float,
        window_s: float,
    ) -> Late | None:
        """Take in what a turn measured; return what is known since the last change, None where that is too little."""
        look = self._looks.get(key)
        dealt = tuple(one.executor.task_of for one in studies)
        if look is None or not _is_same(look.dealt, dealt):
            self._looks[key] = _Look(dealt, at_s, at_s)
            return None
        if not all(one.calm for one in studies):
            look.disturbed_s = at_s
        if at_s - look.disturbed_s <= SETTLE_S or not math.isfinite(latency_s):
            return None
        measured_s = {one.name: derive_measured_s(one) for one in studies}
        look.turns.append(_Turn(at_s, latency_s, measured_s, {one.name: one.predicted_s for one in studies}))
        turns = look.turns
        # Turns that were not looked at lie between others: they make no turn longer.
        apart_s = [later.at_s - one.at_s for one, later in itertools.pairwise(turns)]
        turn_s = median(apart_s) if apart_s else 0.0
        while turns[0].at_s < at_s - max(LONGEST_S, LONGEST_TURNS * turn_s):
            turns.popleft()
        if len(turns) < LOOK_TURNS or at_s - turns[0].at_s + turn_s < LOOK_S:
            return None
        found = Late(
            float(np.mean([one.latency_s for one in turns])),
            {one.name: float(np.mean([turn.measured_s[one.name] for turn in turns])) for one in studies},
            {one.name: float(np.mean([turn.said_s[one.name] for turn in turns])) for one in studies},
            _is_late([one.latency_s > bound_s for one in turns], window_s / max(turn_s, 1e-9)),
        )
        for name, said_s in found.said_s.items():
            ratio = found.measured_s[name] / said_s if 0 < said_s < math.inf else 1.0
            self._ratios[name] = min(max(ratio, LEAST_RATIO), MOST_RATIO)
        return found

    def ratio(self, name: str) -> float:
        """Return what was measured of an executor over what was predicted."""
        return self._ratios.get(name, 1.0)

    def widen(
        self, key: str, names: frozenset[str], studies: Sequence[Study], before_s: float, promised_s: float
    ) -> None:
        """Note that shards of executors are dealt anew, to more tasks perhaps, and what is promised of it."""
        at_s = self._looks[key].turns[-1].at_s
        self._widened[key] = _Widened(names, at_s, _k(studies), _rate(studies), before_s, promised_s)

    def forget(self) -> None:
        """Note that the last plan did not happen; what was promised of plans that did is still to be judged."""
        self._widened = {
            key: one
            for key, one in self._widened.items()
            if key in self._looks and self._looks[key].since_s > one.at_s
        }

    def judge(self, key: str, studies: Sequence[Study], late: Late) -> Unhelped:
        """Return the executors for which what was done did not lower the latency; each is named once."""
        widened = self._widened.get(key)
        if widened is None or self._looks[key].since_s <= widened.at_s:
            return Unhelped()
        del self._widened[key]
        if _k(studies) < widened.k or _rate(studies) > SAME_LOAD * widened.rate_per_s:
            return Unhelped()
        wanted_s = widened.before_s - HELPED * (widened.before_s - widened.promised_s)
        return Unhelped(widened.names, _k(studies) > widened.k) if late.latency_s > wanted_s else Unhelped()


def _is_same(one: Sequence[npt.NDArray[np.int32]], other: Sequence[npt.NDArray[np.int32]]) -> bool:
    return len(one) == len(other) and all(
        a is b or np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


def derive_measured_s(one: Study) -> float:
    if one.bound.measured_s is None:
        return one.predicted_s
    return one.bound.measured_s * one.bound.mean_s / one.bound.latency_s


def _is_late(missed: Sequence[bool], overlap: float) -> bool:
    """Whether the bound was missed more often than is tolerated, and still is.

    Args:
        overlap: turns that a window of the bound spans: they are one look at it.
    """
    looks = len(missed) / max(overlap, 1.0)
    most = TOLERATED * looks + Z * math.sqrt(TOLERATED * (1 - TOLERATED) * looks)
    return float(np.mean(missed)) * looks > most and any(missed[-LOOK_TURNS:])


def _k(studies: Sequence[Study]) -> int:
    return sum(one.executor.k for one in studies)


def _rate(studies: Sequence[Study]) -> float:
    return sum(one.executor.rate_per_s for one in studies)
