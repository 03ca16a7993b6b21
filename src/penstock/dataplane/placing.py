"""Which lease serves which task, which task has which shard, and the way from there to what a plan wants.

Works between epochs, one stage at a time, so that a plan concerns only the stage it is for: a shard that moves inside a
node is closed and opened; one that moves to another node is copied there beside the work first, then sits out one
boundary while its last deltas follow. Whoever dies on the way leaves one owner: the committed chain names it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataplane import messages
from penstock.dataplane.copies import Copies
from penstock.dataplane.dealing import TaskSlot, assign_tasks, mean_tasks, plan_moves
from penstock.dataplane.handing import Handing
from penstock.dataplane.placement import Placement, ShardMove, check_placement, check_room, derive_rooms
from penstock.dataplane.resuming import derive_placed
from penstock.dataplane.run import Phase, Run
from penstock.dataplane.shards import NOBODY, Holding
from penstock.dataplane.state.protocol import U16
from penstock.errors import CorruptFileError, OperatorError, PlanError

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine

MAX_LOSSES = 8
"""Processes that one task may lose in a row inside its work before the query ends."""


@dataclass
class Wish:
    """When a shard was asked to move, and what has come of it."""

    wanted_at: float
    source: str = ""
    released_at: float = 0.0
    bytes: int = 0


class Placing:
    """The tasks and shards of all stages of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs = engine.runs
        self._leases = engine.leases
        self.capacity = 1
        self.nodes: set[str] = set()
        """Nodes known besides those of leases."""
        self.node_slots: dict[str, int] = {}
        """Tasks that Spark can run at once on each node for this query; a node that is not named may have any number."""
        self.bringings: deque[tuple[float, str, int, str]] = deque(maxlen=10_000)
        self.moves: deque[ShardMove] = deque(maxlen=10_000)
        self.moves_made = 0
        self.moved_bytes: defaultdict[str, int] = defaultdict(int, dict.fromkeys(engine.runs, 0))
        """State that was copied to another node, by stage."""
        self.avoid: set[str] = set()
        """Nodes that are drained: no task is put there any more."""
        self.copies = Copies(engine)
        self.handing = Handing()
        self._wishes: dict[tuple[str, int], Wish] = {}
        self._given_up: dict[str, str] = {}
        self._deadlines: dict[str, float] = {}

    # -- leases -------------------------------------------------------------------------------------------------------

    def slots(self) -> list[TaskSlot]:
        return [slot for run in self._runs.values() for slot in run.slots.values()]

    def wanted_leases(self) -> int:
        """How many leases the stages could use, at most the capacity."""
        return min(self.capacity, len(self.slots()))

    def foresee(self, awaited: Sequence[str], asked: Sequence[str]) -> dict[str, list[TaskSlot]]:
        """Return which tasks each lease that is asked for now will serve if all goes as foreseen."""
        leases = [name for name, lease in self._leases.items() if lease.node not in self.avoid]
        return mean_tasks(self.slots(), leases, awaited, asked, self.wanted_leases(), self._nodes_of_leases())

    def assign(self) -> None:
        """Give every task without a lease to the lease that serves fewest, within what each should serve."""
        slots, nodes = self.slots(), self._nodes_of_leases()
        leases = [lease for lease in self._leases if nodes[lease] not in self.avoid]
        self._free_from_nodes(slots, leases, nodes)
        for slot, lease in assign_tasks(slots, leases, self._expected_leases(leases), nodes):
            slot.lease, slot.moving_to = lease, None
            self.bring_absent(self._runs[slot.stage])
            self._warm(self._runs[slot.stage], slot)
        for slot, lease in plan_moves(slots, leases, nodes):
            slot.moving_to = lease
        self._leave_avoided(slots, leases, nodes)
        self._end_idle_leases()

    def _warm(self, run: Run, slot: TaskSlot) -> None:
        """Let a lease build a task that has no shards yet, before any of them sits out for it."""
        assert slot.lease is not None
        if run.spec.stateful and not run.shards.is_under_way(slot.index):
            slot.warming = True
            self._engine.send(
                slot.lease, run.bring(slot, np.empty(0, np.uint16), self._leases[slot.lease].node)
            )

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
                if slot.stage not in self._deadlines or (run.task_of == slot.index).any():
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

    def _nodes_of_leases(self) -> dict[str, str]:
        return {name: lease.node for name, lease in self._leases.items()}

    def set_nodes(self, nodes: Iterable[str], slots: Mapping[str, int]) -> None:
        """Say which nodes there are, and the slots of each; a task whose node is gone may run anywhere."""
        self.nodes, self.node_slots = set(nodes), dict(slots)
        self.avoid &= self.nodes
        known = self.known_nodes()
        for slot in self.slots():
            if slot.node is not None and slot.node not in known:
                slot.node = None

    def known_nodes(self) -> set[str]:
        return self.nodes | {lease.node for lease in self._leases.values()}

    def lose_lease(self, lease: str) -> None:
        """A lease is gone; its shards sit out until another one has them."""
        served = [
            (run, slot) for run in self._runs.values() for slot in run.slots.values() if slot.lease == lease
        ]
        self._count_loss(served)
        self.copies.lose_lease(lease)
        for slot in self.slots():
            slot.moving_to = None if slot.moving_to == lease else slot.moving_to
            slot.meant_for = None if slot.meant_for == lease else slot.meant_for
        for run, slot in served:
            self._lose_slot(run, slot)
        self.assign()

    def _lose_slot(self, run: Run, slot: TaskSlot) -> None:
        slot.lease, slot.moving_to, slot.warming = None, None, False
        if run.spec.kind == "operator":
            run.shards.lose(run.assigned_to(slot))
        run.timers.pop(slot.index, None)
        run.unconfirmed.discard(slot.index)
        if run.phase is Phase.WORKING and slot.index in run.waiting_for:
            run.waiting_for.discard(slot.index)
            self._engine.settle(run)
        self.bring_absent(run)  # a plan may have put some of them with others

    def _count_loss(self, served: Sequence[tuple[Run, TaskSlot]]) -> None:
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

    # -- restarts -----------------------------------------------------------------------------------------------------

    def fit(self, capacity: int) -> None:
        """Where the last driver had more cores than there are now, begin as the program says."""
        if len(self.slots()) > capacity:
            for run in self._runs.values():
                run.place_as_declared()

    def note_placed(self) -> None:
        """Note beside the chains where plans have put their stages; what is under way counts when it is done."""
        nodes, placed = self._nodes_of_leases(), self._engine.chains.placed
        for name, run in self._runs.items():
            if name in self._deadlines:
                continue
            found = derive_placed(run.spec, run.slots, run.shards.goal, nodes)
            placed.pop(name, None)
            placed.update({name: found} if found is not None else {})

    # -- plans --------------------------------------------------------------------------------------------------------

    def place(self, wanted: Sequence[Placement], timeout_s: float) -> None:
        """Let stages have these tasks and shards, beginning at the next boundary of each.

        Raises:
            PlanError: it cannot be carried out; nothing has changed.
        """
        self.check(wanted)
        now = self._engine.now()
        for one in wanted:
            self._want(one, now)
            self._deadlines[one.stage] = now + timeout_s
            self._given_up.pop(one.stage, None)
        self.assign()

    def check(self, wanted: Sequence[Placement]) -> None:
        """Refuse what cannot be carried out.

        Raises:
            PlanError: it says what, and what would do.
        """
        known = self.known_nodes()
        for one in wanted:
            run = self._runs.get(one.stage)
            check_placement(
                one,
                run.spec if run is not None else None,
                known,
                self.capacity,
                run.shards.mine() if run is not None else None,
            )
            self._check_nodes(one)
        names = ", ".join(f"'{one.stage}'" for one in wanted)
        usable = sum(slots for node, slots in self.node_slots.items() if node not in self.avoid)
        leases = min(self.capacity, usable)
        for room in derive_rooms(wanted, self.slots(), self._nodes_of_leases(), self.node_slots, leases):
            check_room(names, room)

    def _check_nodes(self, one: Placement) -> None:
        for index, node in one.tasks.items():
            slot = self._runs[one.stage].slots.get(index)
            lease = self._leases.get(slot.lease or "") if slot is not None else None
            if node is not None and lease is not None and lease.node != node:
                raise PlanError(
                    f"task {index} of '{one.stage}' is on node {lease.node} and cannot go to {node}: a task stays where it "
                    "is; give the new one an index that is free."
                )

    def _want(self, one: Placement, now: float) -> None:
        run = self._runs[one.stage]
        for index, node in one.tasks.items():
            slot = run.slots.setdefault(index, TaskSlot(one.stage, index))
            slot.leaving = False
            slot.node = node if node is not None else slot.node
        for index, slot in run.slots.items():
            slot.leaving = index not in one.tasks
        if run.spec.kind != "operator":
            return
        mine = run.shards.mine()
        run.shards.goal[mine] = one.task_of[mine]
        for shard in run.shards.displaced().tolist():
            self._wishes.setdefault((one.stage, shard), Wish(now))
        self.copies.forget_useless(run)

    def is_settled(self, stage: str) -> bool:
        """Whether a stage is as the last plan wants it."""
        run = self._runs[stage]
        if any(slot.leaving or slot.lease is None for slot in run.slots.values()):
            return False
        return run.is_whole and not len(run.shards.displaced())

    def why_not(self, stage: str) -> str | None:
        """Return why the last plan of a stage was given up, None when it was not."""
        return self._given_up.get(stage)

    def give_up_late_plans(self, now: float) -> None:
        """A plan whose cores do not come leaves the old one running."""
        for stage, at in list(self._deadlines.items()):
            if self.is_settled(stage):
                del self._deadlines[stage]
                self._engine.note_placed()
            elif now >= at:
                del self._deadlines[stage]
                self._give_up(self._runs[stage])

    def _give_up(self, run: Run) -> None:
        waiting = [slot.index for slot in run.slots.values() if slot.lease is None]
        if not waiting:
            return  # it is only slow
        if run.spec.kind == "operator":
            lost = np.isin(run.shards.goal, waiting)
            run.shards.goal[lost] = run.task_of[lost]
            kept = {*run.shards.goal.tolist(), *run.task_of.tolist()}
            self.copies.forget_useless(run)
        else:
            kept = set(waiting) if len(waiting) == len(run.slots) else set()
        for slot in run.slots.values():
            slot.leaving = slot.lease is None and slot.index not in kept
        names = ", ".join(map(str, waiting))
        self._given_up[run.spec.name] = f"no lease came up in time for task {names}"
        self.assign()

    # -- between two epochs -------------------------------------------------------------------------------------------

    def move(self, run: Run) -> None:
        """Between two epochs: let tasks and shards that should be elsewhere go there; they sit out on the way."""
        for slot in list(run.slots.values()):
            if slot.moving_to is not None:
                self._move_task(run, slot)
        if run.spec.kind == "operator":
            displaced = run.shards.displaced()
            if len(displaced):
                self._move_shards(run, displaced)
        if any(slot.leaving for slot in run.slots.values()):
            self._retire(run)

    def _move_task(self, run: Run, slot: TaskSlot) -> None:
        if slot.lease is None or not run.may_move(slot):
            return
        if slot.moving_to not in self._leases:
            slot.moving_to = None
        elif not run.spec.stateful or not len(run.shards_of(slot)):
            slot.lease, slot.moving_to, slot.warming = slot.moving_to, None, False
            self.bring_absent(run)
            self._warm(run, slot)
        else:
            keep = self._leases[slot.lease].node == self._leases[slot.moving_to].node
            self._engine.send(slot.lease, run.release(slot, run.shards_of(slot), keep))

    def _move_shards(self, run: Run, displaced: U16) -> None:
        if not run.spec.stateful:
            run.task_of[displaced] = run.shards.goal[displaced]
            run.shards.lose(displaced)
            self.bring_absent(run)
            return
        self.bring_absent(run)
        held = displaced[run.ready[displaced]]
        self._let_go(run, held[run.shards.goal[held] == NOBODY])
        held = held[run.shards.goal[held] != NOBODY]
        pairs = {(int(run.task_of[s]), int(run.shards.goal[s])) for s in held.tolist()}
        waits = not run.paused and any(self._engine.chains.waiting(run.chain).values())
        room = self.handing.room(run, waits)
        for source, destination in sorted(pairs):
            mine = held[(run.task_of[held] == source) & (run.shards.goal[held] == destination)]
            self._move_between(run, run.slots[source], run.slots.get(destination), mine, room)

    def _let_go(self, run: Run, shards: U16) -> None:
        """Release shards that pass to another executor; their environments wait for whoever takes them."""
        for index in sorted({*run.task_of[shards].tolist()}):
            slot = run.slots[index]
            if slot.lease in self._leases:
                assert slot.lease is not None
                self._engine.send(slot.lease, run.release(slot, shards[run.task_of[shards] == index]))

    def forget_wishes(self, run: Run, shards: U16) -> None:
        """Shards pass to another executor: nothing that was asked of them here counts."""
        for shard in shards.tolist():
            self._wishes.pop((run.spec.name, shard), None)
        self.copies.forget_useless(run)

    def _move_between(
        self,
        run: Run,
        source: TaskSlot,
        destination: TaskSlot | None,
        shards: U16,
        room: defaultdict[int, int],
    ) -> None:
        if destination is None or destination.lease not in self._leases or source.lease not in self._leases:
            return
        if source.moving_to is not None or destination.moving_to is not None or destination.warming:
            return
        near = self._leases[source.lease].node == self._leases[destination.lease].node
        name = run.spec.name
        if near:
            ready = shards[: min(room[source.index], room[destination.index])]
            room[source.index] -= len(ready)
            room[destination.index] -= len(ready)
        else:
            self.copies.forget_useless(run)  # the destination may have another lease by now
            ready = shards[[self.copies.may_go(run, int(shard)) for shard in shards]]
            self.copies.begin(run, destination, shards)
        if len(ready):
            now = self._engine.now()
            for shard in ready.tolist():
                wish = self._wishes.setdefault((name, shard), Wish(now))
                wish.source, wish.released_at = self._leases[source.lease].node, now
            if near:
                self.handing.begin(run, ready, now)
            self._engine.send(source.lease, run.release(source, ready, near))

    def _retire(self, run: Run) -> None:
        """End tasks that have nothing left to do; those of a source work until others can."""
        if run.spec.kind == "operator":
            idle = [index for index in run.slots if not run.shards.wanted_by(index)]
        else:
            ready = all(slot.lease in self._leases for slot in run.slots.values() if not slot.leaving)
            idle = [*run.slots] if ready else []
        gone = [index for index in idle if run.slots[index].leaving]
        for index in gone:
            del run.slots[index]
            run.timers.pop(index, None)
            run.unconfirmed.discard(index)
            run.losses.pop(index, None)
        if gone:
            self.assign()

    # -- shards -------------------------------------------------------------------------------------------------------

    def bring_absent(self, run: Run) -> None:
        """Ask for every shard that nobody holds, but those that a record on its way names."""
        if run.spec.kind != "operator" or run.is_whole:
            return
        busy = run.named_in_epoch()
        run.shards.settle_absent(busy)
        for slot in run.slots.values():
            if slot.lease not in self._leases or slot.moving_to is not None:
                continue
            absent = run.shards.of(slot.index, Holding.ABSENT)
            absent = absent[~busy[absent]]
            if not len(absent):
                continue
            if not run.spec.stateful:
                run.shards.to(absent, Holding.HELD)
            else:
                assert slot.lease is not None
                self._engine.send(slot.lease, run.bring(slot, absent, self._leases[slot.lease].node))

    def on_brought(self, lease: str, brought: messages.Brought) -> None:
        run = self._runs[brought.stage]
        slot = run.slots.get(brought.task)
        if slot is None or slot.lease != lease:
            return
        slot.warming = False
        wall = self._engine.wall()
        for shard in brought.shards:
            self.bringings.append((wall, run.spec.name, shard.shard, shard.how))
            if not shard.ok:
                self._engine.fail(
                    CorruptFileError(
                        f"state of operator '{run.spec.name}', shard {shard.shard} cannot be rebuilt from its snapshot and "
                        f"deltas ({shard.how}); restore the checkpoint from a copy."
                    )
                )
                return
        found = np.array([shard.shard for shard in brought.shards], np.uint16)
        run.shards.to(found, Holding.HELD)
        self.copies.end(run.spec.name, found.tolist(), lease)
        run.note_timer(brought.task, brought.next_timer_us)
        self._note_moves(run, found, self._leases[lease].node)

    def _note_moves(self, run: Run, shards: U16, node: str) -> None:
        now, name = self._engine.now(), run.spec.name
        for shard in shards.tolist():
            wish = self._wishes.get((name, shard))
            if wish is not None and run.task_of[shard] == run.shards.goal[shard]:
                del self._wishes[name, shard]
                if not wish.released_at:
                    continue  # nobody held it yet
                self.moved_bytes[name] += wish.bytes
                self.moves_made += 1
                self.moves.append(
                    ShardMove(
                        name, shard, wish.source, node, wish.bytes, wish.wanted_at, wish.released_at, now
                    )
                )

    def on_released(self, lease: str, released: messages.Released) -> None:
        run = self._runs[released.stage]
        slot = run.slots.get(released.task)
        if slot is None or slot.lease != lease:
            return
        shards = run.note_released(released, self._leases[lease].node)
        run.note_timer(released.task, released.next_timer_us)
        for shard in shards.tolist():
            target = run.slots.get(int(run.shards.goal[shard]))
            there = self._leases.get(target.lease or "") if target is not None else None
            if there is None:
                continue
            far = there.node != self._leases[lease].node
            copy = self.copies.made(run.spec.name, shard, there.name)
            if far and copy is not None:
                run.handed_over[shard] = copy
            wish = self._wishes.get((run.spec.name, shard))
            if wish is not None:
                wish.bytes = run.size_of(np.array([shard], np.uint16)) if far else 0
        left = len(run.shards_of(slot)) or run.shards.is_under_way(slot.index)
        if slot.moving_to is not None and not left:
            slot.lease, slot.moving_to = (slot.moving_to if slot.moving_to in self._leases else None), None
        if slot.lease is None:
            self.assign()
        self.bring_absent(run)
