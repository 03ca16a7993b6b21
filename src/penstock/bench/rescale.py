"""`penstock bench rescale`: how long rows are held up when a shard moves and when cores and nodes come and go.

Elasticutor 5.1, figures 8 and 9: a shard moved inside a node and to another, by size of its state and number of upstream
executors, beside the resource-centric way; 2 -> 4 -> 2 cores and 1 -> 3 -> 1 nodes; and what plain Spark takes to change
the partitions of a stateful query. Nodes are processes of one machine.

Where cores and nodes change, "held up" is how much later than usual the slowest row of the change was committed: its time
from arrival to commit, less the median of that time while nothing changes, in the same run; plain Spark's is the time
from `stop` to the first commit after the restart, less the median of its usual batches. The ratio is of these two. The
longest gap between commits and the slowest shard stand beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np

import penstock
from penstock.bench import emulated
from penstock.bench.changing import Change, apply_plan, ask, plan_move, shard_sizes, watch_change
from penstock.bench.emulated import NAME, Calculate, InTurn
from penstock.bench.ours import await_rows, running
from penstock.bench.parts import Part, run_parts
from penstock.bench.result import BenchResult, spread
from penstock.bench.spark_repartition import measure_repartition
from penstock.control.apply.actuator import Outcome
from penstock.control.plan.plan import Plan
from penstock.spark.localcluster import LocalCluster
from penstock.spark.nodes import negotiator
from penstock.spark.slots import nodes

KEYS_PER_SHARD: Final = 16
ROWS_PER_S: Final = 600.0
"""Of 1 ms each: a third of what two cores can do, so that a held-up row is not lost in a queue."""
CORES_STATE: Final = (256, 32 << 10)
"""Shards, and bytes of each, where cores and nodes change; plain Spark has as much state."""
LEAST_S: Final = 1e-3
"""Rows that came no later than usual are taken to have come so much later: nothing can be divided by zero."""
NODES_ARE_PROCESSES: Final = "nodes are processes of one machine that share its disk and cores"


@dataclass(frozen=True)
class Effort:
    """How much of everything a run does."""

    moves: int
    paused_moves: int
    upstream: tuple[int, ...]
    sizes: tuple[str, ...]
    rounds: int

    @staticmethod
    def of(quick: bool) -> Effort:
        if quick:
            return Effort(10, 3, (1, 8), ("32kb", "32mb"), 1)
        return Effort(40, 10, (1, 2, 4, 8, 16, 32), ("32kb", "1mb", "32mb"), 5)


SIZES: Final = {"32kb": (64, 32 << 10), "1mb": (16, 1 << 20), "32mb": (4, 32 << 20)}
"""Name -> shards of the operator, bytes of state of each."""


@contextmanager
def loaded(shards: int, shard_bytes: int, cores: int, upstream: int = 1, **options: object) -> Iterator[Any]:
    """A query whose shards have so much state, under load from so many upstream executors."""
    keys = KEYS_PER_SHARD * shards
    work = Calculate(1e-3, emulated.key_bytes_for(shard_bytes, shards, keys))
    sources = [
        emulated.source(InTurn(keys), ROWS_PER_S / upstream, f"rows{number}") for number in range(upstream)
    ]
    rows = reduce(lambda one, other: one.union(other), sources)
    with running(emulated.calculate(rows, work, cores, shards), **options) as query:
        await_rows(query, NAME, keys + 100 * upstream)
        yield query


def move_to_and_fro(query: Any, target_bytes: int, moves: int, pause: bool = False) -> list[Change]:
    """Move the shard whose state is nearest to a size from its task to the other and back, again and again."""
    shard = int(np.abs(shard_sizes(query, NAME) - target_bytes).argmin())
    found = []
    for _ in range(moves):
        now = query.elasticity._actuator.current()[NAME]
        other = next(task for task in now.tasks if task != now.task_of[shard])
        plan = plan_move(query, NAME, shard, other, pause)
        found.append(watch_change(query, NAME, lambda plan=plan: apply_plan(query, plan)))  # type: ignore[misc]
        time.sleep(0.1)
    return found


def undisturbed(query: Any, seconds: float = 2.0) -> tuple[Change, float]:
    """Return what there is to see, and the mean length of an epoch, while nothing changes."""
    before = ask(query, lambda engine: _epochs(engine))
    change = watch_change(query, NAME, lambda: _nothing(seconds))
    epochs, epochs_s = (now - was for was, now in zip(before, ask(query, _epochs), strict=True))
    return change, epochs_s / max(1, epochs)


def usual_ms(quiet: Sequence[Change]) -> float:
    """Return the median time of rows from arrival to commit while nothing changes, of several looks."""
    return float(np.median([one.latency.p50_ms for one in quiet if one.latency is not None]))


def add_quiet(result: BenchResult, name: str, quiet: Sequence[Change]) -> None:
    """Add what rows and commits take while nothing changes."""
    seen = [one.latency for one in quiet if one.latency is not None]
    result.add_figures(
        **{
            f"{name}_undisturbed_p50_ms": spread([one.p50_ms for one in seen]),
            f"{name}_undisturbed_p99_ms": spread([one.p99_ms for one in seen]),
            f"{name}_undisturbed_worst_row_ms": spread([one.max_ms for one in seen]),
            f"{name}_undisturbed_gap_ms": spread([1e3 * one.gap_s for one in quiet]),
        }
    )


def add_changes(result: BenchResult, name: str, changes: Sequence[Change], usual: float) -> list[float]:
    """Add how long changes held rows up, in every sense; return the seconds that rows came later than usual."""
    late = [change.late_s(usual) for change in changes]
    slowest = [max((move.held_up_s for move in change.moves), default=0.0) for change in changes]
    result.add_figures(
        **{
            f"{name}_held_up_ms": spread([1e3 * one for one in late]),
            f"{name}_p99_ms": spread([one.latency.p99_ms for one in changes if one.latency is not None]),
            f"{name}_commit_gap_ms": spread([1e3 * change.gap_s for change in changes]),
            f"{name}_shard_held_up_ms": spread([1e3 * one for one in slowest]),
            f"{name}_took_s": spread([change.outcome.took_s for change in changes]),
        }
    )
    return late


def _nothing(seconds: float) -> Outcome:
    time.sleep(seconds)
    return Outcome(True)


def _epochs(engine: Any) -> tuple[float, float]:
    counts = engine.runs[NAME].counts
    return counts.epochs, counts.epochs_s


def add_moves(result: BenchResult, name: str, changes: Sequence[Change]) -> None:
    """Add what single moves came to: hold-up of the shard, the wait before it, and the longest gap of the others."""
    moves = [move for change in changes for move in change.moves]
    for what, samples in (
        ("ms", [1e3 * move.held_up_s for move in moves]),
        ("wait_ms", [1e3 * (move.released_at - move.wanted_at) for move in moves]),
        ("commit_gap_ms", [1e3 * change.gap_s for change in changes]),
        ("moved_bytes", [float(move.bytes) for move in moves]),
    ):
        result.add_figures(**{f"{name}_{what}": spread(samples)})


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
    penstock.session("penstock-bench-rescale", cores=8)
    for upstream in plan.upstream:
        with loaded(*SIZES["32kb"], 2, upstream) as query:
            name = "intra_node" if upstream == 1 else f"intra_node_{upstream}_upstream"
            _measure_moves(result, name, query, SIZES["32kb"][1], plan)
    _stop_session()


def between(result: BenchResult, plan: Effort) -> None:
    """(b) A shard moved to another node, by the size of its state and the number of upstream executors."""
    with _cluster(2, 4):
        for size in plan.sizes:
            shards, shard_bytes = SIZES[size]
            with loaded(shards, shard_bytes, 2) as query:
                _one_on_each(query)
                _measure_moves(result, f"inter_node_{size}", query, shard_bytes, plan)
        for upstream in plan.upstream[1:]:
            with loaded(*SIZES["32kb"], 2, upstream) as query:
                _one_on_each(query)
                name = f"inter_node_32kb_{upstream}_upstream"
                _measure_moves(result, name, query, SIZES["32kb"][1], plan)


def cores(result: BenchResult, plan: Effort) -> None:
    """(c) 2 -> 4 -> 2 cores, and plain Spark changing 2 -> 4 -> 2 partitions with as much state."""
    penstock.session("penstock-bench-rescale", cores=8)
    changes: list[Change] = []
    with loaded(*CORES_STATE, 2) as query:
        quiet = [undisturbed(query)[0]]
        for _ in range(plan.rounds):
            for wanted in (4, 2):
                changes.append(watch_change(query, NAME, lambda k=wanted: _rescale(query, k)))  # type: ignore[misc]
                time.sleep(1.0)
                quiet.append(undisturbed(query, 1.0)[0])
    _stop_session()
    add_quiet(result, "cores_2_4_2", quiet)
    ours = add_changes(result, "cores_2_4_2", changes, usual_ms(quiet))
    result.add_figures(cores_2_4_2_state_bytes=CORES_STATE[0] * CORES_STATE[1])
    keys = KEYS_PER_SHARD * CORES_STATE[0]
    spark = measure_repartition(keys, emulated.key_bytes_for(CORES_STATE[1], CORES_STATE[0], keys))
    if spark.problem:
        result.add_figures(plain_spark_repartition_note=spark.problem)
        return
    theirs = [one - float(np.median(spark.undisturbed_s)) for one in spark.held_up_s]
    result.add_figures(
        plain_spark_rescale_held_up_s=spread(theirs),
        plain_spark_rescale_without_output_s=spread(spark.held_up_s),
        plain_spark_undisturbed_s=spread(spark.undisturbed_s),
        plain_spark_repartition_s=spread(spark.repartition_s),
        plain_spark_rescale_state_bytes=spark.state_bytes,
    )
    result.add_ratio("plain_spark_vs_ours_rescale", theirs, [max(one, LEAST_S) for one in ours])


def several_nodes(result: BenchResult, plan: Effort) -> None:
    """(d) 1 -> 3 -> 1 nodes: two acquired and used, then drained and given back, under load."""
    with _cluster(3, 3) as (_, spark):
        negotiating = negotiator(spark)
        negotiating.settle(1)
        with loaded(*CORES_STATE, 2) as query:
            quiet = [undisturbed(query)[0]]
            acquired = watch_change(query, NAME, lambda: apply_plan(query, Plan(add_nodes=2)))
            names = [one.executor_id for one in nodes(spark)]
            out = watch_change(query, NAME, lambda: _rescale(query, 3, dict.fromkeys(names, 1)))
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


def _rescale(query: Any, wanted: int, by_node: dict[str, int] | None = None) -> Outcome:
    """Rescale, and wait until it is done."""
    began = time.monotonic()
    query.rescale(NAME, wanted, by_node)
    deadline = began + 90.0
    while not ask(query, lambda engine: engine.placing.is_settled(NAME)):
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{wanted} cores did not come within 90 s")
        time.sleep(0.005)
    return Outcome(True, took_s=time.monotonic() - began)


def _drain(query: Any, node: str) -> Outcome:
    began = time.monotonic()
    query.drain(node, release=True, timeout=90.0)
    return Outcome(True, took_s=time.monotonic() - began)


def _one_on_each(query: Any) -> None:
    """Put one task of the operator on each of the two nodes."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    assert spark is not None
    _rescale(query, 2, {one.executor_id: 1 for one in nodes(spark)[:2]})


