"""Columnar task state: the fixed-width states of all shards of a task in one store of numpy columns.

Logic changes the store at once (`update`); `stage` packs the changes as a delta; after `commit` they may
reach the shards' local environments, written behind by `flush`. What does not fit into memory is evicted
once it is written, and read again when its key comes. The hot path never loops over keys or shards; only
bring, flush and eviction know shards one by one. Never writes an uncommitted slot.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataplane.state.column_changes import (
    Change,
    KeyBatch,
    changed_part,
    entry_batch,
    pack_delta,
    starts_of,
)
from penstock.dataplane.state.column_entries import (
    BITS,
    HASH,
    MAX_BITS,
    PREFIX_BYTES,
    WORDS,
    EntryFormat,
    binary_sizes,
    entry_hashes,
    entry_keys,
    pack_values,
    strip_entry_keys,
    unpack_values,
)
from penstock.dataplane.state.column_reading import EntryReader, fixed_key_bytes, hashes_are_exact
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.protocol import I64, U64, Delta, digest_bytes, digest_lanes
from penstock.dataplane.state.slots import NO_SHARD, Found, SlotStore
from penstock.errors import CorruptFileError, DeclarationError

_BITS_MASK: Final = np.uint64((1 << MAX_BITS) - 1)
_TOUCHED_SHIFT: Final = np.uint64(
    MAX_BITS
)  # the upper half of the bits word holds the epoch that last used the slot
_INDEX_BYTES_PER_SLOT: Final = 12
_TEXT_KEY_BYTES: Final = 24
_KEPT_RATIO: Final = 0.5

Combine = Callable[[U64], None]
"""Fold this epoch's partials into rows (key hash, bits, words ...), in place."""


