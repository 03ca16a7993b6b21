"""Experiments of Elasticutor 5 in simulation: throughput and latency while key frequencies are shuffled, at 32 nodes of 8
cores (figure 6), growing clusters (table 3), and the numbers of executors and shards (figure 13).

A row costs ten times the paper's millisecond, so that ten times fewer rows stand for the same load; throughput is shown at
the paper's. Pure functions of setting and seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from penstock.bench.papers_runs import Followed, Make, Table, follow
from penstock.bench.schedule import Size, decide, make_instance
from penstock.control.measure.sample import F64, I64
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.policy.elasticutor import ElasticutorPolicy, make_resource_centric
from penstock.control.policy.protocol import Limits
from penstock.control.sla import OPERATOR, SLA
from penstock.sim.elastic.cases import Case
from penstock.sim.elastic.setting import Setting, SimExecutor, SimNode, SimOperator
from penstock.sim.elastic.simulation import Simulation
from penstock.workloads.dynamics import Dynamics, mean_ceiling, shard_of_keys

SCALE: Final = 10.0
ROW_S: Final = 1e-3
CALCULATE: Final = "calculate"
STATIC, CENTRIC, ELASTIC = "static", "resource-centric", "elastic"
SATURATED: Final = Guards(
    cool_down_s=0.0, hysteresis_s=0.0, max_moves_in_flight=10**9, max_actions_per_minute=10**9,
    payback_s=math.inf, min_gain_ratio=-math.inf, worse_ratio=math.inf,
)  # fmt: skip
WAITING_S: Final = 0.4
"""Work that may wait before the source stops, over all cores: Storm's bound on pending rows."""
PAPER_TABLE_3: Final = {8: (66_600, 4.1), 16: (121_300, 5.2), 32: (218_600, 5.7)}


@dataclass(frozen=True)
class Cluster:
    """What the experiment runs on."""

    nodes: int = 32
    cores: int = 8
    executors: int = 32
    """y: elastic executors of the operator."""
    shards: int = 256
    """z: shards of each executor."""
    state_bytes: int = 32 * 1024

    @property
    def total(self) -> int:
        return self.nodes * self.cores

    @property
    def all_shards(self) -> int:
        return self.executors * self.shards


class Saturating:
    """A source that sends as much as is taken: it stops while a bounded amount of work waits.

    Key frequencies follow `Dynamics` and are shuffled ω times a minute.
    """

    def __init__(self, cluster: Cluster, omega: float, seed: int, rate_per_s: float | None = None) -> None:
        self.shards = cluster.all_shards
        self._keys = Dynamics(seed=seed)
        self._shard_of = shard_of_keys(self._keys.keys, self.shards)
        self._omega = omega
        self._most_per_s = cluster.total / (ROW_S * SCALE)
        self._rate_per_s = rate_per_s
        """None: as much as is taken."""
        self._rng = np.random.default_rng([0xE1A, seed])
        self._at_s = 0.0
        self._sent = 0
        self._weights: dict[int, F64] = {}
        self.completed: Callable[[], int] = lambda: 0

    def weights(self, shuffle: int) -> F64:
        """Return the share of rows of each shard under one permutation."""
        if shuffle not in self._weights:
            found = np.bincount(self._shard_of, self._keys.by_key(shuffle), self.shards)
            self._weights = {shuffle: np.cumsum(found / found.sum())}
        return self._weights[shuffle]

    def take(self, until_s: float) -> tuple[F64, I64]:
        passed = until_s - self._at_s
        if self._rate_per_s is None:
            room = WAITING_S * self._most_per_s - (self._sent - self.completed())
            count = int(max(min(1.2 * self._most_per_s * passed, room), 0.0))
        else:
            count = int(self._rng.poisson(self._rate_per_s * passed))
        times = self._at_s + np.sort(self._rng.random(count)) * passed
        shuffle = int(self._at_s * self._omega / 60.0)
        shards = np.searchsorted(self.weights(shuffle), self._rng.random(count), "right")
        self._at_s, self._sent = until_s, self._sent + count
        return times, np.minimum(shards, self.shards - 1)


def make_case(
    cluster: Cluster, omega: float, seconds: float, seed: int, rate_per_s: float | None = None
) -> tuple[Case, Callable[[Simulation], None]]:
    """Return the case, and what connects its source to what is completed."""
    nodes = tuple(SimNode(f"node-{number:02}", cluster.cores) for number in range(cluster.nodes))
    operator = SimOperator(
        CALCULATE, cluster.all_shards, 1 / (ROW_S * SCALE), state_bytes=cluster.state_bytes
    )
    setting = Setting(nodes, (operator,), _executors(cluster, nodes), step_s=0.1)
    feed = Saturating(cluster, omega, seed, rate_per_s)

    def started(sim: Simulation) -> None:
        placed = list(sim.placement.executors.values())
        feed.completed = lambda: sum(int(one.queues.totals.completed.sum()) for one in placed)

    case = Case(
        CALCULATE,
        seed,
        lambda _: setting,
        lambda: {CALCULATE: feed},
        SLA(2 * WAITING_S, 1.0, scope=OPERATOR),
        seconds,
        Limits(cluster.total, cluster.nodes, cluster.nodes, cluster.cores),
        CALCULATE,
        cluster.total,
        interval_s=1.0,
    )
    return case, started


