"""`penstock bench dynamics`: throughput and latency while key frequencies are shuffled (Elasticutor 5.1, figures 6 and 7).

One part for each distribution of keys and number of shuffles a minute (ω), static and elastic on the same runtime, and one
for the other baselines; parts for latency at fixed loads, for what each policy costs a query without rows, for the
exchange, and for 256 simulated cores. Beside every throughput ratio stands its ceiling; the arithmetic is in
`dynamics_figures`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

import penstock
from penstock.bench import emulated
from penstock.bench.dynamics_exchange import exchange_cluster, measure_exchange
from penstock.bench.dynamics_figures import (
    Throughput,
    derive_share_of_ceiling,
    derive_throughput,
    predict_latency_ms,
)
from penstock.bench.dynamics_runs import (
    EPOCH_S,
    EVERY_S,
    LONG_EPOCH_S,
    ROW_S,
    SATURATED,
    START_S,
    Seen,
    look,
    rising,
    settle,
    turn_s,
    under,
)
from penstock.bench.dynamics_simulated import measure_simulated
from penstock.bench.dynamics_sweep import FULL, QUICK, measure_sweep, tag_of
from penstock.bench.emulated import SHARDS
from penstock.bench.machine import CpuMeter
from penstock.bench.parts import Part, choose_parts, run_parts
from penstock.bench.result import BenchResult
from penstock.errors import PenstockError
from penstock.workloads.dynamics import Dynamics, derive_task_loads, mean_ceiling, shard_of_keys

SOURCES: Final = {
    "zipf-05": Dynamics(zipf=0.5),
    "zipf-08": Dynamics(zipf=0.8),
    "hot-keys": Dynamics(hot_keys=40),
}
OMEGAS: Final = (0, 2, 16)
POLICIES: Final = {
    "static": "static",
    "elastic": "elasticutor",
    "resource_centric": "resource-centric",
    "naive_ec": "naive-ec",
}
"""Name in figures -> policy. Static goes first: its rate says how fast the machine is, and so when to shuffle."""
EXCHANGE_CORES: Final = 20
IN_QUICK: Final = ("zipf-08-w2", "zipf-08-w16", "hot-keys-w2", "latency-hot-keys", "simulated-256")
"""Parts of a quick run that names none: those with every figure that has a target, in about a quarter of an hour."""


class UnexplainedAction(PenstockError):
    """An action that the journal does not explain."""


@dataclass(frozen=True)
class Effort:
    """How much of everything a run does."""

    cores: int
    warm_s: float
    seconds: float
    latency_s: float

    @staticmethod
    def of(quick: bool) -> Effort:
        return Effort(8, 10.0, 42.0, 60.0) if quick else Effort(16, 30.0, 300.0, 180.0)


def measure_throughput(
    result: BenchResult, name: str, omega: int, effort: Effort, policies: dict[str, str]
) -> None:
    """Run one distribution and ω under the policies; add rates, ceiling and shares of it."""
    source, tag = SOURCES[name], f"{name.replace('-', '_')}_w{omega}"
    epoch_s = EPOCH_S if omega > 2 else LONG_EPOCH_S
    shard_of = shard_of_keys(source.keys, SHARDS)
    dealt = np.arange(SHARDS) % effort.cores
    possible = effort.cores / ROW_S
    expected = {"static": possible / mean_ceiling(source, range(10), shard_of, dealt)}
    speed = 1.0
    static: Throughput | None = None
    for policy, registered in policies.items():
        rows = source.shuffling(omega, speed * expected.get(policy, possible))
        with under(registered, rows, effort.cores, epoch_s=epoch_s) as query:
            seen = look(query, effort.warm_s, effort.seconds)
        found = derive_throughput(seen.sightings, rows)
        _add_throughput(result, f"{tag}_{policy}", found, seen)
        if policy == "static":
            static, speed = found, found.rate_per_s / expected["static"]
            ceiling = mean_ceiling(rows, found.shuffles, shard_of, seen.task_of)
            result.add_figures(**{f"{tag}_ceiling": ceiling})
        elif static is not None:
            ratio = found.rate_per_s / static.rate_per_s
            result.add_figures(
                **{
                    f"{tag}_{policy}_vs_static": ratio,
                    f"{tag}_{policy}_share_of_ceiling": ratio / ceiling,
                }
            )


def _add_throughput(result: BenchResult, tag: str, found: Throughput, seen: Seen) -> None:
    result.add_figures(
        **{
            f"{tag}_per_s": found.rate_per_s,
            f"{tag}_shuffles_per_minute": found.shuffles_per_minute,
            f"{tag}_epoch_ms": 1e3 * seen.epoch_s,
            f"{tag}_interval_ms": 1e3 * seen.interval_s,
            f"{tag}_longest_task_ms": 1e3 * seen.longest_task_s,
            f"{tag}_actions": seen.actions,
            f"{tag}_moved_mb_per_s": seen.moved_bytes / 1e6 / seen.seconds,
            f"{tag}_real_cores": seen.real_cores,
            f"{tag}_stalled_s": seen.stalled_s,
            f"{tag}_unexplained_actions": seen.unexplained,
        }
    )
    result.figures[f"{tag}_journal"] = list(seen.sentences)
    if seen.unexplained:
        raise UnexplainedAction(f"{seen.unexplained} actions of {tag} have no sentence in the journal.")
    if found.dips_s:
        result.add_figures(**{f"{tag}_dip_s": float(np.median(found.dips_s))})
    result.figures[f"{tag}_by_second"] = [round(rate) for rate in found.by_second]
    result.write()


def measure_latency(result: BenchResult, name: str, effort: Effort) -> None:
    """Mean latency at 0.8 of what static takes, under each policy; static's backlog at 0.9 of what elastic takes."""
    source, tag = SOURCES[name], name.replace("-", "_")
    shard_of = shard_of_keys(source.keys, SHARDS)
    capacity = {policy: _capacity(result, name, policy, effort) for policy in ("static", "elastic")}
    rate = 0.8 * capacity["static"]
    rows = source.shuffling(2, rate)
    means: dict[str, float] = {}
    for policy, registered in POLICIES.items():
        with under(registered, rows, effort.cores, rising(rate)) as query:
            settled = settle(query, rate)
            seen = look(query, effort.warm_s, effort.latency_s)
        loads = derive_task_loads(
            rows.by_key(rows.shuffle_at(seen.sightings[-1].rows)), shard_of, seen.task_of
        )
        means[policy] = seen.mean_ms
        result.add_figures(
            **{
                f"{tag}_{policy}_at_08_mean_ms": seen.mean_ms,
                f"{tag}_{policy}_at_08_model_ms": predict_latency_ms(
                    seen.epoch_s, seen.longest_task_s, rate * ROW_S * float(loads.max())
                ),
                f"{tag}_{policy}_at_08_epoch_ms": 1e3 * seen.epoch_s,
                f"{tag}_{policy}_at_08_settled": settled,
            }
        )
    result.add_figures(**{f"{tag}_latency_rate_per_s": rate})
    for policy in ("static", "resource_centric"):
        result.add_ratio(f"{policy}_vs_elastic_latency_{tag}", [means[policy]], [means["elastic"]])
    fast = 0.9 * capacity["elastic"]
    with under(POLICIES["static"], source.shuffling(2, fast), effort.cores, rising(fast)) as query:
        time.sleep(START_S)
        first = look(query, effort.warm_s, 1.0)
        seen = look(query, 0.0, effort.latency_s)
    grown = (seen.waiting_rows - first.waiting_rows) / seen.seconds * 60
    result.add_figures(**{f"{tag}_static_at_09_of_elastic_backlog_rows_per_minute": grown})


