"""Leases that finish late or stand still inside their work: what was committed stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults import zombie_runs
from tests.faults.runs import fast_disk, real_program
from tests.faults.station import Station
from tests.faults.zombie_runs import zombie

from penstock.dataplane import messages
from penstock.sim.lease import Gate


@pytest.mark.parametrize("seed", range(9))
def test_a_zombie_changes_no_committed_byte(seed: int) -> None:
    assert zombie(seed) is None


def test_leases_really_stand_still_inside_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    class Watched(Gate):
        def begin(self, worker, message) -> None:  # type: ignore[no-untyped-def]
            super().begin(worker, message)
            stopped.append(self.holds)

    monkeypatch.setattr(zombie_runs, "Gate", Watched)
    assert [zombie(seed) for seed in (0, 3, 6)] == [None] * 3
    assert any(stopped)


def test_a_lease_that_gets_shards_back_leaves_alone_what_a_lost_one_took_over(tmp_path: Path) -> None:
    station = Station(real_program(), fast_disk(), str(tmp_path / "cp"), str(tmp_path / "node"))
    station.worker.handle(station.bring())
    station.feed(60)
    station.step()
    local = station.release()
    lost = station.hire("l2")
    assert isinstance(lost.handle(station.bring(local)), messages.Brought)
    answer = station.worker.handle(station.bring())
    assert isinstance(answer, messages.Brought), answer
    assert all(shard.ok for shard in answer.shards)
    assert not set(station.release().values()) & set(local.values())
    lost.close()
    station.worker.close()
