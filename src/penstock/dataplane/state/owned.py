"""One shard as its task owns it: the entries in its environment, and those that are committed and not yet in there.

Nothing reaches the environment but what is committed. Knows nothing of states or kinds: entries are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.dataplane.state.bringing import entry_batch, not_its_digest, sealed, verified
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.protocol import U64, digest_bytes
from penstock.dataplane.state.sealing import sum_of

Pending = dict[bytes, bytes | None]
"""Newer values of entries; None deletes."""


@dataclass
class OwnedShard:
    """Committed entries of a shard, and its decoded keys."""

    local: LocalShard
    version: int
    digest: U64
    pending: Pending = field(default_factory=dict)
    """Committed entries that are not in `local` yet."""
    cache: dict[bytes, KeyState] = field(default_factory=dict)
    shared: KeyState | None = None
    """The states of the shard itself, never evicted."""

    def commit(self, entries: Iterable[tuple[bytes, bytes | None]], version: int, digest: U64) -> int:
        """Take over the entries of a committed epoch; return by how many those that are not yet written have grown."""
        before = len(self.pending)
        self.pending.update(entries)
        self.version, self.digest = version, digest
        return len(self.pending) - before

    def write(self) -> int:
        """Write what is pending to the environment, in one transaction; return how many entries."""
        entries = sorted(self.pending.items())
        deletes = [key for key, value in entries if value is None]
        puts = sealed([(key, value) for key, value in entries if value is not None])
        self.local.write(puts, deletes, self.version, digest_bytes(self.digest))
        self.pending = {}
        return len(entries)

    def stored(self, keys: list[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return value and hash of entries in the environment, what is pending left aside."""
        stored = self.local.get_many(keys)
        return {key: (value, hash_) for key, value, hash_ in verified(self.local, stored.items())}

    def snapshot(self, shard: int) -> pa.RecordBatch:
        """Return all committed entries, in order of their keys.

        Raises:
            CorruptFileError: they do not add up to the shard's digest.
        """
        stored = [entry for entry in self.local.scan() if entry[0] not in self.pending]
        stored += sealed([(key, value) for key, value in self.pending.items() if value is not None])
        entries = verified(self.local, sorted(stored))
        if not np.array_equal(sum_of([hash_ for _, _, hash_ in entries]), self.digest):
            raise not_its_digest(self.local)
        keys, values = [key for key, _, _ in entries], [value for _, value, _ in entries]
        return entry_batch(np.full(len(keys), shard, np.uint16), keys, values)
