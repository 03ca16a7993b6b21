"""A write cut off by a crash is told from damage, for the one frame that nothing later vouches for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataplane.errands import APPEND_BYTES
from penstock.dataplane.frames import FrameKind, encode_frame, scan_frames
from penstock.dataplane.tornness import APPEND_MOST, SECTOR, is_damaged_tail


def frame(payload: bytes) -> bytes:
    return b"".join(bytes(part) for part in encode_frame(FrameKind.RECORD, payload))


def log_of(payload: bytes) -> tuple[bytes, int]:
    """A log whose last frame holds the payload, and where that begins."""
    before = frame(b"earlier " * 40)
    return before + frame(payload), len(before)


def bad_end(data: bytes) -> int | None:
    scan = scan_frames(data, "log")
    frames = list(scan)
    return None if scan.end == "clean" else (scan.end_offset if frames else 0)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=0, max_size=900), st.data())
def test_any_single_flipped_bit_of_the_last_frame_is_damage(payload: bytes, data: st.DataObject) -> None:
    log, start = log_of(payload)
    bit = data.draw(st.integers(0, 8 * (len(log) - start) - 1))
    flipped = bytearray(log)
    flipped[start + bit // 8] ^= 1 << (bit % 8)
    assert is_damaged_tail(bytes(flipped), start)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=900).filter(any), st.data())
def test_a_frame_that_lacks_its_end_is_a_cut_off_write(payload: bytes, data: st.DataObject) -> None:
    log, start = log_of(payload)
    end = data.draw(st.integers(start + 1, len(log) - 1))
    assert bad_end(log[:end]) == start
    assert not is_damaged_tail(log[:end], start)


@pytest.mark.parametrize("sector", [1, 2, 3])
def test_a_frame_with_a_sector_of_zeros_is_a_cut_off_write(sector: int) -> None:
    log, start = log_of(bytes(range(1, 256)) * 8)
    begin = (start // SECTOR + sector) * SECTOR
    holed = log[:begin] + bytes(SECTOR) + log[begin + SECTOR :]
    assert not is_damaged_tail(holed, start)


def test_a_tail_of_zeros_is_a_cut_off_write() -> None:
    log, start = log_of(b"x" * 700)
    assert not is_damaged_tail(log[:start] + bytes(1024), start)


def test_other_bytes_in_a_whole_frame_are_damage() -> None:
    log, start = log_of(b"x" * 700)
    hurt = bytearray(log)
    hurt[start + 100 : start + 110] = b"0123456789"
    assert is_damaged_tail(bytes(hurt), start)


def test_bytes_that_are_no_frame_at_all_are_damage() -> None:
    log, start = log_of(b"x" * 700)
    assert is_damaged_tail(log[:start] + b"nonsense" * 20, start)


def test_an_append_of_any_size_that_lacks_its_end_is_a_cut_off_write() -> None:
    whole = frame(b"x" * (APPEND_MOST + (1 << 20)))
    assert not is_damaged_tail(whole[:-4096], 0)
    hurt = bytearray(whole[:-4096])
    hurt[10] ^= 1
    assert is_damaged_tail(bytes(hurt), 0)
    assert is_damaged_tail(bytes(len(whole)), 0)


def test_appends_that_are_joined_are_short_enough_to_be_told_from_damage() -> None:
    assert 2 * APPEND_BYTES <= APPEND_MOST
