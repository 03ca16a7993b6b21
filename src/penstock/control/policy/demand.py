"""What the latency models need to know of an estimate: stations with their rates, visits and the model inside.

DRS III-A: λ0 from sources, λ_i from the traffic equations, so that an operator whose producer lags behind, or works off
what had waited, is seen at the rate it will have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.model.allocation import Station
from penstock.control.model.epoch import derive_epoch_station
from penstock.control.model.jackson import derive_network, find_flushed, solve_traffic
from penstock.control.model.stations import QueueStation, StationModel
from penstock.control.policy.mapping import is_known

MMK, GIGK, EPOCH = "mmk", "gigk", "epoch"
MODELS = (MMK, GIGK, EPOCH)


@dataclass(frozen=True)
class Demand:
    """Rates of all executors, and the rate of sources they are weighed by."""

    source_per_s: float
    rate_per_s: Mapping[str, float]
    service_per_s: Mapping[str, float]

    def visits(self, name: str) -> float:
        return self.rate_per_s[name] / self.source_per_s if self.source_per_s > 0 else 1.0


def derive_demand(now: Estimate) -> Demand:
    """Return the demand that an estimate describes.

    Raises:
        ModelError: a loop that makes more rows than it takes.
    """
    measured: dict[str, float] = {}
    for executor in now.executors.values():
        measured[executor.operator] = measured.get(executor.operator, 0.0) + executor.rate_per_s
    operators = measured
    if any(consumer in measured for _, consumer in now.edges):
        solved, flushed = solve_traffic(derive_network(now)).rate_per_s, find_flushed(now)
        operators = {
            name: solved[name] if name in flushed and solved[name] > 0 else max(rate, solved[name])
            for name, rate in measured.items()
        }
    rates = {}
    for name, executor in now.executors.items():
        seen = measured[executor.operator]
        rates[name] = executor.rate_per_s * (operators[executor.operator] / seen if seen > 0 else 1.0)
    source = sum(now.sources_per_s.values()) or max(operators.values(), default=0.0)
    service = {name: derive_service(executor) for name, executor in now.executors.items()}
    return Demand(source, rates, service)


def derive_service(executor: ExecutorEstimate) -> float:
    """Return the mean service rate of the executor's tasks; what is known of its operator where none was measured."""
    known = [task.service_per_s for task in executor.tasks if is_known(task.service_per_s)]
    return sum(known) / len(known) if known else executor.service_per_s


def derive_station(
    executor: ExecutorEstimate, demand: Demand, model: str, margin: float, k_max: int
) -> Station:
    """Return one executor as allocation sees it; it can use at most a core for each shard that has rows."""
    rate, service = demand.rate_per_s[executor.name], demand.service_per_s[executor.name]
    shards = max(int(np.count_nonzero(executor.arrival_per_s > 0)), 1)
    inside: StationModel
    if model == EPOCH:
        scale = rate / executor.rate_per_s if executor.rate_per_s > 0 else 1.0
        inside = derive_epoch_station(_as_it_lasts(executor, scale, margin), k_max)
    elif model == GIGK:
        inside = QueueStation(rate, service, executor.scv_arrival, executor.scv_service, margin)
    else:
        inside = QueueStation(rate, service, margin=margin)
    return Station(executor.name, demand.visits(executor.name), inside, at_most=shards)


def _as_it_lasts(executor: ExecutorEstimate, scale: float, margin: float) -> ExecutorEstimate:
    """Return an executor at the rate it will have, its shards as loaded as they are over minutes: by the rows of a few
    seconds most might have none, and the best split would be another one every turn."""
    arrival = executor.arrival_per_s
    if executor.lasting_load is not None and float(executor.load.sum()) > 0:
        few = executor.lasting_load != executor.load
        together = float(executor.lasting_load[few].sum())
        per_load = float(arrival[few].sum()) / together if together > 0 else 0.0
        arrival = np.where(few, executor.lasting_load * per_load, arrival)
    return replace(
        executor,
        load=executor.dealt_load * scale / (1 - margin),
        lasting_load=None,
        arrival_per_s=arrival * scale,
    )
