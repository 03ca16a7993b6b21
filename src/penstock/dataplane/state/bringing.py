"""A shard on its way to a task, and whether its entries are what the record says.

Owns the checks of entries against their seals and of an environment against its digest. Decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.dataplane.state.kinds import Entry
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.protocol import ENTRY_SCHEMA, U16, U64, digest_lanes
from penstock.dataplane.state.sealing import entry_hashes, seal, sum_of, unseal
from penstock.errors import CorruptFileError, StorageError


@dataclass
class Bringing:
    """A shard's environment, and what was applied on top of it; None deletes."""

    local: LocalShard
    version: int
    entries: dict[bytes, bytes | None] = field(default_factory=dict)


def entry_batch(shards: U16, keys: Sequence[bytes], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Return entries as they travel; the caller sorted them by shard."""
    columns = [pa.array(shards, pa.uint16()), pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    if any(isinstance(column, pa.ChunkedArray) for column in columns):
        raise StorageError(
            "more than 2 GiB of state entries do not fit one batch; declare more shards, or let the function "
            "change less state per epoch"
        )
    return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)


def sealed(entries: Sequence[tuple[bytes, Any]]) -> list[tuple[bytes, bytes]]:
    """Return entries, none of them a deletion, as they are stored."""
    hashes = entry_hashes([key for key, _ in entries], [value for _, value in entries])
    return [(key, seal(value, hash_)) for (key, value), hash_ in zip(entries, hashes, strict=True)]


def verified(local: LocalShard, stored: Iterable[tuple[bytes, bytes]]) -> list[Entry]:
    """Return the entries without their seals.

    Raises:
        CorruptFileError: a seal is broken.
    """
    entries = []
    for key, value in stored:
        found = unseal(key, value)
        if found is None:
            raise CorruptFileError(
                f"local state {local.path} holds a damaged entry; rebuild it from the checkpoint"
            )
        entries.append((key, *found))
    return entries


def content_digest(bringing: Bringing) -> U64:
    """Return the digest of what is stored, with what was applied on top; every stored entry is read and
    verified, unless there are so many that rows would wait for it."""
    newer = bringing.entries
    if bringing.local.is_large:
        return _moved_digest(bringing)
    stored = verified(bringing.local, bringing.local.scan())
    hashes = [hash_ for key, _, hash_ in stored if key not in newer]
    applied = [(key, value) for key, value in newer.items() if value is not None]
    hashes.extend(entry_hashes([key for key, _ in applied], [value for _, value in applied]))
    return sum_of(hashes)


def _moved_digest(bringing: Bringing) -> U64:
    """Return the digest that stands in the environment, moved on by what was applied on top.

    Its owner of a moment ago kept it by the same arithmetic and trusted the environment no less; each value is checked
    when it is read, and all of them with the next snapshot.
    """
    local, newer = bringing.local, bringing.entries
    keys = sorted(newer)
    old = [hash_ for _, _, hash_ in verified(local, local.get_many(keys).items())]
    applied = [(key, newer[key]) for key in keys]
    kept = [(key, value) for key, value in applied if value is not None]
    new = entry_hashes([key for key, _ in kept], [value for _, value in kept])
    moved: U64 = digest_lanes(local.digest) + sum_of(list(new)) - sum_of(old)
    return moved


def not_its_digest(local: LocalShard) -> CorruptFileError:
    """Return what to raise of an environment whose entries do not add up."""
    return CorruptFileError(
        f"local state {local.path} does not give its digest; rebuild it from the checkpoint"
    )
