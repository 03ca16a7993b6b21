"""The frame around everything durable: says what a run of bytes is, how long it is, and whether it is intact.

Layout, little-endian, 24 bytes before the payload::

    0  magic    4 bytes  b"PNS1"
    4  kind     u8       FrameKind
    5  version  u8       of this layout
    6  reserved u16      zero
    8  length   u64      of the payload, without padding
    16 crc      u32      CRC32C of bytes 0-15, then of the payload
    20 check    u32      CRC32C of bytes 0-19, so that ``length`` can be trusted before the payload is read

Zero bytes pad the payload to a multiple of 8: a frame that starts aligned has an aligned payload and an
aligned successor. Padding is compared, not summed. Frames never nest: a scan takes any valid frame for one of
the log's own.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa

from penstock.dataplane.disk import Part
from penstock.errors import CorruptFileError

MAGIC = b"PNS1"
FRAME_VERSION = 1
HEADER_SIZE = 24
ALIGNMENT = 8

_FIELDS = struct.Struct("<4sBBHQ")
_HEADER = struct.Struct("<4sBBHQII")
_CRC = struct.Struct("<I")
_FIX = "restore the file from a copy"
_WINDOW = 16 << 20
_BROKEN_MOST = 16
"""Broken frames behind a broken one up to which an intact one is looked for; each is summed to its end."""
_PADDING = tuple(bytes(size) for size in range(ALIGNMENT))


class FrameKind(enum.IntEnum):
    """What a payload is. Numbers are part of the format: never reuse or renumber one."""

    RECORD = 1
    BASE = 2
    SEGMENT = 3
    DELTA = 4
    SNAPSHOT = 5
    EXPORT = 6
    HANDOVER = 7
    CLAIM = 8
    META = 9
    NEWEST = 10
    PLAN = 11


@dataclass(frozen=True, slots=True)
class Frame:
    """One intact frame of a log and where it starts."""

    kind: FrameKind
    offset: int
    payload: pa.Buffer
    crc: int


class ScanEnd(enum.StrEnum):
    """How a log ended. ``TORN``: a frame is cut off or bad, nothing valid follows; ``CORRUPT``: some does."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


def frame_size(payload_bytes: int) -> int:
    """Bytes that a payload takes in a file, header and padding included."""
    return HEADER_SIZE + payload_bytes + -payload_bytes % ALIGNMENT


def encode_frame(kind: FrameKind, *parts: Part) -> list[bytes | pa.Buffer]:
    """Return header, parts and padding, ready for ``AppendFile.append``; no part is copied.

    The parts together are the payload. They must not change until they are written.
    """
    buffers = [_flat(part) for part in parts]
    length = sum(len(buffer) for buffer in buffers)
    fields = _FIELDS.pack(MAGIC, kind, FRAME_VERSION, 0, length)
    crc = google_crc32c.value(fields)
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer)
    summed = fields + _CRC.pack(crc)
    header = summed + _CRC.pack(google_crc32c.value(summed))
    padding = _PADDING[-length % ALIGNMENT]
    return [header, *buffers, padding] if padding else [header, *buffers]


def frame_crc(frame: list[bytes | pa.Buffer]) -> int:
    """The CRC that an encoded frame carries, for the record that names it."""
    return int(_CRC.unpack_from(frame[0], _FIELDS.size)[0])


def decode_frame(
    data: Part, expected_kind: FrameKind, path: str, offset: int = 0, *, expected_crc: int | None = None
) -> pa.Buffer:
    """Return the payload of the one frame that ``data`` is, without copying it.

    Args:
        data: exactly one frame; a byte more or less is an error.
        expected_kind: another kind is an error, however intact the frame is.
        path: of the file, for the message.
        offset: of ``data`` in the file, for the message.
        expected_crc: what the record says; an intact frame with another CRC is a swapped or stale file.

    Raises:
        CorruptFileError: names the file and the offset.
    """
    whole = pa.py_buffer(data)
    frame = _parse(whole, 0)
    if isinstance(frame, _Bad):
        raise CorruptFileError(f"{path} is damaged at offset {offset}: {frame.reason}; {_FIX}.")
    if frame_size(frame.payload.size) != whole.size:
        raise CorruptFileError(
            f"{path} is damaged at offset {offset}: {whole.size} bytes stand where a frame of "
            f"{frame_size(frame.payload.size)} belongs; {_FIX}."
        )
    if frame.kind is not expected_kind:
        raise CorruptFileError(
            f"{path} holds a {frame.kind.name} frame at offset {offset} where a {expected_kind.name} frame "
            f"belongs, so it was swapped for another file; {_FIX}."
        )
    if expected_crc is not None and frame.crc != expected_crc:
        raise CorruptFileError(
            f"{path} holds an intact {frame.kind.name} frame at offset {offset} that is not the recorded one"
            f", so it is stale or was swapped for another file; {_FIX}."
        )
    return frame.payload


