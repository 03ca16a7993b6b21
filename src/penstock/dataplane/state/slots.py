"""The columnar store of one task: a slot per key, found by key hash, all shards together.

Owns the slots' rows (see `column_entries`), keys, shards and dirty flags, and the index: an open-addressing
table of slots, probed for a whole batch of keys at a time. Knows nothing of epochs, digests or files. No
call loops over keys or shards in Python; loops run over probe steps, of which there are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.state.column_entries import (
    HASH,
    binary_bounds,
    binary_bytes,
    binary_matrix,
    fixed_binary,
)
from penstock.dataplane.state.protocol import I64, U16, U64

NO_SHARD: Final = 0xFFFF
"""Shard of a slot that was removed and waits for `compact`."""

_GOLDEN: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST_TABLE_BITS: Final = 12
_FULL_RATIO: Final = 0.55
_REBUILT_RATIO: Final = 0.36  # room to grow by half; a table twice as large as that would only cost memory
_TOMB: Final = -1
_FIRST_SLOTS: Final = 1 << 10
_BUILD_SLOTS: Final = 1 << 18  # slots put into a new table at a time, so that scratch arrays stay small

Bools = npt.NDArray[np.bool_]


class FixedKeys:
    """Key bytes per slot, all of one length (a multiple of 8)."""

    def __init__(self, key_bytes: int, capacity: int) -> None:
        self.key_bytes = key_bytes
        self._rows = np.empty((capacity, key_bytes), np.uint8)

    def reserve(self, capacity: int) -> None:
        self._rows = _grown(self._rows, capacity)

    def append(self, start: int, keys: pa.BinaryArray) -> None:
        self._rows[start : start + len(keys)] = binary_matrix(keys, self.key_bytes)

    def take(self, slots: I64, count: int) -> pa.BinaryArray:
        return fixed_binary(self._rows.take(slots, axis=0))

    def equal(self, slots: I64, keys: pa.BinaryArray, count: int) -> Bools:
        same: Bools = (self._rows.take(slots, axis=0) == binary_matrix(keys, self.key_bytes)).all(axis=1)
        return same

    def compact(self, kept: I64, count: int) -> None:
        self._rows[: len(kept)] = self._rows.take(kept, axis=0)

    def leading(self, count: int) -> U64:
        """Return the first eight bytes of each key as a number."""
        return np.ascontiguousarray(self._rows[:count, :8]).view(">u8").reshape(-1).astype(np.uint64)

    def used_bytes(self, count: int) -> int:
        return count * self.key_bytes


class TextKeys:
    """Key bytes per slot, of any length, in slot order: an Arrow array that grows at its end."""

    key_bytes = None

    def __init__(self, capacity: int) -> None:
        self._bounds = np.zeros(capacity + 1, np.int64)
        self._bytes = np.empty(1 << 12, np.uint8)

    def reserve(self, capacity: int) -> None:
        self._bounds = _grown(self._bounds, capacity + 1)

    def append(self, start: int, keys: pa.BinaryArray) -> None:
        bounds = binary_bounds(keys).astype(np.int64)
        begin = int(self._bounds[start])
        end = begin + int(bounds[-1] - bounds[0])
        if end > len(self._bytes):
            self._bytes = _grown(self._bytes, max(end, 2 * len(self._bytes)))
        self._bytes[begin:end] = binary_bytes(keys)
        self._bounds[start : start + len(bounds)] = bounds + (begin - int(bounds[0]))

    def take(self, slots: I64, count: int) -> pa.BinaryArray:
        return self._array(count).take(pa.array(slots)).cast(pa.binary())

    def equal(self, slots: I64, keys: pa.BinaryArray, count: int) -> Bools:
        same: Bools = pc.equal(self.take(slots, count), keys).to_numpy(zero_copy_only=False)
        return same

    def compact(self, kept: I64, count: int) -> None:
        array = self._array(count).take(pa.array(kept))
        bounds = np.frombuffer(array.buffers()[1], np.int64, len(kept) + 1, 8 * array.offset)
        size = int(bounds[-1] - bounds[0])
        self._bytes = np.empty(max(1 << 12, size + size // 4), np.uint8)
        if size:
            self._bytes[:size] = np.frombuffer(array.buffers()[2], np.uint8, size, int(bounds[0]))
        self._bounds[: len(bounds)] = bounds - bounds[0]

    def leading(self, count: int) -> U64:
        """Return the first eight bytes of each key, which has as many, as a number."""
        words = np.ndarray((len(self._bytes) - 7,), ">u8", buffer=self._bytes, strides=(1,))
        return words[self._bounds[:count]].astype(np.uint64)

    def used_bytes(self, count: int) -> int:
        return 8 * count + int(self._bounds[count])

    def _array(self, count: int) -> pa.LargeBinaryArray:
        buffers = [None, pa.py_buffer(self._bounds[: count + 1]), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(pa.large_binary(), count, buffers)


@dataclass
class Found:
    """What a batch of keys found."""

    slots: I64
    """Slot of each key, -1 where there is none."""
    rows: U64
    """A copy of each key's row; undefined where there is none."""
    missing: I64
    """Positions of the keys that have no slot, ascending."""


