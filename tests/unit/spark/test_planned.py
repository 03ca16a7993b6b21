"""What Spark planned, kept and put back, on real folders and a model of Spark. The oracle is arithmetic: every input file
counts exactly once, whatever became of Spark's folder, or the folder is refused by name."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
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
from penstock.spark import ingest_folder
from penstock.spark.batch_ingest import THE_BATCH
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
        self.prepare()
        return Streaming(self.folder, lambda: list(self.inputs), **self.spark)

    def prepare(self) -> None:
        claim = recordlog.claim_generation(self.disk, self.checkpoint, this_process())
        opened: Any = SimpleNamespace(checkpoint=self.checkpoint, claim=claim)
        self.planned = Planned(self.disk, opened, "src")
        self.planned.prepare(self.known)

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
@example(
    steps=[("add", 1, 0), ("run", 0, 0), ("copy", 0, 0), ("lose", 0, 0), ("run", 0, 1), ("restore", 0, 0)],
    compact=2, retain=1, per_batch=1,
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
            case "restore" if (root / "copy").exists() and is_of_our_query(world, root / "copy"):
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


def is_of_our_query(world: World, copy: Path) -> bool:
    """Whether a copy may be restored: one from before the first batch may be of a query that was never heard of again."""
    query = ingest_folder.read_query_id(str(copy))
    return world.known is None or query is None or query == world.known.query


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


# -- what Spark can do without ------------------------------------------------------------------------------------


def with_state(root: Path, batches: int, **spark: Any) -> World:
    """As `after`, of a streaming DataFrame that has state."""
    (root / "checkpoint/ingest/src/state/0").mkdir(parents=True)
    (root / "checkpoint/ingest/src/state/0/1.delta").write_bytes(b"state")
    return after(root, batches, **spark)


def without_plan(root: Path, batches: int, **spark: Any) -> World:
    """As `after`, with the record of a release that kept no plan."""
    world = after(root, batches, **spark)
    assert world.known is not None
    world.known = Batch(world.known.query, world.known.number)
    return world


def plan_one_more(world: World) -> None:
    """The driver dies after Spark has planned a batch and before its record."""
    world.crash_at = "before the plan"
    with pytest.raises(Crash):
        world.run()


@pytest.mark.parametrize("batches", [1, 4, 7, 8])
@pytest.mark.parametrize("keep_sums", [True, False], ids=["sums", "no sums"])
@pytest.mark.parametrize("make", [with_state, without_plan])
def test_whatever_is_torn_past_the_last_committed_batch_is_dropped_whether_it_can_be_put_back_or_not(
    tmp_path: Path,
    make: Callable[..., World],
    keep_sums: bool,
    batches: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = make(tmp_path, batches)
    plan_one_more(world)
    if not keep_sums:
        for path in world.files():
            path.name.startswith(".") and path.unlink()
    last = batches - 1
    logged = f"{batches}.compact" if (batches + 1) % 3 == 0 else f"{batches}"
    torn = [f"commits/{last}", f"offsets/{batches}", f"sources/0/{logged}"]
    saved = tmp_path / "saved"
    shutil.copytree(world.checkpoint, saved)
    before = (world.known, list(world.counted))
    for which in range(1, 8):
        harmed = [name for at, name in enumerate(torn) if which >> at & 1]
        for cut in (0, 1, 5):
            for name in harmed:
                damage(world.folder / name, cut)
            caplog.clear()
            assert world.drain() == world.inputs, (harmed, cut)
            assert harmed[0] in caplog.text and "Spark goes on after batch" in caplog.text
            shutil.rmtree(world.checkpoint)
            shutil.copytree(saved, world.checkpoint)
            world.known, world.counted = before[0], list(before[1])


def test_of_several_torn_commits_the_last_whole_one_counts(tmp_path: Path) -> None:
    world = with_state(tmp_path, 6)
    for number in (3, 4, 5):
        (world.folder / f"commits/{number}").write_bytes(b"")
    assert world.drain() == world.inputs and world.passed == [5]
    assert (world.folder / "state/0/1.delta").read_bytes() == b"state"


@pytest.mark.parametrize("cut", [None, 0, 9])
def test_metadata_alone_are_written_again_beside_state(
    tmp_path: Path, cut: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = with_state(tmp_path, 4)
    before = {path: path.read_bytes() for path in world.files()}
    damage(world.folder / "metadata", cut)
    world.start()
    assert {
        path: path.read_bytes() for path in world.files() if path.name[0] != "."
    }.items() <= before.items()
    assert (world.folder / "metadata").exists() and "metadata are put back" in caplog.text
    assert world.drain() == world.inputs


def test_what_the_committed_batch_needs_is_not_dropped(tmp_path: Path) -> None:
    for harm in ("offsets/3", "offsets/2", "sources/0/3"):
        for make in (with_state, without_plan):
            root = tmp_path / f"{make.__name__}-{harm.replace('/', '-')}"
            world = make(root, 4)
            (world.folder / harm).write_bytes(b"")
            (world.folder / "commits/3").write_bytes(b"")
            before = {path: path.read_bytes() for path in world.files()}
            with pytest.raises(CheckpointError, match="cannot be put back"):
                world.start()
            assert {path: path.read_bytes() for path in world.files()} == before, (make, harm)


def test_nothing_is_dropped_where_what_is_left_is_not_enough(tmp_path: Path) -> None:
    """Without the offsets past it Spark reads those before the last committed batch, which it has let go here."""
    world = with_state(tmp_path, 4)
    plan_one_more(world)
    (world.folder / "offsets/2").unlink()
    assert world.start().number == 4  # of that batch it reads nothing
    (world.folder / "offsets/4").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be put back"):
        world.start()
    assert (world.folder / "offsets/4").exists()


def test_of_a_log_whose_place_is_not_known_nothing_is_dropped(tmp_path: Path) -> None:
    """The log of another source than files, such as the first offsets of Kafka, without a record that names it."""
    world = without_plan(tmp_path, 1)
    (world.folder / "offsets/0").write_text('v1\n{}\n{"topic":{"0":7}}')
    (world.folder / "offsets/.0.crc").unlink()
    (world.folder / "sources/0/0").write_bytes(b"")
    found = ingest_folder.find(str(world.folder), 0, None, no_file_kept)
    assert found.torn == "sources/0/0" and not found.droppable
    with pytest.raises(CheckpointError, match="cannot be put back"):
        world.start()


def test_entries_after_a_torn_one_go_with_it(tmp_path: Path) -> None:
    world = with_state(tmp_path, 4, compact=100)
    streaming = world.start()
    streaming.log_source()
    streaming.log_source()
    (world.folder / "sources/0/4").write_bytes(b"v1\n{")
    world.prepare()
    assert not (world.folder / "sources/0/4").exists() and not (world.folder / "sources/0/5").exists()
    assert world.drain() == world.inputs


def test_a_crash_while_something_is_dropped_is_put_right_by_the_next_start(tmp_path: Path) -> None:
    world = with_state(tmp_path, 4)
    plan_one_more(world)
    for name in ("commits/3", "offsets/4", "sources/0/4", "metadata"):
        (world.folder / name).write_bytes(b"")
    saved, before, whole = tmp_path / "saved", (world.known, list(world.counted)), world.disk
    shutil.copytree(world.checkpoint, saved)
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
    assert at > 10


def test_offsets_in_a_form_of_a_sources_own_are_not_taken_for_torn(tmp_path: Path) -> None:
    """Spark writes whatever a source of somebody else's gives it; there is no telling where it ends."""
    world = with_state(tmp_path, 3)
    plan_one_more(world)
    for number in range(4):
        path = world.folder / f"offsets/{number}"
        path.write_text(path.read_text().rpartition("\n")[0] + f"\nposition {number}")
        path.with_name(f".{number}.crc").unlink()
    assert world.known is not None and world.known.plan is not None
    found = ingest_folder.find(str(world.folder), 2, None, no_file_kept)
    assert found.torn is None
    (world.folder / "offsets/3").write_text("v1\n{}\n")
    found = ingest_folder.find(str(world.folder), 2, None, no_file_kept)
    assert found.torn == "offsets/3" and found.droppable == ("offsets/3",)


