"""What a stage begins with: the tasks and shards that plans had given it when its last driver went, or the declared ones.

Pure: the base record keeps what plans made of a stage (`records.Placed`), and it is taken up where it still fits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.dataplane import records
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.program import StageSpec
from penstock.dataplane.records import Placed
from penstock.dataplane.shards import NOBODY
from penstock.dataplane.state.protocol import U16


def derive_declared(spec: StageSpec, share: U16 | None = None) -> tuple[int, U16]:
    """Return how many tasks the program gives a stage, and the task of each shard; an executor that has a share of its
    operator's shards gets that part of its tasks."""
    share = np.arange(spec.shards, dtype=np.uint16) if share is None else share
    tasks = 0
    if spec.kind != "sink" and not spec.ingested:
        tasks = spec.tasks
        if spec.kind == "operator":
            tasks = min(len(share), max(1, round(spec.tasks * len(share) / spec.shards)))
    task_of = np.full(spec.shards, NOBODY, np.uint16)
    task_of[share] = np.arange(len(share)) * max(1, tasks) // max(1, len(share))
    return tasks, task_of


def resolve_first(
    spec: StageSpec, placed: Placed | None, share: U16 | None = None
) -> tuple[dict[int, TaskSlot], U16]:
    """Return the tasks and the shards' tasks that a stage begins with.

    What plans had made of it counts while the program says the same of its cores and shards as then.

    Args:
        share: the shards of the operator that it has, None for all.
    """
    tasks, task_of = derive_declared(spec, share)
    if placed is None or not _fits(spec, np.flatnonzero(task_of != NOBODY), tasks, placed):
        return {index: TaskSlot(spec.name, index) for index in range(tasks)}, task_of
    slots = {
        index: TaskSlot(spec.name, index, node=node or None)
        for index, node in zip(placed.tasks, placed.nodes, strict=True)
    }
    return slots, records.unpack_u16(placed.task_of).copy() if spec.kind == "operator" else task_of


def _fits(spec: StageSpec, share: npt.NDArray[np.intp], tasks: int, placed: Placed) -> bool:
    if not tasks or placed.declared != tasks or not placed.tasks or len(placed.tasks) != len(placed.nodes):
        return False
    if spec.kind != "operator":
        return True
    task_of = records.unpack_u16(placed.task_of)
    if len(task_of) != spec.shards or not np.array_equal(np.flatnonzero(task_of != NOBODY), share):
        return False
    return set(task_of[share].tolist()) <= set(placed.tasks)


def derive_placed(
    spec: StageSpec, slots: Mapping[int, TaskSlot], goal: U16, nodes: Mapping[str, str]
) -> Placed | None:
    """Return what a base keeps of where a stage is; None where it is as the program says.

    Args:
        goal: the task that each shard should have.
        nodes: the node of each lease.
    """
    share = np.flatnonzero(goal != NOBODY).astype(np.uint16)
    tasks, task_of = derive_declared(spec, share)
    stay = [slot for _, slot in sorted(slots.items()) if not slot.leaving]
    as_declared = [slot.index for slot in stay] == list(range(tasks))
    if not stay or (as_declared and (spec.kind != "operator" or np.array_equal(goal, task_of))):
        return None
    return Placed(
        tasks,
        [slot.index for slot in stay],
        [nodes.get(slot.lease or "", slot.node or "") if slot.node else "" for slot in stay],
        records.pack_u16(goal) if spec.kind == "operator" else b"",
    )
