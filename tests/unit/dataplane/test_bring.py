"""`bring` makes committed state present, from whatever there is, and accepts nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.runs import fast_disk, real_program, scratch
from tests.faults.station import Station

import penstock
from penstock.dataplane import bring, messages, paths
from penstock.dataplane.bring import runs
from penstock.dataplane.channel import read_entries
from penstock.dataplane.compile import compile_program
from penstock.dataplane.state import local
from penstock.dataplane.worker import Worker
from penstock.sim.programs import make_rows, memory_program


@pytest.fixture(params=["real", "large", "memory"])
def station(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Station]:
    """Five committed epochs: shards 0 and 2 have a snapshot of the third, with deltas after it. Large environments are
    not read as a whole when they are handed over; here every one counts as large."""
    if request.param == "large":
        monkeypatch.setattr(local, "LARGE_BYTES", -1)
    with scratch() as folder:
        program = real_program() if request.param != "memory" else memory_program(tasks=(1, 1, 1))
        made = Station(program, fast_disk(), str(folder / "cp"), str(folder / "node"))
        made.worker.handle(made.bring())
        for epoch in range(1, 6):
            made.feed(12)
            made.step(snapshots=[0, 2] if epoch == 4 else [])
        yield made
        made.worker.close()


def brought(worker: Worker, message: messages.Bring) -> dict[int, messages.BroughtShard]:
    answer = worker.handle(message)
    assert isinstance(answer, messages.Brought), answer
    return {shard.shard: shard for shard in answer.shards}


def goes_on_alike(station: Station, worker: Worker) -> None:
    """The lease that brought its state commits what the one that never stopped commits."""
    station.feed(30)
    work = station.work()
    first, second = station.done(station.worker, work), station.done(worker, work)
    assert (first.changed, first.digests) == (second.changed, second.digests)


def test_snapshots_and_deltas_rebuild_the_committed_state(station: Station) -> None:
    other = station.hire("other")
    found = brought(other, station.bring())
    assert all(shard.ok for shard in found.values())
    assert {shard.how for shard in found.values()} <= {"changelog", "snapshot", "empty"}
    goes_on_alike(station, other)
    other.close()


def test_a_shard_that_was_never_written_needs_nothing(station: Station) -> None:
    fresh = Station(
        station.program, station.disk, station.checkpoint + "2", station.node_dir + "2", lease="fresh"
    )
    found = brought(fresh.worker, fresh.bring())
    assert {(shard.ok, shard.how) for shard in found.values()} == {(True, "empty")}
    fresh.worker.close()


def test_a_handed_over_environment_is_taken_as_it_is(station: Station) -> None:
    local = station.release()
    other = station.hire("other")
    found = brought(other, station.bring(local))
    assert {(shard.ok, shard.how) for shard in found.values()} == {(True, "local")}
    station.worker = station.hire("reference")
    brought(station.worker, station.bring())
    goes_on_alike(station, other)
    other.close()


def test_environments_some_epochs_behind_are_brought_forward_by_their_deltas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scratch() as folder:
        station = Station(real_program(), fast_disk(), str(folder / "cp"), str(folder / "node"))
        station.worker.handle(station.bring())
        station.feed(40)
        station.step()
        local, versions = station.release(), station.chain.versions.copy()
        station.worker.close()
        station.worker = station.hire("second")
        brought(station.worker, station.bring())
        for _ in range(3):
            station.feed(40)
            station.step()
        message = station.bring(local)
        old = [msgspec.structs.replace(s, local_version=int(versions[s.shard])) for s in message.shards]
        other = station.hire("third")
        read: list[Any] = []
        monkeypatch.setattr(bring, "read_entries", lambda *given: read.append(given) or read_entries(*given))
        found = brought(other, msgspec.structs.replace(message, shards=old))
        assert {(shard.ok, shard.how) for shard in found.values()} == {(True, "local")}
        assert len(found) > 1 and len(read) >= 3
        assert len({extent for _, _, extent, _ in read}) == len(read), (
            "each delta once, not once for each shard"
        )
        goes_on_alike(station, other)
        other.close()


@pytest.mark.parametrize("wrong", ["version", "absent", "later"])
def test_an_environment_that_is_not_what_was_handed_over_is_rebuilt(station: Station, wrong: str) -> None:
    released = station.release()
    message = station.bring(released)
    if wrong == "absent":
        message = station.bring({shard: f"{name}-gone" for shard, name in released.items()})
    else:
        change = {"version": -1, "later": 1}[wrong]
        shards = [msgspec.structs.replace(s, local_version=s.local_version + change) for s in message.shards]
        message = msgspec.structs.replace(message, shards=shards)
    other = station.hire("other")
    found = brought(other, message)
    assert all(shard.ok for shard in found.values())
    assert "local" not in {found[s].how for s in range(len(found)) if station.chain.versions[s] > 0}
    other.close()


@pytest.mark.parametrize("wrong", ["digest", "version", "lost delta"])
def test_state_that_does_not_give_the_committed_version_and_digest_is_not_accepted(
    station: Station, wrong: str
) -> None:
    message = station.bring()
    if wrong == "lost delta":
        message = msgspec.structs.replace(message, deltas=message.deltas[:-1])
    elif wrong == "digest":
        message = msgspec.structs.replace(
            message, shards=[msgspec.structs.replace(s, digest=b"x" * 16) for s in message.shards]
        )
    else:
        message = msgspec.structs.replace(
            message, shards=[msgspec.structs.replace(s, version=99) for s in message.shards]
        )
    other = station.hire("other")
    found = brought(other, message)
    assert not all(shard.ok for shard in found.values())
    other.close()


def test_a_damaged_snapshot_is_refused_by_name(station: Station) -> None:
    snapshot = station.chain.snapshot_of(0) or station.chain.snapshot_of(2)
    assert snapshot is not None and snapshot.extent is not None
    path = Path(paths.data_file(station.checkpoint, snapshot.extent.file))
    data = bytearray(path.read_bytes())
    data[snapshot.extent.offset + 50] ^= 1
    path.write_bytes(data)
    answer = station.hire("other").handle(station.bring())
    assert isinstance(answer, messages.Failed) and answer.kind == "corrupt" and path.name in answer.message


@given(st.lists(st.integers(0, 3), max_size=30))
def test_runs_tile_the_rows(shards: list[int]) -> None:
    found = list(runs(np.array(shards, np.uint16)))
    assert [shard for shard, _, count in found for _ in range(count)] == shards
    assert all(a[0] != b[0] for a, b in pairwise(found))


def test_a_shard_whose_keys_were_all_cleared_comes_back_empty_with_its_version(tmp_path: Path) -> None:
    def forget(key: Any, rows: Any, state: Any) -> list[tuple[int]]:
        if state.seen.exists():
            state.seen.clear()
        else:
            state.seen.update(len(rows))
        return [(key.k,)]

    source = penstock.generate(make_rows, schema="id long, k long", rate=1000, name="source")
    cleared = source.groupBy("k").apply_rows(
        forget, schema="k long", state={"seen": penstock.ValueState("long")}, name="fold", shards=4, cores=1
    )
    program = compile_program(cleared.node, tasks=1, memory_bytes=1 << 20)
    made = Station(program, fast_disk(), str(tmp_path / "cp"), str(tmp_path / "node"))
    made.worker.handle(made.bring())
    for _ in range(2):  # every key is stored by the first epoch and cleared by the second
        made.feed(400)
        made.step()
    made.feed(1)
    part = made.step(snapshots=range(4))
    emptied = [
        snapshot.shard for snapshot in part.snapshots if snapshot.extent is None and snapshot.version > 0
    ]
    assert len(emptied) >= 3, "most shards have no key left"
    other = made.hire("other")
    assert all(shard.ok for shard in brought(other, made.bring()).values())
    other.close()
    made.worker.close()
