"""How many cores and nodes a latency bound takes, at what the load is now and at multiples of it. Formulas only.

M/M/k or GI/G/k for each operator, MinProcessors of DRS for the whole (drs.txt, IV). It says what a perfectly balanced
operator needs; skew and epochs come on top, which is why a margin is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from penstock.control.measure.estimate import Estimate
from penstock.control.model.allocation import UNBOUNDED, Station, lowest_latency_s, min_processors
from penstock.control.model.jackson import derive_network, solve_traffic
from penstock.control.model.queues import ModelError
from penstock.control.model.stations import QueueStation
from penstock.control.sla import OPERATOR, SLA
from penstock.errors import DeclarationError

FACTORS = (1.0, 1.5, 10.0)
MARGIN = 0.2
"""Share of a core that is left free, for skew and for what epochs cost."""


@dataclass(frozen=True)
class OperatorRate:
    """One operator: rows a second that arrive, rows a second that one core serves, and how they vary."""

    name: str
    rate_per_s: float
    service_per_s: float
    visits: float = 1.0
    """Rows of it for every input row."""
    scv_arrival: float = 1.0
    scv_service: float = 1.0
    shards: int | None = None


@dataclass(frozen=True)
class Capacity:
    """What a load takes."""

    factor: float
    cores: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    predicted_s: float = math.inf
    """Of what the SLA bounds: the mean, or its quantile by the tail that the bound was taken with."""
    problem: str = ""
    """Why the bound cannot be held; empty where it can."""

    @property
    def total(self) -> int:
        return sum(self.cores.values())


def derive_rates(now: Estimate) -> list[OperatorRate]:
    """Return what an estimate says of every executor; those of one operator share its visits as they share its rows."""
    visits = solve_traffic(derive_network(now)).visits
    shares = _share_rows(now)
    return [
        OperatorRate(
            name,
            one.rate_per_s,
            one.service_per_s,
            visits.get(one.operator, 1.0) * shares[name],
            one.scv_arrival,
            one.scv_service,
            int((one.task_of >= 0).sum()),
        )
        for name, one in now.executors.items()
    ]


def _share_rows(now: Estimate) -> dict[str, float]:
    """Executor -> share of its operator's rows that it gets; even shares where none come."""
    counts = Counter(one.operator for one in now.executors.values())
    rates = dict.fromkeys(counts, 0.0)
    for one in now.executors.values():
        rates[one.operator] += one.rate_per_s
    return {
        name: one.rate_per_s / rates[one.operator] if rates[one.operator] > 0 else 1.0 / counts[one.operator]
        for name, one in now.executors.items()
    }


def plan_capacity(
    operators: Sequence[OperatorRate],
    sla: SLA,
    cores_per_node: int,
    factors: Sequence[float] = FACTORS,
    margin: float = MARGIN,
) -> list[Capacity]:
    """Return the cores of each operator and the nodes for a bound, at each multiple of the load.

    A bound on a quantile q is taken as one on the mean of latency / -ln(1 - q): the tail of M/M/1, which is the longest of
    M/M/k.

    Raises:
        DeclarationError: rates or cores of a node that cannot be.
    """
    check_rates(operators)
    if cores_per_node < 1:
        raise DeclarationError(f"a node has at least one core, not {cores_per_node}.")
    return [_at(factor, operators, sla, cores_per_node, margin) for factor in factors]


def check_rates(operators: Sequence[OperatorRate]) -> None:
    """Refuse operators that nothing can be computed of.

    Raises:
        DeclarationError: it names the operator and what is wrong with it.
    """
    names = Counter(one.name for one in operators)
    for one in operators:
        if names[one.name] > 1:
            raise DeclarationError(f"operator {one.name} is there {names[one.name]} times; state each once.")
        for what, value in (("rate", one.rate_per_s), ("visits", one.visits)):
            if not 0 <= value < math.inf:
                raise DeclarationError(f"operator {one.name}: its {what} is {value:g}; give zero or more.")
        if not 0 < one.service_per_s < math.inf:
            raise DeclarationError(
                f"operator {one.name}: one core serves {one.service_per_s:g} rows a second; give more than zero, or let "
                "the query run on until some were measured."
            )


def _at(
    factor: float, operators: Sequence[OperatorRate], sla: SLA, cores_per_node: int, margin: float
) -> Capacity:
    least = sum(factor * one.rate_per_s / one.service_per_s / (1.0 - margin) for one in operators)
    if not least < UNBOUNDED:
        return Capacity(
            factor, problem=f"the load takes {least:.3g} cores; {UNBOUNDED:,} is the most planned for"
        )
    tail = 1.0 if sla.is_mean else -math.log(1.0 - float(sla.quantile))
    bound_s = sla.latency / tail
    stations = [
        Station(
            one.name,
            one.visits,
            QueueStation(
                one.rate_per_s * factor, one.service_per_s, one.scv_arrival, one.scv_service, margin
            ),
            at_most=one.shards,
        )
        for one in operators
    ]
    # Every group has the bound for itself: the whole topology, or each operator where it is on operators.
    groups = [stations] if sla.scope != OPERATOR else [[replace(one, visits=1.0)] for one in stations]
    try:
        lowest_s = max((lowest_latency_s(group) for group in groups), default=0.0)
        if bound_s < lowest_s:
            return Capacity(
                factor,
                problem=f"a bound of {sla.latency * 1e3:g} ms cannot be reached with any number of cores: raise it past "
                f"{tail * lowest_s * 1e3:.4g} ms, or make the operators faster",
            )
        found = [min_processors(group, bound_s) for group in groups]
    except ModelError as error:
        return Capacity(factor, problem=str(error))
    return Capacity(
        factor,
        {name: k for one in found for name, k in one.cores.items()},
        math.ceil(sum(one.total for one in found) / cores_per_node),
        tail * max((one.latency_s for one in found), default=0.0),
        ""
        if all(one.reached for one in found)
        else f"the bound of {sla.latency * 1e3:g} ms is not reached with all shards on cores",
    )
