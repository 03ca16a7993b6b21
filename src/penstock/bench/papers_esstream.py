"""Experiments of Es-Stream VI in simulation: latency at a stable and at growing rates beside even placement, R-Storm and
DRS (figures 9 to 13), tasks and nodes under stable and changing rates (14 to 17), and a sweep of the parameters that the
paper does not print. Pure functions of setting and seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from penstock.bench.papers_runs import Followed, Make, Table, follow, rounded, with_rate, with_setting
from penstock.control.measure.nodes import Need
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.policy.drs import DrsPolicy
from penstock.control.policy.esstream import EsStreamPolicy
from penstock.control.policy.nodeloads import EVEN, R_STORM, NodeLoads, place_tasks
from penstock.sim.elastic.cases import Case
from penstock.sim.elastic.setting import SimEdge, SimExecutor, SimNode
from penstock.sim.elastic.topologies import topology_case
from penstock.workloads.paper_topologies import (
    COMMCOUNT,
    TOP_N,
    PaperTopology,
    Rate,
    constant,
    derive_rates,
    steps,
)

NODES: Final = tuple(SimNode(f"node-{number:02}", 2) for number in range(16))
"""Dual-core machines (Es-Stream II); a task holds a core here, where the paper lets two share one. All 16 of them, so that
the 27 tasks of figure 15 find room."""
FIRST: Final = {"commcount": (6, 6, 6), "top-n": (4, 3, 3, 2)}
"""Tasks to start with: the paper does not say. With these, as in figure 14, the first operator loses tasks, the second
gains, the total falls for COMMCount and rises for Top-N."""
DECLARED: Final = {"commcount": (6, 6, 6), "top-n": (3, 3, 3, 3)}
"""Tasks under even placement and R-Storm, figures 9 to 12: what a user declares who does not know the loads."""
REMOTE_S: Final = 0.0005
"""Half a millisecond for a row that goes to another node: a guess for 100 Mbit Ethernet."""
FLUCTUATING: Final = (
    (0, 900.0),
    (120, 2700.0),
    (240, 3600.0),
    (360, 1800.0),
    (480, 900.0),
    (600, 3600.0),
    (720, 1800.0),
)
"""Figures 16 and 17, whose rates are not printed: between 900 and 3,600 rows a second, another one every two minutes."""
PAPER_MS: Final = {
    "commcount": {"esstream": 2.1, "even": 6.4, "r-storm": 4.5, "drs": 2.9},
    "top-n": {"esstream": 5.9, "even": 14.2, "r-storm": 9.9, "drs": 7.1},
}
PAPER_TASKS: Final = {"commcount": (14, 24, 19), "top-n": (18, 27, 23)}
"""Figure 15: at 1,800, 3,600 and 2,700 rows a second."""


def make_es_stream(**options: Any) -> EsStreamPolicy:
    """Return the policy with the paper's time between adjustments for changing rates (VI-C)."""
    return EsStreamPolicy(**{"interval_s": 10.0, **options})


def make_case(
    topology: PaperTopology,
    rate: Rate,
    seconds: float,
    *,
    tasks: tuple[int, ...] | None = None,
    seed: int = 1,
    interval_s: float = 5.0,
    nodes: tuple[SimNode, ...] = NODES,
) -> Case:
    """Return the application on the paper's cluster."""
    names = [one.name for one in topology.stations]
    case = topology_case(
        topology,
        dict(zip(names, tasks or FIRST[topology.name], strict=True)),
        seed=seed,
        seconds=seconds,
        nodes=nodes,
        interval_s=interval_s,
        step_s=1.0,
    )
    limits = replace(case.limits, max_cores=2 * len(NODES), max_nodes=len(NODES), cores_per_node=2)
    case = replace(with_setting(case, new_node=SimNode("more", 2)), limits=limits)
    return with_rate(case, topology, rate)


