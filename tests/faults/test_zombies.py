"""Leases that finish late or stand still inside their work: what was committed stays as it is."""

from __future__ import annotations

import pytest
from tests.faults import zombie_runs
from tests.faults.zombie_runs import zombie

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