def _capacity(result: BenchResult, name: str, policy: str, effort: Effort) -> float:
    """Return what a policy let through at ω = 2, measured now if it was not before."""
    figure = f"{name.replace('-', '_')}_w2_{policy}_per_s"
    if not result.figures.get(figure):
        measure_throughput(
            result, name, 2, effort, {one: POLICIES[one] for one in dict.fromkeys(("static", policy))}
        )
    return float(result.figures[figure])


def idle(result: BenchResult, effort: Effort) -> None:
    """What each policy costs a query that has nothing to do, in real cores of all processes."""
    for policy, registered in POLICIES.items():
        with under(registered, SOURCES["zipf-05"], effort.cores, [(1.0, 100.0), (0.0, 0.0)]) as query:
            time.sleep(4.0)
            meter = CpuMeter([os.getpid()])
            time.sleep(6.0)
            result.add_figures(
                **{
                    f"{policy}_idle_cores": meter.read().cores,
                    f"{policy}_turn_ms": 1e3 * turn_s(query),
                }
            )


def exchange(result: BenchResult, effort: Effort) -> None:
    """The exchange under each policy, on nodes of its own."""
    from pyspark.sql import SparkSession

    left = SparkSession.getActiveSession()
    if left is not None:
        left.stop()
    with exchange_cluster(EXCHANGE_CORES):
        measure_exchange(result, POLICIES, SATURATED, EXCHANGE_CORES, effort.warm_s, effort.seconds)


