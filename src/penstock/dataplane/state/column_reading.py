"""Reads entries of columnar state back: from a shard's local environment, each proved by its check, and key bytes as
hashes. Trusts nothing that it reads, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.dataplane.keys import hashing
from penstock.dataplane.keys.encoding import decode_keys
from penstock.dataplane.keys.kinds import kind_of
from penstock.dataplane.state.column_entries import EntryFormat, entry_hashes, strip_entry_keys, unpack_values
from penstock.dataplane.state.local import LocalShard
from penstock.dataplane.state.protocol import U64, digest_lanes
from penstock.errors import CorruptFileError, OperatorError


@dataclass(frozen=True)
class EntryReader:
    """Reads the entries of one operator."""

    form: EntryFormat
    key_types: Sequence[pa.DataType]
    key_names: Sequence[str]
    operator: str

    def gives_its_digest(self, local: LocalShard) -> bool:
        """Read a copy whole: what is stored beside the entries says nothing of a damaged or lost one."""
        try:
            _, rows = self.scan(local)
        except (CorruptFileError, OperatorError, ValueError, pa.ArrowException):
            return False
        return np.array_equal(entry_hashes(rows).sum(axis=0, dtype=np.uint64), digest_lanes(local.digest))

    def scan(self, local: LocalShard) -> tuple[pa.BinaryArray, U64]:
        """Return all keys and rows of an environment.

        Raises:
            CorruptFileError: an entry is damaged.
        """
        entries = local.scan()
        keys = strip_entry_keys(pa.array([key for key, _ in entries], pa.binary()))
        if keys is None:
            raise damaged(local)
        return keys, self.checked(
            pa.array([value for _, value in entries], pa.binary()), self.hashes(keys), local
        )

    def checked(self, values: pa.BinaryArray, hashes: U64, local: LocalShard) -> U64:
        """Unpack values read from an environment, each proved by its check."""
        unpacked = unpack_values(values, hashes, self.form, checked=True)
        if unpacked is None or not np.array_equal(entry_hashes(unpacked[0])[:, 0], unpacked[1]):
            raise damaged(local)
        return unpacked[0]

    def hashes(self, keys: pa.BinaryArray) -> U64:
        """Return the hashes of stored keys."""
        columns = decode_keys(keys, self.key_types)
        return hashing.hash_keys(columns, self.key_names, self.operator)


def fixed_key_bytes(types: Sequence[pa.DataType]) -> int | None:
    """Return the length of the key bytes of these types, None when it varies."""
    kinds = [kind_of(type_) for type_ in types]
    return None if "bytes" in kinds else sum(16 if kind == "decimal" else 8 for kind in kinds)


def hashes_are_exact(types: Sequence[pa.DataType]) -> bool:
    """Whether different keys have different hashes: one fixed-width column is hashed by a bijection."""
    return len(types) == 1 and kind_of(types[0]) not in ("bytes", "decimal")


def damaged(local: LocalShard) -> CorruptFileError:
    """Return the error of an environment with a damaged entry."""
    return CorruptFileError(
        f"local state {local.path} holds a damaged entry; it is rebuilt from the checkpoint"
    )
