"""The committed state of one key, as a person reads it: values by name, windows by their bounds. Changes nothing.

Functions and processors declare states by name. What the built-in aggregates keep is shown as they would put it out, and
an open window with what it holds so far.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa

from penstock.dataplane.chain import Chain
from penstock.dataplane.disk import Disk
from penstock.dataplane.identity import StageIdentity, read_schema
from penstock.dataplane.keys.canonical import EPOCH_NAIVE
from penstock.dataplane.keys.codec import KeyCodec
from penstock.dataplane.keys.hashing import hash_keys, shards_of
from penstock.dataplane.logic.aggregate_words import WordAggregates, is_fixed_width
from penstock.dataplane.logic.keyed_windows import WINDOW_STATES, time_of, window_of
from penstock.dataplane.logic.wide_aggregates import make_columns
from penstock.dataplane.program import operator_of
from penstock.dataplane.rebuilding import Entries, rebuild
from penstock.dataplane.state.column_entries import PREFIX_BYTES, unpack_values
from penstock.dataplane.state.values import ValueCodec
from penstock.errors import CheckpointError
from penstock.topology.aggregates import Aggregate, AggregateKind
from penstock.topology.schema import parse_type
from penstock.topology.type_words import in_sparks_words

_START: Final = KeyCodec([pa.int64()])
_ROW: Final = KeyCodec([pa.binary()])
_BYTES: Final = ValueCodec(pa.binary())
_START_BYTES: Final = 8


@dataclass(frozen=True)
class KeyStates:
    """The state of one key."""

    shard: int
    key: dict[str, object]
    states: dict[str, object]
    """Value, list or dict by state; of aggregates their results so far, of windows those of each, by its bounds."""


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
        texts: the key's columns, in order, as text; none where the operator is unkeyed.

    Raises:
        CheckpointError: the texts are no key of this operator.
    """
    operator = operator_of(chains[0].name)
    names, types = stage.keys, [given.field(name).type for name in stage.keys]
    if len(texts) != len(names):
        asked = (
            f"is keyed by {', '.join(names)}; give --key once for each, in this order"
            if names
            else "has no keys"
        )
        raise CheckpointError(f"operator '{operator}' {asked}.")
    try:
        columns = [pa.array([text]).cast(type_) for text, type_ in zip(texts, types, strict=True)]
    except pa.ArrowException as error:
        told = in_sparks_words(str(error))
        raise CheckpointError(f"{texts!r} is no key of operator '{operator}' ({told}).") from error
    shard = int(shards_of(hash_keys(columns, names, operator), stage.shards)[0]) if names else 0
    chain = next(one for one in chains if shard in one.shards())
    values = [column[0].as_py() for column in columns]
    key = KeyCodec(types, names, operator).encode(values) if names else b""
    (rebuilt,) = rebuild(disk, checkpoint, chain, [shard])
    states = _Reader(stage, given, operator).states(key, rebuilt.entries)
    return KeyStates(shard, dict(zip(names, values, strict=True)), states)


