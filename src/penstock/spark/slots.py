"""What a SparkSession offers to leases: its nodes, their task slots, and the real cores behind them.

Reads only; asks the driver's JVM, which knows about a lost node before any listener does.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES_SETTING = "spark.penstock.cores"
"""Set by ``penstock.session()`` in local mode, where Spark is told of more slots than there are cores."""


LOCAL_NODE = "driver"
"""What Spark calls the one node of local mode, where driver and node are one process."""
NODES_TIMEOUT_S = 60.0
NODES_YOUNG_S = 20.0
NODES_SETTLE_S = 1.0
"""How long to wait for the first node; how old an application is when its nodes are all there; how long to wait for
one more while it is younger."""


@dataclass(frozen=True)
class Node:
    """One Spark executor process: where leases run. ``cores`` counts its slots, spare ones included."""

    executor_id: str
    host: str
    cores: int


def slots(spark: SparkSession) -> int:
    """Return how many tasks Spark can run at once on the nodes registered now (by ``spark.task.cpus``)."""
    scala_context = _scala_context(spark)
    profile = scala_context.resourceProfileManager().defaultResourceProfile()
    return int(scala_context.maxNumConcurrentTasks(profile))


def slots_of_nodes(spark: SparkSession, known: Sequence[Node]) -> dict[str, int]:
    """Return how many tasks each node can run at once (by ``spark.task.cpus``)."""
    cores_each = int(spark.sparkContext.getConf().get("spark.task.cpus") or 1)
    return {node.executor_id: node.cores // cores_each for node in known}


def usable_slots(slots: int, slots_of: Mapping[str, int], avoid: Collection[str]) -> int:
    """Return how many of Spark's slots are on nodes that are not being drained.

    A node that Spark was told to end is listed until its process is gone, some seconds, but its slots are no longer
    counted: they must not be taken off twice, or leases of other nodes would have to go for them.

    Args:
        slots: as Spark counts them.
        slots_of: of each node that is listed.
    """
    uncounted = max(0, sum(slots_of.values()) - slots)
    avoided = sum(count for node, count in slots_of.items() if node in avoid)
    return slots - max(0, avoided - uncounted)


def await_slots(spark: SparkSession, at_least: int = 2, timeout_s: float = NODES_TIMEOUT_S) -> None:
    """Wait until the nodes of an application that has just started have registered.

    A cluster hands them out one by one, after the session is open; how many will come is not known, so this
    waits until no more come for a while. Returns at once in local mode and in an application that runs for longer.
    """
    if is_local(spark):
        return
    deadline = time.monotonic() + timeout_s
    known, since = slots(spark), time.monotonic()
    while time.monotonic() < deadline:
        now = slots(spark)
        if now != known:
            known, since = now, time.monotonic()
        young = time.time() - int(_scala_context(spark).startTime()) / 1000 < NODES_YOUNG_S
        if known >= at_least and (not young or time.monotonic() - since >= NODES_SETTLE_S):
            return
        time.sleep(0.05)


def nodes(spark: SparkSession) -> list[Node]:
    """Return the registered nodes, by executor id; in local mode the one node is the driver itself.

    A node that has just registered may be missing for about a tenth of a second; a lost one never lingers.
    """
    scala_context = _scala_context(spark)
    found = _listed_executors(scala_context)
    if not is_local(spark):
        alive = set(_iterate(scala_context.schedulerBackend().getExecutorIds()))
        found = [node for node in found if node.executor_id in alive]
    return sorted(found, key=lambda node: (len(node.executor_id), node.executor_id))


def node_of_job(spark: SparkSession, group: str) -> str:
    """Return the executor on which the one task of a job group's one job was started; nothing while it waits for a slot."""
    tracker = spark.sparkContext.statusTracker()
    for job in tracker.getJobIdsForGroup(group):
        found = tracker.getJobInfo(job)
        for stage in found.stageIds if found is not None else ():
            with contextlib.suppress(Exception):  # Spark knows nothing of the stage yet, or any more
                for task in _iterate(_scala_context(spark).statusStore().taskList(stage, 0, 1)):
                    return str(task.executorId())
    return ""


def real_cores(spark: SparkSession) -> int:
    """Return the cores that can do work at once, as opposed to the slots Spark was told of."""
    stated = spark.sparkContext.getConf().get(CORES_SETTING)
    if stated is not None:
        return int(stated)
    return min(slots(spark), machine_cores()) if is_local(spark) else slots(spark)


def is_local(spark: SparkSession) -> bool:
    """Return whether driver and node are one process (``local``, ``local[n]``, ``local[*]``)."""
    return is_local_master(spark.sparkContext.master or "")


def is_local_master(master: str) -> bool:
    """Return whether a master URL means one process; ``local-cluster[...]`` does not."""
    return master == "local" or master.startswith("local[")


def machine_cores() -> int:
    """Return the cores this process may use; in a container or under ``taskset`` fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _listed_executors(scala_context: Any) -> list[Node]:
    """Read id, host and cores from Spark's status store.

    A driver that runs no tasks has no cores there; a node that is still registering has no host yet.
    """
    listed = (
        Node(str(summary.id()), str(summary.hostPort()).rpartition(":")[0], int(summary.totalCores()))
        for summary in _iterate(scala_context.statusStore().executorList(True))
    )
    return [node for node in listed if node.cores > 0 and node.host]


def _scala_context(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc()


def _iterate(scala_seq: Any) -> list[Any]:
    iterator = scala_seq.iterator()
    items = []
    while iterator.hasNext():
        items.append(iterator.next())
    return items
