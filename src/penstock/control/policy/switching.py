"""The stream switch: which task has which shard, what latency each task is headed for, and the unit strategies.

A unit strategy moves shards from one task to one other (StreamSwitch 3.1). Everything here is a pure function of one
elastic executor's `Switch`; when a strategy is called for is the policy's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64

Ints = npt.NDArray[np.int64]

SCALE_IN, BALANCE, SCALE_OUT = "scale-in", "balance", "scale-out"

_ALL_PAIRS = 64
"""Tasks up to which scale-in compares whole vectors; past it, only the pairs with the least worst latency."""


class Health(IntEnum):
    """Healthiness of a task or of a whole executor (StreamSwitch 3.3)."""

    GOOD = 0
    MODERATE = 1
    SEVERE = 2


_HEALTHS = tuple(Health)


@dataclass(frozen=True)
class Switch:
    """One elastic executor as the algorithms see it. Tasks go by their position, not by their index."""

    tasks: tuple[int, ...]
    """Index of the task at each position."""
    nodes: tuple[str, ...]
    service_per_s: F64
    """μ_i, by position."""
    at: Ints
    """Shard -> position of its task; -1 where the shard is not this executor's."""
    rate_per_s: F64
    """λ^k, by shard."""
    latency_s: F64
    """l^k, by shard; NaN where it is not known."""
    margin: float = 0.2
    """ε: the share of the service rate that is kept free."""

    @cached_property
    def task_rates(self) -> F64:
        """λ_i, by position."""
        return self._by_task(self.rate_per_s)

    @cached_property
    def _line(self) -> Ints:
        """Shard -> position, where what is not this executor's has the place after the last one."""
        return np.where(self.at < 0, len(self.tasks), self.at)

    def _by_task(self, by_shard: F64) -> F64:
        found = np.bincount(self._line, by_shard, len(self.tasks) + 1)[:-1]
        return found.astype(np.float64, copy=False)

    @cached_property
    def headroom(self) -> F64:
        """(1 - ε) μ_i - λ_i, by position: what the projected latency is the inverse of."""
        return (1.0 - self.margin) * self.service_per_s - self.task_rates

    @cached_property
    def projected_s(self) -> F64:
        """L_i = 1 / ((1 - ε) μ_i - λ_i), infinite at or past (1 - ε) μ_i (StreamSwitch 4.2)."""
        return project_latency_s(self.headroom)

    @property
    def worst_s(self) -> float:
        """The largest L_i."""
        return float(np.maximum.reduce(self.projected_s, initial=0.0))

    @property
    def least_s(self) -> float:
        """What the projected latency of the fastest task is with nothing to do: no deal of shards gets under it."""
        return 1.0 / max(
            (1.0 - self.margin) * float(np.maximum.reduce(self.service_per_s, initial=0.0)), 1e-12
        )

    def task_latencies(self, backlog_rows: F64) -> F64:
        """Return l_i by position: the mean of l^k over the task's shards, weighted by rate (StreamSwitch 4.1).

        Where no shard of a task has a known latency, nothing was completed: then it is the time that what waits
        will take, and zero where nothing waits.
        """
        known = np.isfinite(self.latency_s)
        weight = np.where(known, np.maximum(self.rate_per_s, 1e-9), 0.0)
        total = self._by_task(weight)
        summed = self._by_task(weight * np.where(known, self.latency_s, 0.0))
        measured = summed / np.maximum(total, 1e-12)
        if (total > 0).all():
            return measured
        waits = self._by_task(backlog_rows) / np.maximum(self.service_per_s, 1e-9)
        return np.where(total > 0, measured, waits)

    def with_task(self, index: int, node: str, service_per_s: float) -> Switch:
        """Return the switch with one more task that has no shard yet, at the last position."""
        return replace(
            self,
            tasks=(*self.tasks, index),
            nodes=(*self.nodes, node),
            service_per_s=np.append(self.service_per_s, service_per_s),
        )

    def without_task(self, position: int) -> Switch:
        """Return the switch without a task that has no shards; later positions move up by one."""
        if np.any(self.at == position):
            raise ValueError(f"task {self.tasks[position]} still has shards")
        return replace(
            self,
            tasks=self.tasks[:position] + self.tasks[position + 1 :],
            nodes=self.nodes[:position] + self.nodes[position + 1 :],
            service_per_s=np.delete(self.service_per_s, position),
            at=np.where(self.at > position, self.at - 1, self.at),
        )

    def moved(self, shards: Ints, destination: int) -> Switch:
        """Return the switch after those shards went to the task at a position."""
        at = self.at.copy()
        at[shards] = destination
        return replace(self, at=at)

    def can_be_relieved(self, position: int) -> bool:
        """Return whether a task has more than one shard with rows: a single one cannot be split."""
        return bool(np.count_nonzero(self.rate_per_s[self.at == position] > 0) > 1)

    def can_be_cured(self, position: int, bound_s: float) -> bool:
        """Return whether the task could meet the bound on its heaviest shard alone."""
        heaviest = float(self.rate_per_s[self.at == position].max(initial=0.0))
        return (1.0 - self.margin) * float(self.service_per_s[position]) - heaviest >= 1.0 / bound_s

    def free_index(self) -> int:
        """Return the lowest index that no task has."""
        return next(i for i in range(len(self.tasks) + 1) if i not in self.tasks)