class _Reader:
    """Reads the entries of an operator's keys by what its checkpoint says of its logic."""

    def __init__(self, stage: StageIdentity, given: pa.Schema, operator: str) -> None:
        self._stage, self._operator = stage, operator
        self._window = cast("dict[str, Any]", stage.logic.get("window", {}))
        declared: Any = stage.logic.get("aggregates") or []
        self._aggregates = [Aggregate(AggregateKind(kind), column, n) for kind, column, _, n in declared]
        self._types = [one.input_type(given, operator) for one in self._aggregates]
        first = len(stage.keys) + bool(self._window)
        self._fields = list(read_schema(stage.arrow))[first:]
        self._zone = ""
        if self._window:
            self._zone = " UTC" if given.field(self._window["column"]).type.tz else ""

    def states(self, key: bytes, entries: Entries) -> dict[str, object]:
        """Return what is held for a key, of all entries of its shard."""
        if not self._aggregates:
            mine = _entries_of(key, entries)
            found = self._declared(mine, PREFIX_BYTES + len(key))
            return {**found, **self._windows(mine, key)} if self._window else found
        if is_fixed_width(self._aggregates, self._types) and not self._is_session():
            return self._words(key, entries)
        mine = _entries_of(key, entries)
        if self._window:
            return self._windows(mine, key)
        held = [_BYTES.decode(value) for entry, value in mine.items() if entry[0] == 1]
        return self._wide(msgspec.msgpack.decode(held[0])) if held else {}

    def _is_session(self) -> bool:
        return self._window.get("kind") == "session_window"

    # -- aggregates ---------------------------------------------------------------------------------------------------

    def _words(self, key: bytes, entries: Entries) -> dict[str, object]:
        """Aggregates that fit words: an entry for the key, or for each of its windows, whose start stands before it."""
        if not self._window:
            mine = {entry: value for entry, value in entries.items() if entry[PREFIX_BYTES:] == key}
            return next((self._results(value) for value in mine.values()), {})
        starts = {
            _START.decode(entry[PREFIX_BYTES : PREFIX_BYTES + _START_BYTES])[0]: value
            for entry, value in entries.items()
            if entry[PREFIX_BYTES + _START_BYTES :] == key
        }
        length = self._window["size"]
        return {self._bounds(at, at + length): self._results(value) for at, value in sorted(starts.items())}

    def _results(self, value: bytes) -> dict[str, object]:
        words = WordAggregates(self._aggregates, self._types, self._fields)
        unpacked = unpack_values(
            pa.array([value], pa.binary()), np.zeros(1, np.uint64), words.format, checked=False
        )
        if unpacked is None:
            raise CheckpointError(
                f"state of operator '{self._operator}' holds an entry that is none of aggregates."
            )
        return self._named(words.outputs(unpacked[0]))

    def _wide(self, held: Sequence[Any]) -> dict[str, object]:
        columns = make_columns(self._aggregates, self._types, self._fields, self._operator)
        return self._named([column.output([one]) for column, one in zip(columns, held, strict=True)])

    def _named(self, results: Sequence[pa.Array]) -> dict[str, object]:
        return {field.name: column[0].as_py() for field, column in zip(self._fields, results, strict=True)}

    # -- states and windows by key ------------------------------------------------------------------------------------

    def _declared(self, mine: Mapping[bytes, bytes], start: int) -> dict[str, object]:
        """States of a function or processor; of other logic the stored entries, in hexadecimal."""
        declared: Any = self._stage.logic.get("states")
        if not isinstance(declared, list) or not (declared or self._window):
            return {entry.hex(): value.hex() for entry, value in sorted(mine.items())}
        found: dict[str, object] = {}
        for ordinal, (name, spec) in enumerate(declared, 1):
            codec = ValueCodec(parse_type(spec["value"], f"state '{name}'"))
            held = sorted((entry[start:], value) for entry, value in mine.items() if entry[0] == ordinal)
            if spec["kind"] == "value":
                found[name] = codec.decode(held[0][1]) if held else None
            elif spec["kind"] == "list":
                found[name] = [codec.decode(value) for _, value in held]
            else:
                keys = KeyCodec([parse_type(spec["key"], f"state '{name}'")])
                found[name] = {keys.decode(element)[0]: codec.decode(value) for element, value in held}
        return found

    def _windows(self, mine: Mapping[bytes, bytes], key: bytes) -> dict[str, object]:
        """Windows that are kept key by key: what their aggregates came to, or how many rows wait for the function."""
        place = PREFIX_BYTES + len(key)
        declared: Any = self._stage.logic.get("states") or []
        windows, rows = (len(declared) + at for at, _ in enumerate(WINDOW_STATES, 1))
        times = [time_of(_ROW.decode(entry[place:])[0]) for entry in mine if entry[0] == rows]
        found: dict[str, object] = {}
        for entry, value in sorted(mine.items()):
            if entry[0] == windows:
                start = _START.decode(entry[place:])[0]
                end, held = window_of(_BYTES.decode(value))
                last = end - self._window["size"] if self._is_session() else start
                waiting = {"rows": sum(start <= time <= last for time in times)}
                found[self._bounds(start, end)] = waiting if held is None else self._wide(held)
        return found

    def _bounds(self, start: int, end: int) -> str:
        return f"[{_shown(start)}, {_shown(end)}){self._zone}"


def _entries_of(key: bytes, entries: Entries) -> dict[bytes, bytes]:
    length = len(key).to_bytes(2, "big")
    return {
        entry: value
        for entry, value in entries.items()
        if entry[1:PREFIX_BYTES] == length and entry[PREFIX_BYTES:].startswith(key)
    }


def _shown(micros: int) -> str:
    try:
        return str(EPOCH_NAIVE + dt.timedelta(microseconds=micros))
    except OverflowError:
        return f"{micros} µs"
