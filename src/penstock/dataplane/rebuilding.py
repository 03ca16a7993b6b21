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
from penstock.dataplane.keys.codec import KeyCodec
from penstock.dataplane.keys.hashing import hash_keys, shards_of
from penstock.dataplane.keys.kinds import key_types
from penstock.dataplane.logic.aggregate_words import derive_words, format_of, is_fixed_width
from penstock.dataplane.program import operator_of
from penstock.dataplane.state.column_entries import (
    EntryFormat,
    entry_hashes,
    strip_entry_keys,
    unpack_values,
)
from penstock.dataplane.state.column_reading import EntryReader
from penstock.dataplane.state.protocol import digest_bytes
from penstock.dataplane.state.sealing import entry_hash, hash_lanes
from penstock.dataplane.state.values import ValueCodec
from penstock.errors import CheckpointError, CorruptFileError, DeclarationError
from penstock.topology.aggregates import Aggregate, AggregateKind
from penstock.topology.schema import parse_type

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


@dataclass(frozen=True)
class KeyStates:
    """The state of one key."""

    shard: int
    key: dict[str, object]
    states: dict[str, object]
    """Value, list or dict by state; of other logic the stored entries, in hexadecimal."""


def read_key(
    disk: Disk,
    checkpoint: str,
    chains: Sequence[Chain],
    stage: StageIdentity,
    given: pa.Schema,
    texts: Sequence[str],
) -> KeyStates:
    """Read the committed state of one key.

    Args:
        chains: of all executors of the operator; one of them has the key's shard.
        texts: the key's columns, in order, as text.

    Raises:
        CheckpointError: the texts are no key of this operator.
    """
    operator = operator_of(chains[0].name)
    names, types = stage.keys, [given.field(name).type for name in stage.keys]
    if len(texts) != len(names):
        raise CheckpointError(
            f"operator '{operator}' is keyed by {', '.join(names)}; give --key once for each, in this order."
        )
    try:
        columns = [pa.array([text]).cast(type_) for text, type_ in zip(texts, types, strict=True)]
    except pa.ArrowException as error:
        raise CheckpointError(f"{texts!r} is no key of operator '{operator}' ({error}).") from error
    shard = int(shards_of(hash_keys(columns, names, operator), stage.shards)[0])
    chain = next(one for one in chains if shard in one.shards())
    values = [column[0].as_py() for column in columns]
    key = KeyCodec(types, names, operator).encode(values)
    (rebuilt,) = rebuild(disk, checkpoint, chain, [shard])
    length = len(key).to_bytes(2, "big")
    mine = {
        entry: value
        for entry, value in rebuilt.entries.items()
        if entry[1:3] == length and entry[3:].startswith(key)
    }
    return KeyStates(shard, dict(zip(names, values, strict=True)), _decoded(stage, mine, 3 + len(key)))


def _decoded(stage: StageIdentity, entries: Entries, start: int) -> dict[str, object]:
    declared: Any = stage.logic.get("states")
    if not isinstance(declared, list) or not declared:
        return {entry.hex(): value.hex() for entry, value in sorted(entries.items())}
    found: dict[str, object] = {}
    for ordinal, (name, spec) in enumerate(declared, 1):
        codec = ValueCodec(parse_type(spec["value"], f"state '{name}'"))
        held = sorted((entry[start:], value) for entry, value in entries.items() if entry[0] == ordinal)
        if spec["kind"] == "value":
            found[name] = codec.decode(held[0][1]) if held else None
        elif spec["kind"] == "list":
            found[name] = [codec.decode(value) for _, value in held]
        else:
            keys = KeyCodec([parse_type(spec["key"], f"state '{name}'")])
            found[name] = {keys.decode(element)[0]: codec.decode(value) for element, value in held}
    return found


def input_schema(chain: Chain) -> pa.Schema:
    """The schema of an operator's first input."""
    if not chain.spec.inputs:
        raise DeclarationError(f"'{chain.name}' has no input and no state.")
    return next(given.schema for given in chain.spec.inputs if given.slot == 0)
