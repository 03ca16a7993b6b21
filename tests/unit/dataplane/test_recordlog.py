"""The log: claims, fencing, parts that begin with a base, and what start-up makes of what it finds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.dataplane import paths, recordlog, records
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.paths import LogPart
from penstock.dataplane.recordlog import Claim, Heartbeat, LogWriter, RecordBatch, frame_bytes
from penstock.dataplane.records import Base, ChainBase, Record
from penstock.errors import CheckpointError, CorruptFileError, FencedError

ME = Claim(0, "host", 1, "boot", 1.0, 100.0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    disk = PosixDisk()
    for folder in ("drivers", "log", "data"):
        disk.make_dirs(str(tmp_path / folder))
    return str(tmp_path)


def base(claim: Claim, part: int = 1, **more: object) -> Base:
    made = Base(
        paths.FORMAT_VERSION,
        "q",
        claim.generation,
        part,
        b"id",
        0,
        [ChainBase("a", 0, records.NO_HASH, [], [])],
    )
    return msgspec.structs.replace(made, **more)


def chain_of(count: int, generation: int, previous: bytes = records.NO_HASH) -> list[bytes]:
    encoded = []
    for epoch in range(1, count + 1):
        encoded.append(records.encode(Record("a", epoch, "epoch", generation, previous, epoch)))
        previous = records.hash_of(encoded[-1])
    return encoded


def started(checkpoint: str) -> tuple[LogWriter, Claim]:
    disk = PosixDisk()
    claim = recordlog.claim_generation(disk, checkpoint, ME)
    writer = LogWriter(disk, checkpoint, claim)
    writer.start_part(base(claim))
    return writer, claim


def test_claims_are_given_once_and_in_order(checkpoint: str) -> None:
    disk = PosixDisk()
    claims = [recordlog.claim_generation(disk, checkpoint, ME) for _ in range(3)]
    assert [claim.generation for claim in claims] == [1, 2, 3]
    assert recordlog.newest_generation(disk, checkpoint) == 3
    assert recordlog.read_claim(disk, checkpoint, 2) == claims[1]
    assert recordlog.read_claim(disk, checkpoint, 9) is None


def test_appended_records_are_read_back_with_their_bytes(checkpoint: str) -> None:
    writer, _ = started(checkpoint)
    encoded = chain_of(5, 1)
    writer.append(encoded[:2])
    writer.append(encoded[2:])
    tail = recordlog.read_tail(PosixDisk(), checkpoint)
    assert [raw for _, raw in tail.records] == encoded
    assert [record.epoch for record, _ in tail.records] == [1, 2, 3, 4, 5]
    assert tail.part == LogPart(1, 1)


def test_a_checkpoint_without_a_log_has_no_tail(checkpoint: str) -> None:
    assert recordlog.read_tail(PosixDisk(), checkpoint).base is None


def test_start_up_reads_the_newest_part_only(checkpoint: str) -> None:
    writer, claim = started(checkpoint)
    first, second = chain_of(2, 1)
    writer.append([first])
    head = [ChainBase("a", 1, records.hash_of(first), [], [])]
    writer.start_part(base(claim, 2, chains=head))
    writer.append([second])
    tail = recordlog.read_tail(PosixDisk(), checkpoint)
    assert [raw for _, raw in tail.records] == [second]


def test_a_driver_that_lost_the_checkpoint_cannot_append_and_names_the_winner(checkpoint: str) -> None:
    writer, _ = started(checkpoint)
    winner = msgspec.structs.replace(ME, pid=4711)
    recordlog.claim_generation(PosixDisk(), checkpoint, winner)
    with pytest.raises(FencedError, match=r"generation 2 .process 4711 on host"):
        writer.append(chain_of(1, 1))
    with pytest.raises(FencedError):
        writer.start_part(base(msgspec.structs.replace(ME, generation=1), 2))
    assert recordlog.read_tail(PosixDisk(), checkpoint).records == []


def test_a_driver_that_is_overtaken_during_an_append_is_told_before_it_can_publish(checkpoint: str) -> None:
    class Overtaken(PosixDisk):
        def size(self, path: str) -> int | None:
            if path.endswith(".claim") and not self.asked:
                self.asked = True
                found = super().size(path)
                recordlog.claim_generation(PosixDisk(), checkpoint, ME)
                return found
            return super().size(path)

    writer, _ = started(checkpoint)
    disk = Overtaken()
    disk.asked = False
    writer._disk = disk
    with pytest.raises(FencedError):
        writer.append(chain_of(1, 1))


def test_a_part_that_exists_already_is_never_written_over(checkpoint: str) -> None:
    writer, claim = started(checkpoint)
    writer.append(chain_of(1, 1))
    with pytest.raises(CheckpointError, match=r"g000001-p000001.log exists"):
        LogWriter(PosixDisk(), checkpoint, claim).start_part(base(claim))
    assert len(recordlog.read_tail(PosixDisk(), checkpoint).records) == 1


def damaged(checkpoint: str, data: bytes) -> str:
    path = Path(paths.log(checkpoint, LogPart(1, 1)))
    path.write_bytes(data)
    return path.name


def record_frame(*encoded: bytes) -> bytes:
    return frame_bytes(FrameKind.RECORD, msgspec.msgpack.encode(RecordBatch(list(encoded))))


def test_an_append_that_was_cut_off_is_left_out(checkpoint: str) -> None:
    encoded = chain_of(3, 1)
    whole = frame_bytes(FrameKind.BASE, records.encode(base(msgspec.structs.replace(ME, generation=1))))
    damaged(checkpoint, whole + record_frame(encoded[0]) + record_frame(*encoded[1:])[:-9])
    assert [raw for _, raw in recordlog.read_tail(PosixDisk(), checkpoint).records] == encoded[:1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("no base", "does not begin with a base"),
        ("two bases", "BASE frame"),
        ("not linked", "does not follow its predecessor"),
        ("left out", "does not follow its predecessor"),
        ("other generation", "does not follow its predecessor"),
        ("no record", "holds no record"),
        ("other part", "swapped"),
    ],
)
def test_a_log_put_together_from_others_is_refused_by_name(checkpoint: str, wrong: str, words: str) -> None:
    one = msgspec.structs.replace(ME, generation=1)
    first = frame_bytes(FrameKind.BASE, records.encode(base(one, 7 if wrong == "other part" else 1)))
    encoded = chain_of(3, 2 if wrong == "other generation" else 1)
    tail = {
        "no base": b"",
        "two bases": first,
        "not linked": record_frame(records.encode(Record("a", 1, "epoch", 1, b"x" * 16, 1))),
        "left out": record_frame(encoded[0], encoded[2]),
        "no record": frame_bytes(FrameKind.RECORD, b"\xc1"),
    }.get(wrong, record_frame(*encoded))
    name = damaged(checkpoint, record_frame(*encoded) if wrong == "no base" else first + tail)
    with pytest.raises(CorruptFileError, match=words) as refused:
        recordlog.read_tail(PosixDisk(), checkpoint)
    assert name in str(refused.value)


def test_a_newer_format_is_refused_by_name(checkpoint: str) -> None:
    one = msgspec.structs.replace(ME, generation=1)
    damaged(checkpoint, frame_bytes(FrameKind.BASE, records.encode(base(one, format=99))))
    with pytest.raises(CheckpointError, match=r"format 99"):
        recordlog.read_tail(PosixDisk(), checkpoint)


def test_a_log_part_that_is_gone_is_missed(checkpoint: str) -> None:
    writer, claim = started(checkpoint)
    writer.start_part(base(claim, 2))
    Path(paths.log(checkpoint, LogPart(1, 2))).unlink()
    with pytest.raises(CorruptFileError, match=r"g000001-p000002.log is gone"):
        recordlog.read_tail(PosixDisk(), checkpoint)
    Path(paths.log(checkpoint, LogPart(1, 1))).unlink()
    with pytest.raises(CorruptFileError, match=r"g000001-p000002.log is gone"):
        recordlog.read_tail(PosixDisk(), checkpoint)


def test_a_note_of_the_newest_part_that_lags_behind_is_no_fault(checkpoint: str) -> None:
    writer, claim = started(checkpoint)
    note = Path(paths.newest_log(checkpoint)).read_bytes()
    writer.start_part(base(claim, 2))
    Path(paths.newest_log(checkpoint)).write_bytes(note)
    assert recordlog.read_tail(PosixDisk(), checkpoint).part == LogPart(1, 2)


def test_clean_up_drops_older_parts_and_torn_names_of_older_drivers_only() -> None:
    names = [
        "g000001-p000009.log", "g000002-p000001.log", "g000002-p000002.log", "g000003-p000001.log", "notes.txt", "newest",
        "g000001-p000010.log.1-a-0.tmp", "g000002-p000003.log.1-b-0.tmp", "newest.1-b-1.tmp",
    ]  # fmt: skip
    assert recordlog.plan_log_cleanup(names, LogPart(2, 2), 2) == [
        "g000001-p000009.log", "g000001-p000010.log.1-a-0.tmp", "g000002-p000001.log", "newest.1-b-1.tmp",
    ]  # fmt: skip


def test_a_heartbeat_that_cannot_be_read_holds_nothing(checkpoint: str) -> None:
    disk = PosixDisk()
    recordlog.write_heartbeat(disk, checkpoint, Heartbeat(ME, 5.0))
    assert recordlog.read_heartbeat(disk, checkpoint) == Heartbeat(ME, 5.0)
    path = Path(paths.heartbeat(checkpoint))
    path.write_bytes(path.read_bytes()[:-3])
    assert recordlog.read_heartbeat(disk, checkpoint) is None


def test_a_damaged_claim_is_refused_by_name(checkpoint: str) -> None:
    disk = PosixDisk()
    recordlog.claim_generation(disk, checkpoint, ME)
    Path(paths.claim(checkpoint, 1)).write_bytes(frame_bytes(FrameKind.CLAIM, b"{}"))
    with pytest.raises(CorruptFileError, match=r"g000001.claim"):
        recordlog.read_claim(disk, checkpoint, 1)


def test_a_temporary_name_is_cleaned_up_once_its_part_or_a_later_one_is_there() -> None:
    names = [f"g000002-p{part:06d}.log.p1-0.tmp" for part in (1, 2, 3)]
    dead = recordlog.plan_log_cleanup(names, paths.LogPart(2, 2), 2)
    assert dead == names[:2]
