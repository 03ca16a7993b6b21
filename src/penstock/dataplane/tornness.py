"""Tells a cut-off write from damage, for the one frame of a log that no later frame vouches for.

A write that a crash cut off lacks its end or whole sectors (they read as zeros). Anything else that fails its
checksum is damage, and so is a frame that one flipped bit would make valid. Pure functions over bytes.
"""

from __future__ import annotations

import google_crc32c
import pyarrow as pa

from penstock.dataplane.frames import HEADER_SIZE, MAGIC, Frame, _Bad, _parse, frame_size

SECTOR = 512
APPEND_MOST = 64 << 20
"""More bytes than appends have that are joined (`errands.APPEND_BYTES`). Of what is longer only the header is looked at."""
FLIPS_MOST = 1 << 25
"""Bits of a payload up to which a flipped one is looked for; a few seconds."""
_POLYNOMIAL = 0x82F63B78


def is_damaged_tail(data: bytes | memoryview, offset: int) -> bool:
    """Whether the bad bytes from `offset` to the end look like damage rather than a write cut off by a
    crash."""
    if len(data) - offset > APPEND_MOST:
        return not _lacks_its_end(bytes(data[offset : offset + HEADER_SIZE]), len(data) - offset)
    tail = bytes(data[offset:])
    if _one_bit_from_valid(tail):
        return True
    found = _parse(pa.py_buffer(tail), 0)
    assert isinstance(found, _Bad), "only a bad tail is asked about"
    complete = "payload does not match" in found.reason or "padding" in found.reason
    if not complete and len(tail) >= HEADER_SIZE and _header_is_whole(tail):
        return False  # a good header whose payload is cut off by the end of the file
    if not complete and len(tail) < HEADER_SIZE:
        return False
    return not _has_missing_sector(tail, offset)


def _lacks_its_end(header: bytes, there: int) -> bool:
    """Whether this many bytes are the beginning of a frame that lacks its end."""
    length = int.from_bytes(header[8:16], "little")
    return header[:4] == MAGIC and _header_is_whole(header) and frame_size(length) > there


def _header_is_whole(tail: bytes) -> bool:
    return bool(int.from_bytes(tail[20:24], "little") == google_crc32c.value(tail[:20]))


def _has_missing_sector(tail: bytes, offset: int) -> bool:
    """Whether the part of some sector of the file, from `offset` to the end, reads as zeros only."""
    start = 0
    while start < len(tail):
        end = min(start + SECTOR - (offset + start) % SECTOR, len(tail))
        if not any(tail[start:end]):
            return True
        start = end
    return False


def _one_bit_from_valid(tail: bytes) -> bool:
    """Whether flipping one bit gives a valid frame that fills the tail or ends before it."""
    head = bytearray(tail[:HEADER_SIZE])
    for bit in range(8 * len(head)):
        flipped = bytearray(head)
        flipped[bit // 8] ^= 1 << (bit % 8)
        if len(head) == HEADER_SIZE and _header_is_whole(bytes(flipped)):
            return isinstance(_parse(pa.py_buffer(bytes(flipped) + tail[HEADER_SIZE:]), 0), Frame)
    if len(head) < HEADER_SIZE or not _header_is_whole(tail):
        return False
    length = int.from_bytes(tail[8:16], "little")
    if frame_size(length) > len(tail):
        return False
    padding = tail[HEADER_SIZE + length : frame_size(length)]
    if any(padding):
        return bin(int.from_bytes(padding, "little")).count("1") == 1
    stored = int.from_bytes(tail[16:20], "little")
    actual = google_crc32c.extend(
        google_crc32c.value(tail[:16]), bytes(tail[HEADER_SIZE : HEADER_SIZE + length])
    )
    return _is_one_bit_error(stored ^ actual, 8 * length)


def _is_one_bit_error(syndrome: int, bits: int) -> bool:
    """Whether this difference of two CRC32C is that of one flipped bit among the last `bits` of the message.

    A CRC is linear: a flipped bit changes it by a value that depends only on the bit's distance from the end,
    and each step of distance multiplies that value by x modulo the polynomial.
    """
    # The last bit of the last byte, in the reflected order, has passed through one step.
    effect = _POLYNOMIAL
    for _ in range(min(bits, FLIPS_MOST)):
        if effect == syndrome:
            return True
        effect = (effect >> 1) ^ (_POLYNOMIAL if effect & 1 else 0)
    return False
