"""The chain of `bench models` in the simulator, with the epoch costs that were fitted live: how far off it is. No Spark."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.bench.chain import SERVICE_S, SHARDS, Seen, Setting
from penstock.control.model.epoch_chain import EpochLink
from penstock.control.sla import SLA
from penstock.sim.elastic.arrivals import poisson_arrivals
from penstock.sim.elastic.setting import EpochTiming, SimEdge, SimExecutor, SimNode, SimOperator, spread_over
from penstock.sim.elastic.setting import Setting as SimSetting
from penstock.sim.elastic.simulation import Simulation

SECONDS: Final = 60.0
MAX_WORK_S: Final = 0.5


@dataclass(frozen=True)
class Simulated:
    """Latency end to end."""

    mean_s: float
    p99_s: float


def derive_timing(links: Sequence[EpochLink]) -> EpochTiming:
    """Return the costs of an epoch, the mean of what was fitted to each operator."""
    found = [(one.costs.o0_s, one.costs.o1_s, one.costs.o2_s) for one in links]
    o0_s, o1_s, o2_s = (float(one) for one in np.mean(found, axis=0))
    return EpochTiming(o0_s, o1_s, o2_s, MAX_WORK_S)


def simulate(setting: Setting, links: Sequence[EpochLink], intake_s: float) -> Simulated:
    """Run one setting of the chain in the simulator.

    Args:
        intake_s: what a row takes until the first operator can have it, which the simulator does not know.
    """
    nodes = (SimNode("driver", sum(setting.cores)),)
    operators = tuple(SimOperator(one.name, SHARDS, 1.0 / one.row_s) for one in links)
    tasks = dict(zip(SERVICE_S, setting.cores, strict=True))
    placed = spread_over(dict.fromkeys(SERVICE_S, SHARDS), nodes, tasks)
    names = list(SERVICE_S)
    world = SimSetting(
        nodes,
        operators,
        {name: SimExecutor(name, plan) for name, plan in placed.items()},
        tuple(SimEdge(one, other) for one, other in itertools.pairwise(names)),
        epochs=derive_timing(links),
        step_s=0.02,
    )
    rates = np.full(SHARDS, setting.rate_per_s / SHARDS)
    sim = Simulation(world, {names[0]: poisson_arrivals(rates, SECONDS)}, SLA(1.0), SECONDS)
    sim.advance(SECONDS)
    return Simulated(sim.end_to_end.mean_s() + intake_s, sim.end_to_end.quantile_s(0.99) + intake_s)


def derive_errors(seen: Sequence[Seen], links: Sequence[EpochLink], intake_s: float) -> dict[str, float]:
    """Return by how much the simulator was off, the mean over settings of |simulated - live| / live."""
    found = [simulate(one.setting, links, intake_s) for one in seen]
    pairs = list(zip(found, seen, strict=True))
    return {
        "mean": round(float(np.mean([abs(sim.mean_s / live.mean_s - 1) for sim, live in pairs])), 4),
        "p99": round(float(np.mean([abs(sim.p99_s / live.p99_s - 1) for sim, live in pairs])), 4),
    }