def no_file_kept(file: records.PlannedFile) -> bytes:
    raise AssertionError(file)


# -- links, FIFOs, and what is no JSON ----------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["sources", "offsets", "commits", ""])
@pytest.mark.parametrize("committed", [0, 3])
def test_nothing_is_deleted_through_a_link(tmp_path: Path, link: str, committed: int) -> None:
    world = after(tmp_path, 3)
    other = tmp_path / "other"
    (other / "deep").mkdir(parents=True)
    for name in ("deep/thesis.txt", "deep/0", "7", "deep/.gone.crc", ".gone.crc", ".metadata.crc"):
        (other / name).write_text("x")
    if not committed:
        world.known = None
        shutil.rmtree(world.folder / "commits")
        for number in (1, 2):
            (world.folder / f"offsets/{number}").unlink()
    (world.folder / "metadata").write_bytes(b"")
    place = world.folder / link
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(other)
    with pytest.raises(
        CheckpointError,
        match=r"(is a link to .*/other, where nothing is deleted|has (planned|committed) batch 7)",
    ):
        world.start()
    assert sorted(path.name for path in other.rglob("*") if path.is_file()) == sorted(
        ["thesis.txt", "0", "7", ".gone.crc", ".gone.crc", ".metadata.crc"]
    )


def test_only_what_is_sparks_is_cleared(tmp_path: Path) -> None:
    world = after(tmp_path, 3)
    strange = ["offsets/notes.txt", "commits/deep/0", "sources/notes.txt", "state/0/1.delta", "notes.txt"]
    for name in strange:
        (world.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (world.folder / name).write_text("x")
    ingest_folder.clear(world.disk, str(world.folder))
    left = [str(path.relative_to(world.folder)) for path in world.files()]
    assert left == sorted(strange)


DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    "name", ["metadata", "offsets/2", "commits/2", "sources/0/2.compact", "offsets/3", "sources/0/3"]
)
@pytest.mark.parametrize("make", [after, with_state, without_plan])
def test_json_without_end_is_torn(tmp_path: Path, name: str, make: Callable[..., World]) -> None:
    world = make(tmp_path, 3)
    for data in (DEEP, b"v1\n" + DEEP, b"v1\n{}\n" + DEEP, b'v1\n{"a":' * 9 + b'{"a":' * 100_000):
        (world.folder / name).write_bytes(data)
        with contextlib.suppress(CheckpointError):
            world.prepare()
    world.known = None
    with contextlib.suppress(CheckpointError):
        world.prepare()


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    world = after(tmp_path, 3)
    for name in ("metadata", "offsets/2", "commits/2"):
        with (world.folder / name).open("r+b") as file:
            file.truncate(3 << 30)
    assert world.drain() == world.inputs


