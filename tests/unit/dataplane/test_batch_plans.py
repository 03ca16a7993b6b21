"""What Spark planned for a batch is durable before its record, kept once, and found out when it is damaged."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import fast_disk

from penstock.dataplane import paths, records
from penstock.dataplane.batch_plans import PlanKeeper, check_kept, crc_of, is_linked, read_kept, verify_plans
from penstock.dataplane.disk import PosixDisk, Step
from penstock.dataplane.findings import DAMAGE, Report
from penstock.dataplane.records import Batch, BatchPlan, PlannedFile
from penstock.errors import CorruptFileError, StorageError
from penstock.testing.disk import SimDisk

FILES = {
    "metadata": b'{"id":"q"}',
    "offsets/0": b"v1\n{}\n0",
    "sources/0/0": b"v1\n1",
    "sources/0/9.compact": b"v1\n" + b"x" * 5_000,
}


def checkpoint_in(folder: Path) -> tuple[str, Path]:
    theirs = folder / "ingest" / "src"
    for name, data in FILES.items():
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_bytes(data)
    (folder / "data").mkdir()
    return str(folder), theirs


def test_small_files_are_kept_in_one_file_and_large_ones_get_a_second_name(tmp_path: Path) -> None:
    checkpoint, theirs = checkpoint_in(tmp_path)
    kept = PlanKeeper(PosixDisk(), checkpoint, 3, str(theirs), link_from=4_096).keep(FILES, "b0xab", None)
    assert {file.path: read_kept(PosixDisk(), checkpoint, file) for file in kept} == FILES
    assert [file.path for file in kept if is_linked(file)] == ["sources/0/9.compact"]
    linked = next(file for file in kept if is_linked(file))
    assert (tmp_path / "data" / linked.kept.file).samefile(theirs / "sources/0/9.compact")
    assert sorted(os.listdir(tmp_path / "data")) == [
        "g000003-b0xab_plan-000001.pln",
        "g000003-b0xab_plan-000004.src",
    ]
    assert all(paths.parse_data(name) is not None for name in os.listdir(tmp_path / "data"))


def test_a_file_that_spark_drops_or_damages_is_still_kept(tmp_path: Path) -> None:
    checkpoint, theirs = checkpoint_in(tmp_path)
    kept = PlanKeeper(fast_disk(), checkpoint, 3, str(theirs), link_from=4_096).keep(FILES, "b0xab", None)
    (theirs / "sources/0/9.compact").unlink()
    (theirs / "offsets/0").write_bytes(b"")
    assert {file.path: read_kept(fast_disk(), checkpoint, file) for file in kept} == FILES


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_there_are_no_hard_links_a_large_file_is_copied(tmp_path: Path, number: int) -> None:
    class NoLinks:
        def before(self, step: Step, path: str) -> None:
            if step is Step.LINK:
                raise OSError(number, "no")

        def after(self, step: Step, path: str) -> None:
            pass

    checkpoint, theirs = checkpoint_in(tmp_path)
    kept = PlanKeeper(PosixDisk(NoLinks()), checkpoint, 3, str(theirs), link_from=1).keep(
        FILES, "b0xab", None
    )
    assert not any(map(is_linked, kept))
    assert {file.path: read_kept(fast_disk(), checkpoint, file) for file in kept} == FILES


def test_a_disk_that_is_full_is_an_error_and_no_reason_to_copy(tmp_path: Path) -> None:
    class Full:
        def before(self, step: Step, path: str) -> None:
            if step is Step.LINK:
                raise OSError(errno.ENOSPC, "full")

        def after(self, step: Step, path: str) -> None:
            pass

    checkpoint, theirs = checkpoint_in(tmp_path)
    with pytest.raises(StorageError, match="full"):
        PlanKeeper(PosixDisk(Full()), checkpoint, 3, str(theirs), link_from=1).keep(FILES, "b0xab", None)


def test_what_the_last_batch_has_kept_is_not_read_or_kept_again(tmp_path: Path) -> None:
    checkpoint, theirs = checkpoint_in(tmp_path)
    reads: list[str] = []

    class Watched:
        def before(self, step: Step, path: str) -> None:
            if step is Step.READ:
                reads.append(path)

        def after(self, step: Step, path: str) -> None:
            pass

    keeper = PlanKeeper(PosixDisk(Watched()), checkpoint, 3, str(theirs), link_from=4_096)
    first = keeper.keep(FILES, "b0xab", None)
    (theirs / "offsets/1").write_bytes(b"v1\n{}\n1")
    reads.clear()
    second = keeper.keep([*FILES, "offsets/1"], "b1xab", BatchPlan(first))
    assert {path.rpartition("src/")[2] for path in reads} == {"offsets/1"}
    assert [file for file in second if file.path != "offsets/1"] == first


def test_what_a_batch_kept_that_was_never_committed_is_not_used_again(tmp_path: Path) -> None:
    """Clean-up may delete it at any moment."""
    checkpoint, theirs = checkpoint_in(tmp_path)
    keeper = PlanKeeper(fast_disk(), checkpoint, 3, str(theirs), link_from=4_096)
    lost = keeper.keep(FILES, "b0xaa", None)
    again = keeper.keep(FILES, "b0xbb", None)
    assert not {file.kept.file for file in lost} & {file.kept.file for file in again}


def test_a_file_that_was_replaced_or_written_to_is_kept_anew(tmp_path: Path) -> None:
    checkpoint, theirs = checkpoint_in(tmp_path)
    keeper = PlanKeeper(fast_disk(), checkpoint, 3, str(theirs))
    first = keeper.keep(FILES, "b0xab", None)
    (theirs / "sources/0/0").write_bytes(b"v1\n2")
    second = keeper.keep(FILES, "b1xab", BatchPlan(first))
    assert {f.path for f in second} == set(FILES) and {f.path for f in second if f not in first} == {
        "sources/0/0"
    }
    assert read_kept(fast_disk(), checkpoint, next(f for f in second if f not in first)) == b"v1\n2"


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_survives_a_power_loss_as_soon_as_it_is_kept(seed: int) -> None:
    disk = SimDisk(seed)
    for folder in ("/c/data", "/c/ingest/src/offsets", "/c/ingest/src/sources/0"):
        disk.make_dirs(folder)
    for name, data in FILES.items():  # Spark syncs nothing
        disk.open_append(f"/c/ingest/src/{name}").append(data)
    look: Any = lambda path: (disk.size(path),)  # noqa: E731
    kept = PlanKeeper(disk, "/c", 1, "/c/ingest/src", 4_096, look).keep(FILES, "b0xab", None)
    disk.power_loss(random.Random(seed))
    after = disk.another()
    assert {file.path: read_kept(after, "/c", file) for file in kept} == FILES


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("harm", ["gone", "cut", "changed", "swapped"])
def test_what_is_kept_and_not_whole_is_found_by_name(tmp_path: Path, linked: bool, harm: str) -> None:
    checkpoint, theirs = checkpoint_in(tmp_path)
    keeper = PlanKeeper(fast_disk(), checkpoint, 1, str(theirs), link_from=1 if linked else 1 << 30)
    file = keeper.keep(["sources/0/9.compact"], "b0xab", None)[0]
    path = Path(paths.data_file(checkpoint, file.kept.file))
    data = bytearray(path.read_bytes())
    if harm == "changed":
        data[len(data) // 2] ^= 1
    path.unlink()
    if harm == "swapped":
        other = keeper.keep(["metadata"], "b0xcd", None)[0]
        os.link(paths.data_file(checkpoint, other.kept.file), path)
    elif harm != "gone":
        path.write_bytes(data[:-1] if harm == "cut" else data)
    for read in (check_kept, read_kept):
        with pytest.raises(CorruptFileError, match=path.name):
            read(fast_disk(), checkpoint, file)
    report = Report(checkpoint)
    verify_plans(fast_disk(), report, [None, Batch("q", 0), Batch("q", 1, BatchPlan([file]))])
    assert [(one.level, one.file) for one in report.findings] == [(DAMAGE, f"data/{path.name}")]


def test_a_record_that_names_other_bytes_than_its_frame_holds_is_refused(tmp_path: Path) -> None:
    checkpoint, theirs = checkpoint_in(tmp_path)
    file = PlanKeeper(fast_disk(), checkpoint, 1, str(theirs)).keep(["metadata"], "b0xab", None)[0]
    forged = PlannedFile(file.path, file.size, crc_of(b"other"), file.kept)
    with pytest.raises(CorruptFileError, match="other bytes of 'metadata'"):
        read_kept(fast_disk(), checkpoint, forged)


def test_the_files_of_a_plan_are_those_of_its_batch() -> None:
    extent = records.Extent("g000001-b0x_plan-000001.pln", 0, 40, 7)
    batch = Batch("q", 0, BatchPlan([PlannedFile("metadata", 3, 9, extent)]))
    assert records.files_of_batch(batch) == {extent.file}
    assert records.files_of_batch(None) == records.files_of_batch(Batch("q", 0)) == set()
