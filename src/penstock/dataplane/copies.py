"""Copies of shards on their way to another node, made there beside the work while the shard is worked on here.

Asked for by `placing`, made by `copying` inside a lease. Bounded in number and bytes; the data files that a copy is made
from stay until it is there. A copy is a short cut, never the only way: without one a shard is brought from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataplane import messages, records
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.run import HandedOver, Run
from penstock.dataplane.state.protocol import U16

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine

MAX_FAILURES = 3
"""Copies of a shard that may fail before it moves without one."""


@dataclass
class Copy:
    """A copy of a shard on its way to another node, or there."""

    lease: str
    node: str
    files: frozenset[str]
    """Data files it is made from: they stay until it is there."""
    bytes: int
    name: str | None = None
    version: int = 0


class Copies:
    """All copies of one engine, by stage and shard."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._copies: dict[tuple[str, int], Copy] = {}
        self._failures: dict[tuple[str, int], int] = {}

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._copies

    def files(self) -> set[str]:
        """Data files that copies under way are made from."""
        return set().union(*(copy.files for copy in self._copies.values() if copy.name is None))

    def may_go(self, run: Run, shard: int) -> bool:
        """Whether a shard can leave its node: a copy of it is there already, or there is nothing to copy."""
        if run.chain.versions[shard] == 0:
            return True
        copy = self._copies.get((run.spec.name, shard))
        if copy is not None:
            return copy.name is not None
        return self._failures.get((run.spec.name, shard), 0) >= MAX_FAILURES

    def made(self, stage: str, shard: int, lease: str) -> HandedOver | None:
        """Return the copy of a shard that a lease has, None where it has none."""
        copy = self._copies.get((stage, shard))
        if copy is None or copy.name is None or copy.lease != lease:
            return None
        return HandedOver(copy.node, copy.name, copy.version)

    def begin(self, run: Run, destination: TaskSlot, shards: U16) -> None:
        """Begin to copy shards to another node, as many at once as the settings allow."""
        lease = self._engine.leases[destination.lease or ""]
        chosen = self._choose(run, shards)
        if not chosen:
            return
        message = run.prepare(destination, np.array(chosen, np.uint16))
        deltas = {frame.extent.file for frame in message.deltas}
        for wanted in message.shards:
            extent = wanted.snapshot.extent if wanted.snapshot is not None else None
            files = frozenset(deltas | ({extent.file} if extent is not None else set()))
            size = run.size_of(np.array([wanted.shard], np.uint16))
            self._copies[run.spec.name, wanted.shard] = Copy(lease.name, lease.node, files, size)
        self._engine.send(lease.name, message)

    def _choose(self, run: Run, shards: U16) -> list[int]:
        settings = self._engine.settings
        under_way = [copy for copy in self._copies.values() if copy.name is None]
        room = settings.moves_at_once - len(under_way)
        room_bytes = settings.move_bytes_at_once - sum(copy.bytes for copy in under_way)
        chosen: list[int] = []
        for shard in shards.tolist():
            if len(chosen) >= room or (run.spec.name, shard) in self or self.may_go(run, shard):
                continue
            size = run.size_of(np.array([shard], np.uint16))
            if size > room_bytes and (chosen or under_way):
                continue
            room_bytes -= size
            chosen.append(shard)
        return chosen

    def on_prepared(self, lease: str, prepared: messages.Prepared) -> None:
        """Copies are there, or could not be made: then they are tried again, and in the end done without."""
        for shard in prepared.shards:
            key = (prepared.stage, shard.shard)
            copy = self._copies.get(key)
            if copy is None or copy.lease != lease:
                self._forget(lease, *key)
            elif shard.local:
                copy.name, copy.version = shard.local, shard.version
            else:
                del self._copies[key]
                self._failures[key] = self._failures.get(key, 0) + 1

    def lose_lease(self, lease: str) -> None:
        for key in [key for key, copy in self._copies.items() if copy.lease == lease]:
            del self._copies[key]

    def end(self, stage: str, shards: Iterable[int], lease: str) -> None:
        """Shards are held by a lease: its copies are its state now, those of others are of no use."""
        for shard in shards:
            self._failures.pop((stage, shard), None)
            copy = self._copies.pop((stage, shard), None)
            if copy is not None and copy.lease != lease:
                self._forget(copy.lease, stage, shard)

    def forget_useless(self, run: Run) -> None:
        """Let go of copies that a newer plan, or a newer lease, has no use for."""
        name = run.spec.name
        for (stage, shard), copy in list(self._copies.items()):
            slot = run.slots.get(int(run.shards.goal[shard])) if stage == name else None
            if stage == name and (
                slot is None or slot.lease != copy.lease or slot.index == run.task_of[shard]
            ):
                del self._copies[stage, shard]
                self._forget(copy.lease, stage, shard)

    def _forget(self, lease: str, stage: str, shard: int) -> None:
        at = records.pack_u16(np.array([shard], np.uint16))
        self._engine.send(lease, messages.Forget(stage, 0, at))
