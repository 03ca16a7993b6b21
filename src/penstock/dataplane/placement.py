"""What a plan asks of one stage: its tasks, the node of each, and the shards of each. Checked whole before anything
moves; plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.program import StageSpec
from penstock.dataplane.state.protocol import U16
from penstock.errors import PlanError
from penstock.words import counted


@dataclass(frozen=True)
class Placement:
    """The tasks that a stage should have."""

    stage: str
    tasks: Mapping[int, str | None]
    """Index of each task -> its node; None: any. A task that stays keeps its index."""
    task_of: U16
    """Shard -> index of its task; of a source, which has no shards to deal, nothing."""


@dataclass(frozen=True)
class ShardMove:
    """A shard that has changed its task; times are of the engine's clock."""

    stage: str
    shard: int
    source: str
    destination: str
    """Nodes."""
    bytes: int
    """That were copied; 0 inside a node."""
    wanted_at: float
    released_at: float
    """When it was asked for at a boundary, and sat out from then on."""
    ready_at: float

    @property
    def held_up_s(self) -> float:
        return self.ready_at - self.released_at


def check_placement(
    wanted: Placement,
    spec: StageSpec | None,
    nodes: Collection[str],
    capacity: int,
    mine: U16 | None = None,
) -> None:
    """Refuse what cannot be carried out.

    Args:
        mine: the shards that the executor has, None for all; where the others are placed does not matter.

    Raises:
        PlanError: it names what is wrong, with the numbers.
    """
    if spec is None or spec.kind == "sink" or spec.ingested:
        what = "there is no such stage" if spec is None else "it has no tasks of its own"
        raise PlanError(
            f"'{wanted.stage}' cannot be given cores: {what}; name an operator or a native source."
        )
    if not wanted.tasks:
        raise PlanError(f"'{wanted.stage}' must keep at least one core; stop or pause the query instead.")
    if len(wanted.tasks) > capacity:
        raise PlanError(
            f"'{wanted.stage}' cannot have {counted(len(wanted.tasks), 'core')}: the session has room for "
            f"{counted(capacity, 'lease')}; ask for fewer, or add nodes."
        )
    unknown = {node for node in wanted.tasks.values() if node is not None} - set(nodes)
    if unknown:
        raise PlanError(
            f"'{wanted.stage}' cannot be placed on node {', '.join(sorted(unknown))}: the nodes there are: "
            f"{', '.join(sorted(nodes))}."
        )
    if spec.kind == "operator":
        _check_shards(wanted, spec, np.arange(spec.shards) if mine is None else mine)


def _check_shards(wanted: Placement, spec: StageSpec, mine: npt.NDArray[np.integer]) -> None:
    if len(wanted.task_of) != spec.shards:
        raise PlanError(
            f"'{spec.name}' has {counted(spec.shards, 'shard')} and the plan places {len(wanted.task_of)}; place each "
            "exactly once."
        )
    if len(wanted.tasks) > len(mine):
        raise PlanError(
            f"'{spec.name}' has {counted(len(mine), 'shard')} and cannot use {counted(len(wanted.tasks), 'core')}: a shard "
            "runs on one."
        )
    nowhere = mine[~np.isin(wanted.task_of[mine], list(wanted.tasks))]
    if len(nowhere):
        raise PlanError(
            f"shard {nowhere[0]} of '{spec.name}' is placed on task {wanted.task_of[nowhere[0]]}, which the plan does not "
            "have."
        )


def check_tasks_stay(wanted: Placement, slots: Mapping[int, TaskSlot], nodes: Mapping[str, str]) -> None:
    """Refuse to have a task on another node than the one it is on.

    Args:
        slots: the tasks of the stage as they are, by index.
        nodes: the node of each lease.

    Raises:
        PlanError: it names the task and both nodes.
    """
    for index, node in wanted.tasks.items():
        slot = slots.get(index)
        there = nodes.get(slot.lease or "") if slot is not None else None
        if node is not None and there is not None and there != node:
            raise PlanError(
                f"task {index} of '{wanted.stage}' is on node {there} and cannot go to {node}: a task stays where it is; "
                "give the new one an index that is free."
            )


def check_drained(
    wanted: Placement, slots: Mapping[int, TaskSlot], nodes: Mapping[str, str], drained: Collection[str]
) -> None:
    """Refuse a new task on a node that is drained.

    Args:
        slots: the tasks of the stage as they are, by index; one that is up there still may be named.
        nodes: the node of each lease.

    Raises:
        PlanError: it names the task, the node and the way back.
    """
    for index, node in wanted.tasks.items():
        slot = slots.get(index)
        if node in drained and (slot is None or nodes.get(slot.lease or "") != node):
            raise PlanError(
                f"task {index} of '{wanted.stage}' cannot be put on node {node}, which is drained; name another node, or "
                f"undrain it: query.undrain('{node}'), or penstock query undrain."
            )


@dataclass(frozen=True)
class NodeRoom:
    """What one node has for a plan."""

    node: str
    slots: int
    """Tasks that Spark can run there at once, without those that other queries hold."""
    kept: int
    """Leases there that serve a task which stays."""
    new: int
    """Tasks of the plan that are to come up there."""
    shares: bool = False
    """Whether there are more tasks than leases to be had, so that leases serve several."""


def derive_rooms(
    wanted: Sequence[Placement],
    slots: Sequence[TaskSlot],
    nodes: Mapping[str, str],
    node_slots: Mapping[str, int],
    capacity: int,
) -> list[NodeRoom]:
    """Return what each node whose slots are known has for a plan.

    Args:
        slots: the tasks of all stages as they are.
        nodes: the node of each lease.
    """
    planned = {one.stage: one.tasks for one in wanted}
    stay = [
        slot
        for slot in slots
        if (slot.index in planned[slot.stage] if slot.stage in planned else not slot.leaving)
    ]
    kept = {name for slot in stay for name in (slot.lease, slot.moving_to)}
    up = {(slot.stage, slot.index) for slot in stay if slot.lease is not None}
    new = Counter(
        node
        for one in wanted
        for index, node in one.tasks.items()
        if node is not None and (one.stage, index) not in up
    )
    others = sum(slot.stage not in planned for slot in stay)
    tasks = others + sum(len(one.tasks) for one in wanted)
    held = Counter(node for lease, node in nodes.items() if lease in kept)
    return [
        NodeRoom(node, count, held[node], new[node], tasks > capacity) for node, count in node_slots.items()
    ]


def check_room(stages: str, room: NodeRoom) -> None:
    """Refuse tasks that a node has no slot for, rather than wait for what cannot come.

    Raises:
        PlanError: it names the node, its slots, and what would do.
    """
    if not room.new or room.kept + room.new <= room.slots or (room.shares and room.kept):
        return
    raise PlanError(
        f"{stages} cannot have {room.new} more on node {room.node}: of its {counted(room.slots, 'slot')} {room.kept} "
        f"{'is' if room.kept == 1 else 'are'} held by tasks that stay; take cores from an operator there, "
        "name another node, or add nodes."
    )