def simulated(result: BenchResult, quick: bool) -> None:
    """The paper's size, simulated; a quick run leaves out the other baselines."""
    policies = _chosen("static", "elastic") if quick else POLICIES
    seconds = 30.0 if quick else 120.0
    measure_simulated(result, SOURCES, policies, OMEGAS[1:], SATURATED, 10.0, seconds, EVERY_S)


def summarise(result: BenchResult) -> None:
    """Add the ratios that have targets, from the parts that have been run, and the ceiling of the hot keys."""
    figures = result.figures
    for omega in (2, 16):
        shares = [figures.get(f"{name}_w{omega}_elastic_share_of_ceiling") for name in ("zipf_05", "zipf_08")]
        share = derive_share_of_ceiling(shares)
        if share is not None:
            result.ratios[f"share_of_ceiling_w{omega}"] = round(share, 4)
    hot = [figures.get(f"hot_keys_w{omega}_elastic_share_of_ceiling") for omega in OMEGAS]
    share = derive_share_of_ceiling(hot)
    if share is not None:
        result.ratios["share_of_ceiling_hot_keys"] = round(share, 4)
    ceilings = [one for omega in (16, 2, 0) if (one := figures.get(f"hot_keys_w{omega}_ceiling")) is not None]
    if ceilings:
        result.add_figures(ceiling=ceilings[0])


def parts_of(quick: bool) -> dict[str, Part]:
    """Return the parts with what each owes."""
    effort = Effort.of(quick)
    parts: dict[str, Part] = {}
    for name in SOURCES:
        for omega in OMEGAS:
            parts[f"{name}-w{omega}"] = _throughput_part(name, omega, effort)
            parts[f"{name}-w{omega}-baselines"] = _baselines_part(name, omega, effort)
    parts |= {f"latency-{name}": _latency_part(name, effort) for name in SOURCES}
    idles = tuple(f"{policy}_idle_cores" for policy in POLICIES)
    rates = tuple(f"exchange_{policy}_per_s" for policy in POLICIES)
    shares = tuple(
        f"simulated_256_{name.replace('-', '_')}_w{omega}_elastic_share_of_ceiling"
        for name in SOURCES
        for omega in OMEGAS[1:]
    )
    parts |= {
        "simulated-256": Part(lambda result: simulated(result, quick), (), shares),
        "idle": Part(lambda result: idle(result, effort), (), idles),
        "sweep": Part(
            lambda result: measure_sweep(
                result, quick, effort.cores, effort.warm_s, min(effort.seconds, 60.0)
            ),
            (),
            tuple(f"{tag_of(*point)}_per_s" for point in (QUICK if quick else FULL)),
        ),
        "exchange": Part(lambda result: exchange(result, effort), (), rates),
    }
    return {name: replace(part, in_quick=name in IN_QUICK) for name, part in parts.items()}


def _throughput_part(name: str, omega: int, effort: Effort) -> Part:
    def run_it(result: BenchResult) -> None:
        measure_throughput(result, name, omega, effort, _chosen("static", "elastic"))
        summarise(result)

    ratios = () if omega == 0 else (f"share_of_ceiling_w{omega}",)
    owed = (f"{name.replace('-', '_')}_w{omega}_ceiling",)
    if name == "hot-keys":
        return Part(run_it, ("share_of_ceiling_hot_keys",), (*owed, "ceiling"))
    return Part(run_it, ratios, owed)


def _baselines_part(name: str, omega: int, effort: Effort) -> Part:
    """The other baselines, against static of the same part."""
    policies = _chosen("static", "resource_centric", "naive_ec")
    tag = f"{name.replace('-', '_')}_w{omega}"
    owed = tuple(f"{tag}_{policy}_share_of_ceiling" for policy in policies if policy != "static")
    return Part(lambda result: measure_throughput(result, name, omega, effort, policies), (), owed)


def _chosen(*names: str) -> dict[str, str]:
    return {name: POLICIES[name] for name in names}


def _latency_part(name: str, effort: Effort) -> Part:
    tag = name.replace("-", "_")
    ratios = tuple(f"{policy}_vs_elastic_latency_{tag}" for policy in ("static", "resource_centric"))
    return Part(lambda result: measure_latency(result, name, effort), ratios)


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the parts asked for (all when none is named); return the names that are missing at the end.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    parts = parts_of(quick)
    chosen = choose_parts(parts, only, quick)
    cores = Effort.of(quick).cores
    result.emulated.append(f"{emulated.EMULATION}: {cores} of them")
    if not set(chosen) <= {"exchange", "simulated-256"}:
        penstock.session("penstock-bench-dynamics", cores=cores)
    return run_parts(result, parts, only, quick)
