"""Segments: rows dealt to shards come back shard by shard, in order, however they were cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.forging import bomb
from tests.faults.runs import fast_disk, scratch

from penstock.dataplane import paths
from penstock.dataplane.arrow_bytes import _FIRST, _PLAIN
from penstock.dataplane.channel import (
    _HEAD,
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


# -- frames whose checksum fits and whose bytes lie ------------------------------------------------------------------------

TEXT = pa.schema([("s", pa.string())])


def forged(folder: Path, payload: bytes, kind: FrameKind = FrameKind.SEGMENT) -> Extent:
    writer = writer_at(folder)
    extent = writer.append(kind, payload)
    writer.sync()
    writer.close()
    return extent


def head_of(counts: list[int], rows: int, size: int | None = None) -> bytes:
    packed = np.array(counts, "<u4").tobytes()
    return (
        _HEAD.pack(len(counts), rows, len(packed) if size is None else size)
        + packed
        + bytes(-len(packed) % 8)
    )


def texts(count: int) -> pa.RecordBatch:
    return pa.record_batch({"s": [f"row {at}" for at in range(count)]}, TEXT)


def with_offsets(change: Callable[[np.ndarray], None]) -> bytes:  # type: ignore[type-arg]
    """A batch of a hundred texts with other offsets."""
    batch = texts(100)
    body, good = batch.serialize().to_pybytes(), batch.column(0).buffers()[1].to_pybytes()[: 4 * 101]
    bad = np.frombuffer(good, "<i4").copy()
    change(bad)
    return body.replace(good, bad.tobytes())


def shift_all(offsets: np.ndarray) -> None:  # type: ignore[type-arg]
    offsets[1:] += 1 << 30


def begin_behind(offsets: np.ndarray) -> None:  # type: ignore[type-arg]
    offsets[0] = 1 << 20


def go_back(offsets: np.ndarray) -> None:  # type: ignore[type-arg]
    offsets[50] = 1 << 30


LYING = {
    "no head": b"abc",
    "a head of ones": b"\xff" * 16,
    "more shards than bytes": b"\xff\xff\xff\x0f" + bytes(4) + b"\xfc\xff\xff\x3f" + bytes(4) + bytes(64),
    "other bytes of shards than shards": head_of([100], 100, 8) + texts(100).serialize().to_pybytes(),
    "no shards": head_of([], 100) + texts(100).serialize().to_pybytes(),
    "other rows than the batch": head_of([99], 99) + texts(100).serialize().to_pybytes(),
    "other rows per shard": head_of([60, 60], 100) + texts(100).serialize().to_pybytes(),
    "no batch": head_of([100], 100),
    "offsets behind the text": head_of([100], 100) + with_offsets(shift_all),
    "a first offset behind the last": head_of([100], 100) + with_offsets(begin_behind),
    "another schema": head_of([1], 1) + pa.record_batch({"x": [[1]]}).serialize().to_pybytes(),
    "a message cut off": head_of([100], 100) + texts(100).serialize().to_pybytes()[:-600],
}


@pytest.mark.parametrize("what", LYING)
def test_a_frame_that_lies_is_refused_by_name_and_takes_no_memory(tmp_path: Path, what: str) -> None:
    extent = forged(tmp_path, LYING[what])
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptFileError, match=r"g000001-lease-000001\.seg"):
        read_segment(fast_disk(), str(tmp_path), extent, TEXT)
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("size", [8000, 6 << 30])
def test_what_is_compressed_is_refused_before_it_takes_memory(tmp_path: Path, size: int) -> None:
    """8,000 bytes are what it becomes: nothing else is wrong with that one."""
    extent = forged(tmp_path, head_of([1000], 1000) + bomb(size))
    most = pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptFileError, match="compressed"):
        read_segment(fast_disk(), str(tmp_path), extent, pa.schema([("a", pa.int64())]))
    assert pa.default_memory_pool().max_memory() - most < 1 << 20


def test_an_offset_in_the_middle_is_found_by_whoever_looks_at_every_value(tmp_path: Path) -> None:
    extent = forged(tmp_path, head_of([100], 100) + with_offsets(go_back))
    with pytest.raises(CorruptFileError, match="contradict each other"):
        read_segment(fast_disk(), str(tmp_path), extent, TEXT, whole=True)


def test_text_that_is_none_is_no_damage(tmp_path: Path) -> None:
    """Spark's strings are bytes, and rows may hold any; nested too."""
    odd = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    nested = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([odd], ["t"]))
    batch = pa.RecordBatch.from_arrays([odd, nested], ["s", "n"])
    extent = forged(tmp_path, head_of([1], 1) + batch.serialize().to_pybytes())
    assert read_segment(fast_disk(), str(tmp_path), extent, batch.schema, whole=True).batch.equals(batch)


