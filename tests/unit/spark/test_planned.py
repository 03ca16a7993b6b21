"""What Spark planned, kept and put back, on real folders and a model of Spark. The oracle is arithmetic: every input file
counts exactly once, whatever became of Spark's folder, or the folder is refused by name."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.faults.runs import fast_disk, scratch
from tests.unit.spark.structured_streaming import SparkError, Streaming

from penstock.dataplane import paths, recordlog, records
from penstock.dataplane.cleanup import plan_cleanup
from penstock.dataplane.disk import PosixDisk, Step
from penstock.dataplane.opening import this_process
from penstock.dataplane.records import Batch
from penstock.errors import CheckpointError, CorruptFileError, FencedError
from penstock.spark.judging import Turn
from penstock.spark.planned import Planned


class Crash(Exception):
    """The driver dies here."""


class World:
    """A checkpoint with one ingested source, its input files, and what has been counted."""

    def __init__(self, root: Path, **spark: Any) -> None:
        self.checkpoint = str(root / "checkpoint")
        self.disk = fast_disk()
        for folder in (paths.drivers(self.checkpoint), paths.data(self.checkpoint)):
            self.disk.make_dirs(folder)
        self.folder = Path(paths.ingest(self.checkpoint, "src"))
        self.spark = spark
        self.inputs: list[str] = []
        self.known: Batch | None = None
        self.counted: list[str] = []
        self.passed: list[int] = []
        self.crash_at = ""
        self.planned: Planned
        self.history: list[tuple[Batch | None, list[str]]] = []

    def add(self, files: int) -> None:
        self.inputs += [f"f{len(self.inputs) + at:03d}" for at in range(files)]

    def start(self) -> Streaming:
        """Start a driver: what `start()` does with the folder, then Spark's query."""
        claim = recordlog.claim_generation(self.disk, self.checkpoint, this_process())
        opened: Any = SimpleNamespace(checkpoint=self.checkpoint, claim=claim)
        self.planned = Planned(self.disk, opened, "src")
        self.planned.prepare(self.known)
        return Streaming(self.folder, lambda: list(self.inputs), **self.spark)

    def take(self, number: int, files: list[str]) -> None:
        """What `foreachBatch` does."""
        batch = Batch(self.planned.query_id(), number)
        if self.planned.judge(self.known, batch) is Turn.AGAIN:
            self.passed.append(number)
            return
        self._die_at("before the plan")
        named = self.planned.keep(batch, f"b{number}x0", self.known)
        self._die_at("before the record")
        self.history.append((self.known, list(self.counted)))
        self.known = records.decode_record(records.encode(record_of(named))).batch
        self.counted += files
        self.clean_up()
        self._die_at("before Spark's commit")

    def run(self, batches: int = 1_000) -> None:
        self.start().run(self.take, batches)

    def drain(self) -> list[str]:
        self.run()
        return sorted(self.counted)

    def clean_up(self) -> None:
        live = records.files_of_batch(self.known)
        listed = self.disk.list(paths.data(self.checkpoint))
        for name in plan_cleanup(listed, live, {}, [], self.planned._opened.claim.generation):
            self.disk.delete(paths.data_file(self.checkpoint, name))

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _die_at(self, point: str) -> None:
        if self.crash_at == point:
            self.crash_at = ""
            raise Crash(point)


def record_of(batch: Batch) -> records.Record:
    return records.Record("src", 1, "epoch", 1, records.NO_HASH, 0, batch=batch)


def after(root: Path, batches: int, **spark: Any) -> World:
    """A world in which so many batches are committed, and more files have come since."""
    world = World(root, **spark)
    world.add(batches)
    world.run()
    world.add(2)
    assert world.known is not None and world.known.number == batches - 1
    return world


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with scratch() as folder:
        yield folder


COUNTS = [1, 2, 3, 7, 11]
"""Committed batches: the first, the second, at a compaction, past two and past three."""


