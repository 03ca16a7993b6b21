"""What a simulated driver is given besides its program: a disk per process, a place for local state, and a sink."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.dataplane.disk import Disk

NO_STATE_DIR = f"{tempfile.gettempdir()}/penstock-sim-{os.getuid()}"
"""Where leases make their folders when their state is in memory; nothing is kept in them."""
DiskOf = Callable[[str], Disk]
"""Makes the disk of a process, given its name."""


@dataclass
class SinkLog:
    """What the sink was handed, in order, over all drivers: (generation, sink epoch, rows)."""

    calls: list[tuple[int, int, pa.Table]] = field(default_factory=list)

    def rows(self) -> list[dict[str, object]]:
        """Rows in the order of sink epochs, each epoch once, as a sink that honours the epoch keeps them."""
        kept = {epoch: table for _, epoch, table in self.calls}
        return [row for epoch in sorted(kept) for row in kept[epoch].to_pylist()]


def disks_beside(disk: Disk) -> DiskOf:
    """The given disk for the first process; for others a disk on the same device where the kind of disk tells
    them apart."""
    another = getattr(disk, "another", None)
    unused = [disk]

    def make(_name: str) -> Disk:
        if unused or another is None:
            return unused.pop() if unused else disk
        made: Disk = another(getattr(disk, "_faults", None))
        return made

    return make
