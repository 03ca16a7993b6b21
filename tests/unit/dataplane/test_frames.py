"""Frames: no flip and no cut passes unseen, and a scan says how a log ended."""

from __future__ import annotations

import random
import struct

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.dataplane.frames import (
    HEADER_SIZE,
    MAGIC,
    FrameKind,
    ScanEnd,
    decode_frame,
    encode_frame,
    frame_crc,
    frame_size,
    scan_frames,
)
from penstock.errors import CorruptFileError

kinds = st.sampled_from(FrameKind)
payloads = st.binary(max_size=300)


def framed(payload: bytes, kind: FrameKind = FrameKind.RECORD) -> bytes:
    return b"".join(bytes(part) for part in encode_frame(kind, payload))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_the_layout_is_fixed_by_the_format() -> None:
    golden = "504e5331010100000900000000000000acb590b21d4a116170656e73746f636b2100000000000000"
    assert framed(b"penstock!").hex() == golden
    names = [
        "RECORD",
        "BASE",
        "SEGMENT",
        "DELTA",
        "SNAPSHOT",
        "EXPORT",
        "HANDOVER",
        "CLAIM",
        "META",
        "NEWEST",
        "PLAN",
    ]
    assert [(kind.name, kind.value) for kind in FrameKind] == [(name, n) for n, name in enumerate(names, 1)]


@given(kinds, st.lists(payloads, max_size=5))
def test_a_payload_comes_back_whatever_its_parts(kind: FrameKind, parts: list[bytes]) -> None:
    views = [(bytes, bytearray, memoryview, pa.py_buffer)[n % 4](part) for n, part in enumerate(parts)]
    frame = encode_frame(kind, *views)
    data = b"".join(bytes(part) for part in frame)
    payload = b"".join(parts)
    assert data == framed(payload, kind)
    assert len(data) == frame_size(len(payload))
    assert len(data) % 8 == 0
    decoded = decode_frame(data, kind, "file", expected_crc=frame_crc(frame))
    assert decoded.to_pybytes() == payload


def test_big_parts_are_neither_copied_in_nor_out() -> None:
    column = np.arange(1 << 17)
    frame = encode_frame(FrameKind.SEGMENT, memoryview(column.data))
    assert pa.py_buffer(frame[1]).address == column.ctypes.data
    data = pa.py_buffer(framed(column.tobytes(), FrameKind.SEGMENT))
    assert decode_frame(data, FrameKind.SEGMENT, "file").address == data.address + HEADER_SIZE


def test_the_length_of_a_part_is_counted_in_bytes() -> None:
    column = np.arange(3, dtype=np.int64)
    frame = encode_frame(FrameKind.DELTA, memoryview(column.data))
    data = b"".join(bytes(part) for part in frame)
    assert decode_frame(data, FrameKind.DELTA, "file").to_pybytes() == column.tobytes()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_every_single_bit_flip_of_a_frame_is_detected(size: int) -> None:
    data = framed(random.Random(size).randbytes(size))
    for bit in range(len(data) * 8):
        with pytest.raises(CorruptFileError, match="the-file is damaged at offset 4096"):
            decode_frame(flipped(data, bit), FrameKind.RECORD, "the-file", 4096)


@pytest.mark.parametrize("kind", FrameKind)
def test_bit_flips_at_1000_positions_of_a_large_frame_are_detected(kind: FrameKind) -> None:
    rng = random.Random(kind)
    data = framed(rng.randbytes(20_001), kind)
    for bit in rng.sample(range(len(data) * 8), 1000):
        with pytest.raises(CorruptFileError):
            decode_frame(flipped(data, bit), kind, "file")


@given(payloads, st.integers(min_value=0, max_value=10_000))
def test_a_frame_cut_anywhere_or_followed_by_anything_is_refused(payload: bytes, cut: int) -> None:
    data = framed(payload)
    for wrong in (data[: cut % len(data)], data + bytes(8), data + b"\0"):
        with pytest.raises(CorruptFileError, match="file"):
            decode_frame(wrong, FrameKind.RECORD, "file")


@pytest.mark.parametrize(("kind", "version", "reserved"), [(1, 2, 0), (99, 1, 0), (1, 1, 1)])
def test_a_sound_frame_of_a_later_format_is_refused(kind: int, version: int, reserved: int) -> None:
    fields = struct.pack("<4sBBHQ", MAGIC, kind, version, reserved, 8)
    summed = fields + struct.pack("<I", google_crc32c.value(fields + b"payload!"))
    data = summed + struct.pack("<I", google_crc32c.value(summed)) + b"payload!"
    with pytest.raises(
        CorruptFileError, match=f"kind {kind} of version {version} is not one this release can read"
    ):
        decode_frame(data, FrameKind.RECORD, "file")


