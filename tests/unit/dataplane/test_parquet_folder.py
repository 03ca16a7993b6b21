"""Every sink epoch is in a Parquet folder once, whole, and only when it is durable; whatever dies at any step."""

from __future__ import annotations

import datetime as dt
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataplane.disk import PosixDisk, Step
from penstock.dataplane.parquet_folder import (
    FILES_PER_MANIFEST,
    HIDDEN,
    ParquetFolder,
    check_folder,
    find_damage,
    read_manifest,
)
from penstock.dataplane.partitioning import split_by
from penstock.errors import CheckpointError, CorruptFileError, StorageError
from penstock.testing.disk import SimDisk
from penstock.testing.faults import FaultPlan, SimCrash, Trace, crash_plans, fail

OUT = "/out"
QUERY = "9a1c"
EPOCHS = {1: list(range(5)), 2: [5], 3: list(range(6, 30))}


def rows(numbers: list[int]) -> pa.Table:
    return pa.table(
        {"n": pa.array(numbers, pa.int64()), "half": pa.array([n % 2 for n in numbers], pa.int64())}
    )


def sim_disk(faults: object = None, seed: int = 0) -> SimDisk:
    return SimDisk(seed, faults, temps=f"{OUT}/{HIDDEN}")  # type: ignore[arg-type]


def run(disk: SimDisk, done: set[int], generation: int, partition_by: tuple[str, ...] = ()) -> None:
    """What the engine makes of it: sink epochs in order, again from the first that is not done."""
    folder = ParquetFolder(OUT, QUERY, generation, partition_by=partition_by, disk=disk)
    for epoch, numbers in EPOCHS.items():
        if epoch not in done:
            folder.add(rows(numbers), epoch)
            done.add(epoch)


def visible(disk: SimDisk, folder: str = OUT) -> list[int]:
    """The rows that a reader finds, who passes over names that begin with an underscore or a dot."""
    found: list[int] = []
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if name.startswith(("_", ".")):
            continue
        if disk._calls.is_dir(path):
            found.extend(visible(disk, path))
        else:
            assert name.endswith(".parquet"), name
            found.extend(pq.ParquetFile(pa.BufferReader(disk.read(path))).read()["n"].to_pylist())
    return found


@pytest.mark.parametrize("partition_by", [(), ("half",)], ids=["flat", "partitioned"])
@pytest.mark.parametrize("power", [False, True], ids=["crash", "power loss"])
def test_a_crash_at_any_step_neither_loses_nor_doubles_a_row(
    power: bool, partition_by: tuple[str, ...]
) -> None:
    trace = Trace()
    run(sim_disk(trace), set(), 1, partition_by)
    everything = [number for numbers in EPOCHS.values() for number in numbers]
    plans = list(crash_plans(len(trace.steps)))
    assert len(plans) > 60
    for seed, plan in enumerate(plans):
        disk, done = sim_disk(plan, seed), set[int]()
        with pytest.raises(SimCrash):
            run(disk, done, 1, partition_by)
            raise AssertionError("the plan has more steps than the run")
        if power:
            disk.power_loss(random.Random(seed))
        after = disk.another()
        seen = visible(after)
        assert len(seen) == len(set(seen)), "a row is there twice"
        begun = [n for epoch in EPOCHS if epoch <= len(done) + 1 for n in EPOCHS[epoch]]
        assert set(seen) <= set(begun), "a row of a sink epoch that was not begun"
        assert {n for epoch in done for n in EPOCHS[epoch]} <= set(seen), "a row of a done sink epoch is lost"
        run(after, done, 2, partition_by)
        assert sorted(visible(after)) == everything
        listed = read_manifest(OUT, after)
        assert sum(file.rows for file in listed) == len(everything)
        assert not list(find_damage(OUT, after))


def test_what_is_under_way_is_nowhere_that_readers_look(tmp_path: Path) -> None:
    folder = ParquetFolder(str(tmp_path), QUERY, 1)
    folder._disk = PosixDisk(FaultPlan([fail(Step.LINK)]), temps=str(tmp_path / HIDDEN))
    with pytest.raises(StorageError):
        folder.add(rows([1, 2]), 1)
    assert os.listdir(tmp_path) == [HIDDEN]
    trace = Trace()
    folder._disk = PosixDisk(trace, temps=str(tmp_path / HIDDEN))
    folder.add(rows([1, 2]), 1)
    created = [path for step, path in trace.steps if step is Step.CREATE]
    assert created and all(os.path.dirname(path) == str(tmp_path / HIDDEN) for path in created)


def test_orphans_of_an_earlier_driver_are_cleared_away(tmp_path: Path) -> None:
    ParquetFolder(str(tmp_path), QUERY, 1)
    orphan = tmp_path / HIDDEN / "part-0000000001-9a1c.parquet.12-ab-0.tmp"
    orphan.write_bytes(b"half a file")
    ParquetFolder(str(tmp_path), QUERY, 2)
    assert not orphan.exists()


