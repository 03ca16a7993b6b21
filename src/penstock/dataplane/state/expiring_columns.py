"""Columnar state whose keys begin with a time, and leave when that time has passed.

What leaves is found by one look at the times of all slots, and only when the earliest is due; what was evicted is
found in the shard's environment, where it stands in order of time. A key that left is deleted from the environment
with the next write of its shard; until then it is known here, so that a stale copy is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.state.column_changes import KeyBatch, changed_part, entry_batch, starts_of
from penstock.dataplane.state.column_entries import (
    BITS,
    HASH,
    MAX_BITS,
    PREFIX_BYTES,
    binary_bounds,
    binary_bytes,
    binary_sizes,
    entry_hashes,
    entry_keys,
    pack_values,
    strip_entry_keys,
)
from penstock.dataplane.state.column_reading import damaged
from penstock.dataplane.state.columns import ColumnState, Combine
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.protocol import I64, U16, U64, Delta
from penstock.dataplane.state.slots import Found

_TAG: Final = b"\x01"
_SIGN: Final = np.uint64(1 << 63)
_BITS_MASK: Final = np.uint64((1 << MAX_BITS) - 1)
_COMPACTED_SLOTS: Final = 1 << 12
LEAST: Final = -(1 << 63)
GREATEST: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Expired:
    """Keys that left, ordered by shard, time and hash, with what they held."""

    keys: pa.BinaryArray
    shards: U16
    rows: U64


class ExpiringColumnState(ColumnState):
    """`ColumnState` over keys whose first column is a bigint: a time in microseconds."""

    def __init__(self, form: Any, key_types: Sequence[pa.DataType], *more: Any, **named: Any) -> None:
        super().__init__(form, key_types, *more, **named)
        self._first: I64 = np.full(len(self._sealed), GREATEST, np.int64)
        """By shard: no key has an earlier time than this."""
        self._fresh = (0, 0)
        self._removal: tuple[U16, pa.BinaryArray] | None = None
        self._gone: dict[int, set[bytes]] = {}
        """By shard: entries whose removal is committed and not yet in the environment."""

    # ------------------------------------------------------------------------------------------ epochs

    def update(self, epoch: int, batch: KeyBatch, initial: U64, combine: Combine) -> U64:
        rows = super().update(epoch, batch, initial, combine)
        np.minimum.at(self._first, batch.shards, _leading(batch.keys))
        return rows

    def remove_up_to(self, until: I64) -> Expired:
        """Take out the keys of each shard whose time is not after `until[shard]`; once per epoch, after `update`."""
        due = self._sealed & (self._first <= until) & (until > LEAST)
        if not due.any():
            return Expired(pa.array([], pa.binary()), np.empty(0, np.uint16), self._store.take(_NO_SLOTS))
        later = {
            shard: self._load_expired(shard, int(until[shard])) for shard in np.flatnonzero(due).tolist()
        }
        store = self._store
        live = store.live_slots()
        times, shards = _times(store.keys.leading(store.count)[live]), store.shards(live)
        over = times <= until[shards]
        self._note_first(due, times[~over], shards[~over], later)
        return self._take_out(live[over], times[over], shards[over])

    def _take_out(self, slots: I64, times: I64, shards: U16) -> Expired:
        store = self._store
        rows = store.take(slots)
        rows[:, BITS] &= _BITS_MASK
        keys = store.take_keys(slots)
        order = _order(shards, times, rows[:, HASH], keys)
        slots, shards, rows, keys = slots[order], shards[order], rows[order], keys.take(pa.array(order))
        if not len(slots):
            return Expired(keys, shards, rows)
        starts = starts_of(shards)
        self._digests[shards[starts]] -= np.add.reduceat(entry_hashes(rows), starts, axis=0)
        self._forget_keys(keys, shards)
        if self._change is not None:
            removed = np.zeros(store.count, np.bool_)
            removed[slots] = True
            self._change = changed_part(self._change, ~removed[self._change.slots])
        known = (slots < self._fresh[0]) | (slots >= self._fresh[1])
        self._removal = (shards[known], keys if known.all() else keys.filter(pa.array(known)))
        store.remove(slots)
        return Expired(keys, shards, rows)

    def stage(self, epoch: int) -> Delta:
        if self._removal is None:
            return super().stage(epoch)
        self._staged_epoch = epoch
        shards, gone = self._removal
        names, values = entry_keys(gone, self._key_bytes), pa.nulls(len(gone), pa.binary())
        change = self._change
        if change is not None and len(change.slots):
            names = pa.concat_arrays([entry_keys(change.keys, self._key_bytes), names])
            values = pa.concat_arrays([pack_values(change.rows, self._form), values])
            shards = np.concatenate((change.shards, shards))
            order = np.argsort(shards, kind="stable")
            shards, names, values = shards[order], names.take(pa.array(order)), values.take(pa.array(order))
        if not len(shards):
            return Delta.empty()
        starts = starts_of(shards)
        sizes = binary_sizes(names) + pc.binary_length(values).fill_null(0).to_numpy()
        total = np.add.reduceat(sizes, starts).astype(np.uint32)
        changed = shards[starts]
        return Delta(entry_batch(pa.array(shards), names, values), changed, self._digests[changed], total)

    def commit(self) -> None:
        removal, epoch = self._removal, self._staged_epoch
        if removal is not None and epoch is None:
            raise RuntimeError(f"operator {self._operator!r}: commit before stage")
        super().commit()
        self._removal, self._fresh = None, (0, 0)
        if removal is not None and epoch is not None:
            self._note_gone(*removal, epoch)
        if 2 * self._store.removed > max(self._store.count, _COMPACTED_SLOTS):
            self._store.compact(self._store.live_slots())

    def _note_gone(self, shards: U16, keys: pa.BinaryArray, version: int) -> None:
        names = entry_keys(keys, self._key_bytes).to_pylist()
        bounds = [*starts_of(shards).tolist(), len(shards)]
        for start, end in pairwise(bounds):
            shard = int(shards[start])
            if self._sealed[shard]:  # it may have been dropped meanwhile
                self._gone.setdefault(shard, set()).update(names[start:end])
                self._versions[shard] = version
                self._dirty_since[shard] = self._dirty_since[shard] or version

    # ------------------------------------------------------------------------------------------ shards

    def open(self, shard: int, path: str, local_version: int | None) -> bool:
        opened = super().open(shard, path, local_version)
        self._first[shard] = LEAST if opened and self._incomplete[shard] else GREATEST
        return opened

    def apply(self, shard: int, version: int, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        self._first[shard] = LEAST
        super().apply(shard, version, keys.filter(values.is_valid()), values.drop_null())
        if values.null_count:
            self._apply_removals(shard, version, keys.filter(values.is_null()))

    def _apply_removals(self, shard: int, version: int, gone: pa.BinaryArray) -> None:
        stripped = strip_entry_keys(gone)
        if stripped is None:
            self._damaged.add(shard)
            return
        hashes = self._reader.hashes(stripped)
        batch = KeyBatch(hashes, np.full(len(hashes), shard, np.uint16), stripped)
        found = self._store.find(hashes, stripped)
        self._fetch(batch, found)
        there = np.flatnonzero(found.slots >= 0)
        found.rows[:, BITS] &= _BITS_MASK
        self._digests[shard] -= entry_hashes(found.rows[there]).sum(axis=0, dtype=np.uint64)
        self._forget_keys(stripped.take(pa.array(there)), batch.shards[there])
        self._store.remove(found.slots[there])
        self._gone.setdefault(shard, set()).update(gone.to_pylist())
        self._dirty_since[shard] = self._dirty_since[shard] or max(version, 1)

    # ------------------------------------------------------------------------------------------ inside

    def _load_expired(self, shard: int, until: int) -> int:
        """Give slots to the evicted keys of a shard that are due; return the earliest time of the other stored
        ones."""
        if not self._incomplete[shard]:
            return GREATEST
        local = self._locals[shard]
        stored, after = local.scan_leading(_TAG, (until + (1 << 63)).to_bytes(8, "big"))
        gone = self._gone.get(shard, set())
        stored = [item for item in stored if item[0] not in gone]
        if stored:
            self._load(shard, stored, local)
        return GREATEST if after is None else int.from_bytes(after, "big") - (1 << 63)

    def _load(self, shard: int, stored: list[tuple[bytes, bytes]], local: LocalShard) -> None:
        keys = strip_entry_keys(pa.array([name for name, _ in stored], pa.binary()))
        if keys is None:
            raise damaged(local)
        hashes = self._reader.hashes(keys)
        found = self._store.find(hashes, keys)
        absent = found.missing
        values = pa.array([stored[at][1] for at in absent.tolist()], pa.binary())
        rows = self._reader.checked(values, hashes[absent], local)
        shards = np.full(len(absent), shard, np.uint16)
        self._store.append(keys.take(pa.array(absent)), shards, rows, dirty=False)

    def _note_first(self, due: npt.NDArray[np.bool_], times: I64, shards: U16, later: dict[int, int]) -> None:
        """Take note of the earliest time left in the shards that were looked at."""
        self._first[due] = GREATEST
        mine = due[shards]
        np.minimum.at(self._first, shards[mine], times[mine])
        for shard, time in later.items():
            self._first[shard] = min(int(self._first[shard]), time)

    def _forget_keys(self, keys: pa.BinaryArray, shards: U16) -> None:
        sizes = binary_sizes(keys) if self._key_bytes is None else np.full(len(keys), self._key_bytes)
        np.subtract.at(self._bytes, shards, sizes + (PREFIX_BYTES + self._form.value_bytes))
        np.maximum(self._bytes, 0, out=self._bytes)

    def _place_rows(self, found: Found, batch: KeyBatch, rows: U64, dirty: bool) -> None:
        if not dirty:
            self._fresh = (self._store.count, self._store.count + len(found.missing))
        super()._place_rows(found, batch, rows, dirty)

    def _stored(self, shard: int, names: list[bytes]) -> dict[bytes, bytes]:
        gone = self._gone.get(shard)
        return super()._stored(shard, [name for name in names if name not in gone] if gone else names)

    def _deletes(self, shard: int) -> list[bytes]:
        return sorted(self._gone.pop(shard, ()))

    def _forget(self, shard: int) -> LocalShard:
        self._gone.pop(shard, None)
        self._first[shard] = GREATEST
        return super()._forget(shard)

    def _is_committed(self) -> bool:
        return super()._is_committed() and self._removal is None


_NO_SLOTS: Final = np.empty(0, np.int64)


def _leading(keys: pa.BinaryArray) -> I64:
    """Return the times that keys begin with."""
    data = binary_bytes(keys)
    starts = binary_bounds(keys)[:-1] - binary_bounds(keys)[0]
    return _times(np.ndarray((max(len(data) - 7, 0),), ">u8", buffer=data, strides=(1,))[starts])


def _times(words: npt.NDArray[Any]) -> I64:
    return (words.astype(np.uint64) ^ _SIGN).view(np.int64)


def _order(shards: U16, times: I64, hashes: U64, keys: pa.BinaryArray) -> npt.NDArray[np.intp]:
    """Return the order by shard, time and hash; keys of one hash by their bytes, whatever slots they had."""
    order = np.lexsort((hashes, times, shards))
    same = (np.diff(shards[order]) == 0) & (np.diff(times[order]) == 0) & (np.diff(hashes[order]) == 0)
    if not same.any():
        return order
    by_key = pc.sort_indices(keys).to_numpy()
    places = np.empty(len(keys), np.int64)
    places[by_key] = np.arange(len(keys))
    return np.lexsort((places, hashes, times, shards))