def test_an_intact_frame_of_another_kind_is_refused_by_both_names() -> None:
    with pytest.raises(CorruptFileError, match=r"the-file holds a BASE frame at offset 8 where a RECORD"):
        decode_frame(framed(b"x", FrameKind.BASE), FrameKind.RECORD, "the-file", 8)


def test_an_intact_frame_that_is_not_the_recorded_one_is_refused() -> None:
    recorded = frame_crc(encode_frame(FrameKind.RECORD, b"new"))
    with pytest.raises(
        CorruptFileError, match="the-file holds an intact RECORD frame at offset 0 that is not"
    ):
        decode_frame(framed(b"old"), FrameKind.RECORD, "the-file", expected_crc=recorded)


@given(st.lists(st.tuples(kinds, payloads), max_size=6))
def test_a_whole_log_scans_clean(frames: list[tuple[FrameKind, bytes]]) -> None:
    data = b"".join(framed(payload, kind) for kind, payload in frames)
    scan = scan_frames(data, "log")
    found = list(scan)
    assert [(frame.kind, frame.payload.to_pybytes()) for frame in found] == frames
    assert all(frame.offset % 8 == 0 for frame in found)
    assert (scan.end, scan.end_offset, scan.reason) == (ScanEnd.CLEAN, len(data), "")
    scan.check()


@given(st.lists(payloads, min_size=1, max_size=4), st.integers(min_value=0))
@example([b"x"], 0)
def test_a_log_cut_anywhere_ends_clean_or_torn_after_its_whole_frames(
    payloads: list[bytes], cut: int
) -> None:
    frames = [framed(payload) for payload in payloads]
    data = b"".join(frames)
    kept = data[: cut % (len(data) + 1)]
    scan = scan_frames(kept, "log")
    found = list(scan)
    ends = [sum(map(len, frames[:count])) for count in range(len(frames) + 1)]
    whole = max(count for count, end in enumerate(ends) if end <= len(kept))
    assert [frame.payload.to_pybytes() for frame in found] == payloads[:whole]
    assert scan.end is (ScanEnd.CLEAN if ends[whole] == len(kept) else ScanEnd.TORN)
    assert scan.end_offset == ends[whole]
    scan.check()


@given(st.lists(payloads, min_size=2, max_size=4), st.integers(min_value=0))
@settings(max_examples=300)
def test_a_flip_is_corrupt_in_the_middle_and_torn_in_the_last_frame(payloads: list[bytes], bit: int) -> None:
    frames = [framed(payload) for payload in payloads]
    data = b"".join(frames)
    bit %= len(data) * 8
    damaged = next(n for n in range(len(frames)) if bit // 8 < sum(map(len, frames[: n + 1])))
    scan = scan_frames(flipped(data, bit), "log")
    assert [frame.payload.to_pybytes() for frame in scan] == payloads[:damaged]
    assert scan.end is (ScanEnd.TORN if damaged == len(frames) - 1 else ScanEnd.CORRUPT)
    assert scan.end_offset == sum(map(len, frames[:damaged]))
    assert scan.reason
    if scan.end is ScanEnd.CORRUPT:
        with pytest.raises(CorruptFileError, match=f"log is damaged at offset {scan.end_offset}: "):
            scan.check()


@pytest.mark.parametrize(
    "tail", [bytes(8), bytes(4096), b"garbage", MAGIC, MAGIC * 10, framed(b"cut off")[:-8]]
)
def test_anything_but_a_frame_after_the_last_one_is_a_torn_tail(tail: bytes) -> None:
    scan = scan_frames(framed(b"whole") + tail, "log")
    assert len(list(scan)) == 1
    assert (scan.end, scan.end_offset) == (ScanEnd.TORN, len(framed(b"whole")))


def test_a_lost_frame_before_a_whole_one_is_corrupt_and_not_a_tail() -> None:
    lost = bytes(len(framed(b"lost")))
    scan = scan_frames(framed(b"first") + lost + framed(b"last"), "log")
    assert [frame.payload.to_pybytes() for frame in scan] == [b"first"]
    assert scan.end is ScanEnd.CORRUPT


def test_a_frame_inside_a_cut_payload_whose_header_is_sound_does_not_count() -> None:
    nested = framed(bytes(8) + framed(b"inner") + bytes(64))
    scan = scan_frames(framed(b"first") + nested[:-8], "log")
    assert len(list(scan)) == 1
    assert scan.end is ScanEnd.TORN


def test_an_empty_log_is_clean() -> None:
    scan = scan_frames(b"", "log")
    assert list(scan) == []
    assert scan.end is ScanEnd.CLEAN