def test_a_folder_of_another_query_is_refused_with_both_queries_named(tmp_path: Path) -> None:
    ParquetFolder(str(tmp_path), QUERY, 1).add(rows([1]), 1)
    with pytest.raises(
        CheckpointError, match=r"holds rows of query 9a1c.*that of query ffff.*give another path"
    ):
        ParquetFolder(str(tmp_path), "ffff", 1)


def test_another_layout_than_that_of_the_folder_is_refused(tmp_path: Path) -> None:
    ParquetFolder(str(tmp_path), QUERY, 1, partition_by=["half"]).add(rows([1]), 1)
    with pytest.raises(CheckpointError, match=r"laid out by \['half'\], and this query partitions by \[\]"):
        ParquetFolder(str(tmp_path), QUERY, 2)


def test_a_name_that_is_taken_by_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = ParquetFolder(str(tmp_path), QUERY, 1)
    name = tmp_path / f"part-0000000001-{QUERY}.parquet"
    name.write_bytes(b"mine")
    with pytest.raises(
        CorruptFileError, match=r"part-0000000001-9a1c.parquet is no Parquet file; move it away"
    ):
        folder.add(rows([1]), 1)
    assert name.read_bytes() == b"mine"
    pq.write_table(rows([1, 2]), name)
    with pytest.raises(
        CorruptFileError, match="has 2 rows of sink epoch none, and not the 1 rows of sink epoch 1"
    ):
        folder.add(rows([1]), 1)


def test_a_damaged_or_missing_file_is_found_by_the_manifest(tmp_path: Path) -> None:
    folder = ParquetFolder(str(tmp_path), QUERY, 1)
    for epoch in (1, 2, 3):
        folder.add(rows([epoch]), epoch)
    first, second, third = (tmp_path / file.name for file in read_manifest(str(tmp_path)))
    first.unlink()
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    said = list(find_damage(str(tmp_path)))
    assert len(said) == 2 and first.name in said[0] and second.name in said[1] and third.exists()


def test_a_manifest_of_a_newer_release_or_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    ParquetFolder(str(tmp_path), QUERY, 1)
    part = tmp_path / HIDDEN / "manifest-00000001-000000.json"
    part.write_text('{"format": 9, "query": "9a1c", "files": []}')
    with pytest.raises(
        CheckpointError, match=r"manifest-00000001-000000.json has format 9, of a newer release"
    ):
        read_manifest(str(tmp_path))
    part.write_text("{")
    with pytest.raises(CorruptFileError, match=r"manifest-00000001-000000.json holds no ManifestPart"):
        read_manifest(str(tmp_path))


def test_the_manifest_goes_on_in_another_part_when_one_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FILES_PER_MANIFEST >= 100
    monkeypatch.setattr("penstock.dataplane.parquet_folder.FILES_PER_MANIFEST", 2)
    folder = ParquetFolder(str(tmp_path), QUERY, 1)
    for epoch in range(1, 6):
        folder.add(rows([epoch]), epoch)
    parts = [name for name in os.listdir(tmp_path / HIDDEN) if name.startswith("manifest-")]
    assert len(parts) == 3
    assert [file.sink_epoch for file in read_manifest(str(tmp_path))] == [1, 2, 3, 4, 5]


def test_a_sink_epoch_without_rows_leaves_no_file(tmp_path: Path) -> None:
    folder = ParquetFolder(str(tmp_path), QUERY, 1)
    folder.add(rows([]), 1)
    assert os.listdir(tmp_path) == [HIDDEN] and read_manifest(str(tmp_path)) == []


def test_folders_are_named_as_spark_names_them() -> None:
    table = pa.table(
        {
            "s": pa.array(["a/b=c", "", None, "ä b", "a/b=c"]),
            "d": pa.array([dt.date(2024, 3, 31)] * 5),
            "b": pa.array([True, False, True, True, True]),
            "n": pa.array([1, 2, 3, 4, 5], pa.int64()),
        }
    )
    found = {folder: part["n"].to_pylist() for folder, part in split_by(table, ["s", "d", "b"])}
    assert found == {
        "s=a%2Fb%3Dc/d=2024-03-31/b=true": [1, 5],
        "s=__HIVE_DEFAULT_PARTITION__/d=2024-03-31/b=false": [2],
        "s=__HIVE_DEFAULT_PARTITION__/d=2024-03-31/b=true": [3],
        "s=ä b/d=2024-03-31/b=true": [4],
    }
    assert split_by(table, []) == [("", table)]


def test_a_folder_can_be_checked_before_anything_is_made() -> None:
    disk = sim_disk()
    check_folder(OUT, None, disk=disk)
    assert disk.list(OUT) == [], "asking leaves nothing behind"
    run(disk, set(), 1)
    check_folder(OUT, QUERY, disk=disk)
    with pytest.raises(
        CheckpointError, match=f"holds rows of query {QUERY}, and this checkpoint is new.*another path"
    ):
        check_folder(OUT, None, disk=disk)
    with pytest.raises(CheckpointError, match="this checkpoint is that of query other"):
        check_folder(OUT, "other", disk=disk)
    with pytest.raises(CheckpointError, match="give the same partitionBy"):
        check_folder(OUT, QUERY, ["n"], disk=disk)
