"""How many cores and nodes a latency bound takes, at what the load is now and at multiples of it. Formulas only.

M/M/k or GI/G/k for each operator, MinProcessors of DRS for the whole (drs.txt, IV). It says what a perfectly balanced
operator needs; skew and epochs come on top, which is why a margin is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.control.measure.estimate import Estimate
from penstock.control.model.allocation import Station, min_processors
from penstock.control.model.jackson import derive_network, solve_traffic
from penstock.control.model.queues import ModelError
from penstock.control.model.stations import QueueStation
from penstock.control.sla import SLA

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
    problem: str = ""
    """Why the bound cannot be held; empty where it can."""

    @property
    def total(self) -> int:
        return sum(self.cores.values())


def derive_rates(now: Estimate) -> list[OperatorRate]:
    """Return what an estimate says of every operator."""
    visits = solve_traffic(derive_network(now)).visits
    return [
        OperatorRate(
            name,
            one.rate_per_s,
            one.service_per_s,
            visits.get(one.operator, 1.0),
            one.scv_arrival,
            one.scv_service,
            int((one.task_of >= 0).sum()),
        )
        for name, one in now.executors.items()
    ]


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
    """
    bound_s = sla.latency if sla.is_mean else sla.latency / -math.log(1.0 - float(sla.quantile))
    return [_at(factor, operators, bound_s, cores_per_node, margin) for factor in factors]


def _at(
    factor: float, operators: Sequence[OperatorRate], bound_s: float, cores_per_node: int, margin: float
) -> Capacity:
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
    try:
        found = min_processors(stations, bound_s)
    except ModelError as error:
        return Capacity(factor, problem=str(error))
    return Capacity(
        factor,
        dict(found.cores),
        math.ceil(found.total / max(cores_per_node, 1)),
        found.latency_s,
        "" if found.reached else f"the bound of {bound_s * 1e3:g} ms is not reached with all shards on cores",
    )