class SlotStore:
    """Slots 0 .. count - 1, some of them removed. `exact_hashes`: different keys never share a hash."""

    def __init__(self, width: int, key_bytes: int | None, exact_hashes: bool, capacity: int) -> None:
        capacity = max(capacity, _FIRST_SLOTS)
        # Reserved whole: pages never touched take no memory, and growing copies nothing.
        self._rows = np.empty((capacity, width), np.uint64)
        self._shards: U16 = np.empty(capacity, np.uint16)
        self.dirty: Bools = np.empty(capacity, np.bool_)
        self.keys = TextKeys(capacity) if key_bytes is None else FixedKeys(key_bytes, capacity)
        self._exact = exact_hashes
        self._width = width
        self.count = 0
        self.removed = 0
        self._table = np.zeros(1 << _FIRST_TABLE_BITS, np.int32)
        self._taken = 0
        self._shift = np.uint64(64 - _FIRST_TABLE_BITS)

    def find(self, hashes: U64, keys: pa.BinaryArray) -> Found:
        """Find the slots of distinct keys."""
        count = len(hashes)
        places = self._homes(hashes)
        slots = self._table.take(places, mode="clip").astype(np.int64)
        slots -= 1
        rows = self._rows.take(slots, axis=0, mode="clip")
        match = self._matches(slots, rows, hashes, keys, None)
        if match.all():
            return Found(slots, rows, np.empty(0, np.int64))
        left = np.flatnonzero(~match)
        mask = len(self._table) - 1
        while True:
            left = left[slots[left] != -1]  # an empty place ends the search
            if not len(left):
                break
            places[left] = (places[left] + 1) & mask
            tried = self._table.take(places[left], mode="clip").astype(np.int64) - 1
            slots[left] = tried
            candidates = self._rows.take(tried, axis=0, mode="clip")
            match = self._matches(tried, candidates, hashes[left], keys, left)
            rows[left[match]] = candidates[match]
            left = left[~match]
        assert len(slots) == count
        return Found(slots, rows, np.flatnonzero(slots == -1))

    def append(self, keys: pa.BinaryArray, shards: U16, rows: U64, dirty: bool) -> I64:
        """Give new keys slots behind all others, in order; return the slots."""
        start, count = self.count, len(rows)
        self._reserve(start + count)
        end = start + count
        self._rows[start:end] = rows
        self._shards[start:end] = shards
        self.dirty[start:end] = dirty
        self.keys.append(start, keys)
        self.count = end
        slots = np.arange(start, end, dtype=np.int64)
        if self._taken + count > _FULL_RATIO * len(self._table):
            self._rebuild()
        else:
            self._insert(slots, rows[:, HASH])
        return slots

    def put(self, slots: I64, rows: U64) -> None:
        """Replace the rows of slots."""
        whole = f"V{8 * self._width}"
        target = self._rows.view(whole).reshape(-1)
        np.put(target, slots, np.ascontiguousarray(rows).view(whole).reshape(-1), mode="clip")

    def take(self, slots: I64) -> U64:
        """Return copies of the rows of slots."""
        rows: U64 = self._rows.take(slots, axis=0)
        return rows

    def take_keys(self, slots: I64) -> pa.BinaryArray:
        return self.keys.take(slots, self.count)

    def slots_of(self, shard: int) -> I64:
        """Return the slots of a shard, ascending."""
        return np.flatnonzero(self._shards[: self.count] == shard)

    def shards(self, slots: I64) -> U16:
        taken: U16 = self._shards.take(slots)
        return taken

    def live_slots(self) -> I64:
        return np.flatnonzero(self._shards[: self.count] != NO_SHARD)

    def column(self, at: int) -> U64:
        """Return one column of all rows, removed ones included (a view)."""
        return self._rows[: self.count, at]

    def remove(self, slots: I64) -> None:
        """Take slots out of the index; their memory comes back with `compact`."""
        if not len(slots):
            return
        places = self._homes(self._rows[slots, HASH])  # take() would copy the whole column first
        wanted = (slots + 1).astype(np.int32)
        mask = len(self._table) - 1
        while len(places):
            here = self._table.take(places) == wanted
            self._table[places[here]] = _TOMB
            places, wanted = (places[~here] + 1) & mask, wanted[~here]
        self._shards[slots] = NO_SHARD
        self.dirty[slots] = False
        self.removed += len(slots)

    def compact(self, kept: I64) -> None:
        """Keep these slots alone (ascending) and number them anew."""
        count = len(kept)
        self.keys.compact(kept, self.count)
        self._rows[:count] = self._rows.take(kept, axis=0)
        self._shards[:count] = self._shards.take(kept)
        self.dirty[:count] = self.dirty.take(kept)
        self.count, self.removed = count, 0
        self._rebuild()

    def used_bytes(self) -> int:
        """Return the memory that the slots and the index take."""
        return self.count * (8 * self._width + 3) + self.keys.used_bytes(self.count) + self._table.nbytes

    def _matches(self, slots: I64, rows: U64, hashes: U64, keys: pa.BinaryArray, at: I64 | None) -> Bools:
        match: Bools = rows[:, HASH] == hashes
        match &= slots >= 0
        if self._exact or not match.any():
            return match
        if match.all():
            chosen, own = slots, at
        else:
            hits = np.flatnonzero(match)
            chosen, own = slots[hits], hits if at is None else at[hits]
        asked = keys if own is None else keys.take(pa.array(own))
        match[match] = self.keys.equal(chosen, asked, self.count)
        return match

    def _homes(self, hashes: U64) -> I64:
        homes = hashes * _GOLDEN
        homes >>= self._shift
        return homes.view(np.int64)

    def _insert(self, slots: I64, hashes: U64) -> None:
        table, mask = self._table, len(self._table) - 1
        places, entries = self._homes(hashes), (slots + 1).astype(np.int32)
        self._taken += len(slots)
        while len(places):
            free = table.take(places, mode="clip") == 0
            table[places[free]] = entries[free]  # of several entries for one place the last one stays
            lost = table.take(places, mode="clip") != entries
            places, entries = (places[lost] + 1) & mask, entries[lost]

    def _rebuild(self) -> None:
        """Make the table anew, of a size that fits."""
        live = self.live_slots()
        bits = _FIRST_TABLE_BITS
        while len(live) > _REBUILT_RATIO * (1 << bits):
            bits += 1
        self._table = np.zeros(1 << bits, np.int32)
        self._shift = np.uint64(64 - bits)
        self._taken = 0
        for start in range(0, len(live), _BUILD_SLOTS):
            slots = live[start : start + _BUILD_SLOTS]
            self._insert(slots, self._rows[slots, HASH])

    def _reserve(self, count: int) -> None:
        if count > len(self._rows):
            capacity = max(count, len(self._rows) + len(self._rows) // 2)
            self._rows = _grown(self._rows, capacity)
            self._shards = _grown(self._shards, capacity)
            self.dirty = _grown(self.dirty, capacity)
            self.keys.reserve(capacity)


def _grown(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    """Return a copy with more room; what lies behind the old end is undefined."""
    larger = np.empty((capacity, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
