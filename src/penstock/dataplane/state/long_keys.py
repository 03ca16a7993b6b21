"""Entry keys as LMDB holds them: as they are, or, where they are too long for it, cut.

LMDB takes keys of up to 511 bytes. A longer one is its beginning and its hash, and its full text stands before the value.
Pure; what lies under a cut key is checked, since two keys may share it.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

PLAIN_BYTES: Final = 494
"""Length up to which a key is held as it is."""
_CUT_BYTES: Final = 511
_HASH_BYTES: Final = 16
KEPT_BYTES: Final = _CUT_BYTES - _HASH_BYTES
"""Bytes of a longer key that stay in front, so that keys of one beginning lie together."""
_LENGTH: Final = struct.Struct(">I")


def stored_key(key: bytes) -> bytes:
    """Return the key as LMDB holds it: itself, or when too long its beginning and its hash (511 bytes)."""
    if len(key) <= PLAIN_BYTES:
        return key
    return key[:KEPT_BYTES] + xxhash.xxh3_128_digest(key)


def stored_entry(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return an entry as LMDB holds it."""
    if len(key) <= PLAIN_BYTES:
        return key, value
    return stored_key(key), _LENGTH.pack(len(key)) + key + value


def full_entry(stored: bytes, value: bytes) -> tuple[bytes, bytes] | None:
    """Return the full entry of a cut key; None where it is not under its key."""
    end = _LENGTH.size + (_LENGTH.unpack_from(value)[0] if len(value) >= _LENGTH.size else 0)
    full = value[_LENGTH.size : end]
    if len(value) < end or stored_key(full) != stored:
        return None
    return full, value[end:]