@pytest.mark.parametrize("batches", COUNTS)
def test_a_folder_that_is_lost_is_put_back_and_says_so(
    tmp_path: Path, batches: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = after(tmp_path, batches)
    shutil.rmtree(world.folder)
    with caplog.at_level(logging.WARNING, "penstock"):
        streaming = world.start()
    assert f"{world.folder} is lost; it is put back to batch {batches - 1}" in caplog.text
    assert world.planned.told == f"The ingest of 'src' was put back to batch {batches - 1}"
    assert not (world.folder / "commits").exists() or not os.listdir(world.folder / "commits")
    streaming.run(world.take)
    assert world.passed == [batches - 1] and sorted(world.counted) == world.inputs


@pytest.mark.parametrize("batches", COUNTS)
@pytest.mark.parametrize("copied", [0, 1, 2, 5])
def test_a_folder_that_is_older_than_the_log_is_put_back(tmp_path: Path, batches: int, copied: int) -> None:
    world = World(tmp_path)
    world.add(batches + 2)
    copy = tmp_path / "copy"
    streaming = world.start()
    streaming.run(world.take, min(copied, batches))
    shutil.copytree(world.folder, copy) if world.folder.exists() else copy.mkdir()
    streaming.run(world.take, batches - min(copied, batches))
    shutil.rmtree(world.folder)
    shutil.copytree(copy, world.folder)
    assert world.drain() == world.inputs


@pytest.mark.parametrize(
    "gone", ["offsets commits", "commits", "offsets", "metadata", "sources", "metadata offsets"]
)
def test_what_was_deleted_by_hand_is_put_back(tmp_path: Path, gone: str) -> None:
    world = after(tmp_path, 8)
    for name in gone.split():
        path = world.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert world.drain() == world.inputs


@pytest.mark.parametrize(
    ("batches", "planned", "keep_sums", "retain"),
    [
        (8, True, False, 1),
        (8, True, True, 1),
        (7, True, False, 1),
        (7, False, False, 1),
        (8, False, True, 100),
    ],
)
def test_every_file_may_be_cut_off_anywhere_or_gone(
    tmp_path: Path, batches: int, planned: bool, keep_sums: bool, retain: int
) -> None:
    """As after a power loss, file by file; with the sums that Hadoop keeps, and without. After 8 batches the next entry of
    the source is a compaction."""
    world = after(tmp_path, batches, retain=retain)
    if planned:
        world.crash_at = "before the record"
        with pytest.raises(Crash):
            world.run()
    if not keep_sums:
        for path in world.files():
            path.name.startswith(".") and path.unlink()
    saved = tmp_path / "saved"
    shutil.copytree(world.checkpoint, saved)
    before = (world.known, list(world.counted))
    for name in [path.relative_to(world.folder) for path in world.files()]:
        data = (world.folder / name).read_bytes()
        lines = {at for at, byte in enumerate(data) if byte == ord("\n")}
        for cut in [None, *sorted(lines | {0, 1, len(data) // 2, len(data) - 1})]:
            damage(world.folder / name, cut)
            world.known, world.counted = before[0], list(before[1])
            try:
                assert world.drain() == world.inputs, (name, cut)
            except (SparkError, CheckpointError) as error:
                raise AssertionError(f"{name} cut to {cut}") from error
            shutil.rmtree(world.checkpoint)
            shutil.copytree(saved, world.checkpoint)


def damage(path: Path, cut: int | None) -> None:
    data = path.read_bytes()
    path.unlink()
    if cut is not None:
        path.write_bytes(data[:cut])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "run", "crash", "lose", "copy", "restore", "damage", "zero", "plan"]),
            st.integers(0, 50),
            st.integers(0, 400),
        ),
        max_size=14,
    ),
    compact=st.integers(2, 4),
    retain=st.integers(1, 4),
    per_batch=st.integers(1, 3),
)
@example(
    steps=[("add", 9, 0), ("run", 0, 9), ("plan", 0, 0), ("damage", 9, 0), ("run", 0, 1)],
    compact=3, retain=1, per_batch=1,
)  # fmt: skip
def test_whatever_becomes_of_the_folder_every_row_counts_once(
    steps: list[tuple[str, int, int]],
    compact: int,
    retain: int,
    per_batch: int,
) -> None:
    with scratch() as root:
        world = World(root, compact=compact, retain=retain, per_batch=per_batch)
        play(world, root, steps)
        assert world.drain() == world.inputs