def place(
    topology: PaperTopology, tasks: Mapping[str, int], rate_per_s: float, placement: str
) -> dict[str, list[str]]:
    """Return the nodes of each operator's tasks as a scheduler without feedback deals them, in topological order."""
    rates = derive_rates(topology, rate_per_s)
    table = NodeLoads(
        {node.name: node.cores for node in NODES},
        2 * len(NODES),
        {node.name: [0.0, 0.0, 0.0] for node in NODES},
        Counter(),
        Need(1.0, 1.0, 1.0),
    )
    order, needs = [], []
    for one in topology.stations:
        busy = rates[one.name] * one.service_s / tasks[one.name]
        order += [one.name] * tasks[one.name]
        needs += [Need(busy / 2, 0.2, 0.0)] * tasks[one.name]
    found: dict[str, list[str]] = {one.name: [] for one in topology.stations}
    for name, node in zip(order, place_tasks(table, needs, placement), strict=True):
        assert node is not None, "the cluster has a core for every task"
        found[name].append(node)
    return found


def remote_share(nodes: Mapping[str, list[str]], producer: str, consumer: str) -> float:
    """Return the share of rows between two operators that change their node, all pairs of tasks alike."""
    pairs = [(a, b) for a in nodes[producer] for b in nodes[consumer]]
    return sum(a != b for a, b in pairs) / len(pairs)


def measure_placed(
    topology: PaperTopology, nodes: Mapping[str, list[str]], rate_per_s: float, seconds: float, seed: int
) -> Followed:
    """Run a fixed placement at a fixed rate; rows that change their node pay the network."""
    tasks = tuple(len(nodes[one.name]) for one in topology.stations)
    case = make_case(topology, constant(rate_per_s), seconds, tasks=tasks, seed=seed)
    edges = tuple(
        SimEdge(
            link.producer,
            link.consumer,
            link.selectivity,
            network_s=REMOTE_S * remote_share(nodes, link.producer, link.consumer),
            in_turn=link.in_turn,
        )
        for link in topology.links
    )
    executors = {
        one.name: SimExecutor(
            one.name,
            ExecutorPlan(
                dict(enumerate(nodes[one.name])),
                (np.arange(one.shards) % len(nodes[one.name])).astype(np.int32),
            ),
        )
        for one in topology.stations
    }
    return follow(with_setting(case, edges=edges, executors=executors), None, warm_s=seconds / 4)


def settle(
    topology: PaperTopology, make: Make, rate_per_s: float, seconds: float, seed: int
) -> dict[str, list[str]]:
    """Let a policy find its tasks at a fixed rate; return the nodes of each operator's tasks at the end."""
    case = make_case(topology, constant(rate_per_s), seconds, seed=seed, tasks=DECLARED[topology.name])
    found = follow(case, make, look_s=10.0)
    return {name: list(plan.tasks.values()) for name, plan in found.placement.items()}


def latency_at(
    topology: PaperTopology, rate_per_s: float, *, seconds: float = 120.0, seeds: tuple[int, ...] = (1, 2, 3)
) -> Table:
    """Figures 9 to 12: mean latency once settled, at one rate, under four policies.

    Even placement and R-Storm keep the tasks that a user would have declared; DRS shares out as many as Es-Stream came to,
    so that the two differ in nothing but the choice.
    """
    found: dict[str, Any] = {}
    names = [one.name for one in topology.stations]
    chosen = settle(topology, make_es_stream, rate_per_s, 90.0, seeds[0])
    total = sum(len(nodes) for nodes in chosen.values())
    placements = {"esstream": chosen}
    placements["drs"] = settle(
        topology, lambda: DrsPolicy(k_max=total, reallocation_s=20.0), rate_per_s, 90.0, seeds[0]
    )
    declared = dict(zip(names, DECLARED[topology.name], strict=True))
    # What a user declares must carry the load, so that there is a latency to compare: a task more where it would not.
    declared = {name: max(k, _least(topology, name, rate_per_s)) for name, k in declared.items()}
    for placement in (EVEN, R_STORM):
        placements[placement] = place(topology, declared, rate_per_s, placement)
    for policy, nodes in placements.items():
        runs = [measure_placed(topology, nodes, rate_per_s, seconds, seed) for seed in seeds]
        found[policy] = {
            "ms": rounded(1e3 * float(np.mean([run.mean_s for run in runs])), 2),
            "ms_spread": [rounded(1e3 * f(run.mean_s for run in runs), 2) for f in (min, max)],
            "tasks": {name: len(nodes[name]) for name in names},
            "total": sum(len(one) for one in nodes.values()),
            "nodes": len({node for one in nodes.values() for node in one}),
        }
    return {"rate_per_s": rate_per_s, "policies": found}


