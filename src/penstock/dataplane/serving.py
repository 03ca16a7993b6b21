"""Which lease serves which task, and on which nodes tasks may be: dealt anew whenever leases or tasks come and go.

Decides by the rules of `dealing`, refuses plans that leases and nodes cannot serve, and ends leases that no task needs.
Knows nothing of where shards go: whoever is told that a task is served sees to its shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.dataplane.dealing import TaskSlot, assign_tasks, mean_tasks, plan_moves
from penstock.dataplane.placement import (
    Placement,
    check_drained,
    check_placement,
    check_room,
    check_tasks_stay,
    derive_rooms,
)
from penstock.dataplane.run import Phase, Run
from penstock.errors import OperatorError

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine

MAX_LOSSES = 8
"""Processes that one task may lose in a row inside its work before the query ends."""
LOOK_AGAIN_S = 0.5
"""Time after which tasks without a lease are looked at again, though no lease came or went: what they waited for, a plan
that was under way or a lease that was foreseen, may be over."""


class Serving:
    """The leases of one engine and the tasks that each serves.

    Args:
        is_planned: whether a plan for a stage is under way.
        on_served: is told of every task that has got a lease.
    """

    def __init__(
        self, engine: Engine, is_planned: Callable[[str], bool], on_served: Callable[[Run, TaskSlot], None]
    ) -> None:
        self._engine = engine
        self._runs = engine.runs
        self._leases = engine.leases
        self._is_planned = is_planned
        self._on_served = on_served
        self.capacity = 1
        """Leases that can be held at most, those on nodes that are drained included."""
        self.nodes: set[str] = set()
        """Nodes known besides those of leases."""
        self.node_slots: dict[str, int] = {}
        """Tasks that Spark can run at once on each node for this query; a node that is not named may have any number."""
        self.avoid: set[str] = set()
        """Nodes that are drained: no task is put there any more."""
        self.silent: set[str] = set()
        """Nodes that are avoided because nothing is heard of them; they may come back."""
        self._looked_at = 0.0

    def slots(self) -> list[TaskSlot]:
        return [slot for run in self._runs.values() for slot in run.slots.values()]

    def wanted_leases(self) -> int:
        """How many leases the stages could use, at most the capacity. Those on nodes that are drained last until they are
        empty, and what they serve needs others by then."""
        drained = {name for name, lease in self._leases.items() if lease.node in self.avoid}
        need = sum(not (slot.leaving and slot.lease in drained) for slot in self.slots())
        return min(self.capacity, len(drained) + need)

    def foresee(self, awaited: Sequence[str], asked: Sequence[str]) -> dict[str, list[TaskSlot]]:
        """Return which tasks each lease that is asked for now will serve if all goes as foreseen."""
        leases = [name for name, lease in self._leases.items() if lease.node not in self.avoid]
        expected = self._expected_leases(leases)
        return mean_tasks(self.slots(), leases, awaited, asked, expected, self.nodes_of_leases())

    def assign(self) -> None:
        """Give every task without a lease to the lease that serves fewest, within what each should serve."""
        slots, nodes = self.slots(), self.nodes_of_leases()
        leases = [lease for lease in self._leases if nodes[lease] not in self.avoid]
        self._free_from_nodes(slots, leases, nodes)
        for slot, lease in assign_tasks(slots, leases, self._expected_leases(leases), nodes):
            slot.lease, slot.moving_to = lease, None
            self._on_served(self._runs[slot.stage], slot)
        for slot, lease in plan_moves(slots, leases, nodes):
            slot.moving_to = lease
        self._leave_avoided(slots, leases, nodes)
        self._end_idle_leases()

    def look_again(self, now: float) -> None:
        """Deal tasks that still have no lease, now and then, and end leases that tasks have left for another node."""
        if now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            left = self.avoid and any(self._leases[one].node in self.avoid for one in self._idle_leases())
            if left or any(slot.lease is None for slot in self.slots()):
                self.assign()

    def _expected_leases(self, leases: Sequence[str]) -> int:
        """How many leases there will be outside the nodes that are drained: those in there go only when they are empty,
        and until then nobody can have their place."""
        return max(1, self.wanted_leases() - (len(self._leases) - len(leases)))

    def _free_from_nodes(
        self, slots: Sequence[TaskSlot], leases: Sequence[str], nodes: Mapping[str, str]
    ) -> None:
        """A task whose node has no lease for it, when no more leases will come, runs anywhere: rows wait for it. One
        that a plan has just added has its time to get one."""
        if len(self._leases) < self.wanted_leases() or self._idle_leases():
            return
        for slot in slots:
            if slot.lease is None and not any(slot.may_use(lease, nodes) for lease in leases):
                run = self._runs[slot.stage]
                if not self._is_planned(slot.stage) or (run.task_of == slot.index).any():
                    slot.node = None

    def _leave_avoided(
        self, slots: Sequence[TaskSlot], leases: Sequence[str], nodes: Mapping[str, str]
    ) -> None:
        """Tasks that no plan has taken off a node that is drained go to the lease that serves fewest elsewhere."""
        if not self.avoid or not leases:
            return
        for slot in slots:
            if nodes.get(slot.home or "") in self.avoid and not slot.leaving:
                slot.node = None
                slot.moving_to = min(leases, key=lambda lease: sum(one.home == lease for one in slots))

    def _end_idle_leases(self) -> None:
        """A core that no task needs goes back to Spark; so does one that no waiting task can use, for one that can."""
        idle = self._idle_leases()
        waiting = any(slot.lease is None for slot in self.slots())
        idle.sort(key=lambda lease: self._leases[lease].node in self.avoid)
        drained = bool(idle) and self._leases[idle[-1]].node in self.avoid
        if idle and (drained or waiting or len(self._leases) > self.wanted_leases()):
            self._engine.end_lease(idle[-1], "no task needs it")  # which looks again whether there are more

    def _idle_leases(self) -> list[str]:
        """Leases that no task has, goes to, or was meant for."""
        used = {name for slot in self.slots() for name in (slot.home, slot.lease or slot.meant_for)}
        return [lease for lease in self._leases if lease not in used]

    def leases_beside(self, is_meant: Callable[[str], bool]) -> Counter[str]:
        """Count, by node, the leases that serve tasks, but none of the stages that are meant."""
        slots = [(name, is_meant(slot.stage)) for slot in self.slots() for name in (slot.lease, slot.home)]
        meant = {name for name, mine in slots if mine}
        beside = {name for name, mine in slots if not mine} - meant
        return Counter(lease.node for name, lease in self._leases.items() if name in beside)

    def awaiting_beside(self, is_meant: Callable[[str], bool]) -> int:
        """Count the tasks that wait for a lease of their own, but none of the stages that are meant."""
        return sum(
            slot.lease is None and not slot.leaving and not is_meant(slot.stage) for slot in self.slots()
        )

    def nodes_of_leases(self) -> dict[str, str]:
        return {name: lease.node for name, lease in self._leases.items()}

    def set_nodes(self, nodes: Iterable[str], slots: Mapping[str, int], silent: Collection[str] = ()) -> None:
        """Say which nodes there are, leases on them or not, how many tasks each can run for this query, and which are
        silent; a task whose node is gone or silent may run anywhere."""
        self.nodes, self.node_slots, self.silent = set(nodes), dict(slots), set(silent)
        self.avoid &= self.nodes
        known = self.known_nodes() - self.silent
        for slot in self.slots():
            if slot.node is not None and slot.node not in known:
                slot.node = None

    def known_nodes(self) -> set[str]:
        return self.nodes | {lease.node for lease in self._leases.values()}

    def usable_nodes(self) -> set[str]:
        """Nodes that tasks may be put on."""
        return self.known_nodes() - self.avoid - self.silent

    def use_again(self, node: str) -> None:
        """A node that was drained may have tasks again."""
        self.avoid.discard(node)
        self.assign()

    def check(self, wanted: Sequence[Placement]) -> None:
        """Refuse what cannot be carried out.

        Raises:
            PlanError: it says what, and what would do.
        """
        known, nodes = self.known_nodes() - self.silent, self.nodes_of_leases()
        for one in wanted:
            run = self._runs.get(one.stage)
            spec, mine = (run.spec, run.shards.mine()) if run is not None else (None, None)
            check_placement(one, spec, known, self.capacity, mine)
            check_tasks_stay(one, self._runs[one.stage].slots, nodes)
            check_drained(one, self._runs[one.stage].slots, nodes, self.avoid)
        names = ", ".join(f"'{one.stage}'" for one in wanted)
        usable = sum(slots for node, slots in self.node_slots.items() if node not in self.avoid | self.silent)
        drained = sum(node in self.avoid for node in nodes.values())
        leases = min(self.capacity - drained, usable)
        for room in derive_rooms(wanted, self.slots(), nodes, self.node_slots, leases):
            check_room(names, room)

    def served_by(self, lease: str) -> list[tuple[Run, TaskSlot]]:
        """Return the tasks that a lease serves."""
        return [
            (run, slot) for run in self._runs.values() for slot in run.slots.values() if slot.lease == lease
        ]

    def forget(self, lease: str) -> None:
        """A lease is gone: no task goes there or is meant for it."""
        for slot in self.slots():
            slot.moving_to = None if slot.moving_to == lease else slot.moving_to
            slot.meant_for = None if slot.meant_for == lease else slot.meant_for

    def count_loss(self, served: Sequence[tuple[Run, TaskSlot]]) -> None:
        """A task that takes its process down every time is the function's fault, not the machine's.

        A lease works on one message at a time, in order, so the oldest epoch it was asked for is the one it was at.
        """
        at_work = [
            one for one in served if one[0].phase is Phase.WORKING and one[1].index in one[0].waiting_for
        ]
        if not at_work:
            return
        run, slot = min(at_work, key=lambda one: one[0].started_at)
        run.losses[slot.index] = run.losses.get(slot.index, 0) + 1
        if run.losses[slot.index] > MAX_LOSSES:
            kind = "operator" if run.spec.kind == "operator" else "source"
            self._engine.fail(
                OperatorError(
                    f"{kind} '{run.spec.name}' lost its process {run.losses[slot.index]} times in a row at epoch "
                    f"{run.epoch}: its function ends or kills the process (sys.exit, a crash in native code, too much "
                    "memory) or holds it for too long; mend it and start the query again."
                )
            )
