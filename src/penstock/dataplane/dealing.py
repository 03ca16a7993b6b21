"""Which lease serves which task. Pure decisions over names; nothing is moved here.

A lease that comes up gets tasks without a lease first, before others those that were meant for it when it was asked
for. A task that a plan has put on a node waits for a lease there, or takes the one that was asked for there and came up
elsewhere. When leases are served unevenly afterwards (a node came back, a core was added), tasks move from the busiest
to the idlest until no two differ by more than one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass
class TaskSlot:
    """One task of a stage, the lease that serves it now, and the lease it is on its way to."""

    stage: str
    index: int
    lease: str | None = None
    moving_to: str | None = None
    meant_for: str | None = None
    """The lease that was asked for with this task in mind; it may come up too late, or never."""
    node: str | None = None
    """The node that a plan has put the task on; None: any will do."""
    leaving: bool = False
    """Whether the task ends when it has no shards any more."""
    warming: bool = False
    """Whether a task without shards is still being built on its lease; it gets some when it is."""

    @property
    def home(self) -> str | None:
        """The lease that serves the task once everything under way is done."""
        return self.moving_to or self.lease

    def may_use(self, lease: str, nodes: Mapping[str, str]) -> bool:
        """Whether a lease will do: it is on the task's node, or was asked for there and came up elsewhere."""
        return self.node is None or nodes.get(lease) == self.node or self.meant_for == lease


NO_NODES: Mapping[str, str] = {}


def assign_tasks(
    slots: Sequence[TaskSlot], leases: Sequence[str], expected: int, nodes: Mapping[str, str] = NO_NODES
) -> list[tuple[TaskSlot, str]]:
    """Deal tasks without a lease over the leases there are.

    No lease gets more than its share of the expected number of leases, so that one that comes up first does
    not take everything; tasks of one stage go to different leases where possible.

    Args:
        nodes: the node of each lease.
    """
    if not leases:
        return []
    share = -(-len(slots) // max(1, expected))
    load = {lease: [slot.stage for slot in slots if slot.home == lease] for lease in leases}
    dealt: list[tuple[TaskSlot, str]] = []
    free = [slot for slot in slots if slot.lease is None]
    for slot in sorted(free, key=lambda slot: slot.meant_for not in load):
        usable = [lease for lease in leases if slot.may_use(lease, nodes)]
        open_leases = [lease for lease in usable if len(load[lease]) < share]
        if not open_leases and slot.node is not None and len(leases) >= expected:
            open_leases = usable  # no more leases will come: the tasks of a node crowd on those it has
        if not open_leases:
            continue
        chosen = min(
            open_leases,
            key=lambda lease: (
                lease != slot.meant_for,
                load[lease].count(slot.stage),
                len(load[lease]),
                leases.index(lease),
            ),
        )
        load[chosen].append(slot.stage)
        dealt.append((slot, chosen))
    return dealt


def mean_tasks(
    slots: Sequence[TaskSlot],
    leases: Sequence[str],
    awaited: Sequence[str],
    asked: Sequence[str],
    expected: int,
    nodes: Mapping[str, str] = NO_NODES,
) -> dict[str, list[TaskSlot]]:
    """Foresee what leases will serve that are asked for now, note it in the tasks without a lease, and return it.

    What comes of it depends on which lease comes up first and which are lost meanwhile.

    Args:
        leases: that are up.
        awaited: that were asked for earlier and may still come up.
        asked: that are asked for now.
    """
    coming = [*awaited, *asked]
    foreseen = [
        replace(slot, lease=slot.lease or (slot.meant_for if slot.meant_for in awaited else None))
        for slot in slots
    ]
    for slot, lease in _mean_for_nodes(foreseen, asked):
        slot.lease = lease
    for slot, lease in assign_tasks(foreseen, [*leases, *coming], expected, nodes):
        slot.lease = lease
    for slot, lease in plan_moves(foreseen, [*leases, *coming], nodes):
        slot.moving_to = lease
    for slot, then in zip(slots, foreseen, strict=True):
        if slot.lease is None and then.home in asked:
            slot.meant_for = then.home
    return {lease: [then for then in foreseen if then.home == lease] for lease in asked}


def _mean_for_nodes(slots: Sequence[TaskSlot], asked: Sequence[str]) -> list[tuple[TaskSlot, str]]:
    """Of the leases asked for now, one for each task that waits for a lease on its node, while there are any."""
    waiting = [slot for slot in slots if slot.lease is None and slot.node is not None]
    return list(zip(waiting, asked, strict=False))


def plan_moves(
    slots: Sequence[TaskSlot], leases: Sequence[str], nodes: Mapping[str, str] = NO_NODES
) -> list[tuple[TaskSlot, str]]:
    """Return which tasks to move where so that no lease serves two more than another; the fewest moves do.

    Tasks that are already moving stay on their way. A task of the stage that the busy lease serves most, and
    the idle one least, goes first.
    """
    load: dict[str, list[TaskSlot]] = {lease: [] for lease in leases}
    for slot in slots:
        if slot.home in load:
            load[slot.home].append(slot)
    moves: list[tuple[TaskSlot, str]] = []
    while load:
        busy = max(leases, key=lambda lease: len(load[lease]))
        idle = min(leases, key=lambda lease: len(load[lease]))
        stays = {id(slot) for slot, _ in moves}
        free = [
            slot
            for slot in load[busy]
            if slot.moving_to is None and id(slot) not in stays and slot.may_use(idle, nodes)
        ]
        if len(load[busy]) - len(load[idle]) < 2 or not free:
            return moves
        chosen = max(free, key=lambda slot: _count(load[busy], slot) - _count(load[idle], slot))
        load[busy].remove(chosen)
        load[idle].append(chosen)
        moves.append((chosen, idle))
    return moves


def _count(slots: Sequence[TaskSlot], like: TaskSlot) -> int:
    return sum(1 for slot in slots if slot.stage == like.stage)
