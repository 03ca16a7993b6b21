"""Records and bases: same value, same bytes; nothing read back can be anything but data."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane import records
from penstock.dataplane.records import (
    Base,
    Batch,
    ChainBase,
    Extent,
    Group,
    Placed,
    Position,
    Range,
    Record,
    Redeal,
    Segment,
    Stamp,
    TaskPart,
)

EXTENT = Extent("g000001-a-000001.seg", 0, 128, 7)
PART = TaskPart(
    0, "a", records.pack_u16(np.array([1, 3], np.uint16)), 5, 4,
    [Segment(2, EXTENT, 4, records.pack_u32(np.array([1, 3], np.uint32)))], EXTENT, b"\1\0", bytes(16), b"\4\0\0\0",
)  # fmt: skip
RECORD = Record(
    "count", 3, "epoch", 2, bytes(range(16)), 1_700_000_000_000_000,
    [Group(b"\1\0\3\0", [Range(0, "source", Position(1, 0), Position(4, 2))])], [PART], Stamp(5, 1, 2.0, 3),
)  # fmt: skip
BASE = Base(
    1, "q", 2, 1, b"id", 9, [ChainBase("count", 3, bytes(16), [], [], intent=RECORD, batch=Batch("s", 4))]
)


def test_a_record_and_a_base_come_back_as_they_were() -> None:
    assert records.decode_record(records.encode(RECORD)) == RECORD
    assert records.decode_base(records.encode(BASE)) == BASE


def test_the_same_value_gives_the_same_bytes_after_a_round_trip() -> None:
    encoded = records.encode(RECORD)
    assert records.encode(records.decode_record(encoded)) == encoded
    assert records.encode(records.decode_base(records.encode(BASE))) == records.encode(BASE)


def test_the_bytes_of_a_record_are_fixed_by_the_format_version() -> None:
    assert records.hash_of(records.encode(RECORD)).hex() == "8938f5048e4a03df39d523b2031438ee"
    assert records.hash_of(records.encode(BASE)).hex() == "dc3f73979a91021d22d053dbfc22895f"


def test_a_record_of_an_earlier_release_that_lacks_the_last_fields_can_be_read() -> None:
    fields = msgspec.msgpack.decode(records.encode(RECORD))
    shorter = msgspec.msgpack.encode(fields[:8])
    assert records.decode_record(shorter) == msgspec.structs.replace(RECORD, stamp=None)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode({"chain": "x"})])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        records.decode_record(data)
    with pytest.raises(msgspec.MsgspecError):
        records.decode_base(data)


@given(st.lists(st.integers(0, 65535)))
def test_packed_shards_come_back(values: list[int]) -> None:
    assert records.unpack_u16(records.pack_u16(np.array(values, np.uint16))).tolist() == values


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_packed_words_come_back_and_can_be_changed(values: list[int]) -> None:
    unpacked = records.unpack_u64(records.pack_u64(np.array(values, np.uint64)))
    assert unpacked.tolist() == values
    unpacked += np.uint64(1)  # a frozen view of the record's bytes would raise


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=6))
def test_combined_stamps_weigh_by_rows(parts: list[tuple[int, int, int]]) -> None:
    stamps = [Stamp(rows, at, at + span / 2, at + span) for rows, at, span in parts]
    combined = records.combine_stamps(stamps)
    rows = sum(stamp.rows for stamp in stamps)
    if rows == 0:
        assert combined is None
        return
    assert combined is not None and combined.rows == rows
    assert combined.first_us == min(s.first_us for s in stamps if s.rows)
    assert combined.last_us == max(s.last_us for s in stamps if s.rows)
    assert combined.mean_us == pytest.approx(sum(s.rows * s.mean_us for s in stamps) / rows)


def test_positions_order_by_epoch_and_then_by_row() -> None:
    assert Position(2, 9) < Position(3, 0) < Position(3, 1)


def test_a_batch_has_its_plan_or_ends_before_it_as_it_did_before_there_were_any() -> None:
    plan = records.BatchPlan([records.PlannedFile("offsets/4", 9, 8, EXTENT)], stateful=True)
    planned = msgspec.structs.replace(RECORD, batch=Batch("s", 4, plan))
    short = msgspec.structs.replace(RECORD, batch=Batch("s", 4))
    for record in (planned, short):
        assert records.decode_record(records.encode(record)) == record
        base = msgspec.structs.replace(
            BASE, chains=[ChainBase("s", 1, bytes(16), [], [], batch=record.batch)]
        )
        assert records.decode_base(records.encode(base)) == base
    at = Record.__struct_fields__.index("batch")
    assert msgspec.msgpack.decode(records.encode(short))[at] == ["s", 4]


def test_a_base_ends_before_placements_and_deals_that_it_lacks_and_keeps_those_it_has() -> None:
    assert len(msgspec.msgpack.decode(records.encode(BASE))) == 7
    deal = Redeal("count", "count#2", b"\0\0")
    for more in ({"redeals": [deal]}, {"placed": {"count": Placed(1, [0], [""])}, "redeals": [deal]}):
        base = msgspec.structs.replace(BASE, **more)
        assert records.decode_base(records.encode(base)) == base
