"""State of row and vectorised functions: decoded in memory, staged per epoch, written to local state behind
commits.

Owns the shards of a task (`owned`), what the epoch at hand has changed in them (`settled`), and the decoded keys. Nothing
reaches an environment before its record exists. Decoded keys are evicted only between epochs, least recently used first,
so eviction never changes what a function sees.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from penstock.dataplane.collector import collector_off
from penstock.dataplane.keys.codec import KeyCodec
from penstock.dataplane.state.bringing import Bringing, content_digest, sealed, verified
from penstock.dataplane.state.handles import KeyState, put
from penstock.dataplane.state.kinds import Column, Entry, ListColumn, StateContext, ValueColumn
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.maps import MapColumn
from penstock.dataplane.state.owned import OwnedShard, Pending
from penstock.dataplane.state.protocol import Delta, digest_bytes
from penstock.dataplane.state.sealing import entry_hash
from penstock.dataplane.state.settled import Settled, Staged, prefix_of
from penstock.dataplane.state.timers import EPOCH_TIMERS, NEVER, Due, TimerColumn
from penstock.dataplane.state.values import ValueCodec
from penstock.errors import CorruptFileError
from penstock.topology.rows import struct_class
from penstock.topology.states import ListState, MapState, StateSpec

_KEY_WEIGHT: Final = 500
_FIRST_SHARED: Final = 201
"""First ordinal of a shard's own states; declared states of keys have ordinals up to 200."""
_KEPT_RATIO: Final = 0.8
_MAX_PENDING: Final = 1 << 18
_PENDING_BYTES: Final = 64  # an estimate: most are newer values of entries that are counted already


_SET_USED: Final = vars(KeyState)["_used"].__set__
_SET_SETTLED: Final = vars(KeyState)["_settled"].__set__
"""What sets a slot without asking the class, for many states at a time."""


