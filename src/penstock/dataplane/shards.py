"""Who has which shard of one stage: the task it belongs to now, the task a plan wants, and where it is on the way.

A shard is absent, being brought, held, or being released; `CHANGES` is the whole life. Only held shards take part in
epochs. No messages and no decisions here.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from penstock.dataplane.state.protocol import U16
from penstock.errors import PenstockError

NOBODY = 0xFFFF
"""Task of a shard that another executor of the operator has."""


class Holding(enum.IntEnum):
    """Where the state of a shard is."""

    ABSENT = 0
    BRINGING = 1
    HELD = 2
    RELEASING = 3


CHANGES = {
    (Holding.ABSENT, Holding.BRINGING),
    (Holding.ABSENT, Holding.HELD),  # nothing to bring: the stage has no state
    (Holding.BRINGING, Holding.HELD),
    (Holding.BRINGING, Holding.ABSENT),  # its lease was lost
    (Holding.HELD, Holding.RELEASING),
    (Holding.HELD, Holding.ABSENT),  # its lease was lost
    (Holding.RELEASING, Holding.ABSENT),  # let go, or its lease was lost
}
"""All changes of a shard; any other one is a fault in the engine."""

_LEGAL = np.zeros((len(Holding), len(Holding)), np.bool_)
for _before, _after in CHANGES:
    _LEGAL[_before, _after] = True


class ShardTable:
    """The shards of one stage."""

    def __init__(self, stage: str, task_of: U16, holding: Holding) -> None:
        self._stage = stage
        self.task_of: U16 = task_of
        """Task that each shard belongs to now."""
        self.goal: U16 = task_of.copy()
        """Task that each shard should belong to."""
        self.holding: npt.NDArray[np.int8] = np.full(len(task_of), holding, np.int8)
        self.ready: npt.NDArray[np.bool_] = self.holding == Holding.HELD
        """Which shards are held; kept beside `holding` because every epoch looks at it."""

    def to(self, shards: U16, holding: Holding) -> None:
        """Change where some shards are; an illegal change names both states."""
        wrong = ~_LEGAL[self.holding[shards], holding]
        if wrong.any():
            shard = int(shards[wrong][0])
            raise PenstockError(
                f"shard {shard} of '{self._stage}' cannot go from {Holding(self.holding[shard]).name.lower()} to "
                f"{holding.name.lower()}"
            )
        self.holding[shards] = holding
        self.ready[shards] = holding is Holding.HELD

    def lose(self, shards: U16) -> None:
        """Their lease is gone, whatever it was doing with them."""
        self.to(shards[self.holding[shards] != Holding.ABSENT], Holding.ABSENT)

    @property
    def whole(self) -> bool:
        """Whether every shard that this executor has is held."""
        return bool(self.ready.all() or (self.ready | (self.task_of == NOBODY)).all())

    def mine(self) -> U16:
        """Return the shards that this executor has, and is to keep."""
        return np.flatnonzero((self.task_of != NOBODY) & (self.goal != NOBODY)).astype(np.uint16)

    def of(self, task: int, holding: Holding | None = None) -> U16:
        """Return the shards that belong to a task now; those that are in one state, where that is given."""
        mine = self.task_of == task
        if holding is not None:
            mine &= self.holding == holding
        return np.flatnonzero(mine).astype(np.uint16)

    def wanted_by(self, task: int) -> bool:
        """Whether a task has shards, or should get some."""
        return bool((self.task_of == task).any() or (self.goal == task).any())

    def displaced(self) -> U16:
        """Return the shards that should belong to another task."""
        return np.flatnonzero(self.task_of != self.goal).astype(np.uint16)

    def settle_absent(self, busy: npt.NDArray[np.bool_]) -> None:
        """Shards that nobody holds belong to the task they should, but those that an epoch under way still names."""
        free = (self.holding == Holding.ABSENT) & ~busy
        self.task_of[free] = self.goal[free]

    def is_under_way(self, task: int) -> bool:
        """Whether some shard of a task is being brought or released."""
        mine = self.holding[self.task_of == task]
        return bool(((mine == Holding.BRINGING) | (mine == Holding.RELEASING)).any())