@contextmanager
def _cluster(workers: int, slots: int) -> Iterator[tuple[LocalCluster, Any]]:
    with LocalCluster(workers=workers, cores=slots, memory="1g") as cluster:
        spark = cluster.session("penstock-bench-rescale", {"spark.locality.wait": "1s"})
        try:
            yield cluster, spark
        finally:
            spark.stop()


def _stop_session() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.stop()


def parts_of(quick: bool) -> dict[str, Part]:
    """Return the parts with what each owes."""
    plan = Effort.of(quick)
    owed_sizes = tuple(f"inter_node_{size}_ms" for size in plan.sizes)
    owed_nodes = ("nodes_1_to_3_held_up_ms", "nodes_3_to_1_held_up_ms")
    ratio = ("plain_spark_vs_ours_rescale",)
    return {
        "inside": Part(lambda result: inside(result, plan), (), ("intra_node_ms",)),
        "between": Part(lambda result: between(result, plan), (), owed_sizes),
        "cores": Part(lambda result: cores(result, plan), ratio, ("cores_2_4_2_held_up_ms",)),
        "nodes": Part(lambda result: several_nodes(result, plan), (), owed_nodes),
    }


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the parts asked for (all when none is named); return the names that are missing at the end.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    result.emulated += [emulated.EMULATION, NODES_ARE_PROCESSES]
    return run_parts(result, parts_of(quick), only, quick)
