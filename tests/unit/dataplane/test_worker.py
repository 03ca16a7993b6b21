"""The work inside a lease: every message has its answer, every failure its kind, nothing is applied too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.faults.runs import fast_disk, real_program, scratch
from tests.faults.station import Station

from penstock.dataplane import messages, paths, records
from penstock.dataplane.program import Program
from penstock.sim.programs import make_rows


@pytest.fixture
def station() -> Iterator[Station]:
    with scratch() as folder:
        made = Station(real_program(), fast_disk(), str(folder / "cp"), str(folder / "node"))
        made.worker.handle(made.bring())
        yield made
        made.worker.close()


def with_source(program: Program, generate: Callable[[int, int], pa.RecordBatch]) -> Program:
    import dataclasses

    stages = dict(program.stages)
    stages["source"] = dataclasses.replace(stages["source"], generate=generate)
    return dataclasses.replace(program, stages=stages)


def failed(answer: object) -> messages.Failed:
    assert isinstance(answer, messages.Failed), answer
    return answer


def test_an_epoch_reports_rows_segments_delta_and_digests(station: Station) -> None:
    station.feed(50)
    part = station.step()
    assert part.rows_in == part.rows_out == 50
    assert part.delta is not None and len(part.digests) == 16 * len(records.unpack_u16(part.changed))
    assert [segment.edge for segment in part.segments] == [1]


def test_the_same_ranges_give_the_same_bytes_in_another_lease(station: Station) -> None:
    station.feed(80)
    work = station.work()
    other = station.hire("other")
    other.handle(station.bring())
    first, second = station.done(station.worker, work), station.done(other, work)
    other.close()
    assert (first.changed, first.digests, first.delta_bytes) == (
        second.changed,
        second.digests,
        second.delta_bytes,
    )
    assert first.delta is not None and second.delta is not None and first.delta.crc == second.delta.crc
    assert [s.extent.crc for s in first.segments] == [s.extent.crc for s in second.segments]


def test_an_epoch_without_rows_changes_nothing(station: Station) -> None:
    part = station.step()
    assert (part.rows_in, part.rows_out, part.segments, part.delta) == (0, 0, [], None)


def test_an_epoch_that_never_got_its_record_ends_the_lease(station: Station) -> None:
    station.feed(20)
    station.done(station.worker, station.work())
    again = failed(station.worker.handle(station.work()))
    assert again.kind == "internal" and "was staged but never got its record" in again.message


def test_a_commit_alone_has_no_answer_and_applies_the_epoch(station: Station) -> None:
    station.feed(20)
    station.step()
    assert station.worker.handle(messages.Commit("fold", 0, 1)) is None
    station.feed(20)
    assert station.step().rows_in == 20


def test_snapshots_are_of_the_last_committed_epoch(station: Station) -> None:
    station.feed(40)
    station.step()
    versions = station.chain.versions.copy()
    station.feed(40)
    part = station.step(snapshots=[0, 1, 4])
    assert [(s.shard, s.version) for s in part.snapshots] == [(at, versions[at]) for at in (0, 1, 4)]
    for snapshot in part.snapshots:
        assert (snapshot.extent is None) == (snapshot.version == 0), "an empty shard needs no bytes"


def test_a_function_that_raises_is_the_users_failure(station: Station) -> None:
    def broken(start: int, count: int) -> pa.RecordBatch:
        raise ValueError("no rows today")

    worker = station.hire("other", with_source(station.program, broken))
    answer = failed(worker.handle(messages.Work("source", 0, 1, 0, 1, offsets=(0, 5))))
    assert (
        answer.kind == "user"
        and "source 'source' failed for rows 0 to 5: ValueError: no rows today" in answer.message
    )


@pytest.mark.parametrize("wrong", ["count", "schema"])
def test_a_source_that_makes_other_rows_than_asked_for_is_the_users_failure(
    station: Station, wrong: str
) -> None:
    def broken(start: int, count: int) -> pa.RecordBatch:
        return make_rows(start, count + 1) if wrong == "count" else pa.record_batch({"x": [1] * count})

    worker = station.hire("other", with_source(station.program, broken))
    answer = failed(worker.handle(messages.Work("source", 0, 1, 0, 1, offsets=(0, 5))))
    assert answer.kind == "user" and "'source'" in answer.message


def test_damage_to_the_checkpoint_names_the_file(station: Station) -> None:
    station.feed(20)
    path = Path(paths.data_file(station.checkpoint, "g000001-l1-000001.seg"))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    answer = failed(station.worker.handle(station.work()))
    assert answer.kind == "corrupt" and path.name in answer.message


def test_a_full_disk_is_a_storage_failure(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    station.feed(20)

    def full(file: int, parts: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(station.disk._calls, "write", full)  # type: ignore[attr-defined]
    answer = failed(station.worker.handle(station.work()))
    assert answer.kind == "storage" and "disk is full" in answer.message


def test_released_shards_name_their_environments(station: Station) -> None:
    station.feed(20)
    station.step()
    local = station.release()
    assert sorted(local) == list(range(station.chain.spec.shards))
    assert all(Path(station.node_dir, name, "data.mdb").exists() for name in local.values())


def test_messages_travel_unchanged(station: Station) -> None:
    station.feed(10)
    for message in (station.work(), station.bring(), messages.Commit("fold", 0, 3), messages.End("why")):
        assert messages.decode_to_lease(messages.encode(message)) == message
    answer = station.worker.handle(station.work())
    assert answer is not None
    assert messages.decode_from_lease(messages.encode(answer)) == answer
    with pytest.raises(msgspec.MsgspecError):
        messages.decode_to_lease(messages.encode(answer))


def test_a_pause_writes_behind_until_nothing_is_left(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call writes a part only, so that a message never waits for more; the lease calls as long as some is left."""
    monkeypatch.setattr("penstock.dataplane.worker.FLUSH_IDLE_S", -1.0)  # a flush has time for nothing
    station.feed(50)
    station.step()
    station.worker.handle(messages.Commit("fold", 0, 1))
    assert station.worker.is_behind() and station.worker.idle() is None and station.worker.is_behind()
    monkeypatch.setattr("penstock.dataplane.worker.FLUSH_IDLE_S", 1.0)
    assert station.worker.idle() is None and not station.worker.is_behind()