def play(world: World, root: Path, steps: list[tuple[str, int, int]]) -> None:
    for what, which, much in steps:
        match what:
            case "add":
                world.add(which % 10)
            case "run":
                world.run(much % 6)
            case "crash":
                world.crash_at = ["before the plan", "before the record", "before Spark's commit"][which % 3]
                with contextlib.suppress(Crash):
                    world.run(much % 4)
                world.crash_at = ""
            case "plan":  # Spark dies while it plans
                streaming = world.start()
                if streaming.goal is None:
                    streaming.log_source() if which % 2 else streaming.plan()
            case "lose":
                shutil.rmtree(world.folder, ignore_errors=True)
            case "copy":
                shutil.rmtree(root / "copy", ignore_errors=True)
                if world.folder.exists():
                    shutil.copytree(world.folder, root / "copy")
            case "restore" if (root / "copy").exists():
                shutil.rmtree(world.folder, ignore_errors=True)
                shutil.copytree(root / "copy", world.folder)
            case "damage" | "zero":
                files = world.files()
                if files:
                    path = files[which % len(files)]
                    size = path.stat().st_size
                    if what == "zero":
                        path.write_bytes(bytes(size))
                    else:
                        damage(path, None if much % 5 == 0 else much % max(1, size))


# -- what is refused ----------------------------------------------------------------------------------------------


def test_a_folder_that_is_newer_than_the_log_is_refused_by_name(tmp_path: Path) -> None:
    world = after(tmp_path, 7)
    world.known, world.counted = world.history[5]  # the log is that of after batch 4
    before = {path: path.read_bytes() for path in world.files()}
    with pytest.raises(
        CheckpointError, match=r"'src': .*ingest/src has committed batch 6, but batch 4 is the last one"
    ):
        world.start()
    assert {path: path.read_bytes() for path in world.files()} == before
    world.known = None
    with pytest.raises(CheckpointError, match=r"has committed batch 6, but no batch of it is committed"):
        world.start()


def test_a_folder_whose_commits_are_gone_is_newer_by_its_offsets(tmp_path: Path) -> None:
    world = after(tmp_path, 7)
    shutil.rmtree(world.folder / "commits")
    world.known = world.history[5][0]
    with pytest.raises(CheckpointError, match=r"has planned batch 6, but batch 4 is the last one"):
        world.start()


def test_a_committed_batch_that_was_planned_anew_is_refused_by_name(tmp_path: Path) -> None:
    world = after(tmp_path, 4)
    shutil.rmtree(world.folder)
    world.start()
    for name in (world.folder / "offsets/3", world.folder / "sources/0/3"):
        text = (
            name.read_text()
            .replace('"batchTimestampMs": 1003', '"batchTimestampMs": 2003')
            .replace("f003", "f005")
        )
        name.write_text(text)
    with pytest.raises(
        CheckpointError, match=r"has another (offsets|sources/0)/3 than was recorded with batch 3"
    ):
        world.start()
    shutil.move(world.folder, tmp_path / "away")  # what the message says
    assert world.drain() == world.inputs


def test_a_batch_that_is_planned_anew_beside_a_running_driver_is_refused(tmp_path: Path) -> None:
    world = after(tmp_path, 4)
    shutil.rmtree(world.folder)
    streaming = world.start()
    text = (world.folder / "offsets/3").read_text().replace("1003", "2003")
    (world.folder / "offsets/3").write_text(text)
    with pytest.raises(CheckpointError, match=r"has another offsets/3 than was recorded with batch 3"):
        streaming.run(world.take)


def test_a_folder_of_another_spark_query_is_refused_by_name(tmp_path: Path) -> None:
    world = after(tmp_path, 3)
    shutil.rmtree(world.folder)
    Streaming(world.folder, lambda: world.inputs)
    with pytest.raises(
        CheckpointError, match=r"is not the folder of the Spark query whose batch 2 .* counted twice"
    ):
        world.start()


@pytest.mark.parametrize("number", [0, 1, 4, 9])
def test_a_batch_out_of_turn_is_refused_by_name(tmp_path: Path, number: int) -> None:
    world = after(tmp_path, 3)
    world.start()
    with pytest.raises(CheckpointError, match=rf"Spark runs batch {number} of .*, but 2 is the last one"):
        world.take(number, ["f000"])


