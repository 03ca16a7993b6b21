"""`penstock bench rescale`: how long rows are held up when a shard moves and when cores and nodes come and go.

Elasticutor 5.1, figures 8 and 9: a shard moved inside a node and to another, by size of its state and number of upstream
executors, beside the resource-centric way; 2 -> 4 -> 2 cores and 1 -> 3 -> 1 nodes; and what plain Spark takes to change
the partitions of a stateful query, by the size of the state. Nodes are processes of one machine.

Where cores and nodes change, "held up" is how much later than usual the slowest row of the change was committed: its time
from arrival to commit, less the median of that time while nothing changes, in the same run; plain Spark's is the time
from `stop` to the first commit after the restart, less the median of its usual batches. The ratio is of these two. The
longest gap between commits and the slowest shard stand beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import penstock
from penstock.bench import emulated
from penstock.bench.changing import apply_plan, watch_change
from penstock.bench.emulated import NAME
from penstock.bench.parts import Part, run_parts
from penstock.bench.rescale_cores import BY_STATE, HEADLINE, cores
from penstock.bench.rescale_runs import (
    CHANGE_TIMEOUT_S,
    Held,
    add_changes,
    add_moves,
    add_quiet,
    loaded,
    move_to_and_fro,
    rescale,
    undisturbed,
    usual_ms,
)
from penstock.bench.result import BenchResult, spread
from penstock.control.apply.actuator import Outcome
from penstock.control.plan.plan import Plan
from penstock.errors import PenstockError
from penstock.spark.localcluster import LocalCluster
from penstock.spark.nodes import negotiator
from penstock.spark.slots import nodes

NODES_ARE_PROCESSES: Final = "nodes are processes of one machine that share its disk and cores"
NODES_STATE: Final = Held.of(256, 32 << 10)
"""Of the operator, where nodes change."""


@dataclass(frozen=True)
class Effort:
    """How much of everything a run does."""

    moves: int
    paused_moves: int
    upstream: tuple[int, ...]
    sizes: tuple[str, ...]
    rounds: int
    more_states: tuple[str, ...]
    """Sizes of state of `cores` that have a part of their own."""

    @staticmethod
    def of(quick: bool) -> Effort:
        if quick:
            return Effort(10, 3, (1, 8, 32), ("32kb", "32mb"), 3, ())
        return Effort(40, 10, (1, 2, 4, 8, 16, 32), ("32kb", "1mb", "32mb"), 5, ("128mb", "1gb"))


SIZES: Final = {
    "32kb": Held.of(64, 32 << 10),
    "1mb": Held.of(16, 1 << 20),
    "32mb": Held.of(4, 32 << 20),
}
"""Of the operator, by the size of a shard."""
PACED_S: Final = 0.5
"""Shortest time between epochs where the number of upstream executors varies: with as many as they could make, they would
keep all cores of a small machine busy, and a move would take as long as everything waits for a core."""


def _measure_moves(result: BenchResult, name: str, query: Any, size: int, plan: Effort) -> None:
    quiet, epoch_s = undisturbed(query)
    add_moves(result, name, move_to_and_fro(query, size, plan.moves))
    paused = move_to_and_fro(query, size, plan.paused_moves, pause=True)
    result.add_figures(
        **{f"{name}_epoch_ms": 1e3 * epoch_s, f"{name}_undisturbed_gap_ms": 1e3 * quiet.gap_s},
        **{f"{name}_resource_centric_ms": spread([1e3 * change.outcome.took_s for change in paused])},
    )


def inside(result: BenchResult, plan: Effort) -> None:
    """(a) A shard moved inside a node, by the number of upstream executors."""
    spark = penstock.session("penstock-bench-rescale", cores=2 + max(plan.upstream))
    try:
        with loaded(SIZES["32kb"], 2) as query:
            _measure_moves(result, "intra_node", query, SIZES["32kb"].shard_bytes, plan)
        _measure_upstream(result, "intra_node", plan, lambda query: None)
    finally:
        spark.stop()


def between(result: BenchResult, plan: Effort) -> None:
    """(b) A shard moved to another node, by the size of its state and the number of upstream executors."""
    with _cluster(2, 2 + max(plan.upstream) // 2):
        for size in plan.sizes:
            with _noting_what_fails(result, f"inter_node_{size}"), loaded(SIZES[size], 2) as query:
                _one_on_each(query)
                _measure_moves(result, f"inter_node_{size}", query, SIZES[size].shard_bytes, plan)
        _measure_upstream(result, "inter_node_32kb", plan, _one_on_each)


def _measure_upstream(result: BenchResult, name: str, plan: Effort, prepare: Callable[[Any], None]) -> None:
    """Move shards of 32 KB below more and more upstream executors, each with a core of its own."""
    for upstream in plan.upstream:
        what = f"{name}_{upstream}_upstream"
        load = loaded(SIZES["32kb"], 2, upstream, minEpochSeconds=PACED_S)
        with _noting_what_fails(result, what), load as query:
            prepare(query)
            _measure_moves(result, what, query, SIZES["32kb"].shard_bytes, plan)


@contextmanager
def _noting_what_fails(result: BenchResult, name: str) -> Iterator[None]:
    """Let one measurement that fails leave its reason in the result, and the others of its part go on."""
    result.figures.pop(f"{name}_problem", None)  # of an earlier run
    try:
        yield
    except (PenstockError, TimeoutError) as error:
        result.add_figures(**{f"{name}_problem": str(error)})
        print(f"-- {name}: {error}", file=sys.stderr, flush=True)


def _cores(result: BenchResult, states: tuple[str, ...], plan: Effort) -> None:
    """(c) 2 -> 4 -> 2 cores, and plain Spark changing 2 -> 4 -> 2 partitions, for some sizes of state."""
    for size in states:
        cores(result, size, plan.rounds)


def _more_cores(size: str, plan: Effort) -> Part:
    return Part(lambda result: _cores(result, (size,), plan), (), (f"cores_2_4_2_{size}_held_up_ms",))


def several_nodes(result: BenchResult, plan: Effort) -> None:
    """(d) 1 -> 3 -> 1 nodes: two acquired and used, then drained and given back, under load."""
    with _cluster(3, 4) as (
        _,
        spark,
    ):  # for the source, two cores of the operator and what Spark needs itself
        negotiating = negotiator(spark)
        negotiating.settle(1)
        with loaded(NODES_STATE, 2) as query:
            quiet = [undisturbed(query)[0]]
            acquired = watch_change(query, NAME, lambda: apply_plan(query, Plan(add_nodes=2)))
            names = [one.executor_id for one in nodes(spark)]
            out = watch_change(query, NAME, lambda: rescale(query, 3, dict.fromkeys(names, 1)))
            time.sleep(1.0)
            quiet.append(undisturbed(query)[0])
            home = names[0]
            back = [
                watch_change(query, NAME, lambda node=node: _drain(query, node))  # type: ignore[misc]
                for node in names
                if node != home
            ]
    add_quiet(result, "nodes", quiet)
    for name, changes in (("nodes_acquire", [acquired]), ("nodes_1_to_3", [out]), ("nodes_3_to_1", back)):
        add_changes(result, name, changes, usual_ms(quiet))
    result.add_figures(
        nodes_1_to_3_moved_bytes=sum(move.bytes for move in out.moves),
        nodes_3_to_1_moved_bytes=sum(move.bytes for one in back for move in one.moves),
    )


def _drain(query: Any, node: str) -> Outcome:
    began = time.monotonic()
    query.drain(node, release=True, timeout=CHANGE_TIMEOUT_S)
    return Outcome(True, took_s=time.monotonic() - began)


def _one_on_each(query: Any) -> None:
    """Put one task of the operator on each of the two nodes."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    assert spark is not None
    rescale(query, 2, {one.executor_id: 1 for one in nodes(spark)[:2]})


