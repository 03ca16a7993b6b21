"""Looking into a checkpoint: where it stands, what is damaged in it, and what can be mended without guessing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.runs import fast_disk, real_program, scratch
from tests.unit.dataplane.looked_at import PROGRAMS, left_behind

from penstock.dataplane import paths, recordlog
from penstock.dataplane.chains import Chains
from penstock.dataplane.findings import DAMAGE, NOTE
from penstock.dataplane.frames import frame_size, scan_frames
from penstock.dataplane.identity import skeleton
from penstock.dataplane.inspecting import (
    find_checkpoints,
    look,
    read_holder,
    summarise,
    view_stages,
)
from penstock.dataplane.key_states import read_key
from penstock.dataplane.opening import open_checkpoint
from penstock.dataplane.rebuilding import input_schema
from penstock.dataplane.recordlog import Claim, Heartbeat, LogTail
from penstock.dataplane.records import (
    NO_HASH,
    Base,
    Batch,
    BatchPlan,
    ChainBase,
    Extent,
    PlannedFile,
    Record,
)
from penstock.dataplane.repairing import What, apply_repair, named_files, plan_repair
from penstock.dataplane.verifying import verify
from penstock.errors import CheckpointError
from penstock.sim.inprocess import Driver
from penstock.sim.programs import key_of, local_program, memory_program
from penstock.sim.timing import SMALL
from penstock.testing.line import read_line
from penstock.testing.schedule import find_schedule_faults

ME = Claim(0, "host", 1, "boot", 1.0, 0.0)
GONE = {"boot": "boot", "is_running": lambda claim: False}


@pytest.fixture(scope="module")
def crashed() -> Iterator[str]:
    with scratch() as folder:
        yield left_behind(folder, memory_program())


@pytest.mark.parametrize("kind", list(PROGRAMS))
def test_a_whole_checkpoint_has_no_damage_whatever_its_state_is_made_of(tmp_path: Path, kind: str) -> None:
    program = PROGRAMS[kind]()
    checkpoint = left_behind(tmp_path, program)
    report = verify(fast_disk(), checkpoint)
    assert [one for one in report.findings if one.level == DAMAGE] == []
    operators = [stage for stage in program.stages.values() if stage.kind == "operator"]
    assert report.shards == sum(stage.shards for stage in operators)
    assert report.rows and report.frames > 20 and report.bytes


def test_a_look_shows_what_the_driver_knew(crashed: str) -> None:
    seen = look(fast_disk(), crashed)
    stages = {stage.name: stage for stage in view_stages(seen)}
    assert list(stages) == ["source", "fold", "gather", "sink"]
    fold = stages["fold"]
    assert (fold.keys, fold.shards, fold.kind) == (["k"], 8, "operator")
    assert fold.state is not None and fold.state.written_shards > 0 and fold.state.deltas
    assert stages["source"].offset == stages["source"].rows_out
    (waiting,) = fold.inputs
    assert waiting.waiting_rows == stages["source"].rows_out - fold.rows_in > 0
    assert sum(shards for shards, _ in waiting.positions) == 8


def test_nothing_is_written_by_looking(crashed: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(crashed).rglob("*")}
    verify(fast_disk(), crashed)
    view_stages(look(fast_disk(), crashed))
    plan_repair(fast_disk(), crashed, 0.0, **GONE)  # type: ignore[arg-type]
    summarise(fast_disk(), crashed, 0.0)
    assert {path: path.stat().st_mtime_ns for path in Path(crashed).rglob("*")} == before


def test_checkpoints_are_found_below_a_folder_and_their_holders_named(tmp_path: Path) -> None:
    for name in ("a", "deep/b"):
        open_checkpoint(fast_disk(), str(tmp_path / name), memory_program(), who=ME)
    (tmp_path / "file").write_text("x")
    found = find_checkpoints(fast_disk(), str(tmp_path))
    assert [Path(one).name for one in found] == ["a", "b"]
    assert find_checkpoints(fast_disk(), found[0]) == [found[0]]
    summary = summarise(fast_disk(), found[0], 0.0)
    assert summary.stages == {"source": 0, "fold": 0, "gather": 0, "sink": 0} and summary.problem is None
    alive = read_holder(fast_disk(), found[0], 0.0, boot="boot", is_running=lambda claim: True)
    assert alive.alive and "generation 1" in str(alive) and "alive" in str(alive)


def test_the_state_of_one_key_reads_as_its_function_left_it(tmp_path: Path) -> None:
    checkpoint = left_behind(tmp_path, local_program())
    seen = look(fast_disk(), checkpoint)
    chain = seen.chains["fold"]
    row = int(chain.rows_in) - 1
    key = key_of(row)
    found = read_key(
        fast_disk(), checkpoint, [chain], seen.meta.stages["fold"], input_schema(chain), [str(key)]
    )
    assert found.key == {"k": key}
    count = found.states["count"]
    assert isinstance(count, int) and count > 0
    nobody = read_key(
        fast_disk(), checkpoint, [chain], seen.meta.stages["fold"], input_schema(chain), ["9999"]
    )
    assert nobody.states == {"count": None, "mark": None}
    gather = seen.chains["gather"]
    kept = read_key(
        fast_disk(), checkpoint, [gather], seen.meta.stages["gather"], input_schema(gather), [str(key % 11)]
    )
    assert isinstance(kept.states["seen"], dict) and isinstance(kept.states["notes"], list)
    with pytest.raises(CheckpointError, match="keyed by k; give --key once for each"):
        read_key(fast_disk(), checkpoint, [chain], seen.meta.stages["fold"], input_schema(chain), ["1", "2"])
    with pytest.raises(CheckpointError, match="no key of operator 'fold'"):
        read_key(fast_disk(), checkpoint, [chain], seen.meta.stages["fold"], input_schema(chain), ["one"])


# -- damage -------------------------------------------------------------------------------------------------------


def needed_frames(checkpoint: str) -> dict[str, list[tuple[str, int, int]]]:
    """Frames that a restart needs, by kind: file, offset, size."""
    seen = look(fast_disk(), checkpoint)
    found: dict[str, list[tuple[str, int, int]]] = {"segment": [], "delta": [], "snapshot": []}
    for chain in seen.chains.by_name.values():
        found["delta"] += [_at(frame.extent) for frame in chain.deltas]
        found["snapshot"] += [_at(s.extent) for s in chain.snapshots.values() if s.extent is not None]
        queues = [item for queue in chain.out.values() for item in queue]
        found["segment"] += [_at(segment.extent) for item in queues for segment in item.published.segments]
    assert seen.tail.part is not None
    log = f"log/{Path(paths.log('', seen.tail.part)).name}"
    frames = list(scan_frames(Path(checkpoint, log).read_bytes(), log))
    found["base"] = [(log, 0, frame_size(frames[0].payload.size))]
    found["record"] = [(log, f.offset, frame_size(f.payload.size)) for f in frames[1:]]
    claim = f"drivers/g{seen.tail.part.generation:06d}.claim"
    for name, path in (("meta", "meta"), ("newest", "log/newest"), ("claim", claim)):
        found[name] = [(path, 0, Path(checkpoint, path).stat().st_size)]
    return found


def _at(extent: object) -> tuple[str, int, int]:
    return f"data/{extent.file}", extent.offset, extent.length  # type: ignore[attr-defined]


KINDS = ("segment", "delta", "snapshot", "base", "record", "meta", "newest", "claim")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_byte_in_every_kind_of_file_is_found_and_the_file_named(
    crashed: str, tmp_path: Path, kind: str
) -> None:
    frames = needed_frames(crashed)[kind]
    assert frames, f"the run left no {kind}"
    rng = random.Random(kind)
    for number in range(6):
        name, offset, size = rng.choice(frames)
        copy = tmp_path / str(number)
        shutil.copytree(crashed, copy)
        data = bytearray((copy / name).read_bytes())
        data[offset + rng.randrange(size)] ^= 1 << rng.randrange(8)
        (copy / name).write_bytes(bytes(data))
        found = [one for one in verify(fast_disk(), str(copy)).findings if one.level == DAMAGE]
        assert name in {one.file for one in found}, found
        assert all(one.message.count("\n") == 0 for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_gone_is_named(crashed: str, tmp_path: Path, kind: str) -> None:
    name = needed_frames(crashed)[kind][0][0]
    copy = tmp_path / "cp"
    shutil.copytree(crashed, copy)
    (copy / name).unlink()
    level = NOTE if kind == "newest" else DAMAGE
    assert name in {one.file for one in verify(fast_disk(), str(copy)).findings if one.level == level}


@pytest.mark.parametrize("kind", ["memory", "aggregates"])
def test_state_that_does_not_give_its_digest_is_found_though_every_frame_is_whole(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = left_behind(tmp_path, PROGRAMS[kind]())
    load = Chains.load

    def other(self: Chains, *given: object) -> object:
        left = load(self, *given)  # type: ignore[arg-type]
        self["gather"].digests[0] = self["gather"].digests[0] + np.uint64(1)
        return left

    monkeypatch.setattr(Chains, "load", other)
    (found,) = [one for one in verify(fast_disk(), checkpoint).findings if one.level == DAMAGE]
    assert "operator 'gather', shard 0" in found.message and ".snp" in found.message + ".snp"


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no Penstock checkpoint"):
        verify(fast_disk(), str(tmp_path))
    with pytest.raises(CheckpointError, match="is no Penstock checkpoint"):
        look(fast_disk(), str(tmp_path))


def test_the_schedule_of_a_retained_run_can_be_checked_without_its_program(tmp_path: Path) -> None:
    checkpoint = left_behind(tmp_path, real_program(), kept=True)
    seen = look(fast_disk(), checkpoint)
    line = read_line(checkpoint, fast_disk())
    assert find_schedule_faults(line, skeleton(seen.meta)) == []


# -- repair -------------------------------------------------------------------------------------------------------


def torn(checkpoint: str, cut: int) -> str:
    part = max(p for p in map(paths.parse_log, fast_disk().list(paths.logs(checkpoint))) if p is not None)
    path = Path(paths.log(checkpoint, part))
    path.write_bytes(path.read_bytes()[:-cut])
    return str(path)


def test_repair_plans_first_and_then_mends_what_it_can(crashed: str, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "cp")
    shutil.copytree(crashed, checkpoint)
    log = torn(checkpoint, 5)
    Path(checkpoint, "data", "g000001-left-000001.seg").write_bytes(b"x" * 100)
    Path(checkpoint, "data", "g000001-left-000002.seg.1-2.tmp").write_bytes(b"x")
    Path(checkpoint, "notes.txt").write_text("of the user")
    plan = plan_repair(fast_disk(), checkpoint, 0.0, **GONE)  # type: ignore[arg-type]
    done = {(action.what, Path(action.path).name) for action in plan.actions}
    assert {
        (What.CUT, Path(log).name),
        (What.DELETE, "g000001-left-000001.seg"),
        (What.DELETE, "g000001-left-000002.seg.1-2.tmp"),
        (What.RELEASE, "heartbeat"),
    } <= done
    assert plan.beyond == [] and "notes.txt" not in {name for _, name in done}
    before = recordlog.read_tail(fast_disk(), checkpoint).records
    claim = apply_repair(fast_disk(), plan, 1.0, ME)
    assert recordlog.read_tail(fast_disk(), checkpoint).records == before
    assert claim.generation == recordlog.newest_generation(fast_disk(), checkpoint)
    again = plan_repair(fast_disk(), checkpoint, 2.0, **GONE)  # type: ignore[arg-type]
    assert again.actions == [] and again.beyond == []
    assert [one.level for one in verify(fast_disk(), checkpoint).findings] == [NOTE]  # the user's notes
    driver = Driver(fast_disk(), checkpoint, memory_program(), SMALL, 5, str(tmp_path / "node"), rows=600)
    assert driver.run_until("drained"), driver.failed
    driver.stop()


def test_repair_refuses_while_the_holder_is_alive(crashed: str) -> None:
    with pytest.raises(CheckpointError, match=r"is held by driver generation 1 .*; stop that query"):
        plan_repair(fast_disk(), crashed, 0.0, boot="boot", is_running=lambda claim: True)


def test_an_older_driver_that_still_runs_is_fenced_by_a_repair(crashed: str, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "cp")
    shutil.copytree(crashed, checkpoint)
    opened = open_checkpoint(fast_disk(), checkpoint, memory_program(), who=ME, takeover=True)
    apply_repair(fast_disk(), plan_repair(fast_disk(), checkpoint, 0.0, **GONE), 1.0, ME)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="was taken over"):
        recordlog.check_claim(fast_disk(), checkpoint, opened.claim)


def test_a_driver_that_started_since_the_plan_was_made_is_not_fenced_by_the_repair(
    crashed: str, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "cp")
    shutil.copytree(crashed, checkpoint)
    plan = plan_repair(fast_disk(), checkpoint, 0.0, **GONE)  # type: ignore[arg-type]
    opened = open_checkpoint(fast_disk(), checkpoint, memory_program(), who=ME, takeover=True)
    with pytest.raises(
        CheckpointError, match=r"claimed by driver generation \d .*since it was looked at; stop"
    ):
        apply_repair(fast_disk(), plan, 1.0, ME)
    recordlog.check_claim(fast_disk(), checkpoint, opened.claim)


def test_a_damaged_heartbeat_is_mended_and_damage_is_not(crashed: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "cp"
    shutil.copytree(crashed, checkpoint)
    (checkpoint / "drivers" / "heartbeat").write_bytes(b"nonsense")
    name = needed_frames(crashed)["segment"][0][0]
    (checkpoint / name).write_bytes(b"nonsense")
    plan = plan_repair(fast_disk(), str(checkpoint), 0.0, **GONE)  # type: ignore[arg-type]
    assert [action.what for action in plan.actions] == [What.RELEASE]
    assert name in {finding.file for finding in plan.beyond}
    apply_repair(fast_disk(), plan, 7.0, ME)
    beat = recordlog.read_heartbeat(fast_disk(), str(checkpoint))
    assert isinstance(beat, Heartbeat) and beat.released and beat.time == 7.0


@pytest.mark.parametrize("lost", [["newest"], ["newest", "part"], ["newest", "all"]])
def test_no_data_file_is_an_orphan_when_the_newest_records_may_be_lost(
    crashed: str, tmp_path: Path, lost: list[str]
) -> None:
    checkpoint = tmp_path / "cp"
    shutil.copytree(crashed, checkpoint)
    logs = sorted((checkpoint / "log").glob("*.log"))
    gone = [checkpoint / "log" / "newest"] + (logs[-1:] if "part" in lost else logs if "all" in lost else [])
    for path in gone:
        path.unlink()
    plan = plan_repair(fast_disk(), str(checkpoint), 0.0, **GONE)  # type: ignore[arg-type]
    assert not [action for action in plan.actions if action.path.endswith((".seg", ".snp"))]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_plan_never_takes_away_what_a_record_names(crashed: str, data: st.DataObject) -> None:
    with scratch() as folder:
        checkpoint = str(folder / "cp")
        shutil.copytree(crashed, checkpoint)
        files = sorted(path for path in Path(checkpoint).rglob("*") if path.is_file())
        for path in data.draw(st.lists(st.sampled_from(files), max_size=3, unique=True)):
            # A log that is cut at an append is an earlier state, which names less.
            ways = ["flip", "delete", "empty"] + (["cut"] if path.suffix != ".log" else [])
            how = data.draw(st.sampled_from(ways))
            bytes_ = path.read_bytes()
            at = data.draw(st.integers(0, max(0, len(bytes_) - 1)))
            if how == "delete":
                path.unlink()
            elif how == "flip" and bytes_:
                path.write_bytes(bytes_[:at] + bytes([bytes_[at] ^ 1]) + bytes_[at + 1 :])
            else:
                path.write_bytes(b"" if how == "empty" else bytes_[:at])
        for number in range(data.draw(st.integers(0, 3))):
            Path(checkpoint, "data", f"g000001-extra-{number:06d}.seg").write_bytes(b"x")
        needed = named_files_of(crashed)
        try:
            plan = plan_repair(fast_disk(), checkpoint, 0.0, **GONE)  # type: ignore[arg-type]
        except CheckpointError:
            return
        deleted = {Path(action.path).name for action in plan.actions if action.what is What.DELETE}
        assert not deleted & needed
        assert not {
            name for name in deleted if name.endswith((".log", ".claim")) or name in ("meta", "newest")
        }


def test_what_keeps_a_plan_of_a_batch_is_named_by_records_and_bases() -> None:
    def planned(name: str) -> Batch:
        return Batch("q", 0, BatchPlan([PlannedFile("metadata", 0, 0, Extent(name, 0, 24, 0))]))

    record = Record("src", 2, "epoch", 1, NO_HASH, 0, batch=planned("in-a-record"))
    base = Base(2, "q", 1, 1, b"", 0, [ChainBase("src", 1, NO_HASH, [], [], batch=planned("in-a-base"))])
    assert named_files([LogTail(base, [(record, b"")], paths.LogPart(1, 1))]) == {"in-a-record", "in-a-base"}


def named_files_of(checkpoint: str) -> set[str]:
    parts = sorted(p for p in map(paths.parse_log, fast_disk().list(paths.logs(checkpoint))) if p is not None)
    return named_files([recordlog.read_part(fast_disk(), checkpoint, part) for part in parts])
