"""Which lease serves which task. Pure decisions over names; nothing is moved here.

A lease that comes up gets tasks without a lease first. When leases are served unevenly afterwards (a node came
back, a core was added), tasks move from the busiest to the idlest until no two differ by more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class TaskSlot:
    """One task of a stage, the lease that serves it now, and the lease it is on its way to."""

    stage: str
    index: int
    lease: str | None = None
    moving_to: str | None = None

    @property
    def home(self) -> str | None:
        """The lease that serves the task once everything under way is done."""
        return self.moving_to or self.lease


def assign_tasks(
    slots: Sequence[TaskSlot], leases: Sequence[str], expected: int
) -> list[tuple[TaskSlot, str]]:
    """Deal tasks without a lease over the leases there are.

    No lease gets more than its share of the expected number of leases, so that one that comes up first does
    not take everything; tasks of one stage go to different leases where possible.
    """
    if not leases:
        return []
    share = -(-len(slots) // max(1, expected))
    load = {lease: [slot.stage for slot in slots if slot.home == lease] for lease in leases}
    dealt: list[tuple[TaskSlot, str]] = []
    for slot in slots:
        if slot.lease is not None:
            continue
        open_leases = [lease for lease in leases if len(load[lease]) < share]
        if not open_leases:
            break
        chosen = min(
            open_leases,
            key=lambda lease: (load[lease].count(slot.stage), len(load[lease]), leases.index(lease)),
        )
        load[chosen].append(slot.stage)
        dealt.append((slot, chosen))
    return dealt


def plan_moves(slots: Sequence[TaskSlot], leases: Sequence[str]) -> list[tuple[TaskSlot, str]]:
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
        free = [slot for slot in load[busy] if slot.moving_to is None and id(slot) not in stays]
        if len(load[busy]) - len(load[idle]) < 2 or not free:
            return moves
        chosen = max(free, key=lambda slot: _count(load[busy], slot) - _count(load[idle], slot))
        load[busy].remove(chosen)
        load[idle].append(chosen)
        moves.append((chosen, idle))
    return moves


def _count(slots: Sequence[TaskSlot], like: TaskSlot) -> int:
    return sum(1 for slot in slots if slot.stage == like.stage)
