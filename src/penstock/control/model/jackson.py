"""The network of stations: traffic equations for any topology, visit counts, expected total sojourn time.

Splits, joins and loops are all edge ratios: rows that a producer sends to a consumer for each row it processes. Any
station model stands inside (DRS III-A, Elasticutor 4.1). Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.model.queues import ModelError
from penstock.control.model.stations import StationModel

CATCHES_UP = 1.1
"""An operator that completes so many times what arrives is taken to work off a backlog; less is noise."""


@dataclass(frozen=True)
class Network:
    """Operators, what reaches them from outside, and what each row of one becomes for another."""

    operators: tuple[str, ...]
    external_per_s: Mapping[str, float]
    """Rows a second that reach an operator straight from sources."""
    ratios: Mapping[tuple[str, str], float]
    """(producer, consumer) -> rows sent for each row processed; (a, a) is a loop of its own."""
    source_per_s: float | None = None
    """λ0, rows a second that all sources take in; the sum of `external_per_s` where it is None, which differs
    when a source feeds several operators with the same row."""


@dataclass(frozen=True)
class Traffic:
    """The solution: how often each operator is visited."""

    source_per_s: float
    rate_per_s: Mapping[str, float]
    """λ_i: rows a second at each operator, all inputs and loops together."""
    visits: Mapping[str, float]
    """λ_i / λ0: rows an operator processes for each row of a source."""


def solve_traffic(network: Network) -> Traffic:
    """Solve λ = external + Pᵀ λ for any topology, loops included.

    Raises:
        ModelError: an edge names an unknown operator, a rate or ratio is negative, or a loop makes at least as many
            rows as it takes, so that no rate is stable (spectral radius of its ratios 1 or more).
    """
    place = {name: at for at, name in enumerate(network.operators)}
    ratios, external = _checked(network, place)
    _refuse_unstable_loops(network.operators, ratios)
    # Non-negative by the theory; rounding may leave a trace below zero.
    rates = np.maximum(np.linalg.solve(np.eye(len(place)) - ratios.T, external), 0.0)
    source = float(external.sum()) if network.source_per_s is None else network.source_per_s
    visits = rates / source if source > 0 else np.zeros(len(place))
    return Traffic(
        source,
        {name: float(rates[at]) for name, at in place.items()},
        {name: float(visits[at]) for name, at in place.items()},
    )


def network_latency_s(
    traffic: Traffic, models: Mapping[str, StationModel], cores: Mapping[str, int]
) -> float:
    """Return the expected total sojourn time: E[T](k) = Σ (λ_i / λ0) E[T_i](k_i) (DRS, equation 4).

    Infinite where a visited station cannot serve its load; operators that nothing visits count nothing.
    """
    visited = [(visits, name) for name, visits in traffic.visits.items() if visits > 0]
    return math.fsum(visits * models[name].latency_s(cores[name]) for visits, name in visited)


def derive_network(now: Estimate) -> Network:
    """Return the network that an estimate describes; executors of one operator count together.

    A ratio is what an edge carries over what its producer completes, counted over the same time. A producer that falls
    behind completes less than arrives, one that works off a backlog more, and once it keeps up its consumers see what
    arrives at it, no less and no more.
    """
    arriving, completing = _flows(now, _count_completed)
    external = dict.fromkeys(arriving, 0.0)
    ratios: dict[tuple[str, str], float] = {}
    for (producer, consumer), rate in now.edges.items():
        if consumer not in arriving:
            continue
        if producer not in arriving:
            external[consumer] += rate
        elif completing[producer] > 0:
            ratios[producer, consumer] = rate / completing[producer]
    source = sum(now.sources_per_s.values())
    return Network(tuple(arriving), external, ratios, source if source > 0 else None)


def find_flushed(now: Estimate) -> set[str]:
    """Return the operators at which more arrives than will last: one before them works off what had waited, by what it
    completes and by its useful time, for each of them alone is off where rows become dearer or come by epochs."""
    arriving, counted = _flows(now, _count_completed)
    _, worked = _flows(now, _derive_worked)
    todo = [name for name, rate in arriving.items() if min(counted[name], worked[name]) > rate * CATCHES_UP]
    found: set[str] = set()
    while todo:
        producer = todo.pop()
        reached = {to for (start, to) in now.edges if start == producer and to in arriving} - found
        found |= reached
        todo += reached
    return found


def _flows(
    now: Estimate, completes: Callable[[ExecutorEstimate], float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rows a second that arrive at each operator, and those that it completes."""
    arriving: dict[str, float] = {}
    completing: dict[str, float] = {}
    for executor in now.executors.values():
        arriving[executor.operator] = arriving.get(executor.operator, 0.0) + executor.rate_per_s
        completing[executor.operator] = completing.get(executor.operator, 0.0) + completes(executor)
    return arriving, completing


def _count_completed(executor: ExecutorEstimate) -> float:
    return executor.completed_per_s or _derive_worked(executor)


def _derive_worked(executor: ExecutorEstimate) -> float:
    worked = sum(task.useful_ratio * task.service_per_s for task in executor.tasks)
    return worked if worked > 0 else executor.rate_per_s


def _checked(
    network: Network, place: Mapping[str, int]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the matrix of ratios and the vector of external rates."""
    ratios = np.zeros((len(place), len(place)))
    external = np.zeros(len(place))
    for (producer, consumer), ratio in network.ratios.items():
        if producer not in place or consumer not in place:
            raise ModelError(
                f"the edge {producer} -> {consumer} names an operator that is not in the network."
            )
        if not 0 <= ratio < math.inf:
            raise ModelError(f"the edge {producer} -> {consumer} has the ratio {ratio!r}; give zero or more.")
        ratios[place[producer], place[consumer]] = ratio
    for name, rate in network.external_per_s.items():
        if name not in place:
            raise ModelError(f"a source feeds {name}, which is not in the network.")
        if not 0 <= rate < math.inf:
            raise ModelError(f"a source feeds {name} {rate!r} rows a second; give zero or more.")
        external[place[name]] = rate
    return ratios, external


def _refuse_unstable_loops(names: Sequence[str], ratios: npt.NDArray[np.float64]) -> None:
    """Raise where a loop grows without end. The spectral radius of a whole non-negative matrix is that of its worst
    strongly connected part, so looking at each part finds the operators to name."""
    for part in _loops(ratios):
        radius = float(max(abs(np.linalg.eigvals(ratios[np.ix_(part, part)]))))
        if radius >= 1.0:
            loop = ", ".join(names[at] for at in part)
            raise ModelError(
                f"the loop of {loop} makes {radius:.3g} rows of each row in a turn, so that no number of cores serves "
                "it; let it send back fewer rows than it takes (a ratio below 1)."
            )


def _loops(ratios: npt.NDArray[np.float64]) -> list[list[int]]:
    """Return the strongly connected parts that contain a cycle."""
    reach = ratios > 0
    for middle in range(len(ratios)):
        reach |= np.outer(reach[:, middle], reach[middle])
    mutual = reach & reach.T
    parts = {tuple(np.flatnonzero(row).tolist()) for row in mutual if row.any()}
    return [list(part) for part in sorted(parts)]