def _least(topology: PaperTopology, name: str, rate_per_s: float) -> int:
    station = next(one for one in topology.stations if one.name == name)
    return int(derive_rates(topology, rate_per_s)[name] * station.service_s / 0.95) + 1


def bottleneck(topology: PaperTopology, *, step_s: float = 30.0, seed: int = 1, by: float = 500.0) -> Table:
    """Figure 13: the rate, raised by 500 rows a second, from which on rows pile up."""
    small = topology.scaled(0.2)
    top = 9000.0
    ramp = steps(*((at * step_s, 0.2 * by * (at + 1)) for at in range(int(top / by))))
    seconds = step_s * int(top / by)
    names = [one.name for one in topology.stations]
    found = {}
    makes: dict[str, tuple[Make | None, tuple[int, ...]]] = {
        "esstream": (make_es_stream, FIRST[topology.name]),
        "drs": (lambda: DrsPolicy(k_max=2 * len(NODES), reallocation_s=10.0), FIRST[topology.name]),
        "static": (None, spread_all(topology)),
    }
    for policy, (make, tasks) in makes.items():
        run = follow(make_case(small, ramp, seconds, tasks=tasks, seed=seed), make, look_s=step_s)
        ends, mean = run.latency
        late = 1.0 / 0.2  # rows are five times as dear here, and so are waits
        served = [
            by * (at + 1)
            for at in range(int(top / by))
            if _last_mean(ends, mean, at * step_s + step_s / 2, (at + 1) * step_s) < late
        ]
        found[policy] = {
            "rate_per_s": max(served, default=0.0),
            "tasks": sum(run.last()[name] for name in names),
        }
    return {"policies": found, "cores": 2 * len(NODES)}


def _last_mean(ends: Any, mean: Any, start_s: float, end_s: float) -> float:
    here = mean[(ends > start_s) & (ends <= end_s) & np.isfinite(mean)]
    return float(here.mean()) if len(here) else float("inf")