class EntryState:
    """`TaskState` of declared value, list and map states."""

    def __init__(
        self,
        operator: str,
        keys: Sequence[pa.Field],
        states: dict[str, StateSpec],
        memory_bytes: int,
        timers: Sequence[str] = (),
        shared: Mapping[str, StateSpec] | None = None,
        key_state: type[KeyState] = KeyState,
        key_class: type[tuple[Any, ...]] | None = None,
    ) -> None:
        self.operator = operator
        self.key_codec = KeyCodec([key.type for key in keys], [key.name for key in keys], operator)
        self._key_class = key_class or struct_class(pa.struct(list(keys)))
        context = StateContext(operator, self.key_codec, self)
        self._columns: list[Column] = [
            _build_column(context, name, ordinal, spec)
            for ordinal, (name, spec) in enumerate(states.items(), start=1)
        ]
        self.timers = {name: TimerColumn(context, name) for name in timers}
        """The kinds of timers that keys have, by name (`EVENT_TIMERS`, `EPOCH_TIMERS`)."""
        self._columns.extend(self.timers.values())
        slots = {"__slots__": (*states, *timers)}
        self._state_class: type[KeyState] = type("KeyState", (key_state,), slots)
        without_key = StateContext(operator, KeyCodec([], [], operator), self)
        self._shared_columns = [
            _build_column(without_key, name, ordinal, spec)
            for ordinal, (name, spec) in enumerate((shared or {}).items(), start=_FIRST_SHARED)
        ]
        slots = {"__slots__": tuple(shared or ())}
        self._shared_class: type[KeyState] = type("SharedState", (KeyState,), slots)
        self._memory_bytes = memory_bytes
        self._owner = uuid.uuid4().hex
        self._shards: dict[int, OwnedShard] = {}
        self._bringing: dict[int, Bringing] = {}
        self._behind: dict[int, None] = {}  # shards with pending entries, longest behind first
        self._pending_entries = 0
        self._touched: list[KeyState] = []
        self._settled = Settled()
        self._weight = 0
        self._clock = 1
        self._staged: Staged | None = None

    # ------------------------------------------------------------------------------------ keys, for logic

    def touch(self, shard: int, keys: Sequence[bytes]) -> list[KeyState]:
        """Return the states of distinct keys of a shard, for use in this epoch only; what is missing is
        loaded."""
        owned = self._shards[shard]
        cache, clock = owned.cache, self._clock
        found = list(map(cache.get, keys))
        if None in found:
            self._load([key for key, state in zip(keys, found, strict=True) if state is None], shard, owned)
            found = [cache[key] for key in keys]
        states: list[KeyState] = found  # type: ignore[assignment]
        fresh = [state for state in states if state._used != clock]
        deque(map(_SET_USED, fresh, repeat(clock)), maxlen=0)
        self._touched.extend(fresh)
        return states

    def settle(self, states: list[KeyState]) -> None:
        """Encode what changed in these states, which are not used again in this epoch; `stage` does the rest.

        Raises:
            OperatorError: a value does not fit its state.
        """
        for column in self._columns:
            column.collect(states, self._settled.changes)
        self._weigh(states)
        deque(map(_SET_SETTLED, states, repeat(self._clock)), maxlen=0)

    def roll_back(self, state: KeyState, key: bytes) -> None:
        """Forget what was changed in a state since it was last settled; it holds what is committed, or what this epoch has
        settled before."""
        owned = self._shards[state._shard]
        del owned.cache[key]
        self._load([key], state._shard, owned)
        fresh = owned.cache[key]
        for column in self._columns:
            put(state, column.name, getattr(fresh, column.name))
        put(state, "_object", None)
        owned.cache[key] = state

    # ------------------------------------------------------------------------------------ of a shard, not of a key

    def shared(self, shard: int) -> KeyState:
        """Return the states that a shard has of its own; changes count when they are settled."""
        owned = self._shards[shard]
        if owned.shared is None:
            owned.shared = self._shared_class(None, shard)
            for column in self._shared_columns:
                put(owned.shared, column.name, column.make(shard, b"", False))
        return owned.shared

    def is_changed(self, shared: KeyState) -> bool:
        """Whether the states of a shard hold changes that are not settled."""
        return any(getattr(shared, column.name).changed for column in self._shared_columns)

    def settle_shared(self, state: KeyState) -> None:
        """Encode what changed in the states of a shard."""
        for column in self._shared_columns:
            column.collect([state], self._settled.changes)

    # ------------------------------------------------------------------------------------ timers

    def due_timers(self, kind: str, shard: int, until_us: int) -> list[Due]:
        """Return the timers of a shard up to and including `until_us`, in order of time and key; those that settled
        states have set or taken back in this epoch count."""
        column, owned = self.timers[kind], self._shards[shard]
        if not column.is_due(shard, until_us):
            return []
        self._flush(shard, owned)
        return column.due(shard, until_us, owned.local)

    def next_timer_us(self) -> int | None:
        """Return a time before which no epoch timer is due, None where there is none."""
        column = self.timers.get(EPOCH_TIMERS)
        if column is None or not self._shards:
            return None
        for shard, owned in self._shards.items():
            if not column.knows(shard):
                self._flush(shard, owned)
                column.next_us(shard, owned.local)
        earliest = min(column.next_us(shard, None) for shard in self._shards)
        return None if earliest >= NEVER else earliest

    def _load(self, keys: list[bytes], shard: int, owned: OwnedShard) -> None:
        """Make the decoded states of keys that are not in memory; values are read at once, the rest on
        demand."""
        empty = not owned.pending and owned.local.count == 0 and not self._settled.changes.keys
        make, decode, key_class = self._state_class, self.key_codec.decode, self._key_class
        made = [make(tuple.__new__(key_class, decode(key)), shard) for key in keys]
        owned.cache.update(zip(keys, made, strict=True))
        for column in self._columns:
            name = column.name
            if not empty and isinstance(column, ValueColumn):
                entries = [column.prefix(key) for key in keys]
                stored = self._read_many(shard, entries)
                for state, entry in zip(made, entries, strict=True):
                    put(state, name, column.holding(shard, entry, stored.get(entry)))
            else:
                for state, key in zip(made, keys, strict=True):
                    put(state, name, column.make(shard, key, empty))

    # ------------------------------------------------------------------------------------ committed entries

    def read(self, shard: int, key: bytes) -> tuple[bytes, bytes] | None:
        """Return value and hash of one entry, as of what is settled."""
        return self._read_many(shard, [key]).get(key)

    def read_prefix(self, shard: int, prefix: bytes, limit: int | None) -> list[Entry]:
        """Return the entries of one state of one key, whose keys all begin with `prefix`, as of what is settled."""
        owned = self._shards[shard]
        self._flush(
            shard, owned
        )  # a scan needs no overlay of committed entries then, and flushing is due anyway
        newer = self._settled.of(shard, prefix)
        if not newer:
            return verified(owned.local, owned.local.scan(prefix, limit))
        more = None if limit is None else limit + len(newer)
        stored = verified(owned.local, owned.local.scan(prefix, more))
        found = [entry for entry in stored if entry[0] not in newer]
        found += [(key, value, entry_hash(key, value)) for key, value in newer.items() if value is not None]
        return sorted(found)[:limit]

    def last_key(self, shard: int, prefix: bytes) -> bytes | None:
        """Return the greatest entry key of `prefix` and eight bytes, as of what is settled."""
        owned = self._shards[shard]
        self._flush(shard, owned)
        if not self._settled.of(shard, prefix):
            return owned.local.last(prefix)
        keys = [key for key, _, _ in self.read_prefix(shard, prefix, None) if len(key) == len(prefix) + 8]
        return keys[-1] if keys else None

    def _read_many(self, shard: int, keys: list[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        owned = self._shards[shard]
        if not owned.pending and not self._settled.changes.keys:
            return owned.stored(sorted(keys))
        newer: Pending = {}
        for key in keys:
            settled = self._settled.of(shard, prefix_of(key))
            if key in settled:
                newer[key] = settled[key]
            elif key in owned.pending:
                newer[key] = owned.pending[key]
        found = owned.stored(sorted(key for key in keys if key not in newer))
        found.update(
            {key: (value, entry_hash(key, value)) for key, value in newer.items() if value is not None}
        )
        return found

    # ------------------------------------------------------------------------------------ life of a shard

    def open(self, shard: int, path: str, local_version: int | None) -> bool:
        if local_version is None:
            self._bringing[shard] = Bringing(LocalShard.create(path, self._owner), 0)
            return True
        local = LocalShard.take_over(path, self._owner, local_version)
        if local is not None:
            self._bringing[shard] = Bringing(local, local_version)
        return local is not None

    def apply(self, shard: int, version: int, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        bringing = self._bringing[shard]
        bringing.version = version
        bringing.entries.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))

    def seal(self, shard: int, version: int, digest: bytes) -> bool:
        bringing = self._bringing.pop(shard)
        local = bringing.local
        try:
            found = content_digest(bringing)
        except CorruptFileError:
            found = None
        if found is None or bringing.version != version or digest_bytes(found) != digest:
            local.destroy()
            return False
        if bringing.entries or local.version != version:
            puts = sealed([item for item in sorted(bringing.entries.items()) if item[1] is not None])
            deletes = [key for key, value in bringing.entries.items() if value is None]
            local.write(puts, deletes, version, digest)
        self._shards[shard] = OwnedShard(local, version, found)
        return True

    def release(self, shard: int) -> None:
        owned = self._shards[shard]
        self._flush(shard, owned)
        self._forget(shard)
        owned.local.close()

    def drop(self, shard: int) -> None:
        bringing = self._bringing.pop(shard, None)
        if bringing is not None:
            bringing.local.destroy()
        else:
            self._forget(shard).local.close()  # its files stay: they may have another owner by now

    def _forget(self, shard: int) -> OwnedShard:
        owned = self._shards.pop(shard)
        self._behind.pop(shard, None)
        self._pending_entries -= len(owned.pending)
        self._weight -= sum(state._weight for state in owned.cache.values())
        self._touched = [state for state in self._touched if state._shard != shard]
        for column in self.timers.values():
            column.forget(shard)
        return owned

    # ------------------------------------------------------------------------------------ life of an epoch

    def stage(self, epoch: int) -> Delta:
        with collector_off():
            self.settle([state for state in self._touched if state._settled != self._clock])
            delta, self._staged = self._settled.stage(epoch, lambda shard: self._shards[shard].digest)
            return delta

    def commit(self) -> None:
        staged, self._staged = self._staged, None
        self._touched = []
        self._clock += 1
        for column in self.timers.values():
            column.committed()
        if staged is not None:
            self._commit(staged)
        if self._weight > self._memory_bytes:
            self._evict()

    def _commit(self, staged: Staged) -> None:
        for at, shard in enumerate(staged.shards):
            owned = self._shards[shard]
            part = slice(staged.bounds[at], staged.bounds[at + 1])
            entries = zip(staged.keys[part], staged.values[part], strict=True)
            self._pending_entries += owned.commit(entries, staged.version, staged.digests[at])
            self._behind.setdefault(shard)

    def flush(self, budget_s: float) -> None:
        until = time.perf_counter() + budget_s
        while self._behind and (time.perf_counter() < until or self._pending_entries > _MAX_PENDING):
            shard = next(iter(self._behind))
            self._flush(shard, self._shards[shard])

    def is_behind(self) -> bool:
        return bool(self._behind)

    def _flush(self, shard: int, owned: OwnedShard) -> None:
        if owned.pending:
            self._pending_entries -= owned.write()
            self._behind.pop(shard, None)

    def snapshot(self, shard: int) -> pa.RecordBatch:
        return self._shards[shard].snapshot(shard)

    # ------------------------------------------------------------------------------------ memory

    def _weigh(self, states: list[KeyState]) -> None:
        varying = [(column.name, column.weight) for column in self._columns if column.fixed_weight is None]
        fixed = _KEY_WEIGHT + sum(column.fixed_weight or 0 for column in self._columns)
        for state in states if varying else [state for state in states if not state._weight]:
            weight = fixed
            for name, weigh in varying:
                weight += weigh(getattr(state, name))
            if state._object is not None:
                weight *= 2
            self._weight += weight - state._weight
            put(state, "_weight", weight)

    def _evict(self) -> None:
        states = [
            (state._used, shard, key)
            for shard, owned in self._shards.items()
            for key, state in owned.cache.items()
        ]
        for _, shard, key in sorted(states):
            if self._weight <= self._memory_bytes * _KEPT_RATIO:
                break
            self._weight -= self._shards[shard].cache.pop(key)._weight

    def owned(self) -> list[int]:
        return sorted(self._shards)

    def state_bytes(self) -> int:
        stored = sum(owned.local.used_bytes for owned in self._shards.values())
        return stored + _PENDING_BYTES * self._pending_entries

    def close(self) -> None:
        for bringing in self._bringing.values():
            bringing.local.close()
        for owned in self._shards.values():
            owned.local.close()
        self._bringing.clear()
        self._shards.clear()


def _build_column(context: StateContext, name: str, ordinal: int, spec: StateSpec) -> Column:
    codec = ValueCodec(spec.value_type, spec.local_times)
    column: Column
    if isinstance(spec, MapState):
        column = MapColumn(context, name, ordinal, codec, spec.key_type)
    else:
        column = (ListColumn if isinstance(spec, ListState) else ValueColumn)(context, name, ordinal, codec)
    column.label, column.enclosed = spec.label or name, spec.enclosed
    return column
