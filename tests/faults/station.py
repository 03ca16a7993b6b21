"""One operator at work without a driver: real workers, real files, records made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from penstock.dataplane import messages, paths, records
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import Disk
from penstock.dataplane.lease_home import LeaseIdentity
from penstock.dataplane.program import Program
from penstock.dataplane.records import Record, TaskPart
from penstock.dataplane.run import Run
from penstock.dataplane.settings import Settings
from penstock.dataplane.snapshots import complete_snapshots
from penstock.dataplane.taking import Budget, take_epoch
from penstock.dataplane.worker import Worker


@dataclass
class Station:
    """The source `source` and one operator of a program, in one checkpoint, stepped by hand."""

    program: Program
    disk: Disk
    checkpoint: str
    node_dir: str
    operator: str = "fold"
    lease: str = "l1"
    worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self.disk.make_dirs(paths.data(self.checkpoint))
        self.chains = Chains(self.program)
        self.worker = self.hire(self.lease)

    def hire(self, lease: str, program: Program | None = None) -> Worker:
        """A fresh worker, as a new lease would have it."""
        identity = LeaseIdentity(lease, 1, self.checkpoint, self.node_dir)
        return Worker(identity, program or self.program, self.disk)

    @property
    def chain(self):  # type: ignore[no-untyped-def]
        return self.chains[self.operator]

    def bring(self, local: dict[int, str] | None = None) -> messages.Bring:
        """The message that makes all shards present, as the engine would send it."""
        chain = self.chain
        shards = [
            messages.BringShard(
                shard,
                int(chain.versions[shard]),
                chain.digest(shard),
                chain.snapshot_of(shard),
                (local or {}).get(shard),
                int(chain.versions[shard]) if shard in (local or {}) else 0,
            )
            for shard in range(chain.spec.shards)
        ]
        return messages.Bring(self.operator, 0, shards, list(chain.deltas))

    def feed(self, rows: int) -> None:
        """Let the source publish its next rows."""
        chain = self.chains["source"]
        epoch, start = chain.epoch + 1, chain.offset
        work = messages.Work("source", 0, epoch, chain.epoch, epoch, offsets=(start, start + rows))
        self.commit("source", epoch, [self.done(self.worker, work)], offsets=(start, start + rows))

    def work(self, rows: int = 1 << 30, snapshots: Sequence[int] = ()) -> messages.Work:
        """The message of the operator's next epoch, over everything that waits up to `rows`."""
        chain = self.chain
        ready = np.ones(chain.spec.shards, np.bool_)
        self.takes = take_epoch(chain.groups, ready, self.chains.waiting(chain), Budget(rows))
        run = Run(chain, Settings())
        groups = [
            messages.TaskGroup(records.pack_u16(take.shards), run.pieces_of(take)) for take in self.takes
        ]
        asked = records.pack_u16(np.array(snapshots, np.uint16))
        epoch = chain.epoch + 1
        return messages.Work(self.operator, 0, epoch, chain.epoch, epoch, groups, snapshots=asked)

    def step(self, rows: int = 1 << 30, snapshots: Sequence[int] = ()) -> TaskPart:
        """Work on one epoch and commit it."""
        work = self.work(rows, snapshots)
        part = complete_snapshots(self.chain, self.done(self.worker, work))
        groups = [records.Group(records.pack_u16(take.shards), list(take.ranges)) for take in self.takes]
        self.commit(self.operator, work.epoch, [part], groups=groups)
        return part

    def done(self, worker: Worker, work: messages.Work) -> TaskPart:
        answer = worker.handle(work)
        assert isinstance(answer, messages.Done), answer
        return answer.part

    def commit(self, stage: str, epoch: int, parts: list[TaskPart], **more: object) -> Record:
        chain = self.chains[stage]
        record = Record(stage, epoch, "epoch", 1, chain.hash, epoch, parts=parts)
        record = msgspec.structs.replace(record, **more)
        self.chains.apply(record, records.encode(record))
        return record

    def release(self) -> dict[int, str]:
        """Give all shards up; return the names of their environments."""
        self.worker.handle(messages.Commit(self.operator, 0, self.chain.epoch))
        every = np.arange(self.chain.spec.shards, dtype=np.uint16)
        answer = self.worker.handle(
            messages.Release(self.operator, 0, records.pack_u16(every), self.chain.epoch)
        )
        assert isinstance(answer, messages.Released), answer
        return {shard.shard: shard.local for shard in answer.shards}
