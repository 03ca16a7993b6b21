"""Which task has which shard, and the way from there to what a plan wants.

Which lease serves a task is `serving`'s to say. Works between epochs, one stage at a time, so that a plan concerns only the
stage it is for: a shard that moves inside a node is closed and opened; one that moves to another node is copied there
beside the work first, then sits out one boundary while its last deltas follow. Whoever dies on the way leaves one owner:
the committed chain names it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataplane import messages
from penstock.dataplane.asked_plans import AskedPlans
from penstock.dataplane.copies import Copies
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.handing import Handing
from penstock.dataplane.moves import Moves
from penstock.dataplane.placement import Placement
from penstock.dataplane.plans_under_way import PlansUnderWay, UnderWay
from penstock.dataplane.resuming import derive_placed
from penstock.dataplane.run import Phase, Run
from penstock.dataplane.shards import NOBODY, Holding
from penstock.dataplane.state.protocol import U16
from penstock.dataplane.undoing import keep_what_runs, note_before, put_back
from penstock.errors import CorruptFileError

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine

PUT_BACK_S = 20.0
"""Time in which leases come up again for tasks that a plan which is given up had ended."""


class Placing:
    """The tasks and shards of all stages of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs = engine.runs
        self._leases = engine.leases
        self.bringings: deque[tuple[float, str, int, str]] = deque(maxlen=10_000)
        """What came of each shard that was brought: time, stage, shard, and how."""
        self.moves = Moves(engine.runs)
        self.copies = Copies(engine)
        self.handing = Handing()
        self.plans = AskedPlans()
        self.under_way = PlansUnderWay(self.plans)

    # -- leases -------------------------------------------------------------------------------------------------------

    def on_served(self, run: Run, slot: TaskSlot) -> None:
        """A task has got a lease: bring the shards it should have, or build it for those to come."""
        self.bring_absent(run)
        self._warm(run, slot)

    def _warm(self, run: Run, slot: TaskSlot) -> None:
        """Let a lease build a task that has no shards yet, before any of them sits out for it."""
        assert slot.lease is not None
        if run.spec.stateful and not run.shards.is_under_way(slot.index):
            slot.warming = True
            self._engine.send(
                slot.lease, run.bring(slot, np.empty(0, np.uint16), self._leases[slot.lease].node)
            )

    def lose_lease(self, lease: str) -> None:
        """A lease is gone; its shards sit out until another one has them."""
        served = self._engine.serving.served_by(lease)
        self._engine.serving.count_loss(served)
        self.copies.lose_lease(lease)
        self._engine.serving.forget(lease)
        for run, slot in served:
            self._lose_slot(run, slot)
        self._engine.serving.assign()

    def _lose_slot(self, run: Run, slot: TaskSlot) -> None:
        slot.lease, slot.moving_to, slot.warming = None, None, False
        if run.spec.kind == "operator":
            run.shards.lose(run.assigned_to(slot))
        run.timers.pop(slot.index, None)
        run.unconfirmed.discard(slot.index)
        if run.phase is Phase.WORKING and slot.index in run.waiting_for:
            run.waiting_for.discard(slot.index)
            self._engine.committing.settle(run)
        self.bring_absent(run)  # a plan may have put some of them with others

    # -- restarts -----------------------------------------------------------------------------------------------------

    def fit(self, capacity: int) -> None:
        """Where the last driver had more cores than there are now, begin as the program says."""
        if len(self._engine.serving.slots()) > capacity:
            for run in self._runs.values():
                run.place_as_declared()

    def note_placed(self) -> None:
        """Note beside the chains where plans have put their stages; what is under way counts when it is done."""
        nodes, placed = self._engine.serving.nodes_of_leases(), self._engine.chains.placed
        for name, run in self._runs.items():
            if self.under_way.find(name) is not None:
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
        self._engine.serving.check(wanted)
        now = self._engine.now()
        before = {}
        for one in wanted:
            awaited = self.under_way.find_awaited(one.stage)
            earlier = awaited.before.get(one.stage) if awaited is not None else None
            before[one.stage] = note_before(self._runs[one.stage], one.tasks, earlier)
            self.plans.begin(one.stage, self.is_settled(one.stage))
            self._want(one, now)
        self.under_way.begin(before, now + timeout_s)
        self._engine.serving.assign()

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
        self.moves.ask(run, run.shards.displaced(), now)
        self.copies.forget_useless(run)

    def is_planned(self, stage: str) -> bool:
        """Whether a stage has a plan and has not been as that wants it yet."""
        return self.under_way.find_awaited(stage) is not None

    def is_settled(self, stage: str) -> bool:
        """Whether a stage is as the last plan wants it."""
        run = self._runs[stage]
        if any(slot.leaving or slot.lease is None for slot in run.slots.values()):
            return False
        return run.is_whole and not len(run.shards.displaced())

    def is_over(self, stage: str, number: int) -> bool:
        """Whether nothing is done for a plan of a stage any more: it is as that wants it, or a later one was begun."""
        return not self.plans.is_last(stage, number) or self.is_settled(stage)

    def why_not(self, stage: str) -> str | None:
        """Return why the last plan of a stage was given up, None when it was not."""
        return self.plans.why_not(stage)

    def give_up_late_plans(self, now: float) -> None:
        """A plan whose cores do not come leaves the old one running, on all stages that it is for."""
        if self.under_way.note_reached(self.is_settled):
            self._engine.note_placed()
        for late in self.under_way.take_late(now):
            self._give_up(late, now)

    def _give_up(self, late: UnderWay, now: float) -> None:
        stages = self.under_way.stages_of(late)
        waiting = {stage: found for stage in stages if (found := self._waiting(stage, late))}
        if not waiting:
            return  # it is only slow
        for stage in stages if late.before else waiting:
            run = self._runs[stage]
            if late.before:
                put_back(run, late.before[stage], self._engine.serving.usable_nodes())
                self.plans.give_up(stage, _why_given_up(stage, waiting))
                self.under_way.turn_back(stage, now + PUT_BACK_S)
            else:
                keep_what_runs(run)
            self._forget_given_up(run, now)
        self._engine.serving.assign()

    def _waiting(self, stage: str, late: UnderWay) -> list[int]:
        """Tasks of a stage for which no lease has come up since the plan began."""
        slots = self._runs[stage].slots.values() if stage not in late.reached else ()
        return [slot.index for slot in slots if slot.lease is None and not slot.leaving]

    def _forget_given_up(self, run: Run, now: float) -> None:
        """Its shards go elsewhere than they were asked to."""
        if run.spec.kind != "operator":
            return
        stay = run.ready & (run.task_of == run.shards.goal)
        self.moves.forget(run, np.flatnonzero(stay).astype(np.uint16))
        self.moves.ask(run, run.shards.displaced(), now)
        self.copies.forget_useless(run)

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
        self.moves.forget(run, shards)
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
            self.moves.release(run, ready, self._leases[source.lease].node, now)
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
            run.intake.rates.forget(index)
        if gone:
            self._engine.serving.assign()

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
        self.moves.arrive(run, found, self._leases[lease].node, self._engine.now())

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
            self.moves.weigh(run, shard, run.size_of(np.array([shard], np.uint16)) if far else 0)
        left = len(run.shards_of(slot)) or run.shards.is_under_way(slot.index)
        if slot.moving_to is not None and not left:
            slot.lease, slot.moving_to = (slot.moving_to if slot.moving_to in self._leases else None), None
        if slot.lease is None:
            self._engine.serving.assign()
        self.bring_absent(run)


def _why_given_up(stage: str, waiting: Mapping[str, Sequence[int]]) -> str:
    if stage in waiting:
        return f"no lease came up in time for task {', '.join(map(str, waiting[stage]))} of '{stage}'"
    return f"'{stage}' went back with " + " and ".join(f"'{one}'" for one in waiting)
