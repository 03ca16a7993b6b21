"""How many cores and nodes a latency bound takes, at what the load is now and at multiples of it. Formulas only.

M/M/k or GI/G/k for each operator, MinProcessors of DRS for the whole (drs.txt, IV). It says what a perfectly balanced
operator needs; skew and epochs come on top, which is why a margin is kept. A shard that is too hot for one core is named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.model.allocation import UNBOUNDED, Station, lowest_latency_s, min_processors
from penstock.control.model.jackson import derive_network, solve_traffic
from penstock.control.model.queues import ModelError
from penstock.control.model.stations import QueueStation
from penstock.control.sla import OPERATOR, SLA
from penstock.errors import DeclarationError

FACTORS = (1.0, 1.5, 10.0)
MARGIN = 0.2
"""Share of a core that is left free, for skew and for what epochs cost."""
CHANCE = 3.0
"""Deviations by which a shard must have had more rows than an even share of them to be called the hottest."""


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
    hottest_ratio: float = 0.0
    """Share of its load that its hottest shard has; 0 where that is not known."""

    def hottest_cores(self, factor: float = 1.0) -> float:
        """Return the cores that its hottest shard keeps busy alone, at a multiple of the load."""
        return factor * self.rate_per_s * self.hottest_ratio / self.service_per_s


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
            _derive_hottest(one),
        )
        for name, one in now.executors.items()
    ]


def _derive_hottest(executor: ExecutorEstimate) -> float:
    """Return the share of the hottest shard, an even one where chance may have made it the hottest, as few rows were
    counted; 0 where nothing is known of it."""
    total = float(executor.load.sum())
    shards = int((executor.task_of >= 0).sum())
    if total <= 0 or not shards:
        return 0.0
    share = float(executor.load.max()) / total
    rows = executor.rate_per_s * (executor.done_over_s or 1.0)
    return share if share * rows - CHANCE * math.sqrt(share * rows) > rows / shards else 1.0 / shards


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
        if one.rate_per_s > 0 and not one.visits > 0:
            raise DeclarationError(
                f"operator {one.name}: {one.rate_per_s:g} rows a second arrive, so its visits cannot be 0; give the rows "
                "that reach it for each input row."
            )
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
    hot = _find_hot(operators, factor, margin)
    if hot is not None:
        return Capacity(factor, problem=_explain_hot(hot, factor, margin))
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


def find_hottest(operators: Sequence[OperatorRate]) -> OperatorRate | None:
    """Return the operator whose hottest shard keeps most of a core busy; None where no shard is known."""
    known = [one for one in operators if one.hottest_ratio > 0]
    return max(known, key=OperatorRate.hottest_cores, default=None)


def _find_hot(operators: Sequence[OperatorRate], factor: float, margin: float) -> OperatorRate | None:
    """Return an operator with a shard that is more than a core does, with the margin left free; None where all can be
    served."""
    hottest = find_hottest(operators)
    return hottest if hottest is not None and hottest.hottest_cores(factor) >= 1.0 - margin else None


def _explain_hot(hot: OperatorRate, factor: float, margin: float) -> str:
    return (
        f"one shard of {hot.name} is {hot.hottest_ratio:.0%} of its load and alone takes {hot.hottest_cores(factor):.2f} "
        f"cores, where {1.0 - margin:g} of one is what can be used; a shard has one task, so no number of cores helps: "
        "only fewer rows of its hottest key, by another key or another topology, or faster code can"
    )


def name_model(operators: Sequence[OperatorRate], margin: float = MARGIN) -> str:
    """Return by which model latencies are predicted here."""
    varied = any((one.scv_arrival, one.scv_service) != (1.0, 1.0) for one in operators)
    return f"{'GI/G/k' if varied else 'M/M/k'} with {margin:.0%} of every core left free"