@dataclass(frozen=True)
class UnitStrategy:
    """x = (K, s, d): move shards K from the task at position s to the one at d, and the switch it leads to."""

    kind: str
    shards: Ints
    source: int
    """Index of the task that gives."""
    destination: int
    """Index of the task that takes."""
    after: Switch


def project_latency_s(headroom: F64) -> F64:
    """Return 1 / headroom; infinite where there is none left (StreamSwitch 4.2, generalised M/M/1)."""
    return np.where(headroom > 0, 1.0 / np.maximum(headroom, 1e-12), np.inf)


def derive_health(instantaneous_s: F64, projected_s: F64, alert_s: float, bound_s: float) -> list[Health]:
    """Return the health of each task: severe where both l_i > l and L_i > L, good where neither (StreamSwitch 3.3)."""
    pressed, failing = (instantaneous_s > alert_s).tolist(), (projected_s > bound_s).tolist()
    return [_HEALTHS[now + then] for now, then in zip(pressed, failing, strict=True)]


def find_shards(switch: Switch, source: int, destination: int, *, keep_one: bool = False) -> Ints:
    """Return the shards whose move from source to destination evens the two projected latencies out best.

    FindOptimalSubstreams (StreamSwitch 3.4): shards in ascending order of their latency, moved one by one while that
    lowers max(L_s, L_d). As L_s - L_d falls with every shard, the turning point is found by bisection of the running
    sums. Two readings of the printed algorithm: the shard whose move made things worse is not kept, and a shard that
    alone exceeds the difference in headroom can be in no improving set, so it is passed over and does not end the
    search. Headroom stands for latency: it orders overloaded tasks too, whose latency is infinite either way.

    Args:
        keep_one: leave at least one shard behind, as scaling out must (3.1: it never merely replaces a task).
    """
    return _find_among(switch, _by_latency(switch, source), source, destination, keep_one)


def _by_latency(switch: Switch, source: int) -> Ints:
    """Return the shards of a task in ascending order of their latency; those where it is not known come last."""
    mine = (switch.at == source).nonzero()[0]
    latency_s = switch.latency_s[mine]
    order = np.where(np.isfinite(latency_s), latency_s, np.inf).argsort(kind="stable")
    found: Ints = mine[order]
    return found


def _find_among(switch: Switch, mine: Ints, source: int, destination: int, keep_one: bool) -> Ints:
    """As `find_shards`, where the shards of the source are in order already."""
    gap = float(switch.headroom[destination] - switch.headroom[source])
    rate = switch.rate_per_s[mine]
    order = mine[(rate > 0) & (rate < gap)]
    if keep_one and len(order) == len(mine):
        order = order[:-1]
    if not len(order):
        return order
    running = switch.rate_per_s[order].cumsum()
    turn = int(running.searchsorted(gap / 2))
    lengths = [n for n in (turn, turn + 1) if 0 <= n <= len(order)]
    best = max(lengths, key=lambda n: (_least_headroom(switch, source, destination, running, n), -n))
    return order[:best]


