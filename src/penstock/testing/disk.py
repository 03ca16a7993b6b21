"""A disk for tests, in memory: the very steps of ``PosixDisk`` on a ``SimDevice``.

``SimDisk`` is the disk of one simulated process; it can crash, lose power with its machine, run full and write short.
The simulation never opens a real file.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence

from penstock.dataplane.disk import Faults, IrregularFileError, StepDisk
from penstock.testing.device import Change, File, Folder, SimDevice, os_error


class SimCalls:
    """The calls of one simulated process; its open files die with it and with the power."""

    def __init__(self, device: SimDevice) -> None:
        self.device = device
        self._open: dict[int, File] = {}
        self._next_file = 0
        self._boot = device.boots

    def crash(self) -> None:
        self._open.clear()

    def mkdir(self, path: str) -> None:
        with self.device.lock:
            self.device.add(path, Folder())

    def create(self, path: str) -> int:
        with self.device.lock:
            self._after_boot()
            file = File()
            self.device.add(path, file)
            self._next_file += 1
            self._open[self._next_file] = file
            return self._next_file

    def open(self, path: str) -> int:
        with self.device.lock:
            self._after_boot()
            self._next_file += 1
            self._open[self._next_file] = self._regular(path)
            return self._next_file

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        with self.device.lock:
            target = self._opened(file)
            data = b"".join(parts)
            room = self.device.room(len(data))
            if room == 0:
                raise os_error(errno.ENOSPC, "write")
            if self.device.short_write_ratio and self.device.rng.random() < self.device.short_write_ratio:
                room = self.device.rng.randint(1, room)
            target.data += data[:room]
            return room

    def sync(self, file: int) -> None:
        with self.device.lock:
            target = self._opened(file)
            target.synced_bytes = len(target.data)

    def close(self, file: int) -> None:
        self._open.pop(file, None)

    def sync_dir(self, path: str) -> None:
        with self.device.lock:
            self.device.folder(path).sync()

    def link(self, source: str, target: str) -> None:
        with self.device.lock:
            self.device.add(target, self.device.file(source))

    def rename(self, source: str, target: str) -> None:
        with self.device.lock:
            if os.path.dirname(source) != os.path.dirname(target):
                raise os_error(errno.EXDEV, target)
            names = os.path.basename(source), os.path.basename(target)
            self.device.folder(os.path.dirname(source)).change(Change(*names, self.device.file(source)))

    def unlink(self, path: str) -> None:
        with self.device.lock:
            self.device.file(path)
            self.device.folder(os.path.dirname(path)).change(Change(removed=os.path.basename(path)))

    def is_dir(self, path: str) -> bool:
        try:
            return isinstance(self.device.find(path), Folder)
        except OSError:
            return False

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        with self.device.lock:
            data = self._regular(path).data
            return bytes(data[offset:] if length is None else data[offset : offset + length])

    def view(self, path: str, offset: int, length: int | None) -> bytes | memoryview:
        return self.read(path, offset, length)

    def size(self, path: str) -> int:
        with self.device.lock:
            return len(self.device.file(path).data)

    def list(self, path: str) -> list[str]:
        with self.device.lock:
            return list(self.device.folder(path).entries)

    def _regular(self, path: str) -> File:
        if isinstance(self.device.find(path), Folder):
            raise IrregularFileError(path, "a folder")
        return self.device.file(path)

    def _opened(self, file: int) -> File:
        self._after_boot()
        if file not in self._open:
            raise os_error(errno.EBADF, "a file opened before the crash")
        return self._open[file]

    def _after_boot(self) -> None:
        if self._boot != self.device.boots:
            self._boot = self.device.boots
            self._open.clear()


class SimDisk(StepDisk):
    """The ``Disk`` of one simulated process.

    Args:
        seed: of everything random on its device.
        faults: interferes with the steps of this process.
        capacity_bytes: writes past it are cut short, then fail with ENOSPC.
        short_write_ratio: part of the writes that take only some of the bytes, as a write may at any time.
        stale_blocks: after a power loss, lost blocks may read as any bytes, as on a file system that does not order
            data before sizes; otherwise they read as zeros.
        temps: folder for files under way; beside their targets when not given.
    """

    def __init__(
        self,
        seed: int = 0,
        faults: Faults | None = None,
        *,
        capacity_bytes: int | None = None,
        short_write_ratio: float = 0.0,
        stale_blocks: bool = True,
        device: SimDevice | None = None,
        temps: str | None = None,
    ) -> None:
        self.device = device or SimDevice(seed, capacity_bytes, short_write_ratio, stale_blocks)
        self.device.processes += 1
        name = f"p{self.device.processes}"
        self._sim_calls = SimCalls(self.device)
        super().__init__(self._sim_calls, faults, lambda: name, temps)

    def another(self, faults: Faults | None = None) -> SimDisk:
        """Return the disk of another process on the same machine."""
        return SimDisk(faults=faults, device=self.device, temps=self._temp_folder)

    def crash(self, rng: random.Random | None = None) -> None:
        """End this process: its open files are gone, everything it wrote is still there."""
        self._sim_calls.crash()

    def power_loss(self, rng: random.Random | None = None) -> None:
        """End all processes of the machine; lose any part of what was not synced, names and deletions too."""
        with self.device.lock:
            self.device.lose_power(rng or self.device.rng)

    def overwrite(self, path: str, data: bytes) -> None:
        """Damage a file behind everybody's back; what it holds now is durable."""
        with self.device.lock:
            file = self.device.file(path)
            file.data[:] = data
            file.synced_bytes = len(data)