def test_the_first_batch_has_the_number_0(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start()
    with pytest.raises(CheckpointError, match=r"Spark runs batch 3 of .*, but no batch is that is committed"):
        world.take(3, ["f000"])


@pytest.mark.parametrize("harm", ["lost", "older", "torn"])
def test_a_folder_with_state_is_not_put_back_but_refused_by_name(tmp_path: Path, harm: str) -> None:
    world = World(tmp_path)
    world.add(2)
    (world.folder / "state" / "0").mkdir(parents=True)
    streaming = world.start()
    streaming.run(world.take, 1)
    shutil.copytree(world.folder, tmp_path / "copy")
    streaming.run(world.take)
    assert world.known is not None and world.known.plan is not None and world.known.plan.stateful
    if harm == "torn":
        (world.folder / "offsets/1").write_bytes(b"")
    else:
        shutil.rmtree(world.folder)
    if harm == "older":
        shutil.copytree(tmp_path / "copy", world.folder)
    with pytest.raises(
        CheckpointError, match=r"dropDuplicates.* cannot be put back; restore that folder from a copy made"
    ):
        world.start()


@pytest.mark.parametrize("harm", ["lost", "older", "torn", "torn metadata"])
def test_records_of_an_early_release_without_a_plan_are_refused_where_they_would_be_needed(
    tmp_path: Path, harm: str
) -> None:
    world = World(tmp_path)
    world.add(3)
    streaming = world.start()
    streaming.run(world.take, 1)
    shutil.copytree(world.folder, tmp_path / "copy")
    streaming.run(world.take)
    assert world.known is not None
    world.known = Batch(world.known.query, world.known.number)
    match harm:
        case "torn":
            (world.folder / "offsets/2").write_bytes(b"v1\n{")
        case "torn metadata":
            (world.folder / "metadata").write_bytes(b"")
        case _:
            shutil.rmtree(world.folder)
    if harm == "older":
        shutil.copytree(tmp_path / "copy", world.folder)
    with pytest.raises(CheckpointError, match=r"has not kept what Spark planned for batch 2"):
        world.start()


@pytest.mark.parametrize("redo", [False, True], ids=["committed by Spark", "run again"])
def test_records_without_a_plan_go_on_as_before_and_the_next_batch_has_one(
    tmp_path: Path, redo: bool
) -> None:
    world = after(tmp_path, 3)
    assert world.known is not None
    world.known = Batch(world.known.query, world.known.number)
    if redo:
        (world.folder / "commits/2").unlink()
    assert world.drain() == world.inputs
    assert world.known.plan is not None and world.passed == ([2] if redo else [])
    shutil.rmtree(world.folder)
    assert world.drain() == world.inputs


def test_a_torn_folder_before_the_first_commit_is_planned_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add(2)
    world.crash_at = "before the record"
    with pytest.raises(Crash):
        world.run()
    for path in world.files():
        path.write_bytes(b"")
    assert world.drain() == world.inputs


def test_what_was_imported_goes_on_after_the_last_batch_of_the_old_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = after(tmp_path, 4)
    world.known, world.counted = None, []
    monkeypatch.setattr("penstock.spark.planned.read_manifests", lambda *given: [SimpleNamespace(batch=3)])
    assert world.drain() == world.inputs[4:]
    shutil.rmtree(world.folder)
    world.add(1)
    assert world.drain() == world.inputs[4:]


def test_a_driver_that_was_overtaken_leaves_the_folder_alone(tmp_path: Path) -> None:
    world = after(tmp_path, 3)
    world.start()
    late = world.planned
    world.start()
    shutil.rmtree(world.folder)
    with pytest.raises(FencedError):
        late.prepare(world.known)
    assert not world.folder.exists()


def test_what_is_kept_and_damaged_is_refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    world = after(tmp_path, 3)
    (world.folder / "metadata").unlink()
    assert world.known is not None and world.known.plan is not None
    kept = Path(paths.data_file(world.checkpoint, world.known.plan.files[-1].kept.file))
    kept.write_bytes(kept.read_bytes()[:-8])
    before = {path: path.read_bytes() for path in world.files()}
    with pytest.raises(CorruptFileError, match=kept.name):
        world.start()
    assert {path: path.read_bytes() for path in world.files()} == before


def test_a_record_cannot_have_files_put_outside_the_folder(tmp_path: Path) -> None:
    world = after(tmp_path, 3)
    plan = world.known and world.known.plan
    assert plan is not None and world.known is not None
    for path in ("../../stolen", "/tmp/stolen", "sources/../../stolen", "state/0"):
        file = records.PlannedFile(path, *(getattr(plan.files[0], one) for one in ("size", "crc", "kept")))
        world.known = Batch(world.known.query, 2, records.BatchPlan([*plan.files, file]))
        shutil.rmtree(world.folder, ignore_errors=True)
        with pytest.raises(CorruptFileError, match="which is no place in"):
            world.start()


def test_a_folder_that_cannot_be_read_is_not_taken_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = after(tmp_path, 3)
    (world.folder / "offsets/2").unlink()
    (world.folder / "offsets/2").symlink_to("2")  # a loop
    with pytest.raises(CheckpointError, match=r"offsets/2 cannot be read"):
        world.start()


# -- how much is kept ---------------------------------------------------------------------------------------------


def test_the_number_of_files_that_are_kept_is_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, compact=4)
    world.add(60)
    streaming, most = world.start(), 0
    for _ in range(60):
        streaming.run(world.take, 1)
        most = max(most, len(world.disk.list(paths.data(world.checkpoint))))
    assert most <= 4 + 3  # the entries since a compaction, the offsets of two batches, the metadata
    world.run()
    assert world.known is not None and world.known.plan is not None and len(world.known.plan.files) <= 4 + 3


