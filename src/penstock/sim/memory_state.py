"""Task state in memory, for simulations of thousands of seeds; the same life cycle, deltas and digests as the
LMDB states.

What a shard leaves behind when it is released is kept per path, as an environment on a node's disk would be.
Checks its own life cycle and raises on any misuse: a misuse is a fault of whoever drives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.dataplane.state.protocol import ENTRY_SCHEMA, Delta
from penstock.dataplane.state.sealing import entry_hash
from penstock.errors import CorruptFileError

_MASK = (1 << 64) - 1
Lanes = tuple[int, int]


def digest_of(entries: dict[bytes, bytes]) -> bytes:
    """Return the digest of a whole shard."""
    lanes = (0, 0)
    for key, value in entries.items():
        lanes = _add(lanes, entry_hash(key, value))
    return _bytes(lanes)


def _add(lanes: Lanes, hash_: bytes, sign: int = 1) -> Lanes:
    low, high = int.from_bytes(hash_[:8], "little"), int.from_bytes(hash_[8:], "little")
    return (lanes[0] + sign * low) & _MASK, (lanes[1] + sign * high) & _MASK


def _bytes(lanes: Lanes) -> bytes:
    return lanes[0].to_bytes(8, "little") + lanes[1].to_bytes(8, "little")


@dataclass
class _Shard:
    path: str
    entries: dict[bytes, bytes] = field(default_factory=dict)
    version: int = 0
    digest: Lanes = (0, 0)
    staged: dict[bytes, bytes | None] = field(default_factory=dict)
    staged_digest: Lanes = (0, 0)
    sealed: bool = False


@dataclass(frozen=True)
class Kept:
    """A released shard on a node."""

    version: int
    digest: Lanes
    entries: dict[bytes, bytes]


class MemoryState:
    """A `TaskState` of plain dictionaries.

    Args:
        node: released shards by path, shared by the tasks of all nodes.
    """

    def __init__(self, node: dict[str, Kept]) -> None:
        self._node = node
        self._shards: dict[int, _Shard] = {}
        self._epoch = 0
        self._is_staged = False

    # -- for logic ----------------------------------------------------------------------------------------------------

    def get(self, shard: int, key: bytes) -> bytes | None:
        """Return the value of a key as the running epoch sees it."""
        found = self._owned(shard)
        return found.staged[key] if key in found.staged else found.entries.get(key)

    def put(self, shard: int, key: bytes, value: bytes | None) -> None:
        """Write a value, None to delete."""
        assert not self._is_staged, "writes between stage and commit"
        self._owned(shard).staged[key] = value

    # -- TaskState ----------------------------------------------------------------------------------------------------

    def open(self, shard: int, path: str, local_version: int | None) -> bool:
        assert shard not in self._shards, f"shard {shard} is open"
        opened = _Shard(path)
        if local_version is not None:
            kept = self._node.pop(path, None)
            if kept is None or kept.version != local_version:
                return False
            opened.entries, opened.version, opened.digest = dict(kept.entries), kept.version, kept.digest
        self._shards[shard] = opened
        return True

    def apply(self, shard: int, version: int, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        opened = self._shards[shard]
        assert not opened.sealed, "apply comes before seal"
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            before = opened.entries.pop(key, None)
            if before is not None:
                opened.digest = _add(opened.digest, entry_hash(key, before), -1)
            if value is not None:
                opened.entries[key] = value
                opened.digest = _add(opened.digest, entry_hash(key, value))
        opened.version = version

    def seal(self, shard: int, version: int, digest: bytes) -> bool:
        opened = self._shards[shard]
        if (opened.version, _bytes(opened.digest)) != (version, digest):
            del self._shards[shard]
            return False
        opened.sealed = True
        return True

    def release(self, shard: int) -> None:
        found = self._owned(shard)
        assert not found.staged, "release comes between epochs"
        self._node[found.path] = Kept(found.version, found.digest, found.entries)
        del self._shards[shard]

    def drop(self, shard: int) -> None:
        self._shards.pop(shard, None)

    def stage(self, epoch: int) -> Delta:
        self._epoch, self._is_staged = epoch, True
        shards, keys, values = [], [], []
        changed, digests, sizes = [], [], []
        for number in sorted(self._shards):
            shard = self._shards[number]
            shard.staged = {
                key: value for key, value in shard.staged.items() if shard.entries.get(key) != value
            }
            if not shard.staged:
                continue
            lanes = shard.digest
            size = 0
            for key, value in sorted(shard.staged.items(), key=lambda item: item[0]):
                before = shard.entries.get(key)
                if before is not None:
                    lanes = _add(lanes, entry_hash(key, before), -1)
                if value is not None:
                    lanes = _add(lanes, entry_hash(key, value))
                shards.append(number)
                keys.append(key)
                values.append(value)
                size += len(key) + len(value or b"")
            shard.staged_digest = lanes
            changed.append(number)
            digests.append(lanes)
            sizes.append(size)
        if not changed:
            return Delta.empty()
        entries = pa.RecordBatch.from_arrays(
            [pa.array(shards, pa.uint16()), pa.array(keys, pa.binary()), pa.array(values, pa.binary())],
            schema=ENTRY_SCHEMA,
        )
        return Delta(
            entries, np.array(changed, np.uint16), np.array(digests, np.uint64), np.array(sizes, np.uint32)
        )

    def commit(self) -> None:
        assert self._is_staged, "nothing is staged"
        self._is_staged = False
        for shard in self._shards.values():
            if not shard.staged:
                continue
            for key, value in shard.staged.items():
                if value is None:
                    shard.entries.pop(key, None)
                else:
                    shard.entries[key] = value
            shard.staged = {}
            shard.digest, shard.version = shard.staged_digest, self._epoch

    def flush(self, budget_s: float) -> None:
        pass

    def is_behind(self) -> bool:
        return False

    def snapshot(self, shard: int) -> pa.RecordBatch:
        found = self._owned(shard)
        assert not found.staged, "snapshot comes between commit and the next write"
        if digest_of(found.entries) != _bytes(found.digest):
            raise CorruptFileError(f"{found.path} does not give its digest")
        items = sorted(found.entries.items())
        columns = [
            pa.array([shard] * len(items), pa.uint16()),
            pa.array([key for key, _ in items], pa.binary()),
            pa.array([value for _, value in items], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)

    def owned(self) -> Sequence[int]:
        return sorted(number for number, shard in self._shards.items() if shard.sealed)

    def state_bytes(self) -> int:
        return 100 * sum(len(shard.entries) for shard in self._shards.values())

    def close(self) -> None:
        self._shards.clear()

    def _owned(self, shard: int) -> _Shard:
        found = self._shards.get(shard)
        assert found is not None and found.sealed, f"shard {shard} is not owned"
        return found
