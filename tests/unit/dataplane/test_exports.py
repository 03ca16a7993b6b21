"""Exports: a manifest per epoch, files that are kept as long as it is, and readers that see a gap."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.faults.runs import fast_disk

from penstock.dataplane.channel import DataWriter, EdgeSpec, write_rows
from penstock.dataplane.exports import (
    EXPORT_EPOCH_S,
    ExportFolder,
    add_exports,
    check_kept,
    exported_by,
    held_files,
    list_epochs,
    read_head,
    read_manifest,
    read_rows,
)
from penstock.dataplane.positions import ChannelKey, PublishedRows
from penstock.dataplane.records import Published
from penstock.dataplane.run import SinkWork
from penstock.dataplane.taking import PieceTaken
from penstock.errors import CheckpointError, CorruptFileError, DeclarationError
from penstock.sim.programs import memory_program

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
KEY = ChannelKey(9, "op")


class Export:
    """A folder in a checkpoint, and a producer that writes one file per epoch."""

    def __init__(self, checkpoint: Path, keep_bytes: int = 1 << 30) -> None:
        (checkpoint / "data").mkdir(parents=True, exist_ok=True)
        self.checkpoint, self.disk = str(checkpoint), fast_disk()
        self.writer = DataWriter(self.disk, self.checkpoint, 1, "lease", "seg", roll_bytes=1)
        self.keep_bytes = keep_bytes
        self.folder = self.another()

    def another(self) -> ExportFolder:
        folder = ExportFolder(self.disk, self.checkpoint, "op", SCHEMA, self.keep_bytes)
        folder.open("query")
        return folder

    def work(self, epoch: int, first: int, rows: int, start: int = 0, end: int = -1) -> SinkWork:
        table = pa.table({"k": range(first, first + rows), "v": ["x"] * rows}, SCHEMA)
        segment = write_rows(self.writer, EdgeSpec(9, (), 1, "export.op"), table, SCHEMA, "op").segment
        self.writer.sync()
        assert segment is not None
        taken = PieceTaken(KEY, start, end, PublishedRows(Published(epoch, [segment], None)))
        return SinkWork("export.op", epoch, [taken])

    def keys(self, epoch: int) -> list[int]:
        manifest = read_manifest(self.disk, self.checkpoint, "op", epoch)
        schema = read_head(self.disk, self.checkpoint, "op").arrow_schema()
        batches = read_rows(self.disk, self.checkpoint, manifest, schema)
        return [key for batch in batches for key in batch.column("k").to_pylist()]

    def epochs(self) -> list[int]:
        return list_epochs(self.disk, self.checkpoint, "op")


def test_the_rows_of_an_epoch_are_read_back_as_they_were_cut(tmp_path: Path) -> None:
    export = Export(tmp_path)
    export.folder.take(export.work(1, 0, 10))
    export.folder.take(export.work(2, 10, 10, start=2, end=5))
    assert export.epochs() == [1, 2]
    assert export.keys(1) == list(range(10)) and export.keys(2) == [12, 13, 14]


def test_the_oldest_epochs_go_when_too_much_is_kept_and_their_files_with_them(tmp_path: Path) -> None:
    export = Export(tmp_path, keep_bytes=1000)
    works = [export.work(epoch, epoch, 20) for epoch in range(1, 6)]
    for work in works:
        export.folder.take(work)
    kept = export.epochs()
    assert kept == list(range(kept[0], 6)) and 1 < kept[0] <= 5
    files = {work.epoch: work.pieces[0].source.published.segments[0].extent.file for work in works}
    assert export.folder.pinned() == {files[epoch] for epoch in kept}
    check_kept(kept, "op", kept[0], 5)
    with pytest.raises(CheckpointError, match=f"epochs 1 to {kept[0] - 1} of the export of 'op' are gone"):
        check_kept(kept, "op", 1, 5)
    with pytest.raises(CheckpointError, match="epochs 1 to 1 of the export of 'op' are gone"):
        export.keys(1)


def test_the_newest_epoch_is_kept_however_large_it_is(tmp_path: Path) -> None:
    export = Export(tmp_path, keep_bytes=1)
    for epoch in (1, 2, 3):
        export.folder.take(export.work(epoch, epoch, 50))
    assert export.epochs() == [3]


def test_a_driver_that_is_started_again_holds_what_the_last_one_kept_and_may_repeat_an_epoch(
    tmp_path: Path,
) -> None:
    export = Export(tmp_path)
    first, second = export.work(1, 0, 5), export.work(2, 5, 5)
    export.folder.take(first)
    export.folder.take(second)
    again = export.another()
    assert again.pinned() == export.folder.pinned() and len(again.pinned()) == 2
    again.take(second)
    assert export.epochs() == [1, 2] and export.keys(2) == [5, 6, 7, 8, 9]
    with pytest.raises(CorruptFileError, match="e000000002 names other rows than the record"):
        again.take(export.work(2, 7, 5))


def test_a_file_that_is_gone_is_told_as_a_lost_epoch_and_a_damaged_one_by_name(tmp_path: Path) -> None:
    export = Export(tmp_path)
    export.folder.take(export.work(1, 0, 5))
    (file,) = (tmp_path / "data").iterdir()
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CorruptFileError, match=file.name):
        export.keys(1)
    file.unlink()
    with pytest.raises(CheckpointError, match="epochs 1 to 1 of the export of 'op' are gone"):
        export.keys(1)


def test_rows_from_before_a_column_was_added_have_nulls_in_it(tmp_path: Path) -> None:
    export = Export(tmp_path)
    export.folder.take(export.work(1, 0, 2))
    wider = SCHEMA.append(pa.field("more", pa.float64()))
    ExportFolder(export.disk, export.checkpoint, "op", wider, 1 << 30).open("query")
    manifest = read_manifest(export.disk, export.checkpoint, "op", 1)
    head = read_head(export.disk, export.checkpoint, "op")
    (batch,) = read_rows(export.disk, export.checkpoint, manifest, head.arrow_schema())
    assert batch.schema == wider and batch.column("more").null_count == 2


def test_an_export_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"has no export of 'op'; start its query with option\('export'"
    ):
        read_head(fast_disk(), str(tmp_path), "op")
    export = Export(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no export of 'opp'; did you mean 'op'\? Else start"):
        read_head(export.disk, export.checkpoint, "opp")


def test_exports_are_sinks_with_edges_of_their_own_whatever_the_order_of_their_names() -> None:
    program = memory_program()
    names = [name for name, spec in program.stages.items() if spec.kind != "sink"]
    made = add_exports(program, list(reversed(names)))
    assert made == add_exports(program, ["*"])
    for name in names:
        spec = made.stages[f"export.{name}"]
        assert (spec.kind, spec.schema, spec.min_epoch_s) == (
            "sink",
            program.stages[name].schema,
            EXPORT_EPOCH_S,
        )
        assert exported_by(spec.name) == name and exported_by(name) is None
        assert spec.inputs[0].edge == made.stages[name].edges[-1].edge
    edges = [edge.edge for spec in made.stages.values() for edge in spec.edges]
    assert len(edges) == len(set(edges))
    with pytest.raises(DeclarationError, match="there is no source or operator"):
        add_exports(program, [f"{names[0]}x"])


def test_a_repair_keeps_the_files_that_an_export_holds(tmp_path: Path) -> None:
    from penstock.dataplane.repairing import _orphans

    export = Export(tmp_path)
    export.folder.take(export.work(1, 0, 10))
    held = held_files(export.disk, export.checkpoint)
    assert held
    (tmp_path / "drivers").mkdir()
    (tmp_path / "drivers" / "g000001.claim").write_bytes(b"")
    stray = tmp_path / "data" / "g000001-stray-000001.seg"
    stray.write_bytes(b"nobody's")
    planned = {Path(action.path).name for action in _orphans(export.disk, export.checkpoint, [])}
    assert stray.name in planned and not held & planned
    manifest = tmp_path / "export" / "op" / "e000000001"
    manifest.write_bytes(manifest.read_bytes()[:-3])
    assert not _orphans(export.disk, export.checkpoint, []), (
        "a manifest that cannot be read may name any of them"
    )
