"""The hash of an entry, the seal under which it lies in local state, and sums of hashes.

The hash covers key and value; a digest is the sum of a shard's entry hashes (two lanes, each modulo 2**64).
The seal is half of the hash, put in front of the value and checked on every load. Pure functions; part of the
format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from xxhash import xxh3_128_digest

from penstock.dataplane.state.protocol import U64

SEAL_BYTES: Final = 8
NO_HASH: Final = bytes(16)
"""Stands for an entry that is not there: adding it to a sum changes nothing."""

_LENGTHS: Final = [struct.pack(">H", length) for length in range(2048)]
_PACK_LENGTH: Final = struct.Struct(">H").pack


def entry_hash(key: bytes, value: bytes) -> bytes:
    """Return the 16-byte hash of one entry."""
    return xxh3_128_digest(_PACK_LENGTH(len(key)) + key + value)


def entry_hashes(keys: Iterable[bytes], values: Iterable[bytes]) -> list[bytes]:
    """Hash many entries whose keys are shorter than 2048 bytes."""
    lengths, digest = _LENGTHS, xxh3_128_digest
    return [digest(lengths[len(key)] + key + value) for key, value in zip(keys, values, strict=True)]


def seal(value: bytes, hash_: bytes) -> bytes:
    """Return the value as it is stored."""
    return hash_[-SEAL_BYTES:] + value


def unseal(key: bytes, stored: bytes) -> tuple[bytes, bytes] | None:
    """Return (value, entry hash), or None when what is stored is not what was sealed under this key."""
    value = stored[SEAL_BYTES:]
    hash_ = entry_hash(key, value)
    return (value, hash_) if hash_[-SEAL_BYTES:] == stored[:SEAL_BYTES] else None


def hash_lanes(hashes: Sequence[bytes]) -> U64:
    """Return the hashes as an array of shape (len(hashes), 2)."""
    return np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2).astype(np.uint64, copy=False)


def sum_of(hashes: Sequence[bytes]) -> U64:
    """Return the two lanes of the sum of hashes."""
    total: U64 = hash_lanes(hashes).sum(axis=0, dtype=np.uint64)
    return total
