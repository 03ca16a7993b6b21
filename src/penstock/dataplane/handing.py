"""Shards that pass from one task to another inside a node: how many at one boundary, and how long the next epoch waits
for them. They are closed and opened, which takes some milliseconds: less than an epoch that they would miss.
"""

from __future__ import annotations

from collections import defaultdict

from penstock.dataplane.run import Run
from penstock.dataplane.state.protocol import U16

HANDOVER_S = 0.1
"""How long the next epoch of a stage waits for them at most."""
HANDED_AT_LEAST = 4
HANDED_AT_MOST = 64
HANDED_PER_S = 200.0
"""Shards that a task hands on or takes over at one boundary, while rows wait: so many for each second that the last epoch
took, within these bounds. Each takes some tenths of a millisecond, for which the whole stage stands still: a tenth of an
epoch."""
ANY_NUMBER = 1 << 16


class Handing:
    """What is being handed on, by stage."""

    def __init__(self) -> None:
        self._passing: dict[str, tuple[float, list[int]]] = {}
        self._after: dict[str, int] = {}
        """Epoch after which a stage last handed shards on."""

    def room(self, run: Run, rows_wait: bool) -> defaultdict[int, int]:
        """Return, by task, how many shards it may hand on or take over at this boundary."""
        if not rows_wait:
            return defaultdict(lambda: ANY_NUMBER)
        done = self._after.get(run.spec.name) == run.chain.epoch
        many = min(max(HANDED_AT_LEAST, round(run.epoch_s * HANDED_PER_S)), HANDED_AT_MOST)
        return defaultdict(lambda: 0 if done else many)

    def begin(self, run: Run, shards: U16, now: float) -> None:
        """Shards are asked for at this boundary."""
        name = run.spec.name
        _, passing = self._passing.get(name, (now, []))
        self._passing[name] = now + HANDOVER_S, [*passing, *shards.tolist()]
        self._after[name] = run.chain.epoch

    def is_awaited(self, run: Run, now: float) -> bool:
        """Whether the next epoch waits for shards that are being handed on."""
        until, passing = self._passing.get(run.spec.name, (0.0, []))
        if now < until and not run.ready[passing].all():
            return True
        self._passing.pop(run.spec.name, None)
        return False
