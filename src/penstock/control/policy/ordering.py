"""The order of operators: which come before which, loops taken together, and the paths a row can take.

Edges are those of an `Estimate`; a producer that is no operator is a source.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from penstock.control.measure.estimate import Estimate

Edges = Mapping[tuple[str, str], float]


def derive_operators(now: Estimate) -> dict[str, list[str]]:
    """Return operator -> names of its executors."""
    found: dict[str, list[str]] = {}
    for name, executor in sorted(now.executors.items()):
        found.setdefault(executor.operator, []).append(name)
    return found


def derive_stations(operators: Collection[str], edges: Edges) -> list[tuple[str, ...]]:
    """Return the operators in topological order; those of one loop stand together, as one station."""
    after: dict[str, list[str]] = {name: [] for name in sorted(operators)}
    for producer, consumer in sorted(edges):
        if producer in after and consumer in after:
            after[producer].append(consumer)
    reach = {name: _reach(name, after) for name in after}
    stations: list[tuple[str, ...]] = []
    placed: set[str] = set()
    while len(placed) < len(after):
        free = next(
            name
            for name in after
            if name not in placed
            and all(
                name in reach[other] and other in reach[name]
                for other in after
                if _waits(other, name, reach, placed)
            )
        )
        loop = tuple(sorted({free} | {other for other in reach[free] if free in reach[other]}))
        stations.append(loop)
        placed.update(loop)
    return stations


def _waits(other: str, name: str, reach: Mapping[str, set[str]], placed: set[str]) -> bool:
    return other != name and other not in placed and name in reach[other]


def _reach(start: str, after: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(after[start])
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(after[name])
    return found


def derive_visits(operators: Collection[str], edges: Edges, rates: Mapping[str, float]) -> dict[str, float]:
    """Return how often a row passes each operator on one way through: 1, or more inside a loop.

    Inside a loop it is the operator's rate over the rate at which rows enter the loop from outside.
    """
    visits = dict.fromkeys(operators, 1.0)
    for station in derive_stations(operators, edges):
        looped = len(station) > 1 or (station[0], station[0]) in edges
        entering = sum(rate for (p, c), rate in edges.items() if c in station and p not in station)
        if looped and entering > 0:
            visits.update({name: max(rates.get(name, 0.0) / entering, 1.0) for name in station})
    return visits


def derive_longest(
    stations: list[tuple[str, ...]], edges: Edges, weight: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Return operator -> weight of the heaviest path through it, and the heaviest of all.

    Loops count as one station: the sum of their operators' weights.
    """
    place = {name: at for at, station in enumerate(stations) for name in station}
    own = [sum(weight[name] for name in station) for station in stations]
    links = {(place[p], place[c]) for p, c in edges if p in place and c in place and place[p] != place[c]}
    into, out = list(own), list(own)
    for at in range(len(own)):
        into[at] = own[at] + max((into[p] for p, c in links if c == at), default=0.0)
    for at in reversed(range(len(own))):
        out[at] = own[at] + max((out[c] for p, c in links if p == at), default=0.0)
    # What is infinite cannot be taken off again.
    through = [into[at] + out[at] - own[at] if own[at] < math.inf else math.inf for at in range(len(own))]
    return {name: through[place[name]] for name in place}, max(through, default=0.0)