@pytest.mark.parametrize(
    "name", ["metadata", "offsets/2", "commits/2", "sources/0/2.compact", "offsets/3", ".metadata.crc"]
)
@pytest.mark.parametrize("what", ["FIFO", "link", "folder"])
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, name: str, what: str) -> None:
    world = after(tmp_path, 3)
    path = world.folder / name
    path.unlink(missing_ok=True)
    match what:
        case "FIFO":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/etc/hostname")
        case _ if name.startswith("sources"):
            return  # a source may have folders of its own
        case _:
            path.mkdir()
    with pytest.raises(
        CheckpointError, match=rf"source 'src': .*{name} cannot be read \(it is a {what}\); take it away"
    ):
        world.start()


@pytest.mark.parametrize("step", ["put_back", "clear", "mend", "stray_sums", "find"])
def test_whatever_the_system_refuses_is_an_error_that_names_file_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world = with_state(tmp_path, 3) if step == "mend" else after(tmp_path, 3)
    (world.folder / "commits/2").write_bytes(b"")
    if step == "clear":
        shutil.rmtree(world.folder)
        world.known = None
        world.folder.mkdir()
        (world.folder / "metadata").write_bytes(b"")

    def refused(*given: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", "some/file")

    monkeypatch.setattr(ingest_folder, step, refused)
    with pytest.raises(
        CheckpointError, match=r"source 'src': some/file cannot be read \(Permission denied\)"
    ):
        world.start()


def test_a_batch_dataframe_that_becomes_a_streaming_one_is_told_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.known = THE_BATCH
    with pytest.raises(
        CheckpointError, match=r"'src' was a batch DataFrame in this checkpoint and is a streaming"
    ):
        world.start()


def test_the_entries_that_spark_is_done_with_are_not_looked_at_for_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = after(tmp_path, 2)
    for number in range(2, 2_001):
        (world.folder / f"sources/0/{number}").write_bytes(b"v1")
    (world.folder / "sources/0/1999.compact").write_bytes(b"v1")
    looked: list[str] = []
    monkeypatch.setattr(ingest_folder, "is_file", lambda path: looked.append(path) or True)
    named = ingest_folder.files_planned(str(world.folder), 1)
    assert {"sources/0/1999.compact", "sources/0/2000"} <= set(named)
    assert len(looked) < 10


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
