"""The dynamics of Elasticutor 5.1 at the paper's size, 32 nodes of 8 cores, on the simulator of the control plane.

The source gives as much as is taken, up to a bound on what waits, as in the real runs; policies, loop, measurer and guards
are the real ones. Rows cost four times as much as there, so that a minute of them can be simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.bench.dynamics_figures import Sighting, Throughput, derive_throughput
from penstock.bench.result import BenchResult
from penstock.control.apply.journal import Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.measure.sample import F64, I64
from penstock.control.measure.smoothing import Adapting
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.policy.protocol import Limits
from penstock.control.policy.registry import make_policy
from penstock.control.sla import SLA
from penstock.sim.elastic.setting import EpochTiming, Setting, SimExecutor, SimNode, SimOperator
from penstock.sim.elastic.simulation import Simulation
from penstock.workloads.dynamics import Dynamics, mean_ceiling, shard_of_keys

OPERATOR: Final = "calculate"
NODES: Final = 32
CORES: Final = 8
"""Of each node."""
SHARDS: Final = 256
"""Of each executor; there is one per node."""
ROW_S: Final = 4e-3
STEP_S: Final = 0.1
EPOCHS: Final = EpochTiming(max_work_s=0.4)


@dataclass
class Saturated:
    """A source that gives as much as is taken: it stops while any task has more than so much work waiting."""

    rows: Dynamics
    shard_of: I64
    shards: int
    tasks: int
    most_s: float
    longest_s: Callable[[], float] = lambda: 0.0
    made: int = 0
    _at_s: float = 0.0

    def take(self, until_s: float) -> tuple[F64, I64]:
        """Return the rows that there is room for, as of the end of the last call: work for every task until the longest
        queue is as long as it may be, but no more than a fifth beyond what all could do meanwhile."""
        room_s = min(self.most_s - self.longest_s(), 1.2 * (until_s - self._at_s))
        count = max(round(self.tasks * room_s / ROW_S), 0)
        keys = self.rows(self.made, count).column(0).to_numpy() if count else np.empty(0, np.int64)
        at_s, self._at_s, self.made = self._at_s, until_s, self.made + count
        return np.full(count, at_s), self.shard_of[keys]


@dataclass(frozen=True)
class Simulated:
    """What a policy came to."""

    throughput: Throughput
    actions: int
    moved_mb_per_s: float


def derive_setting(nodes: int = NODES, cores: int = CORES, shards: int = SHARDS) -> Setting:
    """Return one executor per node with all its cores; shards are dealt to executors and tasks in turn, as by hashing."""
    there = tuple(SimNode(f"node-{number:02d}", cores) for number in range(nodes))
    total = nodes * shards
    executors = {}
    for number, node in enumerate(there):
        task_of = np.full(total, -1, np.int32)
        mine = np.arange(number, total, nodes)
        task_of[mine] = np.arange(len(mine)) % cores
        executors[f"{OPERATOR}-{number:02d}"] = SimExecutor(
            OPERATOR, ExecutorPlan(dict.fromkeys(range(cores), node.name), task_of)
        )
    operator = SimOperator(OPERATOR, total, 1 / ROW_S)
    return Setting(there, (operator,), executors, epochs=EPOCHS, step_s=STEP_S)


def hashed(nodes: int = NODES, cores: int = CORES, shards: int = SHARDS) -> I64:
    """Return the task of each shard, all executors' tasks numbered through, as `derive_setting` deals them."""
    shard = np.arange(nodes * shards)
    return (shard % nodes) * cores + shard // nodes % cores


def simulate(
    rows: Dynamics, policy: str | None, guards: Guards, warm_s: float, seconds: float, every_s: float
) -> Simulated:
    """Run one policy, or none, and look at it once a second."""
    setting = derive_setting()
    shard_of = shard_of_keys(rows.keys, NODES * SHARDS)
    feed = Saturated(rows, shard_of, NODES * SHARDS, NODES * CORES, 2 * EPOCHS.max_work_s)
    sla = SLA(0.2)
    sim = Simulation(setting, {OPERATOR: feed}, sla, warm_s + seconds)
    totals = [placed.queues.totals for placed in sim.placement.executors.values()]
    queues = [placed.queues for placed in sim.placement.executors.values()]
    feed.longest_s = lambda: max(float(one.backlog_s().max()) for one in queues)
    journal = Journal(capacity=20)  # an entry keeps all that was measured, by shard
    limits = Limits(NODES * CORES, NODES, NODES, CORES)
    measurer = Measurer(Measuring(smoothing=Adapting()))
    loop = None
    if policy is not None:
        loop = ControlLoop(measurer, make_policy(policy), sla, limits, guards, sim, journal)
    sightings: list[Sighting] = []
    acted = 0
    per_second = round(1.0 / every_s)
    for turn in range(round((warm_s + seconds) / every_s) + 1):
        sim.advance(turn * every_s)
        if loop is not None and turn:
            acted += loop.turn(sim.sample()).acted
        if turn % per_second == 0 and sim.now_s >= warm_s - 1e-9:
            sightings.append(Sighting(sim.now_s, sum(int(one.completed.sum()) for one in totals)))
    moved = sum(placed.brought_bytes for placed in sim.placement.executors.values())
    return Simulated(derive_throughput(sightings, rows), acted, moved / 1e6 / (warm_s + seconds))


def measure_simulated(
    result: BenchResult,
    sources: Mapping[str, Dynamics],
    policies: Mapping[str, str],
    omegas: tuple[int, ...],
    guards: Guards,
    warm_s: float,
    seconds: float,
    every_s: float,
) -> None:
    """Add, for each distribution and ω, the ceiling and the policies' shares of it at 256 cores."""
    possible = NODES * CORES / ROW_S
    for name, source in sources.items():
        shard_of = shard_of_keys(source.keys, NODES * SHARDS)
        for omega in omegas:
            tag = f"simulated_256_{name.replace('-', '_')}_w{omega}"
            expected = possible / mean_ceiling(source, range(10), shard_of, hashed())
            static: Throughput | None = None
            for policy, registered in policies.items():
                rows = source.shuffling(omega, expected if policy == "static" else possible)
                chosen = None if policy == "static" else registered
                found = simulate(rows, chosen, guards, warm_s, seconds, every_s)
                rate = found.throughput.rate_per_s
                result.add_figures(
                    **{f"{tag}_{policy}_per_s": rate, f"{tag}_{policy}_actions": found.actions}
                )
                if policy == "static":
                    static = found.throughput
                    ceiling = mean_ceiling(rows, static.shuffles, shard_of, hashed())
                    result.add_figures(**{f"{tag}_ceiling": ceiling})
                elif static is not None:
                    ratio = rate / static.rate_per_s
                    result.add_figures(
                        **{
                            f"{tag}_{policy}_vs_static": ratio,
                            f"{tag}_{policy}_share_of_ceiling": ratio / ceiling,
                            f"{tag}_{policy}_moved_mb_per_s": found.moved_mb_per_s,
                        }
                    )
