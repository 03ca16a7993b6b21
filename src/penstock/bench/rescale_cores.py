"""Part (c) of `bench rescale`: 2 -> 4 -> 2 cores, beside plain Spark changing 2 -> 4 -> 2 partitions with the same state.

Plain Spark rewrites all state when partitions change; a shard that changes its core inside a node moves none. So the size
of the state decides the ratio, and the comparison is made for several, with keys of the same size: the same rows, keys
and bytes on both sides. `plain_spark_vs_ours_rescale` stands for one of them, `HEADLINE`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

import penstock
from penstock.bench.changing import Change, watch_change
from penstock.bench.emulated import NAME
from penstock.bench.rescale_runs import (
    Held,
    add_changes,
    add_quiet,
    loaded,
    rescale,
    undisturbed,
    usual_ms,
)
from penstock.bench.result import BenchResult, Spread, ratio_spread, spread
from penstock.bench.spark_repartition import Repartitioned, measure_repartition

SHARDS: Final = 256
KEY_BYTES: Final = 2 << 10
STATES: Final = {
    "8mb": Held.of(SHARDS, 32 << 10, KEY_BYTES),
    "128mb": Held.of(SHARDS, 512 << 10, KEY_BYTES),
    "512mb": Held.of(SHARDS, 2 << 20, KEY_BYTES),
    "1gb": Held.of(SHARDS, 4 << 20, KEY_BYTES),
}
"""The smallest is the state of Elasticutor 5.1, 256 shards of 32 KB."""
HEADLINE: Final = "512mb"
"""The size that `plain_spark_vs_ours_rescale` stands for: the largest that a quick run has the time for. Both a smaller
and a larger one stand in `plain_spark_vs_ours_rescale_by_state`."""
BY_STATE: Final = "plain_spark_vs_ours_rescale_by_state"
LEAST_S: Final = 1e-3
"""Rows that came no later than usual are taken to have come so much later: nothing can be divided by zero."""


def cores(result: BenchResult, size: str, rounds: int) -> None:
    """Compare both for one size of state."""
    held = STATES[size]
    ours = _ours(result, size, held, rounds)
    spark = measure_repartition(held.keys, held.key_bytes)
    if spark.problem:
        result.add_figures(plain_spark_repartition_note=spark.problem)
        return
    theirs = [one - float(np.median(spark.undisturbed_s)) for one in spark.held_up_s]
    _add_plain_spark(result, f"plain_spark_{size}", spark, theirs)
    add_ratio(result, size, theirs, ours)


def add_ratio(result: BenchResult, size: str, theirs: Sequence[float], ours: Sequence[float]) -> None:
    """Add one size to the ratios by state, and the headline where it is that one; samples are seconds."""
    ours = [max(one, LEAST_S) for one in ours]
    by_state = dict(result.figures.get(BY_STATE) or {})
    by_state[size] = describe(STATES[size].bytes, theirs, ours)
    result.figures[BY_STATE] = {name: by_state[name] for name in STATES if name in by_state}
    result.write()
    if size == HEADLINE:
        result.add_ratio("plain_spark_vs_ours_rescale", theirs, ours)
        result.add_figures(plain_spark_vs_ours_rescale_state_bytes=STATES[size].bytes)


def describe(state_bytes: int, theirs: Sequence[float], ours: Sequence[float]) -> dict[str, object]:
    """Return what one size came to: the state, how long each held rows up, and the ratio with its spread."""
    ratio: Spread = ratio_spread(theirs, ours)
    return {
        "state_bytes": state_bytes,
        "ours_held_up_ms": round(1e3 * spread(ours).median, 1),
        "plain_spark_held_up_ms": round(1e3 * spread(theirs).median, 1),
        "ratio": round(ratio.median, 1),
        "ratio_spread": [round(ratio.low, 1), round(ratio.high, 1)],
    }


def _ours(result: BenchResult, size: str, held: Held, rounds: int) -> list[float]:
    changes: list[Change] = []
    spark = penstock.session("penstock-bench-rescale", cores=8)
    try:
        with loaded(held, 2, fill=True) as query:
            quiet = [undisturbed(query)[0]]
            for _ in range(rounds):
                for wanted in (4, 2):
                    changes.append(watch_change(query, NAME, lambda k=wanted: rescale(query, k)))  # type: ignore[misc]
                    time.sleep(1.0)
                    quiet.append(undisturbed(query, 1.0)[0])
            state_bytes = query.lastProgress["operators"][NAME]["stateBytes"]
    finally:
        spark.stop()
    name = f"cores_2_4_2_{size}"
    add_quiet(result, name, quiet)
    result.add_figures(**{f"{name}_state_bytes": state_bytes, f"{name}_keys": held.keys})
    return add_changes(result, name, changes, usual_ms(quiet))


def _add_plain_spark(result: BenchResult, name: str, spark: Repartitioned, late_s: Sequence[float]) -> None:
    result.add_figures(
        **{
            f"{name}_rescale_held_up_s": spread(late_s),
            f"{name}_rescale_without_output_s": spread(spark.held_up_s),
            f"{name}_undisturbed_s": spread(spark.undisturbed_s),
            f"{name}_repartition_s": spread(spark.repartition_s),
        }
    )
    result.add_figures(**{f"{name}_state_bytes": spark.state_bytes})
