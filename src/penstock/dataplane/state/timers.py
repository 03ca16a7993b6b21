"""Timers of keys: when to call an operator for a key that may have no rows.

A timer is an element of a hidden map of its key, so that it is cached, rolled back and committed like any state, and
an index entry [ordinal][time][key], so that those due are found in order of time without reading any other. A shard
whose earliest timer is not due costs one comparison.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from penstock.dataplane.state.handles import ABSENT, KeyState
from penstock.dataplane.state.kinds import Changes, StateContext
from penstock.dataplane.state.map_handles import MapHandle
from penstock.dataplane.state.maps import MapColumn
from penstock.dataplane.state.sealing import entry_hashes, unseal
from penstock.dataplane.state.values import ValueCodec
from penstock.errors import CorruptFileError

if TYPE_CHECKING:
    from penstock.dataplane.state.local import LocalShard

EVENT_TIMERS: Final = "_event_timers"
EPOCH_TIMERS: Final = "_epoch_timers"
"""Names of the two timer states of a key: by watermark, and by epoch time."""
_ORDINALS: Final = {EVENT_TIMERS: 242, EPOCH_TIMERS: 244}
"""Of the map; the index follows. Declared states have ordinals of at most 200."""
_OFFSET: Final = 1 << 63
_PACK_TIME: Final = struct.Struct(">Q").pack
_UNPACK_TIME: Final = struct.Struct(">Q").unpack_from
_UNKNOWN: Final = -(1 << 62)
NEVER: Final = 1 << 62
"""Later than any timer."""


class Due(NamedTuple):
    """A timer that is due; `key` as the key's bytes."""

    time_us: int
    key: bytes


class TimerColumn(MapColumn):
    """One kind of timer over all keys of a task: a map of time to nothing, and the index by time."""

    def __init__(self, context: StateContext, name: str) -> None:
        ordinal = _ORDINALS[name]
        super().__init__(context, name, ordinal, ValueCodec(pa.bool_()), pa.int64())
        self._index = bytes([ordinal + 1])
        self._added: dict[int, set[Due]] = {}
        self._removed: dict[int, set[Due]] = {}
        """By shard: what this epoch has changed so far."""
        self._next: dict[int, int] = {}
        """By shard: no timer is earlier than this."""

    # -- of a key -----------------------------------------------------------------------------------------------------

    def register(self, state: KeyState, time_us: int) -> None:
        """Set a timer; one that is set already stays."""
        handle: MapHandle = getattr(state, self.name)
        if time_us not in self._whole(handle)._data:
            handle[time_us] = True

    def delete(self, state: KeyState, time_us: int) -> None:
        """Take a timer back; without effect when there is none."""
        handle: MapHandle = getattr(state, self.name)
        self._whole(handle).pop(time_us, None)

    def of(self, state: KeyState) -> list[int]:
        """Return the timers of a key, in order of time."""
        times: list[int] = getattr(state, self.name).keys()
        return times

    def _whole(self, handle: MapHandle) -> MapHandle:
        if not handle._complete:
            handle._load(None)  # what was there before the epoch has to be known: the index follows it
        return handle

    # -- of a shard ---------------------------------------------------------------------------------------------------

    def due(self, shard: int, until_us: int, local: LocalShard) -> list[Due]:
        """Return the timers up to and including `until_us`, by time and then key, settled changes of this epoch
        included. All committed entries are in `local`."""
        removed, added = self._removed.get(shard, set()), self._added.get(shard, set())
        bound = self._index + _PACK_TIME(min(until_us, NEVER) + _OFFSET)
        stored, after = local.scan_up_to(self._index, bound)
        found = {due for due in map(self._parsed, self._checked(local, stored)) if due not in removed}
        found.update(due for due in added if due.time_us <= until_us)
        later = [due.time_us for due in added if due.time_us > until_us]
        if after is not None:
            later.append(self._parsed(after).time_us)
        self._next[shard] = min(later, default=NEVER)
        return sorted(found)

    def is_due(self, shard: int, until_us: int) -> bool:
        """Whether it may be that a timer of the shard is due."""
        return self._next.get(shard, _UNKNOWN) <= until_us

    def next_us(self, shard: int, local: LocalShard | None) -> int:
        """Return a time before which no timer of the shard is due; `local` is read if that is not known yet."""
        known = self._next.get(shard)
        if known is None:
            assert local is not None
            first = local.scan(self._index, 1)
            known = self._parsed(first[0][0]).time_us if first else NEVER
            self._next[shard] = min([known, *(due.time_us for due in self._added.get(shard, ()))])
        return self._next[shard]

    def knows(self, shard: int) -> bool:
        return shard in self._next

    def forget(self, shard: int) -> None:
        """The shard is not owned any more."""
        self._next.pop(shard, None)
        self._added.pop(shard, None)
        self._removed.pop(shard, None)

    def committed(self) -> None:
        """What this epoch changed is among the committed entries from now on."""
        self._added.clear()
        self._removed.clear()

    def _checked(self, local: LocalShard, stored: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        if any(unseal(key, value) is None for key, value in stored):
            raise CorruptFileError(
                f"local state {local.path} holds a damaged timer; rebuild it from the checkpoint"
            )
        return [key for key, _ in stored]

    def _parsed(self, entry: bytes) -> Due:
        return Due(_UNPACK_TIME(entry, 1)[0] - _OFFSET, entry[9:])

    # -- staging ------------------------------------------------------------------------------------------------------

    def collect(self, touched: Sequence[KeyState], into: Changes) -> None:
        puts: list[tuple[int, Due]] = []
        gone: list[tuple[int, Due]] = []
        for handle in map(attrgetter(self.name), touched):
            if handle._dirty:
                key = handle._prefix[3:]
                for time_us, before in handle._dirty.items():
                    was, is_now = before is not ABSENT, time_us in handle._data
                    if was != is_now:
                        (puts if is_now else gone).append((handle._shard, Due(time_us, key)))
        if puts or gone:
            self._collect_index(puts, gone, into)
        super().collect(touched, into)

    def _collect_index(self, puts: list[tuple[int, Due]], gone: list[tuple[int, Due]], into: Changes) -> None:
        for shard, due in puts:
            self._removed.get(shard, set()).discard(due)
            self._added.setdefault(shard, set()).add(due)
            if shard in self._next:
                self._next[shard] = min(self._next[shard], due.time_us)
        for shard, due in gone:
            self._added.get(shard, set()).discard(due)
            self._removed.setdefault(shard, set()).add(due)
        keys = [self._entry(due) for _, due in puts]
        into.put_all(
            [shard for shard, _ in puts],
            keys,
            [b""] * len(keys),
            entry_hashes(keys, [b""] * len(keys)),
            [None] * len(keys),
        )
        for shard, due in gone:
            entry = self._entry(due)
            into.delete_all(shard, [entry], entry_hashes([entry], [b""]))

    def _entry(self, due: Due) -> bytes:
        return self._index + _PACK_TIME(due.time_us + _OFFSET) + due.key
