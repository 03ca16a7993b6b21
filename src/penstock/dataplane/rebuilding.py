"""Rebuilds the state of shards from snapshots and deltas in memory, for whoever looks into a checkpoint.

What the rebuilt entries add up to must be the digest that the chain has; how entries are hashed depends on the kind of
state (ADR 0006). Reads only; shards are rebuilt a few at a time, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.dataplane.bring import runs
from penstock.dataplane.chain import Chain
from penstock.dataplane.channel import read_entries
from penstock.dataplane.disk import Disk
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.identity import StageIdentity
from penstock.dataplane.keys.kinds import key_types
from penstock.dataplane.logic.aggregate_words import derive_words, format_of, is_fixed_width
from penstock.dataplane.state.column_entries import (
    EntryFormat,
    entry_hashes,
    strip_entry_keys,
    unpack_values,
)
from penstock.dataplane.state.column_reading import EntryReader
from penstock.dataplane.state.protocol import digest_bytes
from penstock.dataplane.state.sealing import entry_hash, hash_lanes
from penstock.errors import CorruptFileError, DeclarationError
from penstock.topology.aggregates import Aggregate, AggregateKind

BATCH_BYTES = 128 << 20
Entries = dict[bytes, bytes]


@dataclass(frozen=True)
class Rebuilt:
    """One shard as its snapshot and deltas give it."""

    shard: int
    version: int
    entries: Entries


def rebuild(
    disk: Disk, checkpoint: str, chain: Chain, shards: Sequence[int], batch_bytes: int = BATCH_BYTES
) -> Iterator[Rebuilt]:
    """Rebuild shards one after the other.

    Raises:
        CorruptFileError: names the damaged snapshot or delta.
    """
    batch: list[int] = []
    size = 0
    for shard in shards:
        snapshot = chain.snapshot_of(shard)
        batch.append(shard)
        size += snapshot.size if snapshot is not None else 0
        if size >= batch_bytes:
            yield from _rebuild(disk, checkpoint, chain, batch)
            batch, size = [], 0
    if batch:
        yield from _rebuild(disk, checkpoint, chain, batch)


def _rebuild(disk: Disk, checkpoint: str, chain: Chain, shards: Sequence[int]) -> Iterator[Rebuilt]:
    entries: dict[int, dict[bytes, bytes | None]] = {shard: {} for shard in shards}
    versions = dict.fromkeys(shards, 0)
    for shard in shards:
        snapshot = chain.snapshot_of(shard)
        if snapshot is None:
            continue
        versions[shard] = snapshot.version
        if snapshot.extent is not None:
            found = read_entries(disk, checkpoint, snapshot.extent, FrameKind.SNAPSHOT)
            entries[shard].update(
                zip(found.column("key").to_pylist(), found.column("value").to_pylist(), strict=True)
            )
    for frame in chain.deltas:
        delta = read_entries(disk, checkpoint, frame.extent, FrameKind.DELTA)
        for shard, start, count in runs(np.asarray(delta.column("shard"))):
            if shard in entries and versions[shard] < frame.epoch:
                keys = delta.column("key").slice(start, count).to_pylist()
                entries[shard].update(
                    zip(keys, delta.column("value").slice(start, count).to_pylist(), strict=True)
                )
                versions[shard] = frame.epoch
    for shard in shards:
        kept = {key: value for key, value in entries[shard].items() if value is not None}
        yield Rebuilt(shard, versions[shard], kept)


def digest_function(stage: StageIdentity, given: pa.Schema, operator: str) -> Callable[[Entries], bytes]:
    """Return how the entries of an operator add up to the digest of a shard.

    Args:
        given: the schema of its first input.
    """
    form = _columnar(stage, given, operator)
    if form is None:
        return _digest_of_entries
    types = key_types(given, stage.keys, operator) if stage.keys else []
    names = list(stage.keys)
    if "window" in stage.logic:  # the start of the window comes first in the key
        types, names = [pa.int64(), *types], ["window", *names]
    reader = EntryReader(form, types, names, operator)
    return lambda entries: _digest_of_rows(entries, reader)


def _digest_of_entries(entries: Entries) -> bytes:
    hashes = [entry_hash(key, value) for key, value in entries.items()]
    return digest_bytes(hash_lanes(hashes).sum(axis=0, dtype=np.uint64))


def _digest_of_rows(entries: Entries, reader: EntryReader) -> bytes:
    keys = strip_entry_keys(pa.array(list(entries), pa.binary()))
    if keys is None:
        raise CorruptFileError(
            f"state of operator '{reader.operator}' holds an entry that is none of aggregates."
        )
    values = pa.array(list(entries.values()), pa.binary())
    unpacked = unpack_values(values, reader.hashes(keys), reader.form, checked=False) if len(keys) else None
    if unpacked is None:
        return digest_bytes((0, 0)) if not len(keys) else b""
    return digest_bytes(entry_hashes(unpacked[0]).sum(axis=0, dtype=np.uint64))


def _columnar(stage: StageIdentity, given: pa.Schema, operator: str) -> EntryFormat | None:
    """The shape of columnar aggregates; None for state in entries."""
    declared: Any = stage.logic.get("aggregates")
    window: Any = stage.logic.get("window", {})
    if declared is None or window.get("kind") == "session_window":
        return None
    aggregates = [Aggregate(AggregateKind(kind), column, n) for kind, column, _, n in declared]
    types = [one.input_type(given, operator) for one in aggregates]
    if not is_fixed_width(aggregates, types):
        return None
    words, _ = derive_words(aggregates, types)
    return format_of(words)


def input_schema(chain: Chain) -> pa.Schema:
    """The schema of an operator's first input."""
    if not chain.spec.inputs:
        raise DeclarationError(f"'{chain.name}' has no input and no state.")
    return next(given.schema for given in chain.spec.inputs if given.slot == 0)
