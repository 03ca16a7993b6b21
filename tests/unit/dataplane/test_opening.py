"""Opening a checkpoint: ours, free, claimed before it is read; whatever does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec
import pytest

from penstock.dataplane import opening, paths, recordlog
from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.disk import PosixDisk, Step
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.opening import open_checkpoint
from penstock.dataplane.program import InputSpec, Program
from penstock.dataplane.recordlog import Claim, LogWriter, frame_bytes
from penstock.errors import CheckpointError, CorruptFileError
from penstock.sim.programs import memory_program

ME = Claim(0, "host", 1, "boot", 1.0, 0.0)
OTHER = Claim(0, "elsewhere", 2, "other boot", 1.0, 0.0)


def opened(folder: Path, program: Program | None = None, **more: object) -> opening.Opened:
    given = {"who": ME, "wall": lambda: 100.0, "pause": lambda _: None, **more}
    return open_checkpoint(PosixDisk(), str(folder), program or memory_program(), **given)  # type: ignore[arg-type]


def begun(folder: Path) -> opening.Opened:
    """A checkpoint with a first log part, left behind."""
    first = opened(folder)
    writer = LogWriter(PosixDisk(), str(folder), first.claim)
    writer.start_part(first.chains.to_base(first.query, first.claim.generation, 1, first.identity, 0))
    writer.close()
    return first


def changed(program: Program, stage: str, **fields: object) -> Program:
    stages = dict(program.stages)
    stages[stage] = dataclasses.replace(stages[stage], **fields)  # type: ignore[arg-type]
    return dataclasses.replace(program, stages=stages)


def test_a_new_checkpoint_is_fresh_and_an_opened_one_is_not(tmp_path: Path) -> None:
    first = begun(tmp_path / "cp")
    second = opened(tmp_path / "cp", takeover=True)
    assert (first.fresh, second.fresh) == (True, False)
    assert first.query == second.query and first.identity == second.identity
    assert second.claim.generation == first.claim.generation + 1


def test_the_claim_is_durable_before_the_log_is_read(tmp_path: Path) -> None:
    begun(tmp_path)
    steps: list[tuple[Step, str]] = []

    class Watch:
        def before(self, step: Step, path: str) -> None:
            pass

        def after(self, step: Step, path: str) -> None:
            steps.append((step, os.path.basename(path)))

    open_checkpoint(PosixDisk(Watch()), str(tmp_path), memory_program(), who=ME, takeover=True)
    claimed = steps.index((Step.LINK, "g000002.claim"))
    durable = steps.index((Step.SYNC_DIR, "drivers"), claimed)
    read = steps.index((Step.READ, "g000001-p000001.log"))
    assert durable < read


def test_a_checkpoint_whose_holder_is_alive_is_refused_unless_taken_over(tmp_path: Path) -> None:
    open_checkpoint(PosixDisk(), str(tmp_path), memory_program(), who=OTHER, wall=lambda: 95.0)
    with pytest.raises(
        CheckpointError, match=r"held by driver generation 1 .process 2 on elsewhere.*takeover"
    ):
        opened(tmp_path)
    assert opened(tmp_path, takeover=True).claim.generation == 2


def test_a_checkpoint_whose_holder_fell_silent_or_gave_it_back_is_free(tmp_path: Path) -> None:
    open_checkpoint(PosixDisk(), str(tmp_path), memory_program(), who=OTHER, wall=lambda: 50.0)
    assert opened(tmp_path).claim.generation == 2
    beat = recordlog.Heartbeat(msgspec.structs.replace(OTHER, generation=3), 100.0, released=True)
    recordlog.write_heartbeat(PosixDisk(), str(tmp_path), beat)
    assert opened(tmp_path).claim.generation == 3


def test_a_start_that_was_refused_does_not_go_on_holding_the_checkpoint(tmp_path: Path) -> None:
    begun(tmp_path)
    log = tmp_path / "log" / "g000001-p000001.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    with pytest.raises(CorruptFileError, match=r"g000001-p000001.log"):
        open_checkpoint(
            PosixDisk(), str(tmp_path), memory_program(), who=OTHER, wall=lambda: 99.0, takeover=True
        )
    log.write_bytes(whole)
    assert not opened(tmp_path).fresh


@pytest.mark.parametrize(
    ("stage", "fields", "words"),
    [
        ("fold", {"shards": 16}, "'fold' had shards 8 .* now has 16"),
        ("fold", {"keys": ("id",)}, "'fold' had keys"),
        ("gather", {"schema": memory_program().stages["source"].schema}, r"field 'g' \(bigint\) is gone"),
    ],
)
def test_another_topology_is_refused_with_what_changed(
    tmp_path: Path, stage: str, fields: dict[str, object], words: str
) -> None:
    begun(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        opened(tmp_path, changed(memory_program(), stage, **fields))


def test_a_stage_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path)
    program = memory_program()
    schema = program.stages["fold"].schema
    straight = changed(program, "fold", edges=[EdgeSpec(1, (), 1, "sink")])
    straight = changed(straight, "sink", schema=schema, inputs=[InputSpec(1, "fold", schema)])
    fewer = dataclasses.replace(straight, stages={n: s for n, s in straight.stages.items() if n != "gather"})
    with pytest.raises(CheckpointError, match=r"has operator 'gather', which this topology lacks"):
        opened(tmp_path, fewer)


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "meta").write_bytes(
        frame_bytes(FrameKind.META, msgspec.json.encode({"format": 99, "all": "new"}))
    )
    with pytest.raises(CheckpointError, match=r"meta has format 99"):
        opened(tmp_path)


def test_files_that_are_gone_are_named(tmp_path: Path) -> None:
    begun(tmp_path)
    meta = (tmp_path / "meta").read_bytes()
    (tmp_path / "meta").unlink()
    with pytest.raises(CheckpointError, match=r"meta is gone"):
        opened(tmp_path)
    (tmp_path / "meta").write_bytes(meta)
    (tmp_path / "drivers" / "g000001.claim").unlink()
    with pytest.raises(CheckpointError, match=r"g000001.claim is gone"):
        opened(tmp_path, takeover=True)


def test_the_log_of_another_query_is_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path / "a")
    begun(tmp_path / "b")
    name = Path("log") / "g000001-p000001.log"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"g000001-p000001.log is the log of another query"):
        opened(tmp_path / "a", takeover=True)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"is a file and no folder"):
        opened(tmp_path / "file")


def test_paths_are_parsed_as_they_are_made() -> None:
    file = paths.DataFile(3, "lease_7", 12, "snp")
    assert paths.parse_data(paths.data_name(file)) == file
    assert paths.parse_log(os.path.basename(paths.log("/c", paths.LogPart(3, 1_000_000)))) == (3, 1_000_000)
    assert paths.parse_claim(os.path.basename(paths.claim("/c", 4))) == 4
    assert paths.parse_data("newest") is paths.parse_log("newest") is paths.parse_claim("heartbeat") is None