def _executors(cluster: Cluster, nodes: tuple[SimNode, ...]) -> dict[str, SimExecutor]:
    """Deal shards to executors and cores to both: every executor begins on the nodes next to its home."""
    owner = np.arange(cluster.all_shards) % cluster.executors
    places = [node.name for node in nodes for _ in range(cluster.cores)]
    share = cluster.total // cluster.executors
    found = {}
    for number in range(cluster.executors):
        tasks = dict(enumerate(places[number * share : (number + 1) * share]))
        mine = np.flatnonzero(owner == number)
        task_of = np.full(cluster.all_shards, -1, np.int32)
        task_of[mine] = np.arange(len(mine)) % share
        name = CALCULATE if cluster.executors == 1 else f"{CALCULATE}-{number:03}"
        found[name] = SimExecutor(CALCULATE, ExecutorPlan(tasks, task_of))
    return found


def contend(policy: str) -> Make | None:
    """Return what makes a policy; None changes nothing."""
    makes: dict[str, Make | None] = {
        STATIC: None,
        CENTRIC: make_resource_centric,
        ELASTIC: ElasticutorPolicy,
    }
    return makes[policy]


def run_one(
    policy: str,
    omega: float,
    cluster: Cluster,
    *,
    seconds: float = 90.0,
    warm_s: float = 15.0,
    seed: int = 1,
    rate_per_s: float | None = None,
) -> Followed:
    """Run one policy; those that know no elastic executors have a single one with the same shards."""
    if policy != ELASTIC:
        cluster = replace(cluster, executors=1, shards=cluster.all_shards)
    case, started = make_case(cluster, omega, seconds, seed, rate_per_s and rate_per_s / SCALE)
    return follow(case, contend(policy), warm_s=warm_s, guards=SATURATED, started=started)


def _line(run: Followed) -> dict[str, Any]:
    return {
        "rows_per_s": round(run.rows_per_s * SCALE),
        "actions": len(run.decisions),
        "moved_shards": sum(one.outcome.moved_shards for one in run.decisions if one.outcome is not None),
        "moved_bytes": sum(one.outcome.moved_bytes for one in run.decisions if one.outcome is not None),
    }


def shuffled(
    omega: float, cluster: Cluster | None = None, *, seconds: float = 90.0, seed: int = 1, load: float = 0.8
) -> Table:
    """Figure 6: throughput of a source that gives what is taken, and mean latency at a fixed share of all cores."""
    cluster = cluster or Cluster()
    found: dict[str, Any] = {}
    for policy in (STATIC, CENTRIC, ELASTIC):
        full = run_one(policy, omega, cluster, seconds=seconds, seed=seed)
        part = run_one(
            policy, omega, cluster, seconds=seconds, seed=seed, rate_per_s=load * cluster.total / ROW_S
        )
        found[policy] = {**_line(full), "mean_ms": round(1e3 * part.mean_s, 2)}
    keys, dealt = Dynamics(seed=seed), np.arange(cluster.all_shards) % cluster.total
    shuffles = range(max(1, int(seconds * omega / 60)))
    ceiling = mean_ceiling(keys, shuffles, shard_of_keys(keys.keys, cluster.all_shards), dealt)
    return {
        "omega": omega,
        "policies": found,
        "possible_per_s": round(cluster.total / ROW_S),
        "ceiling": round(ceiling, 3),
        "elastic_vs_static": round(found[ELASTIC]["rows_per_s"] / found[STATIC]["rows_per_s"], 3),
    }


def growing(nodes: int, *, seconds: float = 60.0, seed: int = 1) -> Table:
    """Table 3: throughput with so many nodes under ω = 2, and the time of one decision."""
    cluster = Cluster(nodes=nodes, executors=nodes)
    run = run_one(ELASTIC, 2.0, cluster, seconds=seconds, seed=seed)
    instance = make_instance(Size("", nodes, 8, 2 * nodes, 0.0), seed)
    decide(instance)
    took = []
    for _ in range(20):
        began = time.perf_counter()
        decide(instance)
        took.append(1e3 * (time.perf_counter() - began))
    return {
        "nodes": nodes,
        **_line(run),
        "possible_per_s": round(cluster.total / ROW_S),
        "schedule_ms": round(float(np.median(took)), 2),
        "paper": PAPER_TABLE_3.get(nodes),
    }


def shapes(
    executors: int, shards: int, omega: float, *, seconds: float = 75.0, seed: int = 1, nodes: int = 8
) -> Table:
    """Figure 13: throughput with y executors of z shards each on eight nodes."""
    cluster = Cluster(nodes=nodes, executors=executors, shards=shards)
    run = run_one(ELASTIC, omega, cluster, seconds=seconds, seed=seed)
    return {"executors": executors, "shards": shards, "omega": omega, **_line(run)}