class ColumnState:
    """TaskState of fixed-width states: `words` 64-bit words and `bits` presence bits per key.

    Args:
        key_names: names of the key columns, for error messages.
        memory_bytes: bound of slots and index; exceeded only within an epoch or while shards are brought.
        owner: what names this lease in the environments it opens; drawn at random when not given.
    """

    def __init__(
        self,
        form: EntryFormat,
        key_types: Sequence[pa.DataType],
        key_names: Sequence[str],
        operator: str,
        shards: int,
        memory_bytes: int,
        owner: str | None = None,
    ) -> None:
        if not 1 <= shards <= NO_SHARD:
            raise DeclarationError(
                f"operator {operator!r}: aggregates take 1 to {NO_SHARD} shards, not {shards}"
            )
        if form.bits > MAX_BITS:
            raise DeclarationError(
                f"operator {operator!r}: at most {MAX_BITS} nullable aggregates, not {form.bits}"
            )
        self._form = form
        self._operator = operator
        self._reader = EntryReader(form, tuple(key_types), tuple(key_names), operator)
        self._key_bytes = fixed_key_bytes(key_types)
        self._memory_bytes = memory_bytes
        self._owner = owner or f"{os.getpid()}-{secrets.token_hex(8)}"
        per_slot = 8 * (WORDS + form.words) + 3 + (self._key_bytes or _TEXT_KEY_BYTES) + _INDEX_BYTES_PER_SLOT
        self._store = SlotStore(
            WORDS + form.words, self._key_bytes, hashes_are_exact(key_types), memory_bytes // per_slot
        )
        self._locals: dict[int, LocalShard] = {}
        self._damaged: set[int] = set()
        self._digests: U64 = np.zeros((shards, 2), np.uint64)
        self._bytes: I64 = np.zeros(shards, np.int64)
        self._incomplete: npt.NDArray[np.bool_] = np.zeros(shards, np.bool_)
        self._versions: I64 = np.zeros(shards, np.int64)
        self._dirty_since: I64 = np.zeros(shards, np.int64)
        self._sealed: npt.NDArray[np.bool_] = np.zeros(shards, np.bool_)
        self._change: Change | None = None
        self._staged_epoch: int | None = None

    # ------------------------------------------------------------------------------------------ epochs

    def update(self, epoch: int, batch: KeyBatch, initial: U64, combine: Combine) -> U64:
        """Hand the rows of a batch of keys to `combine`, and keep what it makes of them; return the rows.

        A key without state gets the words `initial` and no presence bits first. Called at most once per
        epoch; all shards of the batch are sealed.
        """
        if self._change is not None:
            raise RuntimeError(f"operator {self._operator!r}: a second update before commit")
        if not len(batch.hashes):
            return np.empty((0, WORDS + self._form.words), np.uint64)
        starts = starts_of(batch.shards)
        if not self._sealed[batch.shards[starts]].all():
            raise RuntimeError(f"operator {self._operator!r}: rows came for a shard that is not sealed here")
        found = self._store.find(batch.hashes, batch.keys)
        self._fetch(batch, found)
        rows, missing = found.rows, found.missing
        rows[:, BITS] &= _BITS_MASK
        if len(missing):
            rows[missing, HASH] = batch.hashes[missing]
            rows[missing, BITS] = 0
            rows[missing, WORDS:] = initial
        before = entry_hashes(rows)
        before[missing] = 0
        combine(rows)
        after = entry_hashes(rows)
        rows[:, BITS] |= np.uint64(epoch) << _TOUCHED_SHIFT
        self._place_rows(found, batch, rows, dirty=False)
        self._digests[batch.shards[starts]] += np.add.reduceat(after - before, starts, axis=0)
        changed = after[:, 0] != before[:, 0]
        changed |= after[:, 1] != before[:, 1]
        self._change = changed_part(Change(found.slots, batch.shards, starts, batch.keys, rows), changed)
        return rows

    def stage(self, epoch: int) -> Delta:
        self._staged_epoch = epoch
        change = self._change
        if change is None or not len(change.slots):
            return Delta.empty()
        return pack_delta(change, self._form, self._key_bytes, self._digests)

    def commit(self) -> None:
        change, epoch = self._change, self._staged_epoch
        if change is not None and epoch is None:
            raise RuntimeError(f"operator {self._operator!r}: commit before stage")
        if change is not None and epoch is not None:
            self._store.dirty[change.slots] = True
            shards = change.shards[change.starts]
            shards = shards[self._sealed[shards]]  # one may have been dropped meanwhile
            self._versions[shards] = epoch
            self._dirty_since[shards[self._dirty_since[shards] == 0]] = epoch
        self._change, self._staged_epoch = None, None

    def flush(self, budget_s: float) -> None:
        self._require_committed("flush")
        end = time.perf_counter() + budget_s
        while time.perf_counter() < end and (waiting := self._dirty_shards()):
            self._write(min(waiting, key=lambda shard: (int(self._dirty_since[shard]), shard)))
        self._shrink()

    def is_behind(self) -> bool:
        return bool(self._dirty_shards())

    # ------------------------------------------------------------------------------------------ shards

    def open(self, shard: int, path: str, local_version: int | None) -> bool:
        self._require(shard, "absent")
        if local_version is None:
            local: LocalShard | None = LocalShard.create(path, self._owner)
        else:
            local = LocalShard.take_over(path, self._owner, local_version)
        if local is None:
            return False
        if local_version is not None and not local.is_large and not self._reader.gives_its_digest(local):
            local.close()
            return False
        entries = local.count if local_version is not None else 0
        self._digests[shard] = digest_lanes(local.digest)
        self._bytes[shard] = entries * (
            PREFIX_BYTES + (self._key_bytes or _TEXT_KEY_BYTES) + self._form.value_bytes
        )
        self._incomplete[shard] = entries > 0
        self._versions[shard] = local.version
        self._locals[shard] = local
        return True

    def apply(self, shard: int, version: int, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        self._require(shard, "being brought")
        self._versions[shard] = version
        if not len(keys):
            return
        stripped = strip_entry_keys(keys)
        hashes = self._reader.hashes(stripped) if stripped is not None else np.empty(0, np.uint64)
        unpacked = unpack_values(values, hashes, self._form, checked=False) if stripped is not None else None
        if unpacked is None:
            self._damaged.add(shard)
            return
        rows = unpacked[0]
        batch = KeyBatch(hashes, np.full(len(hashes), shard, np.uint16), stripped)
        found = self._store.find(hashes, stripped)
        self._fetch(batch, found)
        found.rows[:, BITS] &= _BITS_MASK
        before = entry_hashes(found.rows)
        before[found.missing] = 0
        self._digests[shard] += (entry_hashes(rows) - before).sum(axis=0, dtype=np.uint64)
        rows[:, BITS] |= np.uint64(version) << _TOUCHED_SHIFT
        self._place_rows(found, batch, rows, dirty=True)
        self._dirty_since[shard] = self._dirty_since[shard] or max(version, 1)

    def seal(self, shard: int, version: int, digest: bytes) -> bool:
        self._require(shard, "being brought")
        whole = shard not in self._damaged and int(self._versions[shard]) == version
        if not whole or digest_bytes(self._digests[shard]) != digest:
            self._forget(shard).destroy()
            return False
        self._sealed[shard] = True
        if self._is_committed():
            self._shrink()
        return True

    def release(self, shard: int) -> None:
        self._require_committed("release")
        self._require(shard, "sealed")
        if self._dirty_since[shard] or self._locals[shard].version != self._versions[shard]:
            self._write(shard)
        self._forget(shard).close()

    def drop(self, shard: int) -> None:
        sealed = bool(self._sealed[shard])
        if shard in self._locals:
            local = self._forget(shard)
            if sealed:
                local.close()  # its files stay: they may have another owner by now
            else:
                local.destroy()

    def snapshot(self, shard: int) -> pa.RecordBatch:
        self._require_committed("snapshot")
        self._require(shard, "sealed")
        local = self._locals[shard]
        if self._incomplete[shard]:
            if self._dirty_since[shard]:
                self._write(shard)
            keys, rows = self._reader.scan(local)
        else:
            slots = self._store.slots_of(shard)
            keys, rows = self._store.take_keys(slots), self._store.take(slots)
            rows[:, BITS] &= _BITS_MASK
        lanes = entry_hashes(rows).sum(axis=0, dtype=np.uint64)
        if not np.array_equal(lanes, self._digests[shard]):
            raise CorruptFileError(
                f"operator {self._operator!r}: shard {shard} in {local.path} does not give its digest; "
                "it is rebuilt from the checkpoint"
            )
        order = pc.sort_indices(keys)  # so that a snapshot does not depend on the order in which keys came
        rows = rows.take(order.to_numpy(), axis=0)
        names = entry_keys(keys.take(order), self._key_bytes)
        return entry_batch(
            pa.array(np.full(len(rows), shard, np.uint16)), names, pack_values(rows, self._form)
        )

    def owned(self) -> Sequence[int]:
        shards: list[int] = np.flatnonzero(self._sealed).tolist()
        return shards

    def state_bytes(self) -> int:
        return int(self._bytes[self._sealed].sum())

    def close(self) -> None:
        for shard in list(self._locals):
            self._forget(shard).close()

    # ------------------------------------------------------------------------------------------ inside

    def _place_rows(self, found: Found, batch: KeyBatch, rows: U64, dirty: bool) -> None:
        """Store rows under the slots found, or under new ones, which are filled into `found`."""
        missing = found.missing
        if not len(missing):
            self._store.put(found.slots, rows)
            if dirty:
                self._store.dirty[found.slots] = True
            return
        if len(missing) == len(rows):
            keys, shards, fresh = batch.keys, batch.shards, rows
        else:
            there = np.flatnonzero(found.slots >= 0)
            self._store.put(found.slots[there], rows.take(there, axis=0))
            if dirty:
                self._store.dirty[found.slots[there]] = True
            keys, shards = batch.keys.take(pa.array(missing)), batch.shards.take(missing)
            fresh = rows.take(missing, axis=0)
        found.slots[missing] = self._store.append(keys, shards, fresh, dirty)
        sizes = binary_sizes(keys) if self._key_bytes is None else np.full(len(keys), self._key_bytes)
        np.add.at(self._bytes, shards, sizes + (PREFIX_BYTES + self._form.value_bytes))

    def _fetch(self, batch: KeyBatch, found: Found) -> None:
        """Give slots to the keys that were evicted or never loaded; they are not missing any more."""
        if not len(found.missing) or not self._incomplete.any():
            return
        asked = found.missing[self._incomplete[batch.shards[found.missing]]]
        for shard in np.unique(batch.shards[asked]).tolist():
            self._fetch_shard(batch, found, asked[batch.shards[asked] == shard], shard)
        found.missing = np.flatnonzero(found.slots == -1)

    def _fetch_shard(self, batch: KeyBatch, found: Found, asked: I64, shard: int) -> None:
        local = self._locals[shard]
        names = entry_keys(batch.keys.take(pa.array(asked)), self._key_bytes).to_pylist()
        entries = self._stored(shard, names)
        hits = [at for at, name in enumerate(names) if name in entries]
        if not hits:
            return
        chosen = asked[hits]
        values = pa.array([entries[names[at]] for at in hits], pa.binary())
        rows = self._reader.checked(values, batch.hashes[chosen], local)
        found.slots[chosen] = self._store.append(
            batch.keys.take(pa.array(chosen)), batch.shards[chosen], rows, dirty=False
        )
        found.rows[chosen] = rows

    def _stored(self, shard: int, names: list[bytes]) -> dict[bytes, bytes]:
        """Return the entries among these that a shard's environment holds."""
        return self._locals[shard].get_many(sorted(names))

    def _dirty_shards(self) -> list[int]:
        dirty: list[int] = np.flatnonzero((self._dirty_since > 0) & self._sealed).tolist()
        return dirty

    def _write(self, shard: int) -> None:
        """Write all dirty slots of a shard, its version and its digest, in one transaction."""
        slots = self._store.slots_of(shard)
        slots = slots[self._store.dirty.take(slots)]
        rows = self._store.take(slots)
        rows[:, BITS] &= _BITS_MASK
        names = entry_keys(self._store.take_keys(slots), self._key_bytes).to_pylist()
        values = pack_values(rows, self._form, checks=entry_hashes(rows)[:, 0]).to_pylist()
        puts = sorted(zip(names, values, strict=True))  # LMDB takes ascending keys several times faster
        version, digest = int(self._versions[shard]), digest_bytes(self._digests[shard])
        self._locals[shard].write(puts, self._deletes(shard), version, digest)
        self._store.dirty[slots] = False
        self._dirty_since[shard] = 0

    def _deletes(self, shard: int) -> list[bytes]:
        """Return the entries that the next write of a shard deletes; aggregates of keys never go."""
        return []

    def _shrink(self) -> None:
        """Bring the store under its bound: write what is dirty, then evict what was not used for longest."""
        store = self._store
        if store.removed and store.used_bytes() > self._memory_bytes:
            store.compact(store.live_slots())
        used = store.used_bytes()
        if used <= self._memory_bytes:
            return
        for shard in self._dirty_shards():
            self._write(shard)
        clean = np.flatnonzero(~store.dirty[: store.count])  # slots of shards being brought stay dirty
        surplus = store.count - int(store.count * _KEPT_RATIO * self._memory_bytes / used)
        evicted = clean[_oldest(store.column(BITS)[clean] >> _TOUCHED_SHIFT, min(surplus, len(clean)))]
        self._incomplete[np.unique(store.shards(evicted))] = True
        keep = np.ones(store.count, np.bool_)
        keep[evicted] = False
        store.compact(np.flatnonzero(keep))

    def _forget(self, shard: int) -> LocalShard:
        """Take a shard out of the store; return its environment, still open."""
        self._store.remove(self._store.slots_of(shard))
        for column in (
            self._digests,
            self._bytes,
            self._versions,
            self._dirty_since,
            self._incomplete,
            self._sealed,
        ):
            column[shard] = 0
        self._damaged.discard(shard)
        # A change that is not yet committed holds slot numbers, which compaction would make wrong.
        if self._is_committed() and 2 * self._store.removed > max(self._store.count, 1 << 12):
            self._store.compact(self._store.live_slots())
        return self._locals.pop(shard)

    def _require(self, shard: int, wanted: str) -> None:
        """Refuse a step that is out of turn in a shard's life: absent, being brought, sealed, absent."""
        found = (
            "absent" if shard not in self._locals else "sealed" if self._sealed[shard] else "being brought"
        )
        if found != wanted:
            raise RuntimeError(f"operator {self._operator!r}: shard {shard} is {found}, not {wanted}")

    def _is_committed(self) -> bool:
        """Whether no epoch has changed anything that is not committed."""
        return self._change is None

    def _require_committed(self, what: str) -> None:
        if not self._is_committed() or self._staged_epoch is not None:
            raise RuntimeError(f"operator {self._operator!r}: {what} while an epoch is not committed")


def _oldest(touched: U64, count: int) -> I64:
    """Return the positions of the `count` least values; of equal ones the first."""
    if count >= len(touched):
        return np.arange(len(touched))
    limit = np.partition(touched, count)[count]
    older = np.flatnonzero(touched < limit)
    return np.concatenate((older, np.flatnonzero(touched == limit)[: count - len(older)]))
