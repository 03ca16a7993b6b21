"""Shards on their way from one executor of an operator to another: what is asked for, and when it may become durable.

The shards are let go first, while both executors work on; then both stand still between two epochs for as long as one
base takes, which carries the new deal. A driver that dies before it is durable leaves the old deal, after it the new
one. A part of the engine: no I/O, and nothing about which shards should go.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataplane import records
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.program import executor_name, operator_of
from penstock.dataplane.records import Redeal
from penstock.dataplane.run import Phase, Run
from penstock.dataplane.shards import NOBODY, Holding
from penstock.dataplane.state.protocol import U16
from penstock.errors import PlanError
from penstock.words import counted, listed

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine


@dataclass
class Asked:
    """One deal on its way; times are of the engine's clock."""

    giver: str
    taker: str
    shards: U16
    tasks: int
    """That the taker gets for them, besides those it has."""
    wanted_at: float
    stood_at: float = 0.0
    """Since when both executors stand still; 0 before."""


@dataclass(frozen=True)
class Redealt:
    """A deal that is done."""

    giver: str
    taker: str
    shards: int
    wanted_at: float
    stood_at: float
    made_at: float

    @property
    def held_up_s(self) -> float:
        """How long both executors stood still."""
        return self.made_at - self.stood_at


class Redealing:
    """All deals of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: list[Asked] = []
        self._written: list[Asked] = []
        """Those in the base that is being written."""
        self._held: set[str] = set()
        self.made: deque[Redealt] = deque(maxlen=1_000)

    def ask(self, giver: str, taker: str, shards: U16, tasks: int = 1) -> None:
        """Let shards pass to another executor of the same operator, which gets so many more tasks for them; with none,
        they go to those it has.

        Raises:
            PlanError: it cannot be carried out; nothing has changed.
        """
        shards = np.unique(shards)
        self.check([(giver, taker, shards, tasks)])
        run = self._engine.runs[giver]
        run.shards.goal[shards] = NOBODY
        self._engine.placing.forget_wishes(run, shards)
        self._asked.append(Asked(giver, taker, shards, tasks, self._engine.now()))

    def check(self, deals: Iterable[tuple[str, str, U16, int]]) -> None:
        """Refuse deals (giver, taker, shards, tasks) that cannot all be asked for, one after the other.

        Raises:
            PlanError: it says which, and why.
        """
        busy = {name for one in (*self._asked, *self._written) for name in (one.giver, one.taker)}
        for giver, taker, shards, tasks in deals:
            self._check(giver, taker, shards, tasks, busy)
            busy |= {giver, taker}

    def _check(self, giver: str, taker: str, shards: U16, tasks: int, busy: set[str]) -> None:
        run = self._engine.runs.get(giver)
        if run is None or run.spec.kind != "operator":
            raise PlanError(f"'{giver}' has no shards to deal: it is no executor of an operator.")
        if giver == taker or (
            taker != self.next_name(operator_of(giver)) and not self._is_sibling(giver, taker)
        ):
            raise PlanError(
                f"shards of '{giver}' cannot pass to '{taker}', which is no other executor of '{operator_of(giver)}'."
            )
        if busy & {giver, taker}:
            raise PlanError(
                f"shards of '{operator_of(giver)}' are being dealt already; ask again when that is done."
            )
        mine = run.shards.mine()
        if not len(shards) or not np.isin(shards, mine).all():
            raise PlanError(
                f"'{giver}' does not have all of the shards {listed(shards.tolist())}; it has {len(mine)}."
            )
        if tasks < 0:
            raise PlanError(f"'{taker}' cannot have {counted(tasks, 'core')} more.")

    def _is_sibling(self, giver: str, taker: str) -> bool:
        return taker in self._engine.runs and operator_of(taker) == operator_of(giver)

    def next_name(self, operator: str) -> str:
        """Return the executor that would be the next: one that has no shards, or a new one."""
        chains = self._engine.chains.of(operator)
        empty = [chain.name for chain in chains if not chain.groups]
        return empty[0] if empty else executor_name(operator, len(chains) + 1)

    def is_under_way(self, operator: str) -> bool:
        return any(operator_of(one.giver) == operator for one in (*self._asked, *self._written))

    def tasks_to_come(self, operator: str) -> int:
        """Return how many tasks executors of an operator are to get for shards that are being let go."""
        return sum(one.tasks for one in self._asked if operator_of(one.giver) == operator)

    def cores_to_come_beside(self, operator: str) -> int:
        """Return how many cores more other operators will hold once what is on its way is done: a task that gives all of
        its shards away gives its core with them."""
        return sum(
            max(self.tasks_to_come(other) - self._tasks_to_go(other), 0)
            for other in {operator_of(one.giver) for one in self._asked}
            if other != operator
        )

    def _tasks_to_go(self, operator: str) -> int:
        return sum(
            not (run.shards.goal == index).any()
            for run in self._engine.runs_of(operator)
            for index, slot in run.slots.items()
            if not slot.leaving and not slot.warming
        )

    def holds(self, run: Run) -> bool:
        """Whether an executor may begin no epoch because a deal of its shards is being made durable."""
        return run.spec.name in self._held

    # -- on the way ---------------------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Let executors whose shards are free stand still, and ask for a base when they do."""
        for one in self._asked:
            if not self._is_let_go(one):
                continue
            if not one.stood_at:
                self._held |= {one.giver, one.taker}
                one.stood_at = now
            if self._is_ready(one):
                self._engine.line.want_base(now)

    def _is_let_go(self, one: Asked) -> bool:
        table = self._engine.runs[one.giver].shards
        return bool(
            (table.holding[one.shards] == Holding.ABSENT).all()
            and (table.task_of[one.shards] == NOBODY).all()
        )

    def _is_ready(self, one: Asked) -> bool:
        runs = [self._engine.runs[name] for name in (one.giver, one.taker) if name in self._engine.runs]
        return bool(one.stood_at) and self._is_let_go(one) and all(run.phase is Phase.IDLE for run in runs)

    def apply_ready(self) -> list[Redeal]:
        """Apply every deal that is ready, for the base that is about to be written, and return them."""
        ready = [one for one in self._asked if self._is_ready(one)]
        self._asked = [one for one in self._asked if one not in ready]
        self._written.extend(ready)
        made = [Redeal(one.giver, one.taker, records.pack_u16(one.shards)) for one in ready]
        for one, deal in zip(ready, made, strict=True):
            self._engine.chains.redeal(deal)
            self._pass(one)
        return made

    def _pass(self, one: Asked) -> None:
        giver, taker = self._engine.runs[one.giver], self._engine.run_of(one.taker)
        for run in self._engine.runs.values():
            run.spec = run.chain.spec  # whose inputs may be more by now
        taker.time_us = max(taker.time_us, taker.chain.time_us)
        taker.pausers |= giver.pausers
        giver.counts.pass_on(taker.counts, one.shards)
        for shard in one.shards.tolist():
            if shard in giver.handed_over:
                taker.handed_over[shard] = giver.handed_over.pop(shard)
        staying = [index for index, slot in sorted(taker.slots.items()) if not slot.leaving]
        fresh = min(one.tasks if staying else max(1, one.tasks), len(one.shards))
        if fresh:
            free = [index for index in range(len(taker.slots) + fresh) if index not in taker.slots]
            staying = free[:fresh]
            taker.slots.update({index: TaskSlot(one.taker, index) for index in staying})
        tasks = np.array(staying, np.uint16)[np.arange(len(one.shards)) * len(staying) // len(one.shards)]
        self._stay_near(taker, one, tasks, staying[-fresh:] if fresh else [])
        taker.shards.task_of[one.shards] = tasks
        taker.shards.goal[one.shards] = tasks
        for index, slot in giver.slots.items():
            slot.leaving = slot.leaving or not giver.shards.wanted_by(index)

    def _stay_near(self, taker: Run, one: Asked, tasks: U16, fresh: list[int]) -> None:
        """Put new tasks where most of their shards were let go: there they are opened, elsewhere they are rebuilt."""
        known = self._engine.serving.usable_nodes()
        for index in fresh:
            found = Counter(
                taker.handed_over[shard].node
                for shard in one.shards[tasks == index].tolist()
                if shard in taker.handed_over
            )
            node = max(found, key=lambda name: found[name], default=None)
            taker.slots[index].node = node if node in known else None

    def part_started(self) -> None:
        """The base is durable: the new deal holds."""
        if not self._written:
            return
        now = self._engine.now()
        for one in self._written:
            self._held -= {one.giver, one.taker}
            self.made.append(Redealt(one.giver, one.taker, len(one.shards), one.wanted_at, one.stood_at, now))
        done, self._written = self._written, []
        self._engine.serving.assign()
        for one in done:
            self._engine.placing.bring_absent(self._engine.runs[one.taker])
            for run in self._engine.runs_of(operator_of(one.taker)):
                self._engine.committing.let_others_say(run)