def test_a_batch_syncs_once_and_keeps_only_what_is_new(tmp_path: Path) -> None:
    world = World(tmp_path, compact=100)
    world.add(20)
    streaming = world.start()
    streaming.run(world.take, 19)
    assert world.known is not None and world.known.plan is not None
    before = {file.path: file.kept for file in world.known.plan.files}
    streaming.run(world.take, 1)
    fresh = {file.path for file in world.known.plan.files if before.get(file.path) != file.kept}
    assert fresh == {"offsets/19", "sources/0/19"}
    assert len({file.kept.file for file in world.known.plan.files if file.path in fresh}) == 1


def test_a_new_driver_keeps_nothing_again_that_is_kept_already(tmp_path: Path) -> None:
    world = after(tmp_path, 8)
    assert world.known is not None and world.known.plan is not None
    before = {file.path: file.kept for file in world.known.plan.files}
    world.run(1)
    again = [file.path for file in world.known.plan.files if before.get(file.path, file.kept) != file.kept]
    assert not again


# -- crashes while a folder is put back ---------------------------------------------------------------------------


class DiesAt:
    """Ends the process at one step of the disk."""

    def __init__(self, at: int) -> None:
        self.left = at

    def before(self, step: Step, path: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash(f"{step} {path}")

    def after(self, step: Step, path: str) -> None:
        pass


@pytest.mark.parametrize("harm", ["lost", "planned further", "offsets lost"])
def test_a_crash_at_any_step_of_putting_back_is_put_right_by_the_next_start(
    tmp_path: Path, harm: str
) -> None:
    world = after(tmp_path, 7)
    if harm == "planned further":
        world.start().plan()
        (world.folder / "offsets/7").write_bytes(b"v1\n{")
    else:
        shutil.rmtree(world.folder if harm == "lost" else world.folder / "offsets")
    saved = tmp_path / "saved"
    shutil.copytree(world.checkpoint, saved)
    before = (world.known, list(world.counted))
    whole = world.disk
    for at in range(1_000):
        world.disk = PosixDisk(DiesAt(at))
        try:
            world.start()
        except Crash:
            world.disk = whole
            assert world.drain() == world.inputs, at
        else:
            break
        shutil.rmtree(world.checkpoint)
        shutil.copytree(saved, world.checkpoint)
        world.known, world.counted = before[0], list(before[1])
    assert at > 20
