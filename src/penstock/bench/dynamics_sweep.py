"""Figure 13 of Elasticutor on the runtime: throughput with y executors of z shards each, key frequencies being shuffled.

Measures and adds figures; the simulated grid of 5.3 is a part of `bench papers`.
"""

from __future__ import annotations

from typing import Final

from penstock.bench.dynamics_figures import derive_throughput
from penstock.bench.dynamics_runs import ROW_S, look, under
from penstock.bench.result import BenchResult
from penstock.workloads.dynamics import Dynamics

SOURCE: Final = Dynamics(zipf=0.5)
OMEGA: Final = 2
QUICK: Final = ((1, 256), (4, 64))
FULL: Final = tuple((y, z) for y in (1, 2, 4, 8) for z in (16, 64, 256, 1024) if y * z <= 4096)


def tag_of(executors: int, shards: int) -> str:
    """Return what figures of one point begin with."""
    return f"sweep_y{executors}_z{shards}"


def measure_sweep(result: BenchResult, quick: bool, cores: int, warm_s: float, seconds: float) -> None:
    """Run the elastic policy with every number of executors and shards of the grid; add the rate of each."""
    for executors, shards in QUICK if quick else FULL:
        rows = SOURCE.shuffling(OMEGA, cores / ROW_S)
        with under("elasticutor", rows, cores, executors=executors, shards=executors * shards) as query:
            seen = look(query, warm_s, seconds)
        found = derive_throughput(seen.sightings, rows)
        tag = tag_of(executors, shards)
        result.add_figures(
            **{
                f"{tag}_per_s": found.rate_per_s,
                f"{tag}_of_possible": found.rate_per_s / (cores / ROW_S),
                f"{tag}_epoch_ms": 1e3 * seen.epoch_s,
                f"{tag}_actions": seen.actions,
            }
        )
        result.write()