def spread_all(topology: PaperTopology) -> tuple[int, ...]:
    """Return all cores of the cluster in equal shares: what a user would declare who does not know the loads."""
    count = len(topology.stations)
    return tuple(2 * len(NODES) // count for _ in range(count))


def stable(topology: PaperTopology, *, seconds: float = 180.0, seed: int = 1) -> Table:
    """Figure 14: 1,800 rows a second, adjustments at least 15 s apart."""
    case = make_case(topology, constant(1800.0), seconds, seed=seed)
    run = follow(case, lambda: EsStreamPolicy(interval_s=15.0), look_s=5.0)
    return {"first": FIRST[topology.name], **_counts(run)}


def changing(
    topology: PaperTopology, *, seconds: float = 220.0, seed: int = 1, beta: float | None = None
) -> Table:
    """Figure 15: 3,600 rows a second from 100 s on and 2,700 from 160 s on; adjustments at least 10 s apart."""
    case = make_case(topology, topology.rate, seconds, seed=seed, interval_s=2.0)
    run = follow(case, lambda: EsStreamPolicy(interval_s=10.0, beta=beta), look_s=2.0)
    total = [sum(tasks) for tasks in zip(*run.tasks.values(), strict=True)]

    def at(second: float) -> int:
        return int(total[int(np.searchsorted(run.at_s, second + 1e-9)) - 1])

    return {**_counts(run), "totals": [at(98.0), at(158.0), at(seconds)], "paper": PAPER_TASKS[topology.name]}


def fluctuating(
    topology: PaperTopology,
    policy: str = "esstream",
    *,
    seconds: float = 840.0,
    seed: int = 1,
    scale: float = 1.0,
    **options: Any,
) -> Table:
    """Figures 16 and 17: nodes over time while the rate goes up and down, from ten nodes on.

    `late_share` is the share of seconds whose mean latency is over a second.
    """
    few = NODES[:10]
    make: Make = lambda: make_es_stream(**options)  # noqa: E731
    if policy == "drs":
        make = lambda: DrsPolicy(k_max=20, **options)  # noqa: E731
    rate = steps(*((at, scale * per_s) for at, per_s in FLUCTUATING))
    case = make_case(topology.scaled(scale), rate, seconds, seed=seed, nodes=few)
    return _summary(follow(case, make, look_s=5.0, warm_s=20.0), scale)


def _summary(run: Followed, scale: float = 1.0) -> Table:
    return {
        **_counts(run),
        "mean_nodes": round(run.mean_nodes, 2),
        "mean_tasks": round(run.mean_tasks, 2),
        "mean_ms": rounded(1e3 * scale * run.mean_s, 2),
        "median_ms": rounded(1e3 * scale * float(np.nanmedian(run.latency[1])), 2),
        "late_share": round(1 - run.total_success, 4),
        "actions": len(run.decisions),
    }


def packed(topology: PaperTopology, *, seed: int = 1, seconds: float = 840.0) -> Table:
    """R-Storm under the rates of figures 16 and 17: tasks for 2,700 rows a second, placed once on as few nodes as hold
    them."""
    tasks = {one.name: _least(topology, one.name, 2700.0) for one in topology.stations}
    nodes = place(topology, tasks, 2700.0, R_STORM)
    used = tuple(node for node in NODES if any(node.name in one for one in nodes.values()))
    case = make_case(
        topology, steps(*FLUCTUATING), seconds, tasks=tuple(tasks.values()), seed=seed, nodes=used
    )
    return _summary(follow(case, None, look_s=5.0, warm_s=20.0))


def _counts(run: Followed) -> Table:
    return {
        "at_s": [round(at, 1) for at in run.at_s],
        "tasks": run.tasks,
        "nodes": run.nodes,
        "used_nodes": run.used_nodes,
        "end": run.last(),
        "total": sum(run.last().values()),
    }


SWEEP: Final[dict[str, tuple[Any, ...]]] = {
    "eta": (-0.5, 0.5, 10.0),
    "phi": (0.5, 0.6, 0.8),
    "chi": (-10.0, -0.5, 0.5),
    "zeta": (0.2, 0.45, 0.6),
    "alpha": (0.75, 0.95, 1.0),
    "beta": (0.05, 0.1, 0.25, 0.7, 0.9),
    "interval_s": (5.0, 20.0, 40.0),
    "trigger": (0.1, 0.4),
}
"""Values beside the start values."""
START: Final = {
    "eta": 0.0,
    "phi": 0.7,
    "chi": 0.0,
    "zeta": 0.3,
    "alpha": 0.85,
    "interval_s": 10.0,
    "trigger": 0.2,
}
SWEEP_SCALE: Final = 0.25
"""Rows are four times as dear and a quarter as many in the sweep; its latencies are shown at the paper's scale."""


def sweep(
    topology: PaperTopology,
    names: Sequence[str] = tuple(SWEEP),
    *,
    seconds: float = 480.0,
    seeds: tuple[int, ...] = (1,),
) -> Table:
    """One parameter at a time around the start values, under the first rates of figures 16 and 17."""
    found: Table = {"start": _swept(topology, {}, seconds, seeds)}
    for name in names:
        found[name] = {str(value): _swept(topology, {name: value}, seconds, seeds) for value in SWEEP[name]}
    return found


def _swept(topology: PaperTopology, options: dict[str, Any], seconds: float, seeds: tuple[int, ...]) -> Table:
    given = {**START, **options}
    runs = [fluctuating(topology, seconds=seconds, seed=seed, scale=SWEEP_SCALE, **given) for seed in seeds]
    keys = ("mean_ms", "median_ms", "late_share", "mean_tasks", "mean_nodes", "actions")
    return {key: round(float(np.mean([run[key] for run in runs])), 4) for key in keys}


APPLICATIONS: Final = {one.name: one for one in (COMMCOUNT, TOP_N)}