class FrameScan:
    """Iterates over the frames of a log; then ``end``, ``end_offset`` and ``reason`` say how it ended.

    A log that is synced after every frame can only be torn in its last one, so ``CORRUPT`` means damage.
    Damage to the last frame of a log reads as ``TORN``: only what stands elsewhere can tell the two apart.
    """

    def __init__(self, data: Part, path: str) -> None:
        self.path = path
        self.end: ScanEnd | None = None
        self.end_offset = 0
        self.reason = ""
        self._data = pa.py_buffer(data)

    def __iter__(self) -> Iterator[Frame]:
        offset = 0
        while offset < self._data.size:
            frame = _parse(self._data, offset)
            if isinstance(frame, _Bad):
                follows = _has_frame_after(self._data, frame.next_offset)
                return self._stop(ScanEnd.CORRUPT if follows else ScanEnd.TORN, offset, frame.reason)
            yield frame
            offset += frame_size(frame.payload.size)
        return self._stop(ScanEnd.CLEAN, offset, "")

    def check(self) -> None:
        """Raise ``CorruptFileError`` if the log is damaged in the middle; a torn tail passes."""
        if self.end is None:
            for _ in self:
                pass
        if self.end is ScanEnd.CORRUPT:
            raise CorruptFileError(
                f"{self.path} is damaged at offset {self.end_offset}: {self.reason}, "
                f"and intact frames follow; {_FIX}."
            )

    def _stop(self, end: ScanEnd, offset: int, reason: str) -> None:
        self.end, self.end_offset, self.reason = end, offset, reason


def scan_frames(data: Part, path: str) -> FrameScan:
    """Iterate over the frames of a log, from its first byte on."""
    return FrameScan(data, path)


@dataclass(frozen=True, slots=True)
class _Bad:
    reason: str
    next_offset: int  # the first place where another frame may start


def _parse(data: pa.Buffer, offset: int) -> Frame | _Bad:
    """Read the frame that starts at an offset; anything wrong with it is said in words."""
    searched = offset + ALIGNMENT
    if data.size - offset < HEADER_SIZE:
        return _Bad(f"{data.size - offset} bytes are too few for a frame header", data.size)
    header = data.slice(offset, HEADER_SIZE).to_pybytes()
    magic, kind, version, reserved, length, crc, check = _HEADER.unpack(header)
    if magic != MAGIC:
        return _Bad("no frame starts there", searched)
    if google_crc32c.value(header[:-4]) != check:
        return _Bad("the frame header does not match its check", searched)
    if reserved or version != FRAME_VERSION or kind not in _KINDS:
        return _Bad(f"frame kind {kind} of version {version} is not one this release can read", searched)
    end = offset + frame_size(length)
    if end > data.size:
        return _Bad(f"a payload of {length} bytes is cut off by the end of the file", data.size)
    payload = data.slice(offset + HEADER_SIZE, length)
    if google_crc32c.extend(google_crc32c.value(header[: _FIELDS.size]), payload) != crc:
        return _Bad("the payload does not match its CRC32C", end)
    padding = end - offset - HEADER_SIZE - length
    if padding and data.slice(end - padding, padding).to_pybytes() != _PADDING[padding]:
        return _Bad("the padding is not zero", end)
    return Frame(_KINDS[kind], offset, payload, crc)


_KINDS = {int(kind): kind for kind in FrameKind}


def _has_frame_after(data: pa.Buffer, offset: int) -> bool:
    """Whether an intact frame starts at any aligned offset from here on, or so many that are not that somebody put them
    there."""
    broken = 0
    for at in _places_of_magic(data, offset):
        found = _parse(data, at)
        if isinstance(found, Frame):
            return True
        broken += found.next_offset != at + ALIGNMENT  # its header is whole, and its payload was summed
        if broken > _BROKEN_MOST:
            return True
    return False


def _places_of_magic(data: pa.Buffer, offset: int) -> Iterator[int]:
    """Aligned places where a frame may start; a window of the bytes is copied at a time."""
    whole = memoryview(data)
    for start in range(offset, data.size, _WINDOW):
        window = bytes(whole[start : start + _WINDOW + len(MAGIC) - 1])
        found = window.find(MAGIC)
        while found >= 0:
            if (start + found) % ALIGNMENT == 0:
                yield start + found
            found = window.find(MAGIC, found + 1)


def _flat(part: Part) -> bytes | pa.Buffer:
    """Wrap what the CRC would not take without a copy: it reads bytes and Arrow buffers, no memoryview."""
    return part if isinstance(part, (bytes, pa.Buffer)) else pa.py_buffer(part)
