"""What a stage looked like before a plan, and the way back to it when the plan is given up.

Taken whole when a plan begins, put back whole: tasks, their nodes, and the task of every shard. What came or went by other
ways meanwhile, such as shards that another executor gave or took, stays as it is now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.run import Run
from penstock.dataplane.shards import NOBODY
from penstock.dataplane.state.protocol import U16


@dataclass
class Before:
    """A stage as it was when a plan for it began."""

    tasks: dict[int, str | None]
    """Index of each task that was to stay -> the node it was put on; None: any."""
    goal: U16
    """Shard -> its task; nobody where another executor had it."""
    added: set[int] = field(default_factory=set)
    """Tasks that plans have begun since."""


def note_before(run: Run, wanted: Iterable[int], earlier: Before | None) -> Before:
    """Return what is to be put back if a plan with these tasks is given up.

    A plan that comes while the one before it still waits for leases goes back to where that one would have: what never ran
    is nothing to go back to.
    """
    waits = any(slot.lease is None and not slot.leaving for slot in run.slots.values())
    if earlier is None or not waits:
        staying = {index: slot.node for index, slot in run.slots.items() if not slot.leaving}
        earlier = Before(staying, run.shards.goal.copy())
    earlier.added |= set(wanted) - set(earlier.tasks)
    return earlier


def put_back(run: Run, before: Before, usable: Collection[str]) -> None:
    """Let a stage have the tasks and shards from before a plan again; its shards go back as they came.

    Args:
        usable: nodes that a task may be on; one whose node is gone since may run anywhere.
    """
    empty = _put_shards_back(run, before) if run.spec.kind == "operator" else set()
    for index, node in before.tasks.items():
        if index in empty:
            continue  # another executor has all its shards by now
        slot = run.slots.setdefault(index, TaskSlot(run.spec.name, index))
        slot.node, slot.leaving = (node if node in usable else None), False
    for index, slot in run.slots.items():
        slot.leaving = slot.leaving or index in before.added or index in empty


def _put_shards_back(run: Run, before: Before) -> set[int]:
    """Put the goals back; return the tasks that had shards and have none any more."""
    goal, mine = run.shards.goal, run.shards.mine()
    known = mine[before.goal[mine] != NOBODY]
    goal[known] = before.goal[known]
    stray = mine[
        np.isin(goal[mine], list(before.added))
    ]  # dealt to this executor since, to tasks of the plan
    keep = sorted(before.tasks)
    if len(stray) and keep:
        goal[stray] = np.array(keep, np.uint16)[np.arange(len(stray)) % len(keep)]
    had = {*before.goal.tolist()} - {NOBODY}
    return had - {*goal[mine].tolist()}


def keep_what_runs(run: Run) -> None:
    """Not even the cores from before a plan can be had again: shards stay with the tasks that have them."""
    waiting = [index for index, slot in run.slots.items() if slot.lease is None]
    if run.spec.kind != "operator":
        for slot in run.slots.values():
            slot.leaving = slot.lease is None and len(waiting) < len(run.slots)
        return
    lost = np.isin(run.shards.goal, waiting)
    run.shards.goal[lost] = run.task_of[lost]
    wanted = {*run.shards.goal.tolist()}
    for index, slot in run.slots.items():
        slot.leaving = index not in wanted and (slot.leaving or slot.lease is None)
