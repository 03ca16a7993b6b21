"""Segments: rows dealt to shards come back shard by shard, in order, however they were cut."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.runs import fast_disk, scratch

from penstock.dataplane import paths
from penstock.dataplane.channel import (
    DataWriter,
    EdgeSpec,
    deal_rows,
    read_entries,
    read_segment,
    write_entries,
    write_rows,
)
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.keys.hashing import hash_keys, shards_of
from penstock.dataplane.records import Extent, unpack_u32
from penstock.dataplane.slices import join_slices, slice_pieces
from penstock.dataplane.state.protocol import ENTRY_SCHEMA
from penstock.errors import CorruptFileError

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
SHARDS = 5
EDGE = EdgeSpec(3, ("k",), SHARDS, "consumer")


def table(keys: list[int], start: int = 0) -> pa.Table:
    return pa.table({"k": keys, "v": [f"row {start + at}" for at in range(len(keys))]}, SCHEMA)


def shard_of(key: int) -> int:
    return int(shards_of(hash_keys([pa.chunked_array([[key]], pa.int64())], ["k"], "o"), SHARDS)[0])


def writer_at(folder: Path, **more: int) -> DataWriter:
    (folder / "data").mkdir(exist_ok=True)
    return DataWriter(fast_disk(), str(folder), 1, "lease", "seg", **more)


@given(st.lists(st.integers(0, 30), max_size=60))
def test_dealt_rows_are_sorted_by_shard_and_keep_their_order_within_it(keys: list[int]) -> None:
    counts, batch = deal_rows(EDGE, table(keys), "o")
    expected = [
        (k, f"row {at}") for shard in range(SHARDS) for at, k in enumerate(keys) if shard_of(k) == shard
    ]
    assert list(zip(batch.column("k").to_pylist(), batch.column("v").to_pylist(), strict=True)) == expected
    assert counts.tolist() == [sum(shard_of(k) == shard for k in keys) for shard in range(SHARDS)]


def test_rows_for_an_unkeyed_consumer_stay_as_they_are() -> None:
    counts, batch = deal_rows(EdgeSpec(0, (), 1, "sink"), table([3, 1, 2]), "o")
    assert counts.tolist() == [3] and batch.column("k").to_pylist() == [3, 1, 2]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 12), max_size=25), min_size=1, max_size=4),
    st.sets(st.integers(0, SHARDS - 1), min_size=1),
    st.lists(st.integers(1, 6), max_size=4),
)
def test_slices_of_some_shards_tile_what_was_published_in_order(
    tasks: list[list[int]], shards: set[int], cuts: list[int]
) -> None:
    wanted = np.array(sorted(shards), np.uint16)
    with scratch() as folder:
        writer = writer_at(folder)
        written = [
            write_rows(writer, EDGE, table(keys, 100 * at), SCHEMA, "o").segment
            for at, keys in enumerate(tasks)
        ]
        assert [segment is None for segment in written] == [not keys for keys in tasks]
        found = [read_segment(fast_disk(), str(folder), s.extent, SCHEMA) for s in written if s is not None]
    got: dict[int, list[str]] = {shard: [] for shard in sorted(shards)}
    start = 0
    for end in [*np.cumsum(cuts).tolist(), -1]:
        rows = join_slices(slice_pieces(found, wanted, start, end), SCHEMA, by_shard=True)
        assert rows.shards.tolist() == sorted(rows.shards.tolist())
        for number, shard in enumerate(rows.shards.tolist()):
            first, last = rows.offsets[number], rows.offsets[number + 1]
            got[shard].extend(rows.rows.column("v").slice(first, last - first).to_pylist())
        start = end
    for shard in shards:
        expected = [
            f"row {100 * t + at}"
            for t, keys in enumerate(tasks)
            for at, k in enumerate(keys)
            if shard_of(k) == shard
        ]
        assert got[shard] == expected


def test_a_record_names_rows_per_shard_and_the_frame(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    segment = write_rows(writer, EDGE, table([1, 2, 3, 1]), SCHEMA, "o").segment
    assert segment is not None and segment.edge == 3 and segment.rows == 4
    assert int(unpack_u32(segment.shard_rows).sum()) == 4
    assert segment.extent.file == "g000001-lease-000001.seg"


def test_a_writer_rolls_to_a_new_file_after_a_sync_when_the_old_one_is_long_enough(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, roll_bytes=150)
    names = []
    for _ in range(3):
        extent = writer.append(FrameKind.DELTA, b"x" * 150)
        names.append(extent.file)
        writer.sync()
    assert names == ["g000001-lease-000001.seg", "g000001-lease-000002.seg", "g000001-lease-000003.seg"]
    assert writer.current == ""


@pytest.mark.parametrize(
    "wrong", ["gone", "short", "flipped", "another frame", "another kind", "another schema"]
)
def test_whatever_is_not_the_recorded_frame_is_refused_by_name(tmp_path: Path, wrong: str) -> None:
    writer = writer_at(tmp_path)
    first = write_rows(writer, EDGE, table([1, 2, 3]), SCHEMA, "o").segment
    second = write_rows(writer, EDGE, table([3, 2, 1]), SCHEMA, "o").segment
    assert first is not None and second is not None
    writer.sync()
    extent, schema, disk = first.extent, SCHEMA, PosixDisk()
    path = Path(paths.data_file(str(tmp_path), extent.file))
    if wrong == "gone":
        path.unlink()
    elif wrong == "short":
        path.write_bytes(path.read_bytes()[:100])
    elif wrong == "flipped":
        data = bytearray(path.read_bytes())
        data[60] ^= 1
        path.write_bytes(data)
    elif wrong == "another frame":
        extent = Extent(extent.file, second.extent.offset, second.extent.length, extent.crc)
    elif wrong == "another schema":
        schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("w", pa.int64())])
    with pytest.raises(CorruptFileError, match=extent.file):
        if wrong == "another kind":
            read_entries(disk, str(tmp_path), extent, FrameKind.DELTA)
        else:
            read_segment(disk, str(tmp_path), extent, schema)


def test_entries_come_back_with_their_nulls(tmp_path: Path) -> None:
    entries = pa.RecordBatch.from_pydict(
        {"shard": [1, 1, 4], "key": [b"a", b"b", b"a"], "value": [b"1", None, b""]}, ENTRY_SCHEMA
    )
    writer = writer_at(tmp_path)
    extent = write_entries(writer, FrameKind.SNAPSHOT, entries)
    assert read_entries(fast_disk(), str(tmp_path), extent, FrameKind.SNAPSHOT).equals(entries)
    other = msgspec.structs.replace(extent, crc=extent.crc ^ 1)
    with pytest.raises(CorruptFileError, match="not the recorded one"):
        read_entries(fast_disk(), str(tmp_path), other, FrameKind.SNAPSHOT)
