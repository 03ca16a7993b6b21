"""Exports and imported state as `checkpoint verify`, `show` and `ls` see them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.faults.runs import fast_disk, scratch
from tests.unit.dataplane.looked_at import left_behind
from tests.unit.dataplane.test_channel import go_back, head_of, with_offsets
from tests.unit.dataplane.test_exports import KEY, SCHEMA, Export
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.dataplane.channel import DataWriter
from penstock.dataplane.disk.protocol import TEMP_SUFFIX
from penstock.dataplane.exports import ExportFolder, held_files
from penstock.dataplane.findings import DAMAGE, NOTE
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.imported import ImportedVariable, Manifest, write_imported
from penstock.dataplane.inspecting import look
from penstock.dataplane.positions import PublishedRows
from penstock.dataplane.records import Published, Segment, pack_u32
from penstock.dataplane.repairing import plan_repair
from penstock.dataplane.run import SinkWork
from penstock.dataplane.taking import PieceTaken
from penstock.dataplane.verifying import verify


@pytest.fixture(scope="module")
def made() -> Iterator[str]:
    """A checkpoint with an export of three epochs and state that was imported for an operator."""
    with scratch() as folder:
        checkpoint = left_behind(folder)
        export = Export(Path(checkpoint))
        disk, query = fast_disk(), look(fast_disk(), checkpoint).metas.first.query
        own = ExportFolder(disk, checkpoint, "op", SCHEMA, 1 << 30)
        own.open(query)
        for epoch in (1, 2, 3):
            own.take(export.work(epoch, epoch, 10))
        variable = ImportedVariable("count", "value", False, "n BIGINT")
        manifest = Manifest("fold", "/old", 4, ["k"], [variable], True)
        write_imported(disk, checkpoint, manifest, pa.table({"k0": [1, 2], "timer_ms": [3, 4]}))
        yield checkpoint


@pytest.fixture
def checkpoint(made: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "cp"))


def found(checkpoint: Path, level: str = DAMAGE) -> list[tuple[str, str]]:
    report = verify(fast_disk(), str(checkpoint))
    return [(one.file, one.message) for one in report.findings if one.level == level]


def flip(path: Path, at: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def as_json(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["checkpoint", *map(str, arguments), "--json", "-"])
    return json.loads(result.stdout)


def test_whole_exports_and_imports_are_read_and_nothing_of_them_is_strange(checkpoint: Path) -> None:
    assert not found(checkpoint) and not [
        one for one in found(checkpoint, NOTE) if one[0].startswith(("export", "imported"))
    ]
    frames = verify(fast_disk(), str(checkpoint)).frames
    shutil.rmtree(checkpoint / "export")
    shutil.rmtree(checkpoint / "imported")
    assert frames == verify(fast_disk(), str(checkpoint)).frames + 1 + 2 * 3 + 2


@pytest.mark.parametrize(
    "name", ["export/op/head", "export/op/e000000002", "imported/fold/manifest", "imported/fold/000000.part"]
)
def test_a_damaged_file_is_named(checkpoint: Path, name: str) -> None:
    flip(checkpoint / name)
    ((file, message),) = found(checkpoint)
    assert file == name and "damaged" in message


def test_rows_of_an_export_that_are_damaged_or_gone_are_damage(checkpoint: Path) -> None:
    first, second, *_ = sorted(held_files(fast_disk(), str(checkpoint)))
    flip(checkpoint / "data" / first)
    (checkpoint / "data" / second).unlink()
    assert {file for file, _ in found(checkpoint)} == {f"data/{first}", f"data/{second}"}


def test_the_head_of_another_query_is_damage(checkpoint: Path) -> None:
    ExportFolder(fast_disk(), str(checkpoint), "op", SCHEMA, 1 << 30).open("another")
    ((file, message),) = found(checkpoint)
    assert file == "export/op/head" and "is of query another, this checkpoint of query" in message


def test_a_gap_in_what_is_kept_and_a_manifest_at_a_wrong_place_are_damage(checkpoint: Path) -> None:
    folder = checkpoint / "export" / "op"
    (folder / "e000000002").unlink()
    ((file, message),) = found(checkpoint)
    assert file == "export/op/e000000002" and "epochs 2 to 2 of the export of 'op' are gone" in message
    shutil.copy(folder / "e000000001", folder / "e000000002")
    ((file, message),) = found(checkpoint)
    assert file == "export/op/e000000002" and "is the manifest of epoch 1" in message
    (folder / "e000000001").unlink()
    (folder / "e000000002").unlink()
    assert not found(checkpoint), "the oldest may go"


def test_a_part_with_other_rows_than_its_manifest_says_is_damage(checkpoint: Path) -> None:
    folder = checkpoint / "imported" / "fold"
    (folder / "manifest").unlink()
    assert [file for file, _ in found(checkpoint, NOTE) if "imported" in file] == ["imported/fold/manifest"]
    manifest = Manifest("fold", "/old", 4, ["k"], [], False)
    part = (folder / "000000.part").read_bytes()
    write_imported(fast_disk(), str(checkpoint), manifest, pa.table({"k0": [1]}))
    (folder / "000000.part").write_bytes(part)
    ((file, message),) = found(checkpoint)
    assert file == "imported/fold/000000.part" and "has 2 rows, its manifest says 1" in message


def test_an_offset_in_the_middle_of_a_column_is_damage_though_every_checksum_fits(checkpoint: Path) -> None:
    disk = fast_disk()
    writer = DataWriter(disk, str(checkpoint), 9, "forged", "seg")
    extent = writer.append(FrameKind.SEGMENT, head_of([100], 100) + with_offsets(go_back))
    writer.sync()
    writer.close()
    query, schema = look(disk, str(checkpoint)).metas.first.query, pa.schema([("s", pa.string())])
    folder = ExportFolder(disk, str(checkpoint), "forged", schema, 1 << 30)
    folder.open(query)
    published = PublishedRows(
        Published(1, [Segment(9, extent, 100, pack_u32(np.array([100], np.uint32)))], None)
    )
    folder.take(SinkWork("export.forged", 1, [PieceTaken(KEY, 0, -1, published)]))
    ((file, message),) = found(checkpoint)
    assert file == "data/g000009-forged-000001.seg" and "contradict each other" in message


def test_names_that_are_no_text_are_shown_with_their_odd_parts_escaped(checkpoint: Path) -> None:
    Path(os.fsdecode(bytes(checkpoint / "data") + b"/\xff.seg")).write_bytes(b"x")
    for command in ("ls", "verify", "repair"):
        told = CliRunner().invoke(app, ["checkpoint", command, str(checkpoint)])
        assert told.exception is None or isinstance(told.exception, SystemExit), told.exception


def test_strangers_and_leavings_among_them_are_noted(checkpoint: Path) -> None:
    (checkpoint / "export" / "op" / "README").write_text("mine")
    left = checkpoint / "imported" / "fold" / f"000001.part{TEMP_SUFFIX}"
    left.write_bytes(b"x")
    noted = dict(found(checkpoint, NOTE))
    assert "is no file of Penstock's" in noted["export/op/README"]
    assert "repair removes it" in noted[f"imported/fold/{left.name}"]
    plan = plan_repair(fast_disk(), str(checkpoint), 0.0, boot="boot", is_running=lambda claim: False)
    assert str(left) in {action.path for action in plan.actions}


def test_show_lists_exports_and_imported_state(checkpoint: Path) -> None:
    shown = as_json("show", checkpoint)
    (export,) = shown["exports"]
    assert (export["operator"], export["epochs"], export["first_epoch"], export["last_epoch"]) == (
        "op",
        3,
        1,
        3,
    )
    assert export["bytes"] > 0 and export["problem"] is None
    (imported,) = shown["imported"]
    assert (imported["operator"], imported["rows"], imported["states"]) == ("fold", 2, ["value count"])
    assert imported["timers"] and imported["batch"] == 4 and imported["bytes"] > 0
    text = CliRunner().invoke(app, ["checkpoint", "show", str(checkpoint)]).stdout
    assert "export of" in text and "value count, timers" in text and "batch 4 of /old" in text


def test_ls_counts_them_as_what_they_are(checkpoint: Path) -> None:
    parts = {part["name"]: part["files"] for part in as_json("ls", checkpoint)}
    assert (parts["export"], parts["imported"]) == (4, 2) and "other" not in parts
