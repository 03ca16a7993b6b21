"""Experiments of StreamSwitch 6.3 to 6.6 in simulation: its parameters (figures 10 and 11), unlike resources (12 and 13),
its limits (14 and 15), and a bound over two operators (16). Pure functions of setting and seed.

Rates are a twentieth of the paper's and rows twenty times as dear, so that loads, tasks and bounds are the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from penstock.bench.papers_runs import Followed, Table, follow
from penstock.control.policy.protocol import Limits
from penstock.control.policy.sharing import BoundSplit
from penstock.control.policy.streamswitch import StreamSwitchPolicy
from penstock.control.sla import END_TO_END, OPERATOR, SLA
from penstock.sim.elastic.arrivals import poisson_arrivals, rates_of
from penstock.sim.elastic.cases import Case
from penstock.sim.elastic.setting import (
    Costs,
    NodeSpeed,
    Setting,
    SimExecutor,
    SimNode,
    SimOperator,
    spread_evenly,
)
from penstock.sim.elastic.topologies import topology_case
from penstock.workloads.paper_topologies import SPLIT_COUNT, sinusoid

SCALE: Final = 1 / 20
SHARDS: Final = 64
OPERATOR_NAME: Final = "query"
BASE_PER_S: Final = 30_000.0
EPSILON: Final = 0.2
FLINK: Final = Costs(within_node_s=0.25, move_fixed_s=0.5, task_start_s=0.25, move_bytes_per_s=100e6)
"""Half a second for a treatment, about what figure 14 shows for its calmest workload: Flink's, not this engine's."""


def sinusoid_case(
    *,
    amplitude_per_s: float,
    period_s: float,
    service_per_s: float,
    seconds: float,
    seed: int,
    costs: Costs = FLINK,
    interval_s: float = 0.1,
    most: int = 40,
    speeds: Sequence[float] = (),
) -> Case:
    """One operator under a rate that swings around 30,000 rows a second; every container a node of its own.

    Args:
        speeds: of the containers, in the order in which they are taken; nobody is told before rows were processed.
    """
    nodes = tuple(SimNode(f"c{number:03}", 1) for number in range(most, 0, -1))
    rate = sinusoid(SCALE * BASE_PER_S, amplitude_per_s / BASE_PER_S, period_s)
    tasks = max(round(BASE_PER_S / ((1 - EPSILON) * service_per_s)), 1)
    operator = SimOperator(OPERATOR_NAME, SHARDS, SCALE * service_per_s, state_bytes=64 * 1024)
    slow = tuple(NodeSpeed(0.0, node.name, float(speed)) for node, speed in zip(nodes, speeds, strict=False))
    rates = rates_of(rate, np.ones(SHARDS), seconds)

    def setting(count: int) -> Setting:
        placed = SimExecutor(OPERATOR_NAME, spread_evenly(SHARDS, nodes, count))
        return Setting(nodes, (operator,), {OPERATOR_NAME: placed}, costs=costs, disturbances=slow)

    return Case(
        "sinusoid",
        seed,
        setting,
        lambda: {OPERATOR_NAME: poisson_arrivals(rates, seconds, seed)},
        SLA(1.0, 1.0, scope=OPERATOR),
        seconds,
        Limits(most, most, most, 1),
        OPERATOR_NAME,
        tasks,
        interval_s,
    )


def _line(runs: Sequence[Followed]) -> dict[str, Any]:
    """Return the means of some runs, with the range of successes."""
    success = [run.total_success for run in runs]
    kinds = [run.counts() for run in runs]
    took = [_took_s(run) for run in runs]
    span = [run.at_s[-1] for run in runs]
    return {
        "success": round(float(np.mean(success)), 5),
        "success_spread": [round(min(success), 5), round(max(success), 5)],
        "tasks": round(float(np.mean([run.mean_tasks for run in runs])), 2),
        "treatments": {kind: round(float(np.mean([one[kind] for one in kinds])), 1) for kind in kinds[0]},
        "switching_s": round(float(np.mean([sum(one) / max(len(one), 1) for one in took])), 3),
        "switching_share": round(
            float(np.mean([sum(one) / s for one, s in zip(took, span, strict=True)])), 4
        ),
    }


def _took_s(run: Followed) -> list[float]:
    return [one.outcome.took_s for one in run.decisions if one.outcome is not None]


def parameters(
    which: str, values: Sequence[float], *, seconds: float = 1800.0, seeds: Sequence[int] = (1,)
) -> Table:
    """Figures 10 and 11: amplitude 30,000, period 10 minutes; l ("alert_s") or δ ("interval_s") at these values."""
    found = {}
    for value in values:
        alert_s, interval_s = (value, 0.1) if which == "alert_s" else (0.1, value)
        runs = []
        for seed in seeds:
            case = sinusoid_case(
                amplitude_per_s=30_000.0,
                period_s=600.0,
                service_per_s=5000.0,
                seconds=seconds,
                seed=seed,
                interval_s=interval_s,
            )
            make = lambda: StreamSwitchPolicy(margin=EPSILON, alert_s=alert_s)  # noqa: E731, B023
            runs.append(follow(case, make, warm_s=60.0, look_s=1.0))
        found[f"{value:g}"] = _line(runs)
    return found


def unlike(
    speed: float, share: float, *, seconds: float = 1800.0, warm_s: float = 600.0, seeds: Sequence[int] = (1,)
) -> Table:
    """Figures 12 and 13: amplitude 10,000, 4,000 rows a second; a container has another speed with this chance."""
    runs, used = [], []
    for seed in seeds:
        mixed = np.random.default_rng([0x12, seed]).random(40) < share
        case = sinusoid_case(
            amplitude_per_s=10_000.0,
            period_s=600.0,
            service_per_s=4000.0,
            seconds=seconds,
            seed=seed,
            speeds=np.where(mixed, speed, 1.0).tolist(),
        )
        runs.append(follow(case, lambda: StreamSwitchPolicy(margin=EPSILON), warm_s=warm_s))
        kinds = {node.name: bool(one) for node, one in zip(case.setting(1).nodes, mixed, strict=True)}
        held = [kinds[node] for node in runs[-1].placement[OPERATOR_NAME].tasks.values()]
        used.append(sum(held) / len(held))
    return {"speed": speed, "share": share, **_line(runs), "used_share": round(float(np.mean(used)), 3)}


def dynamics(
    amplitude_per_s: float,
    period_s: float,
    delay_s: float = 0.0,
    *,
    seconds: float = 660.0,
    seeds: Sequence[int] = (1, 2, 3),
) -> Table:
    """Figures 14 and 15: 10,000 rows a second a task; burstier input, and longer treatments."""
    costs = replace(
        FLINK, within_node_s=FLINK.within_node_s + delay_s, move_fixed_s=FLINK.move_fixed_s + delay_s
    )
    runs = [
        follow(
            sinusoid_case(
                amplitude_per_s=amplitude_per_s,
                period_s=period_s,
                service_per_s=10_000.0,
                seconds=seconds,
                seed=seed,
                costs=costs,
            ),
            lambda: StreamSwitchPolicy(margin=EPSILON),
            warm_s=60.0,
        )
        for seed in seeds
    ]
    return {"amplitude_per_s": amplitude_per_s, "period_s": period_s, "delay_s": delay_s, **_line(runs)}


def two_operators(
    split_s: float | None, *, seconds: float = 900.0, warm_s: float = 300.0, seeds: Sequence[int] = (1, 2)
) -> Table:
    """Figure 16: a bound of 2 s over Split and Count; `split_s` of it for Split, or the split that the policy finds."""
    small = SPLIT_COUNT.scaled(1 / 50)
    runs = []
    for seed in seeds:
        case = topology_case(
            small,
            {"split": 12, "count": 24},
            seed=seed,
            seconds=seconds,
            nodes=tuple(SimNode(f"node-{number}", 16) for number in range(4)),
            costs=FLINK,
            sla=SLA(2.0, 1.0, scope=END_TO_END),
            interval_s=0.1,
            step_s=0.1,
        )
        runs.append(
            follow(case, lambda: StreamSwitchPolicy(margin=EPSILON, split=_split(split_s)), warm_s=warm_s)
        )
    total = [run.total_success for run in runs]
    return {
        "split_s": split_s,
        "success": round(float(np.mean(total)), 4),
        "success_spread": [round(min(total), 4), round(max(total), 4)],
        "tasks": round(float(np.mean([run.mean_tasks for run in runs])), 2),
        "mean_ms": round(1e3 * float(np.mean([run.mean_s for run in runs])), 1),
    }


def _split(split_s: float | None) -> BoundSplit:
    """Return the split of a 2 s bound that gives Split so much and Count the rest, for good; None: as it is learnt.

    A sentence is five words, so Count is visited five times; the bound of one visit is what a word may take.
    """
    if split_s is None:
        return BoundSplit()
    return BoundSplit(interval_s=float("inf"), weights={"split": split_s, "count": 2.0 - split_s})


AMPLITUDES: Final = ((10_000.0, 90.0), (20_000.0, 90.0), (30_000.0, 90.0), (30_000.0, 80.0), (30_000.0, 70.0))
DELAYS: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
SPLITS: Final = (0.5, 0.75, 1.0, 1.25, 1.5)
SPEEDS: Final = (0.5, 0.75, 1.25, 1.5)
SHARES: Final = (0.2, 0.4, 0.6, 0.8)
VALUES: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