def test_rows_of_every_shape_pass_the_checks(tmp_path: Path) -> None:
    """What Arrow writes of empty, sliced and nested batches begins as it is known to begin, or is looked into."""
    batches = [
        texts(0),
        texts(7).slice(3),
        pa.record_batch({"n": [[{"a": None}], None], "m": [{"b": 1.5}, None]}),
    ]
    for number, batch in enumerate(batches):
        (tmp_path / str(number)).mkdir()
        body = batch.serialize().to_pybytes()
        extent = forged(tmp_path / str(number), head_of([batch.num_rows], batch.num_rows) + body)
        found = read_segment(fast_disk(), str(tmp_path / str(number)), extent, batch.schema, whole=True)
        assert found.batch.to_pylist() == batch.to_pylist()


def test_a_plain_batch_is_known_by_its_first_bytes() -> None:
    """Whether a batch is compressed is asked of every frame: it must not need to follow every pointer."""
    for batch in (texts(3), pa.record_batch({"a": [1.5], "b": [None], "c": [[1]]})):
        assert _FIRST.unpack_from(batch.serialize()) == _PLAIN


@pytest.mark.parametrize("what", ["shard", "key"])
def test_an_entry_without_shard_or_key_is_refused_by_name(tmp_path: Path, what: str) -> None:
    loose = pa.schema([field.with_nullable(True) for field in ENTRY_SCHEMA])
    rows = {"shard": [1, 2], "key": [b"a", b"b"], "value": [b"", None]}
    batch = pa.record_batch({**rows, what: [None, rows[what][1]]}, loose)
    extent = forged(tmp_path, batch.serialize().to_pybytes(), FrameKind.DELTA)
    with pytest.raises(CorruptFileError, match="without a shard or key"):
        read_entries(fast_disk(), str(tmp_path), extent, FrameKind.DELTA)


def test_a_shard_that_a_segment_has_no_rows_of_by_its_head_is_refused_by_name(tmp_path: Path) -> None:
    extent = forged(tmp_path, head_of([100], 100) + texts(100).serialize().to_pybytes())
    found = read_segment(fast_disk(), str(tmp_path), extent, TEXT)
    with pytest.raises(CorruptFileError, match=r"000001\.seg holds rows of 1 shards"):
        slice_pieces([found], np.array([0, 3], np.uint16), 0, -1)


@pytest.mark.parametrize(
    "name",
    [
        "../log/g000001-p000001.log",
        "/etc/passwd",
        "g000001-a-000001.seg/../../meta",
        "g000001-a-000001.seg\n",
        "g000001-\u00e9-000001.seg",
        "meta",
        "",
        "g" + "1" * 5_000 + "-a-000001.seg",
    ],
)
def test_what_is_read_names_no_file_outside_of_the_data(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Extent(name, 0, 24, 0)), type=Extent)


@pytest.mark.parametrize("place", [(-1, 24), (0, -1), (1 << 62, 24), (0, 1 << 62)])
def test_what_is_read_names_no_place_that_no_file_has(place: tuple[int, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Extent("g000001-a-000001.seg", *place, 0)), type=Extent)


@pytest.mark.parametrize("place", [(0, 1 << 60), (1 << 60, 24), (8, 1 << 40)])
def test_a_place_behind_the_end_of_a_file_is_refused_by_name(tmp_path: Path, place: tuple[int, int]) -> None:
    extent = forged(tmp_path, b"payload")
    with pytest.raises(CorruptFileError, match=r"000001\.seg is damaged"):
        read_segment(fast_disk(), str(tmp_path), Extent(extent.file, *place, extent.crc), TEXT)