def _least_headroom(switch: Switch, source: int, destination: int, running: F64, length: int) -> float:
    shifted = float(running[length - 1]) if length else 0.0
    return min(float(switch.headroom[source]) + shifted, float(switch.headroom[destination]) - shifted)


def find_balancing(switch: Switch, source: int) -> UnitStrategy | None:
    """Return the best move from a task to any other (FindOptimalLBStrategy, StreamSwitch 3.4), None where none helps.

    Best: the vector of projected latencies, sorted from the worst down, comes first in lexicographic order.
    """
    best: UnitStrategy | None = None
    best_key = _sorted_pressure(switch)
    mine = _by_latency(switch, source)
    for destination in range(len(switch.tasks)):
        if destination == source or switch.headroom[destination] <= switch.headroom[source]:
            continue
        shards = _find_among(switch, mine, source, destination, keep_one=False)
        if not len(shards):
            continue
        after = switch.moved(shards, destination)
        key = _sorted_pressure(after)
        if key < best_key:
            best_key = key
            best = UnitStrategy(BALANCE, shards, switch.tasks[source], switch.tasks[destination], after)
    return best


def find_scale_out(switch: Switch, source: int, node: str, speed_ratio: float = 1.0) -> UnitStrategy | None:
    """Return the best move from a task to a new one on a node (StreamSwitch 3.4), None where the task has one shard.

    The service rate of the new task is not known: it is taken to be its source's, times `speed_ratio` where the
    speeds of the two nodes are known.
    """
    index = switch.free_index()
    wider = switch.with_task(index, node, float(switch.service_per_s[source]) * speed_ratio)
    destination = len(switch.tasks)
    shards = find_shards(wider, source, destination, keep_one=True)
    if not len(shards):
        return None
    return UnitStrategy(SCALE_OUT, shards, switch.tasks[source], index, wider.moved(shards, destination))


def find_scale_in(switch: Switch, bound_s: float) -> UnitStrategy | None:
    """Return the best way to give up a task (Algorithm 1, StreamSwitch 3.4), None where none keeps L_i <= bound.

    All shards of s go to d, for every pair; the pair whose vector of projected latencies, sorted from the worst down,
    comes first in lexicographic order is taken; equal ones by the fewest shards.
    """
    size = len(switch.tasks)
    if size < 2:
        return None
    if not (switch.projected_s <= bound_s).all():
        return None
    left = switch.headroom[None, :] - switch.task_rates[:, None]
    fits = project_latency_s(left) <= bound_s
    np.fill_diagonal(fits, False)
    sources, destinations = fits.nonzero()
    if not len(sources):
        return None
    if size > _ALL_PAIRS:
        sources, destinations = _least_worst(switch, left, sources, destinations)
    vectors = np.tile(-switch.headroom, (len(sources), 1))
    rows = np.arange(len(sources))
    vectors[rows, destinations] = -left[sources, destinations]
    vectors[rows, sources] = -np.inf
    vectors = -np.sort(-vectors, axis=1)
    counts = np.bincount(switch.at[switch.at >= 0], minlength=size)[sources]
    keys = [counts, *(vectors[:, column] for column in range(size - 1, -1, -1))]
    first = int(np.lexsort(keys)[0])
    source, destination = int(sources[first]), int(destinations[first])
    shards = np.flatnonzero(switch.at == source)
    after = switch.moved(shards, destination).without_task(source)
    return UnitStrategy(SCALE_IN, shards, switch.tasks[source], switch.tasks[destination], after)


def _least_worst(switch: Switch, left: F64, sources: Ints, destinations: Ints) -> tuple[Ints, Ints]:
    """Keep the pairs with the least worst latency, and of these the ones that load their destination least."""
    order = np.argsort(switch.headroom, kind="stable")[:3]
    rest = np.full(len(sources), np.inf)
    for position in order[::-1]:
        free = (sources != position) & (destinations != position)
        rest = np.where(free, switch.headroom[position], rest)
    taken = left[sources, destinations]
    least = np.minimum(rest, taken)
    keep = np.flatnonzero(least == least.max())
    keep = keep[taken[keep] == taken[keep].max()][:_ALL_PAIRS]
    return sources[keep], destinations[keep]


def _sorted_pressure(switch: Switch) -> list[float]:
    return sorted((-switch.headroom).tolist(), reverse=True)
