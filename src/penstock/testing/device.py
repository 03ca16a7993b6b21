"""The files of one simulated machine, with a model of what a power loss takes away.

Remembers of every file and folder what was synced and what was not; a power loss keeps any part of the rest.
Equal seeds, equal losses. Never opens a real file.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

BLOCK_BYTES = 512


class File:
    """The contents that readers see, and how much of them a power loss cannot touch. Files only grow."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced_bytes = 0

    def lose_power(self, rng: random.Random, stale_blocks: bool = True) -> None:
        torn = _keep_stale_blocks if stale_blocks else _keep_zero_blocks
        kept = rng.choice((_lose_tail, _keep_tail, _keep_prefix, torn))
        self.data[self.synced_bytes :] = kept(bytes(self.data[self.synced_bytes :]), self.synced_bytes, rng)
        self.synced_bytes = len(self.data)


def _lose_tail(tail: bytes, start: int, rng: random.Random) -> bytes:
    return b""


def _keep_tail(tail: bytes, start: int, rng: random.Random) -> bytes:
    return tail


def _keep_prefix(tail: bytes, start: int, rng: random.Random) -> bytes:
    return tail[: rng.randint(0, len(tail))]


def _keep_zero_blocks(tail: bytes, start: int, rng: random.Random) -> bytes:
    return _keep_torn_blocks(tail, start, rng, lambda size: bytes(size))


def _keep_stale_blocks(tail: bytes, start: int, rng: random.Random) -> bytes:
    return _keep_torn_blocks(tail, start, rng, rng.randbytes)


def _keep_torn_blocks(tail: bytes, start: int, rng: random.Random, stale: Callable[[int], bytes]) -> bytes:
    """Keep the length of a prefix, but only some of its blocks; the others hold zeros or old bytes."""
    torn = bytearray(_keep_prefix(tail, start, rng))
    for block in range(start // BLOCK_BYTES, (start + len(torn)) // BLOCK_BYTES + 1):
        low, high = max(0, block * BLOCK_BYTES - start), min(len(torn), (block + 1) * BLOCK_BYTES - start)
        match rng.randrange(4):
            case 0:
                torn[low:high] = bytes(high - low)
            case 1:
                torn[low:high] = stale(high - low)
    return bytes(torn)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a folder, whole or not at all."""

    removed: str | None = None
    added: str | None = None
    node: File | Folder | None = None

    def apply(self, entries: dict[str, File | Folder]) -> None:
        if self.removed is not None:
            entries.pop(self.removed, None)
        if self.added is not None and self.node is not None:
            entries[self.added] = self.node


class Folder:
    """The entries that readers see, those a power loss cannot touch, and the changes between the two."""

    def __init__(self) -> None:
        self.entries: dict[str, File | Folder] = {}
        self._synced: dict[str, File | Folder] = {}
        self._unsynced: list[Change] = []

    def change(self, change: Change) -> None:
        change.apply(self.entries)
        self._unsynced.append(change)

    def sync(self) -> None:
        self._synced = dict(self.entries)
        self._unsynced.clear()

    def lose_power(self, rng: random.Random) -> None:
        self.entries = dict(self._synced)
        for change in self._survivors(rng):
            change.apply(self.entries)
        self.sync()

    def _survivors(self, rng: random.Random) -> Iterable[Change]:
        """A journal keeps the changes up to some point; other file systems keep any of them."""
        if rng.random() < 0.5:
            return self._unsynced[: rng.randint(0, len(self._unsynced))]
        return [change for change in self._unsynced if rng.random() < 0.5]


class SimDevice:
    """The files of one simulated machine, shared by the disks of all its processes."""

    def __init__(
        self, seed: int, capacity_bytes: int | None, short_write_ratio: float, stale_blocks: bool = True
    ) -> None:
        self.rng = random.Random(seed)
        self.stale_blocks = stale_blocks
        self.root = Folder()
        self.lock = threading.RLock()
        self.boots = 0
        self.processes = 0
        self.capacity_bytes = capacity_bytes
        self.short_write_ratio = short_write_ratio

    def find(self, path: str) -> File | Folder:
        node: File | Folder = self.root
        for name in _names(path):
            if isinstance(node, File):
                raise os_error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise os_error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def folder(self, path: str) -> Folder:
        node = self.find(path)
        if isinstance(node, File):
            raise os_error(errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> File:
        node = self.find(path)
        if isinstance(node, Folder):
            raise os_error(errno.EISDIR, path)
        return node

    def add(self, path: str, node: File | Folder) -> None:
        parent, name = self.folder(os.path.dirname(path)), os.path.basename(path)
        if name in parent.entries:
            raise os_error(errno.EEXIST, path)
        parent.change(Change(added=name, node=node))

    def room(self, wanted_bytes: int) -> int:
        """How much of a write fits."""
        if self.capacity_bytes is None:
            return wanted_bytes
        used = sum(len(file.data) for file in self.files())
        return max(0, min(wanted_bytes, self.capacity_bytes - used))

    def files(self) -> list[File]:
        """Every file once, whatever the number of its names, in a fixed order."""
        found: dict[int, File] = {}
        for folder in self.folders():
            for name in sorted(folder.entries):
                node = folder.entries[name]
                if isinstance(node, File):
                    found.setdefault(id(node), node)
        return list(found.values())

    def folders(self) -> Iterator[Folder]:
        """Every folder, parents first: what a parent loses is never visited."""
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            yield folder
            children = (folder.entries[name] for name in sorted(folder.entries))
            waiting.extend(child for child in children if isinstance(child, Folder))

    def lose_power(self, rng: random.Random) -> None:
        self.boots += 1
        for folder in self.folders():
            folder.lose_power(rng)
        for file in self.files():
            file.lose_power(rng, self.stale_blocks)


def _names(path: str) -> list[str]:
    if not path.startswith("/"):
        raise os_error(errno.EINVAL, path)
    return [name for name in path.split("/") if name]


def os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