@contextmanager
def _cluster(workers: int, slots: int) -> Iterator[tuple[LocalCluster, Any]]:
    with LocalCluster(workers=workers, cores=slots, memory="1g") as cluster:
        spark = cluster.session("penstock-bench-rescale", {"spark.locality.wait": "1s"})
        try:
            yield cluster, spark
        finally:
            spark.stop()


def parts_of(quick: bool) -> dict[str, Part]:
    """Return the parts with what each owes."""
    plan = Effort.of(quick)
    owed_sizes = tuple(f"inter_node_{size}_ms" for size in plan.sizes)
    owed_nodes = ("nodes_1_to_3_held_up_ms", "nodes_3_to_1_held_up_ms")
    return {
        "inside": Part(lambda result: inside(result, plan), (), ("intra_node_ms",)),
        "between": Part(lambda result: between(result, plan), (), owed_sizes),
        "cores": Part(
            lambda result: _cores(result, ("8mb", HEADLINE), plan),
            ("plain_spark_vs_ours_rescale",),
            (BY_STATE,),
        ),
        **{f"cores-{size}": _more_cores(size, plan) for size in plan.more_states},
        "nodes": Part(lambda result: several_nodes(result, plan), (), owed_nodes),
    }


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the parts asked for (all when none is named); return the names that are missing at the end.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    result.emulated += [emulated.EMULATION, NODES_ARE_PROCESSES]
    return run_parts(result, parts_of(quick), only, quick)
