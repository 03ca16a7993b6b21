"""The papers' applications as simulation cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.control.model.allocation import spread_processors
from penstock.control.policy.protocol import Limits
from penstock.control.sla import END_TO_END, SLA
from penstock.sim.elastic.arrivals import Arrivals, InTurn, poisson_arrivals, rates_of
from penstock.sim.elastic.cases import FOUR_NODES, Case
from penstock.sim.elastic.setting import (
    EXPONENTIAL,
    FIXED,
    Costs,
    EpochTiming,
    Setting,
    SimEdge,
    SimExecutor,
    SimNode,
    SimOperator,
    spread_over,
)
from penstock.workloads.paper_topologies import TOPOLOGIES, PaperTopology, Rate, derive_rates

LOOP_STEP_S = 0.02
"""Longest step where rows may go round a loop: each round can be late by one. For frequent patterns this makes 10 % of
the mean latency, 0.1 s would make 25 %."""


def topology_case(
    topology: PaperTopology,
    tasks: dict[str, int],
    *,
    seed: int = 1,
    seconds: float = 600.0,
    nodes: tuple[SimNode, ...] = FOUR_NODES,
    max_cores: int | None = None,
    costs: Costs | None = None,
    epochs: EpochTiming | None = None,
    sla: SLA | None = None,
    interval_s: float = 1.0,
    step_s: float = LOOP_STEP_S,
) -> Case:
    """Return a case with one elastic executor per station.

    Args:
        topology: one of `TOPOLOGIES`, scaled perhaps.
        tasks: station -> tasks to start with.
        max_cores: most tasks in all; every core of the nodes where it is None.
        step_s: longest step; what goes round a loop can be late by one.
    """
    operators = tuple(
        SimOperator(one.name, one.shards, 1 / one.service_s, EXPONENTIAL if one.exponential else FIXED)
        for one in topology.stations
    )
    placed = spread_over({one.name: one.shards for one in topology.stations}, nodes, tasks)
    setting = Setting(
        nodes,
        operators,
        {name: SimExecutor(name, plan) for name, plan in placed.items()},
        tuple(
            SimEdge(link.producer, link.consumer, link.selectivity, link.burst, in_turn=link.in_turn)
            for link in topology.links
        ),
        costs or Costs(),
        epochs,
        step_s=step_s,
    )
    entry = next(one for one in topology.stations if one.name == topology.entry)
    cores = sum(node.cores for node in nodes)
    return Case(
        topology.name,
        seed,
        lambda _: setting,
        lambda: {entry.name: topology_feed(topology, topology.rate, seconds, seed)},
        sla or SLA(topology.latency_s, topology.window_s, scope=END_TO_END),
        seconds,
        Limits(max_cores or cores, 1, len(nodes), nodes[0].cores),
        entry.name,
        sum(tasks.values()),
        interval_s,
    )


def topology_feed(topology: PaperTopology, rate: Rate, seconds: float, seed: int) -> Arrivals:
    """Return Poisson arrivals at the entry of a topology, at a rate over time: by key, or in turn where it says so."""
    shards = next(one.shards for one in topology.stations if one.name == topology.entry)
    if topology.in_turn:
        single = poisson_arrivals(rates_of(rate, np.ones(1), seconds), seconds, seed)
        return InTurn(single, shards)
    return poisson_arrivals(rates_of(rate, np.ones(shards), seconds), seconds, seed)


def paper_case(
    name: str,
    seed: int,
    *,
    seconds: float,
    interval_s: float = 1.0,
    epochs: EpochTiming | None = None,
) -> Case:
    """Return an application of the papers under its main experiment's rate, on four nodes of sixteen cores.

    It starts with the tasks that its first rate fills to 0.8, or with another number that is spread by load. Rows of
    split-count are fifty times fewer and dearer.
    """
    topology = TOPOLOGIES[name]
    topology = topology.scaled(0.02) if name == "split-count" else topology
    rates = derive_rates(topology, float(topology.rate(np.zeros(1))[0]))
    loads = {one.name: rates[one.name] * one.service_s for one in topology.stations}
    first = {name: int(load / 0.8) + 1 for name, load in loads.items()}
    nodes = tuple(SimNode(f"node-{number}", 16) for number in range(4))
    loops = any(link.producer == link.consumer for link in topology.links)

    def make(tasks: dict[str, int]) -> Case:
        return topology_case(
            topology,
            tasks,
            seed=seed,
            seconds=seconds,
            nodes=nodes,
            epochs=epochs,
            interval_s=interval_s,
            step_s=LOOP_STEP_S if loops else 1.0,
        )

    case = make(first)
    return replace(
        case,
        setting=lambda total: make(first if total == case.tasks else spread_processors(loads, total)).setting(
            total
        ),
        limits=replace(case.limits, min_nodes=len(nodes)),
    )
